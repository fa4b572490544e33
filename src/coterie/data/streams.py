"""Reads clients' samples in groups while others train, where all of them together would not fit on the device.

The arrays stay on the host, most often in files that are mapped into memory (`data/mapped.py`). A program asks for one
group after another, and says which one it will want next: a thread reads that one ahead. No JAX here.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from coterie.data.buckets import Part, Split
from coterie.errors import CoterieError

__all__ = ["Reader", "bytes_per_client"]

BUFFERS = 3  # groups of samples in memory at a time: the one in use, its copy on the device, the next one


def bytes_per_client(part: Part) -> int:
    """Return the bytes of one client's samples and targets, padding included."""
    return max(sum(a.nbytes for a in (stack.x, stack.y)) // max(1, len(stack.count)) for stack, _ in part.stacks)


class Reader:
    """Reads rows of one part of the data, the next ones ahead of time.

    Args:
        part: the part; one stack.
        group: clients that are read at a time.
        ahead: whether the next group is read while the last one is used.
    """

    def __init__(self, part: Split, group: int, ahead: bool = True):
        if not isinstance(part, Split):
            raise CoterieError(
                "run.memory: clients of so different sizes cannot be read in groups; lower partition.samples, or leave "
                "out run.memory"
            )
        self.part, self.group, self.ahead = part, max(1, min(group, len(part.count))), ahead
        self._lock = threading.Lock()
        self._next: tuple[bytes, Future[Any]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coterie-reader")

    def fetch(self, rows: Any, upcoming: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some clients, and begin to read those of the upcoming ones."""
        rows, upcoming = np.asarray(rows), np.asarray(upcoming)
        with self._lock:
            known, self._next = self._next, None
        found = known[1].result() if known is not None and known[0] == rows.tobytes() else self._read(rows)
        if self.ahead and not np.array_equal(rows, upcoming):
            with self._lock:
                self._next = (upcoming.tobytes(), self._thread.submit(self._read, upcoming))
        return found

    def drop(self) -> None:
        """Forget what was read ahead."""
        with self._lock:
            self._next = None

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copy the rows out of the arrays; where they follow each other, as one piece."""
        in_a_row = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        which: Any = slice(int(rows[0]), int(rows[-1]) + 1) if in_a_row else rows
        x, y = (np.array(a[which]) for a in (self.part.x, self.part.y))
        return x, y
