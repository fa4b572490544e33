"""A carrier whose messages get lost, late, damaged, repeated and reordered, as the settings of faults say."""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

import numpy as np

from coterie.codecs.frame import HEADER
from coterie.peers.draws import draw
from coterie.peers.injection import CODES, FaultTables, Injection, one_round, poisoned, unusable
from coterie.peers.line import ESSENTIAL, HUB, Carrier, Frames, Pair

__all__ = ["FaultyCarrier"]

_KIND = slice(6, 8)  # the bytes of the kind in a frame's header


class FaultyCarrier:
    """Wraps a carrier; what is done to a frame is done where it arrives.

    Frames that come too late, and copies of frames, are offered to the program in a later exchange, where its checks
    have to refuse them. Essential frames are never touched. Whatever else the inner carrier has, this one has.

    Args:
        inner: a pipe, a network.
        injection: the faults.

    Attributes:
        injected: how many frames each kind of fault befell here.
    """

    def __init__(self, inner: Carrier, injection: Injection):
        self.inner, self.injection, self.hub = inner, injection, inner.hub
        self.injected: Counter[str] = Counter()
        self._late: dict[int, list[tuple[Pair, bytes]]] = defaultdict(list)  # by the round in which they come
        self._copies: list[tuple[Pair, bytes]] = []
        self._tables: dict[int, FaultTables] = {}  # of the present round

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(
        self, number: int, exchange: int, frames: Frames, outgoing: Collection[Pair], incoming: Collection[Pair]
    ) -> Frames:
        """See `Carrier.exchange`."""
        got = self.inner.exchange(number, exchange, self._reordered(number, exchange, frames), outgoing, incoming)
        strays = [*self._late.pop(number, []), *self._copies]
        self._copies = []
        kept = {pair: frame for pair, frame in got.items() if _essential(frame)}
        ordinary = {pair: frame for pair, frame in got.items() if pair not in kept}
        for (pair, frame), lost in zip(ordinary.items(), self._lost(number, exchange, list(ordinary)), strict=True):
            if self._befalls("duplicate", number, exchange, pair):
                self._copies.append((pair, frame))
            if not lost:
                kept[pair] = frame
            elif pair[0] != HUB and poisoned(self._of_round(number), "shape", pair[0]):
                kept[pair] = frame[:-1]
            elif self._befalls("corrupt", number, exchange, pair):
                kept[pair] = _damaged(frame, number + exchange)
            elif self._befalls("delay", number, exchange, pair):
                self._late[number + self._rounds_late(number, pair)].append((pair, frame))
            else:
                self.injected["lost"] += 1
        for pair, frame in strays:  # what is fresh is preferred, as by everybody who looks at the numbers of a frame
            if pair in incoming:
                kept.setdefault(pair, frame)
        return self._reordered(number, exchange, kept)

    def _lost(self, number: int, exchange: int, pairs: list[Pair]) -> np.ndarray:
        """Say which of the frames are not used: the same as a simulation says."""
        if not pairs:
            return np.zeros(0, bool)
        sender, receiver = np.array(pairs, np.uint32).T
        return unusable(self._of_round(number), np.array([exchange]), sender, receiver)

    def _of_round(self, number: int) -> FaultTables:
        if number not in self._tables:
            self._tables = {number: one_round(self.injection.tables(number))}
        return self._tables[number]

    def _befalls(self, kind: str, number: int, exchange: int, pair: Pair) -> bool:
        befallen = self.injection.befalls(kind, number, exchange, *pair)
        self.injected[kind] += befallen
        return befallen

    def _rounds_late(self, number: int, pair: Pair) -> int:
        """Draw by how many rounds a frame is late."""
        most = max(rule.late for rule in self.injection.faults.of("delay"))
        words = [np.array([word], np.uint32) for word in (self.injection.faults.seed, *pair, number)]
        return 1 + int(draw(CODES["late"], *words)[0]) % most

    def _reordered(self, number: int, exchange: int, frames: Frames) -> Frames:
        """Send or hand over the frames that a rule reorders after all the others, and backwards."""
        last = [pair for pair in frames if self.injection.befalls("reorder", number, exchange, *pair)]
        self.injected["reorder"] += len(last)
        order = [*(pair for pair in frames if pair not in last), *reversed(last)]
        return {pair: frames[pair] for pair in order}


def _essential(frame: bytes) -> bool:
    return int.from_bytes(frame[_KIND], "little") == ESSENTIAL


def _damaged(frame: bytes, which: int) -> bytes:
    """Flip one bit of the header; TLS, or a codec's checksum, notices what happens to the rest."""
    places = [place for place in range(HEADER) if place not in range(_KIND.start, _KIND.stop)]
    place = places[which % len(places)]
    return frame[:place] + bytes([frame[place] ^ (1 << which % 8)]) + frame[place + 1 :]
