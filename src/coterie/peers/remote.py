"""Some clients live here, the others elsewhere: the same verbs, with messages that really travel.

A carrier moves frames between processes. Each verb is one or two ordered callbacks out of the compiled program: what
the clients here say is encoded, handed to the carrier, and what came back is put into slots. The arithmetic is the
same as in a simulation in `exact` mode, in the same order, so that the numbers are the same to the last bit. A
callback never raises: what does not arrive, arrives as `arrived = False`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from coterie.peers.arithmetic import column, fold_clients, fold_slots, message_bytes
from coterie.peers.base import Arrivals, Centres, Peers, Tables, Tree
from coterie.peers.coding import Coder, Told, wrap_vector
from coterie.peers.factory import PeersFactory
from coterie.peers.line import COPY, ESSENTIAL, HUB, ORDINARY, Address, Delivery, Line, Message

__all__ = ["Remote", "RemotePeers"]


Expected = tuple[tuple[int, ...], tuple[int, int]]  # where in the answer, (sender, receiver)


class RemotePeers(Peers):
    """The verbs for clients that are spread over processes; made anew inside every traced round.

    Args:
        tables: the tables of the clients living here, an argument of the program (a constant would be folded by the
            compiler, which rounds otherwise than the program does).
        line: this process's end of the network.
        coder: the codec at work; None sends everything as it is.
    """

    def __init__(self, tables: Tables, line: Line, coder: Coder | None = None):
        super().__init__(tables, tables.order.shape[0], coder)
        self._line = line

    def each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each client living here, one after another."""
        return lax.map(lambda each: fn(*each), stacked)

    # -- verbs ------------------------------------------------------------------------------------------------

    def mix(self, x: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
        """See `Peers.mix`."""
        told = self._tell(x, "mirror", others=self.present.shape)
        heard, arrived, size = self._speak(told, self.tables.listening, "listeners")
        self._charge("heard", self.present, size)
        kept, used = self.sum_slots(jnp.where(arrived, 0, weights)), jnp.where(arrived, weights, 0)
        start = self.seal(jax.tree.map(lambda a: column(kept, a).astype(a.dtype) * a, x))
        return self._fold(heard, used, start), arrived

    def _fold(self, heard: Tree, weights: jax.Array, start: Tree) -> Tree:
        hear = lambda k: jax.tree.map(lambda a: a[:, k], heard)  # noqa: E731
        return fold_slots(weights.shape[1], hear, weights, start, self.seal)

    def push(
        self, x: Tree | Told, to: jax.Array | None = None, weights: jax.Array | None = None
    ) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Peers.push`. A receiver can only count what arrived; a simulation also counts what was lost."""
        to = self.tables.listening if to is None else to & self.tables.listening
        told = x if isinstance(x, Told) else self.squeeze(x)
        heard, arrived, size = self._speak(told, to, "listeners")
        self._charge("heard", arrived, size)
        self._charge("told", arrived, message_bytes(()))
        used = arrived.astype(self.weights.dtype) if weights is None else jnp.where(arrived, weights, 0)
        total = self._fold(heard, used, jax.tree.map(jnp.zeros_like, told.value))
        _, acked = self._slots((), arrived, "neighbours", kind=ESSENTIAL)
        return total, arrived, acked

    def swap(self, x: Tree) -> tuple[Tree, jax.Array]:
        """See `Peers.swap`."""
        mutual = self.present & (self.tables.twin >= 0)
        self._charge("heard", mutual, message_bytes(x, leading=2))
        return self._slots(x, mutual, "swap")

    def ask(self, fn: Callable, x: Tree, own: Tree, weights: jax.Array | None = None) -> tuple[Tree, jax.Array]:
        """See `Peers.ask`."""
        told = self._tell(x, "mirror", others=self.tables.listening.shape)
        questions, asked, _ = self._speak(told, self.present, "neighbours")  # [C, L, ...]

        here, places = self.tables.listening.shape
        # One flat loop over all questions, as in a simulation: in a loop inside a loop what depends on `own` alone
        # would be computed outside, and rounded otherwise.
        flat = jax.tree.map(lambda a: a.reshape(here * places, *a.shape[2:]), questions)
        whose = jnp.repeat(jnp.arange(here), places)
        answers = lax.map(lambda pair: fn(pair[0], jax.tree.map(lambda a: a[pair[1]], own)), (flat, whose))
        answers = jax.tree.map(lambda a: a.reshape(here, places, *a.shape[1:]), answers)
        self._charge("told", self.present, told.size if isinstance(told.size, int) else told.size[:, None])
        self._charge("heard", self.present, message_bytes(answers, leading=2))
        heard, arrived = self._slots(answers, asked, "listeners")
        if weights is None:
            return heard, arrived
        start = jax.tree.map(lambda a: jnp.zeros((a.shape[0], *a.shape[2:]), a.dtype), heard)
        return self._fold(heard, jnp.where(arrived, weights, 0), start), arrived

    def mean(
        self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None = None, since: Tree = None
    ) -> tuple[Tree, jax.Array]:
        """See `Peers.mean`: the hub is the first process, and adds in id order."""
        label, count = (None, 1) if groups is None else (groups[0].astype(jnp.int32), groups[1])
        counts_from = since if groups is None else None
        way = "mirror" if counts_from is None else "update"
        told = self._tell(x, way, weight > 0, others=(self.clients,), since=counts_from)
        self._charge_mean(x, weight, label, told)
        labels = jnp.zeros(self.clients, jnp.int32)
        if label is not None:  # also from those who take no part: they get their group's mean
            labels, _ = self._to_hub(label, jnp.ones_like(weight, bool), kind=ESSENTIAL)
        values, weights, took_part = self._report(told, weight, weight > 0)
        totals, mass = self.seal(fold_clients(values, jnp.where(took_part, weights, 0), labels, count, self.seal))
        if told.vector is not None and counts_from is not None:
            totals = told.join(self._hub_holds(told, counts_from, totals[0], mass), totals[1])
        (value, mass), arrived = self._from_hub(jax.tree.map(lambda t: t[labels], (totals, mass)), took_part)
        arrived = arrived & (mass > 0)
        return jax.tree.map(lambda t, a: jnp.where(column(arrived, a), t, a), value, x), arrived

    def centres(
        self,
        x: Tree,
        weight: jax.Array,
        clusters: tuple[jax.Array, int],
        across: jax.Array | None = None,
        certain: bool = False,
    ) -> tuple[Centres, jax.Array]:
        """See `Peers.centres`: the hub answers those it heard of, and nobody else."""
        said = self._tell(x, "mirror", weight > 0, others=(self.clients,))
        self._charge_centres(x, weight, across, said)
        kind = ESSENTIAL if certain else ORDINARY
        weights = (weight,) if across is None else (weight, across)
        values, (weights, labels), sent = self._report(said, (weights, clusters[0].astype(jnp.int32)), weight > 0, kind)
        groups = ((labels, clusters[1]), (jnp.zeros_like(labels), 1))  # one's cluster, everybody
        found = []
        for each, (label, count) in zip(weights, groups, strict=False):
            averages = fold_clients(values, jnp.where(sent, each, 0), label, count, self.seal)
            found.append(jax.tree.map(lambda t, label=label: t[label], averages))
        found, arrived = self._from_hub(found, sent, kind, copies=False)
        back = [jax.tree.map(lambda t, a: jnp.where(column(arrived, a), t, a), mean, x) for mean, _ in found]
        pairs = zip(back, [mass for _, mass in found], strict=True)  # where nothing arrived the weight is 0
        return Centres(*(value for pair in pairs for value in pair)), arrived

    def hub(
        self, fn: Callable[[Tree, jax.Array, Tree], tuple[Tree, Tree]], x: Tree, memory: Tree, certain: bool = False
    ) -> tuple[Tree, jax.Array, Tree]:
        """See `Peers.hub`."""
        everyone, kind = jnp.ones_like(self.ids, bool), ESSENTIAL if certain else ORDINARY
        told = self._tell(x, "update", others=(self.clients,))
        values, _, up = self._report(told, (), everyone, kind)
        heard = values if told.vector is None else told.join(*values)
        answers, memory = fn(heard, up, memory)
        self._charge_hub(told, answers)
        answers, down = self._from_hub(answers, jnp.ones(self.clients, bool), kind)
        return answers, down, memory

    def most(self, x: Tree) -> Tree:
        """See `Peers.most`."""
        self._charge_most(x)
        everyone, _ = self._to_hub(x, jnp.ones_like(self.ids, bool), kind=ESSENTIAL)
        largest = jax.tree.map(lambda a: jnp.broadcast_to(a.max(0), a.shape), everyone)
        return self._from_hub(largest, jnp.ones(self.clients, bool), kind=ESSENTIAL)[0]

    def share(self, x: Tree, certain: bool = False) -> tuple[Tree, jax.Array]:
        """See `Peers.share`: the hub collects and passes everything on; what it misses, everybody misses."""
        self._charge_share(x)
        table = self._to_hub(x, jnp.ones_like(self.ids, bool), ESSENTIAL if certain else ORDINARY)
        spread = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.clients, *a.shape)), table)
        table, _ = self._from_hub(spread, jnp.ones(self.clients, bool), kind=ESSENTIAL)
        return jax.tree.map(lambda a: a[0], table)

    # -- exchanges: one callback each -------------------------------------------------------------------------

    def _speak(self, told: Told, to: jax.Array, way: str) -> tuple[Tree, jax.Array, Any]:
        """Say something to slots; returns what they said `[C, S, ...]`, `arrived`, and what their messages measure."""
        if told.vector is None:
            heard, arrived = self._slots(_copies(told.value, to), to, way)
            return heard, arrived, told.size
        coder, mirrored = self._coder, bool(told.site) and self._remembers(told.site)
        assert coder is not None
        sent = _copies((told.rest, told.vector), to)
        whole = _copies(told.whole, to)
        (rest, vector), arrived, came_whole = self._slots(sent, to, way, ESSENTIAL if mirrored else ORDINARY, whole)
        flat = self.each(coder.bytes, vector.reshape(-1, vector.shape[-1]), came_whole.reshape(-1))
        size = message_bytes(told.rest) + flat.reshape(arrived.shape)
        if mirrored:
            vector = self._recall(told.site, vector, came_whole, arrived)
        return told.join(vector, rest), arrived, size

    def _remembers(self, site: str) -> bool:
        """Whether the receivers keep what they hold of the sender at this place."""
        return self._coder is not None and not isinstance(self._coder.memory[site].others, tuple)

    def _recall(self, name: str, vector: jax.Array, whole: jax.Array, arrived: jax.Array) -> jax.Array:
        """Add what came to what is held of its senders; returns what is held now."""
        assert self._coder is not None
        site = self._coder.memory[name]
        new = jnp.where(whole[..., None], vector, site.others + vector)
        new = jnp.where(arrived[..., None], new, site.others)
        self._coder.memory = self._coder.memory | {name: site._replace(others=new)}
        return new

    def _report(
        self, told: Told, beside: Tree, active: jax.Array, kind: int = ORDINARY
    ) -> tuple[Tree, Tree, jax.Array]:
        """Tell the hub something, and exact values beside it; there everyone's are returned, and who was heard.

        What was squeezed as a change comes as (vector, rest), anything else as it was told.
        """
        if told.vector is None:
            (values, beside), heard = self._to_hub((told.value, beside), active, kind)
            return values, beside, heard
        mirrored = self._remembers(told.site)
        kind = ESSENTIAL if mirrored else kind
        (rest, beside, vector), heard, came_whole = self._to_hub(
            (told.rest, beside, told.vector), active, kind, told.whole
        )
        if not mirrored:
            return (vector, rest), beside, heard
        return told.join(self._recall(told.site, vector, came_whole, heard), rest), beside, heard

    def _slots(
        self, x: Tree, to: jax.Array, way: str, kind: int = ORDINARY, whole: jax.Array | None = None
    ) -> tuple[Any, ...]:
        """Send `x [C, S, ...]` where `to [C, S]`, one message a slot of the table that `way` names."""
        slots = self.tables.listeners.shape if way == "neighbours" else self.tables.neighbours.shape

        def tables() -> tuple[Any, Any, Any]:
            here = self._line.tables  # those of the stage that runs, not of the one that was traced
            return {
                "listeners": (here.listeners, here.neighbours, here.present),
                "neighbours": (here.neighbours, here.listeners, here.listening),
                "swap": (here.neighbours, here.neighbours, here.present),
            }[way]

        def send(to: np.ndarray) -> Iterable[Address]:
            ids, outward = self._line.tables.ids, tables()[0]
            for c, s in zip(*np.nonzero(to), strict=True):
                yield kind, (int(ids[c]), int(outward[c, s])), (c, s)

        def expected() -> Iterable[Expected]:
            ids, (_, inward, present) = self._line.tables.ids, tables()
            for c, s in zip(*np.nonzero(present), strict=True):
                yield (int(c), int(s)), (int(inward[c, s]), int(ids[c]))

        note = "edges" if way != "neighbours" else None
        return self._converse(x, 2, to, send, slots, expected, note, whole)

    def _to_hub(
        self, x: Tree, active: jax.Array, kind: int = ORDINARY, whole: jax.Array | None = None
    ) -> tuple[Any, ...]:
        """Send x to the hub where `active [C]`; there it returns everyone's `[K, ...]`, elsewhere zeros."""

        def send(active: np.ndarray) -> Iterable[Address]:
            for c in np.flatnonzero(active):
                yield kind, (int(self._line.tables.ids[c]), HUB), (int(c),)

        def expected() -> Iterable[Expected]:
            return [((i,), (i, HUB)) for i in range(self.clients)] if self._line.carrier.hub else []

        # Nothing to remember where nothing can be lost, unless something comes back that can.
        note = "up" if kind == ORDINARY or whole is not None else None
        return self._converse(x, 1, active, send, (self.clients,), expected, note, whole)

    def _from_hub(
        self, x: Tree, took_part: jax.Array, kind: int = ORDINARY, copies: bool = True
    ) -> tuple[Tree, jax.Array]:
        """Send each client its row of `x [K, ...]` from the hub; returns the rows of the clients living here.

        Who took no part gets a copy, or nothing at all without `copies`.
        """

        def send(took_part: np.ndarray) -> Iterable[Address]:
            for i in range(self.clients) if self._line.carrier.hub else ():
                if took_part[i] or copies:
                    yield kind if took_part[i] else COPY, (HUB, i), (i,)

        def expected() -> Iterable[Expected]:
            return [((c,), (HUB, int(i))) for c, i in enumerate(self._line.tables.ids)]

        note = "down" if kind == ORDINARY else None
        found, arrived = self._converse(x, 1, took_part, send, self.ids.shape, expected, note)
        return found, arrived

    def _converse(
        self,
        x: Tree,
        leading: int,
        active: jax.Array,
        send: Callable[[np.ndarray], Iterable[Address]],
        shape: tuple[int, ...],
        expected: Callable[[], Iterable[Expected]],
        note: str | None,
        whole: jax.Array | None = None,
    ) -> tuple[Any, ...]:
        """Leave the program, hand over the frames to whom `send` names, and come back with what was expected.

        `expected` says which (sender, receiver) belongs at which place of the answer, whose leading axes are `shape`.
        With `whole` the last array of x is encoded, except where it goes whole; the answer then says which ones did.
        """
        leaves, structure = jax.tree.flatten(x)
        each = [jax.ShapeDtypeStruct(a.shape[leading:], a.dtype) for a in leaves]
        answer = [jax.ShapeDtypeStruct((*shape, *a.shape), a.dtype) for a in each]
        codec = None if whole is None or self._coder is None else self._coder.codec
        flags = [] if codec is None else [jax.ShapeDtypeStruct(shape, bool)]

        def messages(active: Any, values: list[np.ndarray], whole: Any) -> Iterable[Message]:
            for kind, pair, place in send(np.asarray(active)):
                arrays = [v[place] for v in values]
                if codec is None:
                    yield kind, pair, arrays, b"", None
                else:
                    vector = arrays.pop()
                    yield kind, pair, arrays, wrap_vector(codec, vector, bool(whole[place])), each[-1]

        def talk(active: Any, *values: Any) -> list[np.ndarray]:
            arrays = [np.asarray(v) for v in values]
            flag = arrays.pop() if codec is not None else None
            received = self._line.talk(messages(active, arrays, flag))
            out = [np.zeros(a.shape, a.dtype) for a in (*answer, *flags)]
            arrived = np.zeros(shape, bool)
            for place, pair in expected():
                found = self._line.open(received.get(pair), each, codec)
                if found is not None:
                    arrived[place] = True
                    for target, value in zip(out, found, strict=True):
                        target[place] = value
            if note is not None:
                self._line.deliveries.append(Delivery(self._line.round, **{note: arrived}))
            return [*out, arrived]

        inputs = leaves if whole is None else [*leaves, whole]
        outputs = [*answer, *flags, jax.ShapeDtypeStruct(shape, bool)]
        *found, arrived = io_callback(talk, outputs, active, *inputs, ordered=True)
        value = jax.tree.unflatten(structure, found[: len(leaves)])
        return (value, arrived) if codec is None else (value, arrived, found[-1])


class Remote(PeersFactory):
    """Some clients live in this process, the others in other ones; frames travel over a line."""

    rounds_per_call = 1

    def __init__(self, line: Line):
        self.line = line

    def make(self, tables: Tables, arrivals: Arrivals | None = None, coder: Coder | None = None) -> RemotePeers:
        """See `PeersFactory.make`; what is lost, the network decides."""
        return RemotePeers(tables, self.line, coder)

    def use_tables(self, tables: Tables) -> None:
        """Address the clients of these tables from now on."""
        self.line.tables = tables

    def start_round(self, number: int) -> None:
        """Number the frames by this round."""
        self.line.start_round(number)


def _copies(x: Tree, to: jax.Array) -> Tree:
    """Give every slot its copy of the client's value."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a[:, None], (*to.shape, *a.shape[1:])), x)
