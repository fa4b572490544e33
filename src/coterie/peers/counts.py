"""What a process counted on the network: bytes as they were sent, and everything that was refused, with the reason."""

import collections
import dataclasses
import threading

__all__ = ["Counts"]


@dataclasses.dataclass
class Counts:
    """Counters of one process and run. Several threads write them, each entry under `lock`.

    Attributes:
        bytes: frames as they were sent, by (sender, receiver): what the ledger charges.
        copies: bytes of the hub's means for clients that took no part; the ledger charges them later.
        overhead: bytes of notes beside the frames, and of answers.
        repeated: bytes of frames that were sent once more, because nobody had acknowledged them.
        refused: messages that were not used, by (who sent it, why).
        late: messages of an exchange that was over, by member.
        duplicate: messages that had come before, by member.
        absent: rounds in which a member was given up, by member.
        waited: seconds spent waiting for others.
    """

    bytes: collections.Counter[tuple[int, int]] = dataclasses.field(default_factory=collections.Counter)
    copies: int = 0
    overhead: int = 0
    repeated: int = 0
    refused: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    late: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    duplicate: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    absent: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    waited: float = 0.0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out the lock, so that counters can be sent to another process."""
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def refuse(self, who: str, why: str) -> None:
        """Count a message that was not used."""
        with self.lock:
            self.refused[who, why] += 1
