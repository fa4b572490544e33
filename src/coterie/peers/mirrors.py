"""Which receivers have which copy: how a sender and a receiver of mirrored vectors start again after one was away.

A mirrored message is a change of the receiver's copy, so it is of use only to a receiver that has all changes before
it. Its first byte says how many there were since the vector was sent whole, and a receiver that has missed one does not
use it: it asks for the whole. A sender that knows of a lost message sends the whole by itself. The whole is the copy
that the other receivers have after this message, so that a sender needs one copy for all of them; whoever was there all
the time notices nothing. A process that was started again knows nothing of others' copies, and they nothing of its.
"""

from coterie.peers.records import Pair

__all__ = ["WHOLE", "Mirrors"]

WHOLE = 0  # the first byte of a vector that is sent whole
_LAST = 255  # changes are counted 1, 2, ..., 255, 1, ...


class Mirrors:
    """The numbers of the last changes that were sent and received, by place in the round and pair."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, Pair], int] = {}
        self._received: dict[tuple[str, Pair], int] = {}

    def number(self, site: str, pair: Pair, whole: bool) -> int:
        """Return the first byte of the next message: `WHOLE` if asked for, or if the receiver has no copy."""
        last = self._sent.get((site, pair))
        self._sent[site, pair] = number = WHOLE if whole or last is None else last % _LAST + 1
        return number

    def fits(self, site: str, pair: Pair, number: int) -> bool:
        """Say whether a message that came can be used here; if so, it is counted."""
        last = self._received.get((site, pair))
        if number != WHOLE and (last is None or number != last % _LAST + 1):
            self._received.pop((site, pair), None)
            return False
        self._received[site, pair] = number
        return True

    def forget(self, pair: Pair) -> None:
        """Begin anew with this receiver: it may not have the last message."""
        self._sent = {key: number for key, number in self._sent.items() if key[1] != pair}
