"""Clients split over two processes that talk through a plain pipe: the smallest real network, used to prove methods.

A method that reaches another client without a verb fails here. Whether a frame is lost is drawn from its header, so
that both ends agree and a simulation can repeat it.
"""

import hashlib
from collections.abc import Collection
from multiprocessing.connection import Connection

from coterie.codecs.frame import HEADER
from coterie.peers.counts import Counts
from coterie.peers.line import COPY, ESSENTIAL, HUB, Frames
from coterie.peers.records import Pair

__all__ = ["PipeCarrier"]

_KIND = slice(6, 8)  # the bytes of the kind in a frame's header


class PipeCarrier:
    """One end of a pipe.

    Args:
        connection: the end of a `multiprocessing.Pipe`.
        here: ids of the clients that live at this end.
        hub: whether the hub lives at this end.
        loss: the fraction of frames that get lost, between clients of one process too; essential ones never do.
    """

    def __init__(self, connection: Connection, here: set[int], hub: bool, loss: float = 0.0):
        self.hub = hub
        self._connection, self._loss = connection, loss
        self._here = here | ({HUB} if hub else set())
        self.counts = Counts()

    def exchange(
        self, number: int, exchange: int, frames: Frames, outgoing: Collection[Pair], incoming: Collection[Pair]
    ) -> Frames:
        """See `Carrier.exchange`; both ends send how many frames they send, so neither waits for what was not sent."""
        for pair, frame in frames.items():
            if _kind(frame) != COPY and pair[0] != pair[1]:
                self.counts.bytes[pair] += len(frame)
        alive = {pair: frame for pair, frame in frames.items() if not self._lost(frame)}
        near = {pair: frame for pair, frame in alive.items() if pair[1] in self._here}
        far = [(*pair, frame) for pair, frame in alive.items() if pair[1] not in self._here]
        # The two ends take turns, so that neither blocks on a full pipe while the other writes.
        if self.hub:
            self._send(far)
            return near | self._receive()
        got = self._receive()
        self._send(far)
        return near | got

    def _lost(self, frame: bytes) -> bool:
        if not self._loss or _kind(frame) == ESSENTIAL:
            return False
        draw = int.from_bytes(hashlib.sha256(frame[:HEADER]).digest()[:8], "little")
        return draw < self._loss * 2**64

    def _send(self, frames: list[tuple[int, int, bytes]]) -> None:
        self._connection.send_bytes(len(frames).to_bytes(4, "little"))
        for sender, receiver, frame in frames:
            self._connection.send_bytes(sender.to_bytes(4, "little") + receiver.to_bytes(4, "little") + frame)

    def _receive(self) -> Frames:
        count = int.from_bytes(self._connection.recv_bytes(), "little")
        frames = (self._connection.recv_bytes() for _ in range(count))
        return {(int.from_bytes(f[:4], "little"), int.from_bytes(f[4:8], "little")): f[8:] for f in frames}


def _kind(frame: bytes) -> int:
    return int.from_bytes(frame[_KIND], "little")
