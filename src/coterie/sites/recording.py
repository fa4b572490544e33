"""What leaves a site and what reaches it: a carrier around the real one that counts frames and writes `sent.jsonl`.

Each line of the file is one message that left: its round and exchange, its kind, sender and receiver, its size and the
SHA-256 of its content (the frame without its header). The file is a log of what happened and is never shortened. What
cannot be written there is not sent: others hear "nothing this time", and the member ends after the round.
"""

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.codecs.frame import HEADER
from coterie.errors import CoterieError
from coterie.peers.ledger import HUB as HUB_NAME
from coterie.peers.line import COPY, ESSENTIAL, HUB, ORDINARY, Carrier, Frames, Pair
from coterie.storage.durable import storage_errors
from coterie.storage.owned import inside, never_waiting

__all__ = ["FILE", "RecordingCarrier"]

FILE = "sent.jsonl"
KINDS = {ORDINARY: "ordinary", ESSENTIAL: "essential", COPY: "copy"}
WAYS = ("sent_messages", "sent_bytes", "received_messages", "received_bytes")


class RecordingCarrier:
    """A carrier that records what another one carries.

    Args:
        inner: the carrier that moves the frames.
        names: the names of all clients, in the order of their ids.
        ids: the clients that live here.
        folder: the folder of the run, for `sent.jsonl`; None writes nothing.

    Attributes:
        alone: nothing is sent: a member that was not there at the start begins without the others.
        failure: why the file cannot be written any more, if so. The program calls `exchange`, and whatever that raises
            would reach people as an error of the compiler; so it is kept for the end of the round (`Site.round_done`).
    """

    def __init__(self, inner: Carrier, names: Sequence[str], ids: Sequence[int], folder: Path | None = None):
        self.hub, self.alone = inner.hub, False
        self.failure: CoterieError | None = None
        self._inner, self._names = inner, tuple(names)
        self._row = {client: row for row, client in enumerate(ids)}
        self._here = {*ids, *([HUB] if inner.hub else [])}
        self._counts: dict[int, np.ndarray] = {}  # by round: [ways, C]
        self._path = None if folder is None else inside(folder, FILE)

    def __getattr__(self, name: str) -> Any:
        """Return what else the carrier offers: who was lost, counters, the start of a round."""
        return getattr(self._inner, name)

    def exchange(
        self, number: int, exchange: int, frames: Frames, outgoing: Collection[Pair], incoming: Collection[Pair]
    ) -> Frames:
        """See `Carrier.exchange`."""
        if self.alone:
            return {pair: frame for pair, frame in frames.items() if pair[1] in self._here}
        try:
            if self.failure is None:
                self._write(number, exchange, frames)
        except CoterieError as error:
            self.failure = error
        if self.failure is not None:
            frames = {pair: frame for pair, frame in frames.items() if pair[1] in self._here}
        self._count(number, frames, end=0)
        received = self._inner.exchange(number, exchange, frames, outgoing, incoming)
        self._count(number, received, end=1)
        return received

    def frames(self, first: int, rounds: int) -> dict[str, np.ndarray]:
        """Return, once, what left and reached the clients here in some rounds: `[R, C]` of each of `WAYS`."""
        none = np.zeros((len(WAYS), len(self._row)), np.int64)
        table = np.stack([self._counts.pop(number, none) for number in range(first, first + rounds)], axis=1)
        return dict(zip(WAYS, table, strict=True))

    def _count(self, number: int, frames: Frames, end: int) -> None:
        """Count frames of the senders (end 0) or the receivers (end 1) that live here."""
        counts = self._counts.setdefault(number, np.zeros((len(WAYS), len(self._row)), np.int64))
        for pair, frame in frames.items():
            row = self._row.get(pair[end])
            if row is not None and pair[0] != pair[1] and _kind(frame) != COPY:
                counts[2 * end : 2 * end + 2, row] += (1, len(frame))

    def _write(self, number: int, exchange: int, frames: Frames) -> None:
        if self._path is None:
            return
        lines, content, digest = [], b"", ""
        for (sender, receiver), frame in frames.items():
            if receiver in self._here:
                continue
            if not digest or frame[HEADER:] != content:  # most often all receivers get the same
                content = frame[HEADER:]
                digest = hashlib.sha256(content).hexdigest()
            line: dict[str, Any] = {"round": number, "exchange": exchange, "kind": KINDS.get(_kind(frame), "unknown")}
            line |= {"sender": self._name(sender), "receiver": self._name(receiver), "size": len(frame)}
            lines.append(json.dumps({**line, "digest": digest}))
        if lines:
            with storage_errors(self._path.parent), open(self._path, "ab", 0, opener=never_waiting) as stream:
                stream.write("".join(f"{line}\n" for line in lines).encode())

    def sync(self) -> None:
        """Make the file survive a power cut."""
        if self._path is not None and self._path.exists():
            with storage_errors(self._path.parent), open(self._path, "rb+") as stream:
                os.fsync(stream.fileno())

    def _name(self, client: int) -> str:
        return HUB_NAME if client == HUB else self._names[client]


def _kind(frame: bytes) -> int:
    return int.from_bytes(frame[6:8], "little")
