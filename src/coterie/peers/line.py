"""One process's end of the network: the interface of a carrier, the numbers of frames, the checks on arrival."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from coterie.codecs.frame import Header, decode, encode
from coterie.errors import CoterieError
from coterie.peers.arithmetic import usable
from coterie.peers.coding import open_vector
from coterie.peers.counts import Counts
from coterie.peers.mirrors import CHANGE, Mirrors, is_whole
from coterie.peers.records import Pair, Tables

__all__ = [
    "COPY",
    "ESSENTIAL",
    "HUB",
    "ORDINARY",
    "Address",
    "Carrier",
    "Delivery",
    "Frames",
    "Line",
    "Message",
    "Pair",
]

HUB = 0xFFFFFFFF  # the hub's id in a frame's header
# Kinds of frames. A carrier may give up on an ordinary frame, but repeats an essential one until it arrives. A copy is
# the hub's mean for a client that took no part: the ledger counts it when that client next takes part, because a real
# hub would send it then.
ORDINARY, ESSENTIAL, COPY = 0, 1, 2

Frames = dict[Pair, bytes]
Address = tuple[int, Pair, tuple[int, ...]]  # kind, pair, where in the arrays
# kind, pair, arrays, and one more array that was encoded: its bytes, its shape and dtype
Message = tuple[int, Pair, list[np.ndarray], bytes, Any]


class Carrier(Protocol):
    """Moves frames between the processes of a run.

    A carrier may have more: `start_round(number)` is told when a round begins; `lost_copies()` returns, once, the pairs
    whose receiver may lack the last essential frame; `untaken()` those whose receiver does not use the essential frame
    of the last exchange; `ask_whole(pair)` tells a sender that a receiver here lacks one;
    `name_of(client)` names the place where a client lives; `counts` are the counters to use.
    """

    hub: bool  # whether the hub lives in this process

    def exchange(
        self, number: int, exchange: int, frames: Frames, outgoing: Collection[Pair], incoming: Collection[Pair]
    ) -> Frames:
        """Hand over the frames of one exchange and return those for receivers living here.

        Args:
            number: the round.
            exchange: the exchange within the round.
            frames: what is sent, by (sender, receiver).
            outgoing: every pair that may carry a frame from here. One without a frame has nothing to say this time,
                and its receiver should not wait for it.
            incoming: every pair that may carry a frame to a receiver living here.
        """


class Delivery(NamedTuple):
    """What arrived in one exchange; a simulation can repeat the loss of a run from its deliveries."""

    round: int
    edges: np.ndarray | None = None  # [C, D] by slot
    up: np.ndarray | None = None  # [K], known at the hub
    down: np.ndarray | None = None  # [C]
    pushed: np.ndarray | None = None  # [C] from one's partner


class Line:
    """This process's end of the network: it numbers exchanges and keeps the record of what arrived.

    Compiled programs refer to this object, so one line serves all runs of a process: `connect` begins a run, and
    `tables` are those of the clients living here in the present stage, as NumPy arrays.
    """

    carrier: Carrier
    tables: Tables

    def __init__(self) -> None:
        self.run = self.round = self.exchange = 0
        self.largest = 0  # bytes of the largest frame of the programs traced so far
        self.deliveries: list[Delivery] = []
        self.mirrors, self.counts = Mirrors(), Counts()

    def connect(self, carrier: Carrier, run: int = 0) -> None:
        """Begin a run over a carrier; `run` is a number that all its processes share."""
        self.carrier, self.run, self.deliveries = carrier, run, []
        self.mirrors, self.counts = Mirrors(), getattr(carrier, "counts", None) or Counts()
        self.start_round(0)

    def start_round(self, number: int) -> None:
        """Begin a round: its frames carry this number."""
        self.round, self.exchange = number, 0
        begin = getattr(self.carrier, "start_round", None)
        if begin is not None:
            begin(number)

    def exchange_frames(
        self, messages: Iterable[Message], outgoing: Collection[Pair], incoming: Collection[Pair]
    ) -> Frames:
        """Send the messages of one exchange and return the frames for receivers living here; see `Carrier.exchange`."""
        number, self.exchange = self.exchange, self.exchange + 1
        for pair in getattr(self.carrier, "lost_copies", set)():
            self.mirrors.forget(pair)
        frames = {
            pair: encode(Header(kind, self.run, self.round, number, *pair), arrays, coded, like)
            for kind, pair, arrays, coded, like in messages
        }
        return self.carrier.exchange(self.round, number, frames, outgoing, incoming)

    def taken(self, sent: np.ndarray, pairs: Iterable[tuple[tuple[int, ...], Pair]]) -> np.ndarray:
        """Say which of the acknowledgements that were sent are used at their ends; the others are as if not sent.

        What they were about counts as not arrived here, since its sender keeps it. The record of it is corrected.
        """
        untaken: set[Pair] = getattr(self.carrier, "untaken", set)()
        taken = sent.copy()
        for place, pair in pairs:
            taken[place] = sent[place] and pair not in untaken
        if self.deliveries and self.deliveries[-1].edges is not None:
            last = self.deliveries[-1]
            self.deliveries[-1] = last._replace(edges=last.edges & (taken | ~sent))
        return taken

    def open(
        self, frame: bytes | None, pair: Pair, like: Sequence[Any], codec: Any = None, site: str | None = None
    ) -> list[Any] | None:
        """Check a frame before a method sees it; None, and the reason is counted, if anything is wrong.

        It must be complete, of this run, round and exchange, from this sender to this receiver, its numbers finite and
        not too large (`arithmetic.py`). With a codec the last array was encoded; one more value says whether it was
        sent whole. At a `site` where vectors are mirrored it must fit the copy that the receiver has.
        """
        if frame is None:
            return None
        opened = decode(frame, like, coded=codec is not None)
        if opened is None:
            return self._refuse(pair, "a frame of another layout")
        header, arrays = opened[0], list[Any](opened[1])
        if header[1:] != (self.run, self.round, self.exchange - 1, *pair):
            return self._refuse(pair, "a frame of another exchange")
        if codec is not None:
            data = arrays.pop().tobytes()
            if site is None and data[:1] != bytes([CHANGE]):
                return self._refuse(pair, "a damaged vector")
            try:
                arrays += [open_vector(codec, data, like[-1]), is_whole(data[0])]
            except CoterieError:  # damaged on the way: as if it had not arrived
                return self._refuse(pair, "a damaged vector")
        floats = [v for v in arrays if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)]
        if not all(map(usable, floats)):
            return self._refuse(pair, "numbers that are not finite, or too large")
        if site is not None and not self.mirrors.fits(site, pair, data[0]):
            getattr(self.carrier, "ask_whole", lambda pair: None)(pair)
            return self._refuse(pair, "a change of a copy that is not there")
        return arrays

    def _refuse(self, pair: Pair, why: str) -> list[Any] | None:
        """Count a frame that cannot be used, and return nothing."""
        self.counts.refuse(getattr(self.carrier, "name_of", str)(pair[0]), why)
        return None
