"""One process's end of the network: the interface of a carrier, the numbers of frames, the checks on arrival."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from coterie.codecs.frame import Header, decode, encode
from coterie.errors import CoterieError
from coterie.peers.coding import WHOLE, open_vector
from coterie.peers.records import Tables

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

Pair = tuple[int, int]  # (sender, receiver): ids of clients, or HUB
Frames = dict[Pair, bytes]
Address = tuple[int, Pair, tuple[int, ...]]  # kind, pair, where in the arrays
# kind, pair, arrays, and one more array that was encoded: its bytes, its shape and dtype
Message = tuple[int, Pair, list[np.ndarray], bytes, Any]


class Carrier(Protocol):
    """Moves frames between the processes of a run.

    A carrier that wants to know when a round begins has a method `start_round(number)` too.
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

    def connect(self, carrier: Carrier, run: int = 0) -> None:
        """Begin a run over a carrier; `run` is a number that all its processes share."""
        self.carrier, self.run, self.deliveries = carrier, run, []
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
        frames = {
            pair: encode(Header(kind, self.run, self.round, number, *pair), arrays, coded, like)
            for kind, pair, arrays, coded, like in messages
        }
        return self.carrier.exchange(self.round, number, frames, outgoing, incoming)

    def open(self, frame: bytes | None, like: Sequence[Any], codec: Any = None) -> list[Any] | None:
        """Check a frame before a method sees it: complete, of this run and round, finite. None if anything is wrong.

        With a codec the last array was encoded; one more value says whether it was sent whole.
        """
        opened = None if frame is None else decode(frame, like, coded=codec is not None)
        if opened is None or opened[0].run != self.run or opened[0].round != self.round:
            return None
        arrays: list[Any] = opened[1]
        if codec is not None:
            data = arrays.pop().tobytes()
            try:
                arrays += [open_vector(codec, data, like[-1]), data[:1] == WHOLE]
            except CoterieError:  # damaged on the way: as if it had not arrived
                return None
        floats = [v for v in arrays if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)]
        return arrays if all(np.isfinite(v).all() for v in floats) else None
