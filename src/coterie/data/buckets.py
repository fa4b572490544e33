"""How clients' samples lie in memory: one stack padded to the largest client, or a few stacks of clients of like size.

A `Split` is one stack. Where one client is far larger than the others, a stack would be mostly padding: clients are
then grouped into `Buckets` by size, each with a stack of its own, so that memory grows with the data. Ordinary
federations are one stack; which of the two it is follows from the clients' sizes alone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from coterie.errors import CoterieError
from coterie.storage.memory import available, in_words

__all__ = [
    "CHARACTER",
    "ROWS",
    "TEXTS",
    "Buckets",
    "Part",
    "Split",
    "divided",
    "gathered",
    "group_by_size",
    "padded_bytes",
    "refuse_too_large",
]

# Rows that a bucket has at least, if its largest client or that of another bucket has them. Minibatches of up to so
# many samples, and the batches of an evaluation, then have one size for all clients, whatever the buckets are: sums
# over longer rows of zeros may be rounded differently.
ROWS = 64
TEXTS = 8  # the same for texts, whose padding is dear
CHARACTER = 32  # times its bytes that a character of a text counts: a step of a recurrent network for each of them
FREE = 32 << 20  # bytes of padding that are not worth a second bucket, which takes time to compile
MOST = 8  # buckets
ONE_ARRAY = "array x or y; use rows(i), which returns those of client i"
GRADES = 4  # per doubling of the size: clients of one grade are never separated


class Split(NamedTuple):
    """One part of every client's data: `x [K, n, ...]`, `y [K, n, ...]`, `count [K]`.

    A client's samples are the first `count` rows of its slice; the rows after them are padding, which no loss or metric
    may use.
    """

    x: Any
    y: Any
    count: Any

    @property
    def stacks(self) -> "tuple[tuple[Split, np.ndarray], ...]":
        """The stacks with the numbers of their clients: this one, with all."""
        return ((self, np.arange(len(self.count))),)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays, as a fingerprint reads them."""
        return tuple(self)

    def rows(self, client: int) -> tuple[Any, Any]:
        """Return one client's samples and targets, without padding."""
        return self.x[client][: self.count[client]], self.y[client][: self.count[client]]

    def client(self, client: int) -> "Split":
        """Return one client's part of the stack, with its padding: `x [n, ...]`, `y [n, ...]`, `count []`."""
        return Split(*(a[client] for a in self))

    def select(self, clients: np.ndarray) -> "Split":
        """Return the part of some of the clients, in the given order."""
        return Split(*(np.asarray(a)[clients] for a in self))

    def only(self, clients: slice) -> "Split":
        """Return the part with zeros in place of the other clients' samples; arrays of a file stay as they are."""

        def some(a: np.ndarray) -> np.ndarray:
            if isinstance(a, np.memmap):
                return a
            zeros = np.zeros(a.shape, a.dtype)
            zeros[clients] = a[clients]
            return zeros

        return Split(some(self.x), some(self.y), self.count)

    def with_inputs(self, fn: Callable[[Any, np.ndarray], Any]) -> "Split":
        """Return the part with other inputs: `fn(x [K, n, ...], clients [K])`."""
        return self._replace(x=fn(self.x, np.arange(len(self.count))))


class Buckets(NamedTuple):
    """One part of every client's data in several stacks, or any values of clients whose shapes differ by bucket.

    Compiled programs hand it on to `peers.each` and `peers.ask`, which run a function bucket by bucket; nothing else
    needs to know of it.
    """

    parts: tuple[Any, ...]  # of each bucket: a `Split`, or any tree of arrays `[C_b, ...]`
    places: tuple[Any, ...]  # of each bucket: the numbers of its clients `[C_b]`
    order: Any  # [C] each client's row where the buckets are put one after another
    count: Any = None  # [C] each client's number of samples, where the parts are splits

    @property
    def stacks(self) -> tuple[tuple[Any, Any], ...]:
        """The stacks with the numbers of their clients."""
        return tuple(zip(self.parts, self.places, strict=True))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays of a part of the data, as a fingerprint reads them."""
        return tuple(array for part in self.parts for array in part) + self.places

    @property
    def x(self) -> Any:
        """Refused: there is no one array of all clients."""
        raise CoterieError(f"clients of these sizes share no {ONE_ARRAY}")

    @property
    def y(self) -> Any:
        """Refused, as `x`."""
        raise CoterieError(f"clients of these sizes share no {ONE_ARRAY}")

    def find(self, clients: Any) -> tuple[Any, Any]:
        """Return the bucket of each client, and its row there; on the host."""
        ends = np.cumsum([len(places) for places in self.places])
        at = np.asarray(self.order)[clients]
        bucket = np.searchsorted(ends, at, side="right")
        return bucket, at - (ends - np.diff(ends, prepend=0))[bucket]

    def rows(self, client: int) -> tuple[Any, Any]:
        """See `Split.rows`."""
        bucket, row = self.find(client)
        return self.parts[bucket].rows(row)

    def client(self, client: int) -> Split:
        """See `Split.client`."""
        bucket, row = self.find(client)
        return self.parts[bucket].client(row)

    def select(self, clients: np.ndarray) -> "Part":
        """See `Split.select`; a bucket stays as long as it was, so that its clients' numbers stay the same."""
        bucket, row = self.find(clients)
        places = tuple(np.flatnonzero(bucket == b) for b in np.unique(bucket))
        parts = tuple(self.parts[bucket[where[0]]].select(row[where]) for where in places)
        return parts[0] if len(parts) == 1 else joined(parts, places)

    def with_inputs(self, fn: Callable[[Any, np.ndarray], Any]) -> Self:
        """See `Split.with_inputs`."""
        return self._replace(parts=tuple(part._replace(x=fn(part.x, places)) for part, places in self.stacks))


Part = Split | Buckets


def joined(parts: tuple[Split, ...], places: tuple[np.ndarray, ...]) -> Buckets:
    """Return the buckets of some stacks with the numbers of their clients."""
    order = np.argsort(np.concatenate(places)).astype(np.int32)
    count = np.concatenate([np.asarray(part.count) for part in parts])[order]
    return Buckets(parts, tuple(where.astype(np.int32) for where in places), order, count)


def gathered(
    rows_of: Callable[[int], tuple[np.ndarray, np.ndarray]],
    count: np.ndarray,
    places: Sequence[np.ndarray],
    rows: int = ROWS,
) -> Part:
    """Gather each client's rows into padded stacks; one client at a time, so that images are in memory only once.

    Args:
        rows_of: returns the inputs and the targets of a client.
        count: how many each client has `[K]`.
        places: the clients of each stack, together all of them.
        rows: that a stack has at least, where there are several and one has them.
    """
    count = np.asarray(count, np.int32)
    least = min(rows, int(count.max(initial=1))) if len(places) > 1 else 1

    def stack(where: np.ndarray) -> Split:
        size = max(1, least, int(count[where].max(initial=0)))
        whole: list[np.ndarray] = []
        for row, client in enumerate(where):
            values = rows_of(int(client))
            whole = whole or [np.zeros((len(where), size, *a.shape[1:]), a.dtype) for a in values]
            for out, one in zip(whole, values, strict=True):
                out[row, : len(one)] = one
        x, y = whole
        return Split(x, y, count[where])

    parts = tuple(stack(where) for where in places)
    return parts[0] if len(parts) == 1 else joined(parts, tuple(places))


def divided(part: Part, places: Sequence[np.ndarray]) -> Part:
    """Return the same samples in other buckets."""
    return gathered(part.rows, part.count, places)


# -- which clients share a bucket ---------------------------------------------------------------------------------


def padded_bytes(counts: np.ndarray, row_bytes: Sequence[int], places: Sequence[np.ndarray], rows: int = ROWS) -> int:
    """Return the bytes of the stacks: `counts [P, K]` samples of each part and client, of `row_bytes [P]` each."""
    least = np.minimum(rows, counts.max(1)) if len(places) > 1 else 1
    sizes = [len(where) * np.maximum(counts[:, where].max(1), least) for where in places]
    return int(np.sum(sizes, 0, dtype=np.int64) @ np.asarray(row_bytes, np.int64))


def group_by_size(counts: np.ndarray, row_bytes: Sequence[int], rows: int = ROWS) -> list[np.ndarray]:
    """Divide clients into as few buckets as keep the padding below the size of the data, or small.

    Args:
        counts: how many samples of each part (train, validation, test) each client has, `[P, K]`.
        row_bytes: the bytes of one sample of each part.
        rows: see `gathered`.
    """
    each = np.asarray(row_bytes, np.int64)
    everyone = [np.arange(counts.shape[1])]
    limit = max(2 * int(counts.sum(1, dtype=np.int64) @ each), FREE)
    if padded_bytes(counts, row_bytes, everyone, rows) <= limit:
        return everyone
    least = np.minimum(rows, counts.max(1))
    weight = each @ np.maximum(counts, least[:, None]).astype(np.int64)
    grade = np.unique(np.round(np.log2(np.maximum(weight, 1)) * GRADES), return_inverse=True)[1]
    places = everyone
    for buckets in _divisions(counts, each, least, grade):
        places = [np.flatnonzero((grade >= first) & (grade < end)) for first, end in buckets]
        if padded_bytes(counts, row_bytes, places, rows) <= limit:
            break
    return places


def _divisions(
    counts: np.ndarray, row_bytes: np.ndarray, least: np.ndarray, grade: np.ndarray
) -> Iterator[list[tuple[int, int]]]:
    """Yield for 2, 3, ... buckets the division of the grades with the least padding, as (first, end) pairs."""
    grades = int(grade.max()) + 1
    clients = np.bincount(grade, minlength=grades)
    largest = np.array([np.maximum(counts[:, grade == g].max(1), least) for g in range(grades)], np.int64)  # [G, P]
    cost = np.full((grades, grades + 1), np.inf)  # of one bucket from a grade to before another
    for first in range(grades):
        sizes = np.maximum.accumulate(largest[first:]) @ row_bytes
        cost[first, first + 1 :] = sizes * np.cumsum(clients[first:])
    best, cut = cost[0].copy(), []  # best[j]: the least bytes of all grades before j
    for _ in range(2, min(MOST, grades) + 1):
        total = best[:-1, None] + cost  # the last bucket from i to before j
        cut.append(total.argmin(0))
        best = total.min(0)
        ends, buckets = grades, []
        for where in reversed(cut):
            buckets.append((int(where[ends]), ends))
            ends = int(where[ends])
        yield [(0, ends), *reversed(buckets)]


def refuse_too_large(names: Sequence[str], counts: np.ndarray, needed: int) -> None:
    """Refuse data that do not fit into the free memory, before they are copied; `counts` as for `group_by_size`."""
    free = available()
    if needed <= free:
        return
    client = int(counts.sum(0).argmax())
    raise CoterieError(
        f"the clients' data need {in_words(needed)} of memory and {in_words(free)} are free; the largest client, "
        f"{names[client]!r}, has {int(counts[:, client].sum()):,} samples: lower partition.samples and "
        "partition.test_samples (per client) or partition.clients"
    )
