"""Some clients live here, the others elsewhere: the same verbs, with messages that really travel.

A carrier moves frames between processes. Each verb is one or two ordered callbacks out of the compiled program: what
the clients here say is encoded, handed to the carrier, and what came back is put into slots. The arithmetic is the
same as in a simulation in `exact` mode, in the same order, so that the numbers are the same to the last bit. A
callback never raises: what does not arrive, arrives as `arrived = False`.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.learning.buckets import bucket_by_bucket
from coterie.peers import ALL_TO_ALL
from coterie.peers.arithmetic import message_bytes
from coterie.peers.base import Tables, Tree
from coterie.peers.coding import Coder, Outgoing
from coterie.peers.exchange import Vectors, Ways, exchange_values
from coterie.peers.factory import Lost, PeersFactory
from coterie.peers.injection import injected
from coterie.peers.line import ESSENTIAL, ORDINARY, Address, Line
from coterie.peers.messages import Received
from coterie.peers.remote_hub import RemoteHub
from coterie.peers.turns import one_by_one

__all__ = ["Remote", "RemotePeers"]


class RemotePeers(RemoteHub):
    """The verbs for clients that are spread over processes; made anew inside every traced round.

    The arguments are those of `RemoteHub`.
    """

    # -- the exchanges -----------------------------------------------------------------------------------

    def _to_slots(self, message: Outgoing, to: jax.Array) -> Received:
        """See `Messages._to_slots`."""
        return self._send(message, to, "listeners")

    def _send(self, message: Outgoing, to: jax.Array, way: str) -> Received:
        """Send each client's message to the slots where `to [C, S]`."""
        if message.vector is None:
            values, arrived = self._slots(message.value, to, way)
            return Received(_by_slot(values), arrived, arrived, message.size, values)
        coder, mirrored = self._coder, message.mode == "mirror"
        assert coder is not None
        sent, kind = (message.rest, message.vector), ESSENTIAL if mirrored else ORDINARY
        vectors = self._vectors(message.whole, message.site if mirrored else None)
        (rest, vector), arrived, came_whole, forced = self._slots(sent, to, way, kind, vectors=vectors)
        if mirrored and way == "neighbours":
            self._charge_forced("told", forced, message.vector, message.whole)
        flat = self.each(coder.bytes, vector.reshape(-1, vector.shape[-1]), came_whole.reshape(-1))
        size = message_bytes(message.rest) + flat.reshape(arrived.shape)
        if mirrored:
            vector = self._recall(message.site, vector, came_whole, arrived)
        values = message.join(vector, rest)
        return Received(_by_slot(values), arrived, arrived, size, values)

    def _acknowledge(self, arrived: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Messages._acknowledge`."""
        _, acked, taken = self._slots((), arrived, "neighbours", kind=ESSENTIAL, acknowledges=True)
        return taken, acked

    def _swap_slots(self, x: Tree, mutual: jax.Array) -> tuple[Tree, jax.Array]:
        """See `Messages._swap_slots`."""
        return self._slots(x, mutual, "swap", leading=2)[:2]

    def _ask_slots(self, fn: Callable, message: Outgoing, own: Tree) -> tuple[Received, Tree]:
        """See `Messages._ask_slots`."""
        asked = self._send(message, self.present, "neighbours")
        here, places = self.tables.listening.shape

        def answer(questions: Tree, present: jax.Array, own: Tree) -> Tree:
            # One flat loop over all questions, as in a simulation: in a nested loop XLA would move what depends on
            # `own` alone out of the inner one, which rounds differently.
            asked = present.shape[0] * places
            flat = jax.tree.map(lambda a: a.reshape(asked, *a.shape[2:]), questions)
            whose = jnp.repeat(jnp.arange(present.shape[0]), places)

            def answer_one(question: Tree, asked: jax.Array) -> Tree:
                return fn(question, jax.tree.map(lambda a: a[asked], own))

            given = one_by_one(answer_one, (flat, whose), self._zero)
            return jax.tree.map(lambda a: a.reshape(-1, places, *a.shape[1:]), given)

        answers = bucket_by_bucket(answer, asked.rows, self.tables.listening, own)
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((here, *a.shape[2:]), a.dtype), answers)
        values, arrived = self._slots(self._sent(answers, leading=2), asked.arrived, "listeners", leading=2)
        return Received(_by_slot(values), arrived, arrived), like

    def _slots(
        self,
        x: Tree,
        to: jax.Array,
        way: str,
        kind: int = ORDINARY,
        leading: int = 1,
        vectors: Vectors | None = None,
        acknowledges: bool = False,
    ) -> tuple[Any, ...]:
        """Send `x` where `to [C, S]`, one message per slot of the table that `way` names.

        All slots get the same `x [C, ...]`, or with `leading = 2` each its own of `x [C, S, ...]`.
        """
        slots = self.tables.listeners.shape if way == "neighbours" else self.tables.neighbours.shape

        def tables() -> tuple[Any, Any, Any, Any]:
            here = self._line.tables  # those of the stage that runs, not of the one that was traced
            mutual = here.present & (here.twin >= 0)
            return {
                "listeners": (here.listeners, here.listening, here.neighbours, here.present),
                "neighbours": (here.neighbours, here.present, here.listeners, here.listening),
                "swap": (here.neighbours, mutual, here.neighbours, mutual),
            }[way]

        def send(to: np.ndarray) -> Iterable[Address]:
            ids, outward = self._line.tables.ids, tables()[0]
            for c, s in zip(*np.nonzero(to), strict=True):
                yield kind, (int(ids[c]), int(outward[c, s])), (c, s)

        def ways() -> Ways:
            ids, (outward, out, inward, into) = self._line.tables.ids.tolist(), tables()
            return Ways(
                [(ids[c], int(outward[c, s])) for c, s in np.argwhere(out)],
                [((int(c), int(s)), (int(inward[c, s]), ids[c])) for c, s in np.argwhere(into)],
            )

        note = "edges" if way != "neighbours" else None
        return exchange_values(self._line, x, to, send, ways, slots, note, leading, vectors, acknowledges)


class Remote(PeersFactory):
    """Some clients live in this process, the others in other ones; frames travel over a line.

    Args:
        line: this process's end of the network.
        hub: whether one member is the hub; if not, every process computes what a hub would.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
    """

    rounds_per_call = 1

    def __init__(self, line: Line, hub: bool = True, all_to_all: int = ALL_TO_ALL):
        self.line, self._hub, self._all_to_all = line, hub, all_to_all

    def make(self, tables: Tables, arrivals: Lost = None, coder: Coder | None = None) -> RemotePeers:
        """See `PeersFactory.make`; what is lost, the network decides."""
        return RemotePeers(tables, self.line, coder, self._hub, injected(arrivals), self.robust, self._all_to_all)

    @property
    def programs(self) -> Hashable:
        """Callbacks leave a program for this line."""
        return Remote, id(self.line), self._hub, self.robust, self._all_to_all

    def use_tables(self, tables: Tables) -> None:
        """Address the clients of these tables from now on."""
        self.line.tables = tables

    def start_round(self, number: int) -> None:
        """Number the frames by this round."""
        self.line.start_round(number)


def _by_slot(values: Tree) -> Callable[[Any], Tree]:
    return lambda k: jax.tree.map(lambda a: a[:, k], values)
