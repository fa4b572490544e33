"""Some clients live here, the others elsewhere: the same verbs, with messages that really travel.

A carrier moves frames between processes. Each verb is one or two ordered callbacks out of the compiled program: what
the clients here say is encoded, handed to the carrier, and what came back is put into slots. The arithmetic is the
same as in a simulation in `exact` mode, in the same order, so that the numbers are the same to the last bit. A
callback never raises: what does not arrive, arrives as `arrived = False`.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.learning.buckets import bucket_by_bucket
from coterie.numerics.tree import column
from coterie.peers import ALL_TO_ALL
from coterie.peers.arithmetic import message_bytes
from coterie.peers.base import Peers, Tables, Tree
from coterie.peers.coding import Coder, Outgoing
from coterie.peers.exchange import Vectors, Ways, exchange_values
from coterie.peers.factory import Lost, PeersFactory
from coterie.peers.injection import FaultTables, injected
from coterie.peers.line import COPY, ESSENTIAL, HUB, ORDINARY, Address, Line
from coterie.peers.messages import Received
from coterie.peers.pushed import Step

__all__ = ["Remote", "RemotePeers"]


class RemotePeers(Peers):
    """The verbs for clients that are spread over processes; made anew inside every traced round.

    Args:
        tables: the tables of the clients living here, an argument of the program (a constant would be folded by the
            compiler, which rounds otherwise than the program does).
        line: this process's end of the network.
        coder: the codec at work; None sends everything as it is.
        hub: whether there is one; if not, every process computes what a hub would.
        faults: of this round, for what the clients here send; what gets lost, the carrier decides.
        robust: how far received values may be away (`robust.py`); None: as far as they are.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
    """

    apart = True

    def __init__(
        self,
        tables: Tables,
        line: Line,
        coder: Coder | None = None,
        hub: bool = True,
        faults: FaultTables | None = None,
        robust: float | None = None,
        all_to_all: int = ALL_TO_ALL,
    ):
        super().__init__(tables, tables.order.shape[0], coder, hub, faults, robust, all_to_all)
        self._line = line

    def _each(self, fn: Callable, *stacked: Tree) -> Tree:
        """See `Here._each`: one after another."""
        return lax.map(lambda each: fn(*each), stacked)

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
        (rest, vector), arrived, came_whole = self._slots(sent, to, way, kind, vectors=vectors)
        flat = self.each(coder.bytes, vector.reshape(-1, vector.shape[-1]), came_whole.reshape(-1))
        size = message_bytes(message.rest) + flat.reshape(arrived.shape)
        if mirrored:
            vector = self._recall(message.site, vector, came_whole, arrived)
        values = message.join(vector, rest)
        return Received(_by_slot(values), arrived, arrived, size, values)

    def _vectors(self, whole: jax.Array, site: str | None) -> Vectors:
        """Say how vectors are encoded: mirrored at a site of the round, or not."""
        assert self._coder is not None
        return Vectors(self._coder.codec, whole, site, None if site is None else self._coder.memory[site].held)

    def _acknowledge(self, arrived: jax.Array) -> jax.Array:
        """See `Messages._acknowledge`."""
        return self._slots((), arrived, "neighbours", kind=ESSENTIAL)[1]

    def _swap_slots(self, x: Tree, mutual: jax.Array) -> tuple[Tree, jax.Array]:
        """See `Messages._swap_slots`."""
        values, arrived = self._slots(x, mutual, "swap", leading=2)
        return values, arrived

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
            given = lax.map(lambda pair: fn(pair[0], jax.tree.map(lambda a: a[pair[1]], own)), (flat, whose))
            return jax.tree.map(lambda a: a.reshape(-1, places, *a.shape[1:]), given)

        answers = bucket_by_bucket(answer, asked.rows, self.tables.listening, own)
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((here, *a.shape[2:]), a.dtype), answers)
        values, arrived = self._slots(self._sent(answers, leading=2), asked.arrived, "listeners", leading=2)
        return Received(_by_slot(values), arrived, arrived), like

    def _to_hub(
        self,
        x: Tree,
        active: jax.Array,
        certain: bool,
        size: Any,
        whole: jax.Array | None = None,
        site: str | None = None,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array, Any, Any]:
        """See `Messages._to_hub`."""
        kind = ESSENTIAL if certain or site is not None else ORDINARY

        def receivers() -> Sequence[int]:
            return [HUB] if self._has_hub else range(self.clients)

        def send(active: np.ndarray) -> Iterable[Address]:
            for c in np.flatnonzero(active):
                for receiver in receivers():
                    yield kind, (int(self._line.tables.ids[c]), receiver), (int(c),)

        def ways() -> Ways:
            ids = self._line.tables.ids.tolist()
            here = ids if not self._has_hub else [HUB] if self._line.carrier.hub else []
            pairs = [(i, j) for i in ids for j in receivers()]
            return Ways(pairs, [((i,), (i, j)) for i in range(self.clients) for j in here])

        note = None if certain else "up"
        vectors = None if whole is None else self._vectors(whole, site)
        values, arrived, *came_whole = exchange_values(
            self._line, x, active, send, ways, (self.clients,), note, vectors=vectors
        )
        if not self._has_hub:
            heard = arrived.astype(jnp.uint32)
            bytes_each = heard * jnp.asarray(self._sizes(values, size, came_whole), jnp.uint32)
            self._charge_everyone(active, size, heard.sum() - heard[self.ids], bytes_each.sum() - bytes_each[self.ids])
        return values, arrived, None if certain else 0, came_whole[0] if came_whole else None

    def _sizes(self, values: Tree, size: Any, came_whole: Sequence[jax.Array]) -> Any:
        """Return the bytes of the messages that came, one number or `[K]`; `size` where nothing was encoded."""
        if not came_whole:
            return size
        assert self._coder is not None
        *rest, vector = jax.tree.leaves(values)
        return message_bytes(rest) + self.each(self._coder.bytes, vector, came_whole[0])

    def _from_hub(
        self,
        rows: Tree,
        which: jax.Array,
        took_part: jax.Array,
        exchange: Any,
        copies: bool = True,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array]:
        """See `Messages._from_hub`; without a hub, what it says is known here."""
        if not self._has_hub:
            arrived = jnp.ones(self.ids.shape, bool) if copies else took_part[self.ids]
            return jax.tree.map(
                lambda a: jnp.where(column(arrived, a), a[which[self.ids]], jnp.zeros((), a.dtype)), rows
            ), arrived
        rows = jax.tree.map(lambda a: a[which], rows)
        kind = ESSENTIAL if exchange is None else ORDINARY

        def send(took_part: np.ndarray) -> Iterable[Address]:
            for i in range(self.clients) if self._line.carrier.hub else ():
                if took_part[i] or copies:
                    yield kind if took_part[i] else COPY, (HUB, i), (i,)

        def ways() -> Ways:
            everyone = range(self.clients) if self._line.carrier.hub else ()
            return Ways(
                [(HUB, i) for i in everyone], [((c,), (HUB, int(i))) for c, i in enumerate(self._line.tables.ids)]
            )

        note = None if exchange is None else "down"
        return exchange_values(self._line, rows, took_part, send, ways, self.ids.shape, note)[:2]

    def _from_hub_to_all(self, x: Tree) -> Tree:
        """See `Messages._from_hub_to_all`."""
        if not self._has_hub:
            return x
        everyone = jnp.ones(self.clients, bool)
        rows, _ = self._from_hub(jax.tree.map(lambda a: a[None], x), jnp.zeros_like(everyone, int), everyone, None)
        return jax.tree.map(lambda a: a[0], rows)

    def _pass_on(self, x: Tree, step: Step) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Messages._pass_on`."""

        def send(active: np.ndarray) -> Iterable[Address]:
            for c, i in enumerate(self._line.tables.ids.tolist()):
                if active[c]:
                    yield ORDINARY, (i, int(step.sends[i])), (c,)

        def ways() -> Ways:
            ids = self._line.tables.ids.tolist()
            return Ways(
                [(i, int(step.sends[i])) for i in ids if step.sends[i] >= 0],
                [((c,), (int(step.hears[i]), i)) for c, i in enumerate(ids) if step.hears[i] >= 0],
            )

        active = jnp.asarray(step.sends >= 0)[self.ids]
        values, arrived = exchange_values(self._line, x, active, send, ways, self.ids.shape, "pushed")
        return values, arrived, arrived

    def _slots(
        self,
        x: Tree,
        to: jax.Array,
        way: str,
        kind: int = ORDINARY,
        leading: int = 1,
        vectors: Vectors | None = None,
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
        return exchange_values(self._line, x, to, send, ways, slots, note, leading, vectors)


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
