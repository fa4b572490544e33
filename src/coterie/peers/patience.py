"""Who is waited for in a round, and how long.

A round has a limit of seconds for all its waiting together, so nobody ever waits longer than that.

- A member whose token is gone is not waited for, and is absent for the rest of the round.
- One that waits for somebody itself may use up the whole limit, one that computes three quarters of it, one that does
  not even answer a ping half of it: so those who wait for the slow one are not given up together with it.
- One that was given up in two rounds in a row gets a tenth, until a frame of the present round has come from it.
"""

import threading
import time
from collections.abc import Callable, Collection

from coterie.peers.counts import Counts

__all__ = ["COMPUTES", "WAITS", "Patience"]

STEP = 0.02  # seconds between two looks at who is still there
WAITS, COMPUTES, SILENT = b"waits", b"computes", b""  # what members say they do
SHARES = {WAITS: 1.0, COMPUTES: 0.75, SILENT: 0.5}  # of a round's limit
LOST_SHARE, LOST_AFTER = 0.1, 2  # rounds in which a member was given up


class Patience:
    """Waits for members.

    Args:
        changed: notified when a message or an answer has come.
        ping: asks a member what it does; the answer goes to `hear`.
        counts: where seconds and absences are counted.
    """

    def __init__(self, changed: threading.Condition, ping: Callable[[str], None], counts: Counts):
        self.alive: set[str] = set()  # members whose token is there
        self.absent: set[str] = set()  # members that were given up in this round
        self.given_up: dict[str, int] = {}  # the last round in which a member was given up, or not sent to
        self._round = 0
        self.waits = False  # whether this process waits just now
        self.left = self.limit = 0.0  # seconds
        self._changed, self._ping, self._counts = changed, ping, counts
        self._missed: dict[str, int] = {}  # rounds in a row
        self._said: dict[str, tuple[bytes, float]] = {}  # what a member said it does, and when
        self._stopped = threading.Event()

    def start_round(self, number: int, limit: float) -> None:
        """Begin a round with so many seconds: everybody who is there counts again."""
        self._round = number
        for name in self.absent:
            self._missed[name] = self._missed.get(name, 0) + 1
            self._counts.absent[name] += 1
        self.absent, self.left, self.limit = set(), limit, limit

    def leave(self, seconds: float) -> None:
        """Give the last answers so many seconds, however long the round has taken: without them messages get lost."""
        self.left = self.limit = seconds

    def hear(self, name: str, what: bytes = COMPUTES) -> None:
        """Note that a member said something."""
        self._said[name] = (what if what in SHARES else COMPUTES, time.monotonic())

    def miss(self, name: str) -> None:
        """Note that this round goes on without a member: it was given up, or a message for it was not sent."""
        self.given_up[name] = self._round

    def came(self, name: str) -> None:
        """Note that a frame of the present exchange came from a member."""
        self._missed[name] = 0

    def notice(self, name: str, here: bool) -> None:
        """Note that a member's token came or went."""
        with self._changed:
            (self.alive.add if here else self.alive.discard)(name)
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop waiting, for good. It takes no lock, so that a signal handler may call it."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether nobody is waited for any more."""
        return self._stopped.is_set()

    def wait(self, names: Collection[str], settled: Callable[[str], bool]) -> None:
        """Wait until each of these members is settled, gone or given up."""
        began = time.monotonic()
        self.waits = True
        try:
            with self._changed:
                self._wait(names, settled, began)
        finally:  # a signal's exception leaves here, too
            self.waits = False
            self.left -= time.monotonic() - began
            self._counts.waited += time.monotonic() - began

    def _wait(self, names: Collection[str], settled: Callable[[str], bool], began: float) -> None:
        asked = began
        while not self.stopped:
            now = time.monotonic()
            spent = self.limit - self.left + now - began
            unsettled = [name for name in names if name not in self.absent and not settled(name)]
            for name in unsettled:
                if not self._worth(name, spent, now):
                    self.absent.add(name)
                    self.miss(name)
            unsettled = [name for name in unsettled if name not in self.absent]
            if not unsettled:
                return
            if now - asked > self.limit / 8:
                asked = now
                for name in unsettled:
                    self._ping(name)
            self._changed.wait(min(STEP, self.limit / 16))

    def _worth(self, name: str, spent: float, now: float) -> bool:
        """Say whether to wait longer for a member, after so many seconds of this round."""
        if name not in self.alive:
            return False
        what, when = self._said.get(name, (COMPUTES, now))
        what = SILENT if now - when > self.limit / 4 else what
        share = LOST_SHARE if self._missed.get(name, 0) >= LOST_AFTER else SHARES[what]
        return spent < share * self.limit
