"""Which receivers have which copy: how a sender and a receiver of mirrored vectors start again after one was away.

A mirrored message is a change of the receiver's copy, so it is of use only to a receiver that has all changes before
it. Its first byte numbers the messages of a pair, and a receiver that has missed one does not use the next: it asks for
the whole. A sender that knows of a lost message sends the whole by itself. The whole is the copy that the other
receivers have after this message, so that a sender needs one copy for all of them, and whoever was there all the time
notices nothing. A process that was started again knows nothing of others' copies, and they nothing of its.
"""

from coterie.peers.records import Pair

__all__ = ["CHANGE", "Mirrors", "is_whole"]

CHANGE = 1  # the first byte of a vector that is not mirrored
_WHOLE = 0x80  # a bit of the first byte: the vector itself, not a change
_NUMBERS = 0x80  # the other bits number the messages: 0, 1, ..., 127, 0, ...


def is_whole(number: int) -> bool:
    """Say whether this is the first byte of a vector that was sent whole."""
    return bool(number & _WHOLE)


class Mirrors:
    """The numbers of the last messages that were sent and received, by place in the round and pair."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, Pair], int] = {}
        self._received: dict[tuple[str, Pair], int] = {}
        self._equal: set[tuple[str, Pair]] = set()  # where the receiver has the sender's copy

    def number(self, site: str, pair: Pair, whole: bool, first: int) -> int:
        """Return the first byte of the next message; it goes whole if asked for, or if the receiver has no copy.

        The first message is numbered `first`: another number after a process was started again.
        """
        key = (site, pair)
        self._sent[key] = number = (self._sent.get(key, first - 1) + 1) % _NUMBERS
        whole = whole or key not in self._equal
        self._equal.add(key)
        return number | _WHOLE if whole else number

    def fits(self, site: str, pair: Pair, number: int) -> bool:
        """Say whether a message that came can be used here; if so, it is counted."""
        last = self._received.pop((site, pair), None)
        if not is_whole(number) and (last is None or number != (last + 1) % _NUMBERS):
            return False
        self._received[site, pair] = number % _NUMBERS
        return True

    def forget(self, pair: Pair) -> None:
        """Begin anew with this receiver: it may not have the last message."""
        self._equal = {key for key in self._equal if key[1] != pair}
