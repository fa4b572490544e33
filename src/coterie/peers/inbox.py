"""What other members have sent, until the program asks for it: bounded, and keyed by round, exchange and sender.

A parcel is taken only if all it says about itself is right: this run, clients that live with the member that sent it
and clients that live here, a size that is possible, frames whose headers say the same. A parcel that comes too early
is not kept (its sender tries again), one that comes too late is not used, one that comes twice is used once.
"""

import collections
import enum
import threading
from collections.abc import Mapping
from typing import Any

from coterie.codecs.frame import HEADER
from coterie.peers.counts import Counts
from coterie.peers.line import Frames
from coterie.peers.parcel import open_parcel, read_note

__all__ = ["Answer", "Inbox"]

AHEAD = 1  # rounds that a sender may be ahead
WINDOW = 32  # parcels of one sender that wait here,
LARGE = 4  # and how many of the longest ones they may weigh together


class Answer(enum.IntEnum):
    """What a receiver says about a parcel."""

    TAKEN = 1
    EARLY = 2  # send it again in a while
    LATE = 3  # the exchange is over
    REFUSED = 4  # it is not what it should be


class Inbox:
    """The parcels for this process.

    Args:
        run: the number of the run.
        living: the ids that each other member may send as, and those that live here under this member's own name.
        me: this member's name.
        largest: bytes of the longest frame.
        counts: where refusals are counted.
    """

    def __init__(self, run: int, living: Mapping[str, frozenset[int]], me: str, largest: int, counts: Counts):
        self.changed = threading.Condition()  # notified when a parcel was taken; also used by the carrier
        self.rounds: dict[str, int] = {}  # the last round that each member was heard in
        self.run, self._living, self._here, self._largest = run, living, living[me], largest
        self._counts = counts
        self._round = self._exchange = 0
        self._waiting: dict[tuple[int, int, str], Frames] = {}
        self._known: dict[str, set[tuple[int, int]]] = collections.defaultdict(set)

    def most_entries(self, member: str) -> int:
        """Return how many frames one parcel of a member may hold."""
        return len(self._living[member]) * len(self._here)

    def start_round(self, number: int) -> None:
        """Begin a round; what waits for earlier ones is dropped."""
        with self.changed:
            self._round, self._exchange = number, 0
            self._waiting = {key: frames for key, frames in self._waiting.items() if key[0] >= number}
            for known in self._known.values():  # a parcel of the round before may be sent again: it was taken
                known.difference_update([key for key in known if key[0] < number - 1])

    def offer(self, member: str, note: bytes, body: Any) -> Answer:
        """Look at a parcel of a member; `body` has a length and becomes bytes when it is wanted."""
        if not self.run:  # the members have not met yet
            return Answer.EARLY
        parcel = read_note(note, self.most_entries(member))
        why = None
        if parcel is None:
            why = "a note that makes no sense"
        elif parcel.run != self.run:
            why = "another run"
        elif any(sender not in self._living[member] for sender, _ in parcel.lengths):
            why = "another's name"
        elif any(receiver not in self._here for _, receiver in parcel.lengths):
            why = "for somebody else"
        elif not all(length == 0 or HEADER <= length <= self._largest for length in parcel.lengths.values()):
            why = "a frame of an impossible size"
        elif sum(parcel.lengths.values()) != len(body):
            why = "a parcel of another size than it says"
        if why is not None or parcel is None:
            self._counts.refuse(member, why or "")
            return Answer.REFUSED
        with self.changed:
            answer = self._judge(member, parcel.round, parcel.exchange)
        if answer is not None:
            return answer
        frames = open_parcel(parcel, bytes(body))
        if frames is None:
            self._counts.refuse(member, "a frame with a wrong header")
            return Answer.REFUSED
        with self.changed:
            self.rounds[member] = max(parcel.round, self.rounds.get(member, 0))
            answer = self._judge(member, parcel.round, parcel.exchange)  # again: time has passed
            if answer is None:
                self._waiting[parcel.round, parcel.exchange, member] = frames
                self._known[member].add((parcel.round, parcel.exchange))
                self.changed.notify_all()
        return answer or Answer.TAKEN

    def _judge(self, member: str, number: int, exchange: int) -> Answer | None:
        """Say what becomes of a parcel because of its place in the run; None: it can be taken."""
        if (number, exchange) in self._known[member]:
            self._counts.duplicate[member] += 1
            return Answer.TAKEN
        if (number, exchange) < (self._round, self._exchange):
            self.rounds[member] = max(number, self.rounds.get(member, 0))
            self._counts.late[member] += 1
            return Answer.LATE
        sizes = [sum(map(len, frames.values())) for key, frames in self._waiting.items() if key[2] == member]
        full = len(sizes) >= WINDOW or sum(sizes) >= LARGE * self._largest * self.most_entries(member)
        if number > self._round + AHEAD or (full and (number, exchange) != (self._round, self._exchange)):
            self.rounds[member] = max(number, self.rounds.get(member, 0))
            return Answer.EARLY
        return None

    def begin(self, number: int, exchange: int) -> None:
        """Say that the program waits for this exchange: parcels for earlier ones are late from now on."""
        with self.changed:
            self._round, self._exchange = number, exchange

    def has(self, number: int, exchange: int, member: str) -> bool:
        """Say whether a member's parcel is there."""
        return (number, exchange, member) in self._waiting

    def take(self, number: int, exchange: int) -> dict[str, Frames]:
        """Return what came for this exchange, by member; what still comes is late."""
        with self.changed:
            found = [key for key in self._waiting if key[:2] == (number, exchange)]
            self._exchange = exchange + 1
            return {key[2]: self._waiting.pop(key) for key in found}
