"""Some clients live here, the others elsewhere: the same verbs, with messages that really travel.

A carrier moves frames between processes. Each verb is one or two ordered callbacks out of the compiled program: what
the clients here say is encoded, handed to the carrier, and what came back is put into slots. The arithmetic is the
same as in a simulation in `exact` mode, in the same order, so that the numbers are the same to the last bit. A
callback never raises: what does not arrive, arrives as `arrived = False`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from coterie.peers.base import Centres, Peers, Tables, Tree, _column, fold_clients, fold_slots, message_bytes
from coterie.peers.frame import Header, decode, encode

__all__ = ["COPY", "ESSENTIAL", "HUB", "ORDINARY", "Carrier", "Delivery", "Frames", "Line", "RemotePeers"]

HUB = 0xFFFFFFFF  # the hub's place in a frame's header
# Kinds of frames. A carrier may give up on an ordinary one, never on an essential one. A copy is the hub's mean for a
# client that took no part in it: the ledger counts it when that client next takes part, where a hub would send it.
ORDINARY, ESSENTIAL, COPY = 0, 1, 2

Frames = dict[tuple[int, int], bytes]  # by (sender, receiver)
Message = tuple[int, tuple[int, int], list[np.ndarray]]  # kind, (sender, receiver), arrays


class Carrier(Protocol):
    """Moves frames between the processes of a run."""

    hub: bool  # whether the hub (the first process) is this one

    def exchange(self, number: int, exchange: int, frames: Frames) -> Frames:
        """Hand over the frames of one exchange, by (sender, receiver), and return those for receivers living here."""


class Delivery(NamedTuple):
    """What arrived in one exchange; enough of them repeat a run's loss in a simulation."""

    round: int
    edges: np.ndarray | None = None  # [C, D] by slot
    up: np.ndarray | None = None  # [K], known at the hub
    down: np.ndarray | None = None  # [C]


class Line:
    """This process's end of the network: it numbers exchanges and keeps the record of what arrived.

    Args:
        carrier: what moves the frames.
        tables: the tables of the clients living here, as NumPy arrays: who is addressed.
        run: a number that all processes of a run share.
    """

    def __init__(self, carrier: Carrier, tables: Tables, run: int = 0):
        self.carrier, self.tables, self.run = carrier, tables, run
        self.deliveries: list[Delivery] = []
        self.round = self.exchange = 0

    def start_round(self, number: int) -> None:
        """Say which round follows: frames are numbered by it."""
        self.round, self.exchange = number, 0

    def talk(self, messages: Iterable[Message]) -> Frames:
        """Send the messages of one exchange and return the frames for receivers living here."""
        number, self.exchange = self.exchange, self.exchange + 1
        frames = {
            pair: encode(Header(kind, self.run, self.round, number, *pair), arrays) for kind, pair, arrays in messages
        }
        return self.carrier.exchange(self.round, number, frames)

    def open(self, frame: bytes | None, like: Sequence[Any]) -> list[np.ndarray] | None:
        """Check what arrived before a method sees it: whole, of this run and round, finite."""
        opened = None if frame is None else decode(frame, like)
        if opened is None or opened[0].run != self.run or opened[0].round != self.round:
            return None
        floats = [v for v in opened[1] if np.issubdtype(v.dtype, np.floating)]
        return opened[1] if all(np.isfinite(v).all() for v in floats) else None


class RemotePeers(Peers):
    """The verbs for clients that are spread over processes; made anew inside every traced round.

    Args:
        tables: the tables of the clients living here, an argument of the program (a constant would be folded by the
            compiler, which rounds otherwise than the program does).
        clients: the number of all clients.
        line: this process's end of the network.
    """

    def __init__(self, tables: Tables, clients: int, line: Line):
        super().__init__(tables, clients)
        self._host, self._line = line.tables, line

    def each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each client living here, one after another."""
        return lax.map(lambda each: fn(*each), stacked)

    # -- verbs ------------------------------------------------------------------------------------------------

    def mix(self, x: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
        """See `Peers.mix`."""
        self._charge("heard", self.present, message_bytes(x))
        heard, arrived = self._slots(_copies(x, self.tables.listening), self.tables.listening, "listeners")
        kept, used = self.sum_slots(jnp.where(arrived, 0, weights)), jnp.where(arrived, weights, 0)
        start = self.seal(jax.tree.map(lambda a: _column(kept, a).astype(a.dtype) * a, x))
        return self._fold(heard, used, start), arrived

    def _fold(self, heard: Tree, weights: jax.Array, start: Tree) -> Tree:
        hear = lambda k: jax.tree.map(lambda a: a[:, k], heard)  # noqa: E731
        return fold_slots(weights.shape[1], hear, weights, start, self.seal)

    def push(
        self, x: Tree, to: jax.Array | None = None, weights: jax.Array | None = None
    ) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Peers.push`. A receiver can only count what arrived; a simulation also counts what was lost."""
        to = self.tables.listening if to is None else to & self.tables.listening
        heard, arrived = self._slots(_copies(x, to), to, "listeners")
        self._charge("heard", arrived, message_bytes(x))
        self._charge("told", arrived, message_bytes(()))
        used = arrived.astype(self.weights.dtype) if weights is None else jnp.where(arrived, weights, 0)
        total = self._fold(heard, used, jax.tree.map(jnp.zeros_like, x))
        _, acked = self._slots((), arrived, "neighbours", kind=ESSENTIAL)
        return total, arrived, acked

    def swap(self, x: Tree) -> tuple[Tree, jax.Array]:
        """See `Peers.swap`."""
        mutual = self.present & (self.tables.twin >= 0)
        self._charge("heard", mutual, message_bytes(x, leading=2))
        return self._slots(x, mutual, "swap")

    def ask(self, fn: Callable, x: Tree, own: Tree, weights: jax.Array | None = None) -> tuple[Tree, jax.Array]:
        """See `Peers.ask`."""
        questions, asked = self._slots(_copies(x, self.present), self.present, "neighbours")  # [C, L, ...]

        here, places = self.tables.listening.shape
        # One flat loop over all questions, as in a simulation: in a loop inside a loop what depends on `own` alone
        # would be computed outside, and rounded otherwise.
        flat = jax.tree.map(lambda a: a.reshape(here * places, *a.shape[2:]), questions)
        whose = jnp.repeat(jnp.arange(here), places)
        answers = lax.map(lambda pair: fn(pair[0], jax.tree.map(lambda a: a[pair[1]], own)), (flat, whose))
        answers = jax.tree.map(lambda a: a.reshape(here, places, *a.shape[1:]), answers)
        self._charge("told", self.present, message_bytes(x))
        self._charge("heard", self.present, message_bytes(answers, leading=2))
        heard, arrived = self._slots(answers, asked, "listeners")
        if weights is None:
            return heard, arrived
        start = jax.tree.map(lambda a: jnp.zeros((a.shape[0], *a.shape[2:]), a.dtype), heard)
        return self._fold(heard, jnp.where(arrived, weights, 0), start), arrived

    def mean(self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None = None) -> tuple[Tree, jax.Array]:
        """See `Peers.mean`: the hub is the first process, and adds in id order."""
        label, count = (None, 1) if groups is None else (groups[0].astype(jnp.int32), groups[1])
        self._charge_mean(x, weight, label)
        labels = jnp.zeros(self.clients, jnp.int32)
        if label is not None:  # also from those who take no part: they get their group's mean
            labels, _ = self._to_hub(label, jnp.ones_like(weight, bool), kind=ESSENTIAL)
        (values, weights), took_part = self._to_hub((x, weight), weight > 0)
        totals, mass = fold_clients(values, jnp.where(took_part, weights, 0), labels, count, self.seal)
        (value, mass), arrived = self._from_hub(jax.tree.map(lambda t: t[labels], (totals, mass)), took_part)
        arrived = arrived & (mass > 0)
        return jax.tree.map(lambda t, a: jnp.where(_column(arrived, a), t, a), value, x), arrived

    def centres(
        self,
        x: Tree,
        weight: jax.Array,
        clusters: tuple[jax.Array, int],
        across: jax.Array | None = None,
        certain: bool = False,
    ) -> tuple[Centres, jax.Array]:
        """See `Peers.centres`: the hub answers those it heard of, and nobody else."""
        self._charge_centres(x, weight, across)
        kind = ESSENTIAL if certain else ORDINARY
        weights = (weight,) if across is None else (weight, across)
        told, sent = self._to_hub((x, weights, clusters[0].astype(jnp.int32)), weight > 0, kind)
        values, weights, labels = told
        groups = ((labels, clusters[1]), (jnp.zeros_like(labels), 1))  # one's cluster, everybody
        found = []
        for each, (label, count) in zip(weights, groups, strict=False):
            averages = fold_clients(values, jnp.where(sent, each, 0), label, count, self.seal)
            found.append(jax.tree.map(lambda t, label=label: t[label], averages))
        found, arrived = self._from_hub(found, sent, kind, copies=False)
        back = [jax.tree.map(lambda t, a: jnp.where(_column(arrived, a), t, a), mean, x) for mean, _ in found]
        pairs = zip(back, [mass for _, mass in found], strict=True)  # where nothing arrived the weight is 0
        return Centres(*(value for pair in pairs for value in pair)), arrived

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

    def _slots(self, x: Tree, to: jax.Array, way: str, kind: int = ORDINARY) -> tuple[Tree, jax.Array]:
        """Send `x [C, S, ...]` where `to [C, S]`, one message a slot of the table that `way` names."""
        here = self._host
        outward, inward, present = {
            "listeners": (here.listeners, here.neighbours, here.present),
            "neighbours": (here.neighbours, here.listeners, here.listening),
            "swap": (here.neighbours, here.neighbours, here.present),
        }[way]

        def send(to: np.ndarray, values: list[np.ndarray]) -> Iterable[Message]:
            for c, s in zip(*np.nonzero(to), strict=True):
                yield kind, (int(here.ids[c]), int(outward[c, s])), [v[c, s] for v in values]

        places = [(int(c), int(s)) for c, s in zip(*np.nonzero(present), strict=True)]
        expected = [((c, s), (int(inward[c, s]), int(here.ids[c]))) for c, s in places]
        note = "edges" if way != "neighbours" else None
        return self._converse(x, 2, to, send, inward.shape, expected, note)

    def _to_hub(self, x: Tree, active: jax.Array, kind: int = ORDINARY) -> tuple[Tree, jax.Array]:
        """Send x to the hub where `active [C]`; there it returns everyone's `[K, ...]`, elsewhere zeros."""

        def send(active: np.ndarray, values: list[np.ndarray]) -> Iterable[Message]:
            for c in np.flatnonzero(active):
                yield kind, (int(self._host.ids[c]), HUB), [v[c] for v in values]

        expected = [((i,), (i, HUB)) for i in range(self.clients)] if self._line.carrier.hub else []
        note = "up" if kind == ORDINARY else None  # nothing to remember where nothing can be lost
        return self._converse(x, 1, active, send, (self.clients,), expected, note)

    def _from_hub(
        self, x: Tree, took_part: jax.Array, kind: int = ORDINARY, copies: bool = True
    ) -> tuple[Tree, jax.Array]:
        """Send each client its row of `x [K, ...]` from the hub; returns the rows of the clients living here.

        Who took no part gets a copy, or nothing at all without `copies`.
        """

        def send(took_part: np.ndarray, values: list[np.ndarray]) -> Iterable[Message]:
            for i in range(self.clients) if self._line.carrier.hub else ():
                if took_part[i] or copies:
                    yield kind if took_part[i] else COPY, (HUB, i), [v[i] for v in values]

        ids = self._host.ids
        expected = [((c,), (HUB, int(i))) for c, i in enumerate(ids)]
        note = "down" if kind == ORDINARY else None
        return self._converse(x, 1, took_part, send, (len(ids),), expected, note)

    def _converse(
        self,
        x: Tree,
        leading: int,
        active: jax.Array,
        send: Callable[[np.ndarray, list[np.ndarray]], Iterable[Message]],
        shape: tuple[int, ...],
        expected: Sequence[tuple[tuple[int, ...], tuple[int, int]]],
        note: str | None,
    ) -> tuple[Tree, jax.Array]:
        """Leave the program, hand over the frames that `send` makes, and come back with what was expected.

        `expected` says which (sender, receiver) belongs at which place of the answer, whose leading axes are `shape`.
        """
        leaves, structure = jax.tree.flatten(x)
        each = [jax.ShapeDtypeStruct(a.shape[leading:], a.dtype) for a in leaves]
        answer = [jax.ShapeDtypeStruct((*shape, *a.shape), a.dtype) for a in each]

        def talk(active: Any, *values: Any) -> list[np.ndarray]:
            received = self._line.talk(send(np.asarray(active), [np.asarray(v) for v in values]))
            out = [np.zeros(a.shape, a.dtype) for a in answer]
            arrived = np.zeros(shape, bool)
            for place, pair in expected:
                found = self._line.open(received.get(pair), each)
                if found is not None:
                    arrived[place] = True
                    for target, value in zip(out, found, strict=True):
                        target[place] = value
            if note is not None:
                self._line.deliveries.append(Delivery(self._line.round, **{note: arrived}))
            return [*out, arrived]

        *found, arrived = io_callback(talk, [*answer, jax.ShapeDtypeStruct(shape, bool)], active, *leaves, ordered=True)
        return jax.tree.unflatten(structure, found), arrived


def _copies(x: Tree, to: jax.Array) -> Tree:
    """Give every slot its copy of the client's value."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a[:, None], (*to.shape, *a.shape[1:])), x)
