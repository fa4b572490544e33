"""All clients live here: messages are rows of arrays.

Two modes. `exact` runs clients one after another and adds in a fixed order: bit-equal to clients that live elsewhere.
`fast` batches clients and adds with matrix products: equal to rounding. On several devices of this host each takes a
share of the clients in `each`; the verbs then see whole arrays, so that the numbers do not depend on the devices.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coterie.peers.arithmetic import column, fold_clients, fold_slots, message_bytes
from coterie.peers.base import Arrivals, Centres, Peers, Tables, Tree
from coterie.peers.coding import Coder, Told
from coterie.peers.factory import PeersFactory

__all__ = ["LocalPeers", "Plan", "Simulation"]

DENSE_LIMIT = 4096  # clients up to which a K x K matrix product beats a fold over slots


class Plan(NamedTuple):
    """How `each` runs: the mode, how many clients at a time (0: all), and the devices that share the work."""

    mode: Literal["exact", "fast"] = "fast"
    chunk: int = 0
    mesh: Mesh | None = None


class LocalPeers(Peers):
    """The verbs for "all clients live here".

    Args:
        tables: who may talk to whom; `ids` may be any order of 0..K-1.
        plan: how to run.
        arrivals: a recorded loss to repeat in this round; None delivers everything.
        coder: the codec at work; None sends everything as it is.
    """

    def __init__(
        self,
        tables: Tables,
        plan: Plan = Plan(),  # noqa: B008
        arrivals: Arrivals | None = None,
        coder: Coder | None = None,
    ):
        super().__init__(tables, tables.ids.shape[0], coder)
        self._plan, self._arrivals = plan, arrivals
        self._exact = plan.mode == "exact"
        self._where = tables.order[tables.neighbours]  # [C, D] rows of the neighbours
        self._hearers = tables.order[tables.listeners]  # [C, L] rows of the listeners

    def each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each client: one after another, or batched in chunks; shared out over the devices."""

        def here(*part: Tree) -> Tree:
            size = jax.tree.leaves(part)[0].shape[0]
            if self._exact:
                return lax.map(lambda each: fn(*each), part)
            if self._plan.chunk and self._plan.chunk < size:
                return lax.map(lambda each: fn(*each), part, batch_size=self._plan.chunk)
            return jax.vmap(fn)(*part)

        mesh = self._plan.mesh
        if mesh is None:
            return here(*stacked)
        count = jax.tree.leaves(stacked)[0].shape[0]
        missing = -count % mesh.size
        if missing:  # the last client is repeated so that every device has equally many
            stacked = jax.tree.map(lambda a: jnp.concatenate([a, jnp.repeat(a[-1:], missing, 0)]), stacked)
        split = PartitionSpec("clients")
        done = jax.shard_map(here, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)(*stacked)
        return jax.tree.map(lambda a: a[:count], done) if missing else done

    def seal(self, x: Tree) -> Tree:
        """See `Peers.seal`; nothing to do in fast mode, which promises rounding only."""
        return super().seal(x) if self._exact else x

    def sum_slots(self, values: jax.Array) -> jax.Array:
        """See `Peers.sum_slots`; in any order in fast mode."""
        return super().sum_slots(values) if self._exact else values.sum(1)

    def _whole(self, x: Tree) -> Tree:
        """Give every device the whole of x before values of different clients meet."""
        if self._plan.mesh is None:
            return x
        return lax.with_sharding_constraint(x, NamedSharding(self._plan.mesh, PartitionSpec()))

    def _delivered(self, tick: Any) -> jax.Array:
        return self.present if self._arrivals is None else self.present & self._arrivals.edges[tick]

    def mix(self, x: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
        """See `Peers.mix`."""
        told = self._tell(self._whole(x), "mirror")
        self._charge("heard", self.present, self._from_senders(told.size))
        x = self._whole(x)
        sound = self._finite(x)  # what is not finite does not arrive, here as on a network
        heard = jax.tree.map(lambda a: jnp.where(column(sound, a), a, jnp.zeros_like(a)), told.value)
        arrived = self._delivered(self._next_exchange()) & sound[self._where]
        kept, used = self.sum_slots(jnp.where(arrived, 0, weights)), jnp.where(arrived, weights, 0)
        if self._exact or self.clients > DENSE_LIMIT:
            start = self.seal(jax.tree.map(lambda a: column(kept, a).astype(a.dtype) * a, x))
            return fold_slots(self._where.shape[1], self._hear(heard), used, start, self.seal), arrived
        # What others hold of a client may differ from what it holds itself, if a codec stands between them.
        matrix = self._matrix(kept if told.vector is None else jnp.zeros_like(kept), used)
        mixed = jax.tree.map(lambda a: _product(matrix.astype(a.dtype), a), heard)
        if told.vector is not None:
            mixed = jax.tree.map(lambda m, a: m + column(kept, a).astype(a.dtype) * a, mixed, x)
        return jax.tree.map(lambda m, a: jnp.where(column(sound, a), m, a), mixed, x), arrived

    def _from_senders(self, size: Any) -> Any:
        """Lay out by slot what each sender's message measures."""
        return size if isinstance(size, int) else size[self._where]

    def _finite(self, x: Tree) -> jax.Array:
        """Say for each client whether all its numbers are finite."""
        floats = [a for a in jax.tree.leaves(x) if jnp.issubdtype(a.dtype, jnp.floating)]
        each = [jnp.isfinite(a).all(tuple(range(1, a.ndim))) for a in floats]
        return jnp.stack([jnp.ones(self.clients, bool), *each]).all(0)

    def _hear(self, x: Tree) -> Callable[[Any], Tree]:
        return lambda k: jax.tree.map(lambda a: a[self._where[:, k]], x)

    def push(
        self, x: Tree | Told, to: jax.Array | None = None, weights: jax.Array | None = None
    ) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Peers.push`."""
        told = x if isinstance(x, Told) else self.squeeze(self._whole(x))
        tick = self._next_exchange()
        to = self.tables.listening if to is None else to & self.tables.listening
        # No client has a listener when all slots are empty; there is then no row to look into.
        sent = self.present & to[self._where, self.tables.back] if to.shape[1] else self.present
        x = self._whole(told.value)
        sound = self._finite(x)  # what is not finite does not arrive, here as on a network
        arrived = sent & self._delivered(tick) & sound[self._where]
        self._charge("heard", sent, self._from_senders(told.size))
        self._charge("told", arrived, message_bytes(()))  # the acknowledgement
        x = jax.tree.map(lambda a: jnp.where(column(sound, a), a, jnp.zeros_like(a)), x)
        used = arrived.astype(self.weights.dtype) if weights is None else jnp.where(arrived, weights, 0)
        acked = self.tables.listening & arrived[self._hearers, self.tables.seat]
        if self._exact or self.clients > DENSE_LIMIT:
            nothing = jax.tree.map(jnp.zeros_like, x)
            return fold_slots(self._where.shape[1], self._hear(x), used, nothing, self.seal), arrived, acked
        matrix = self._matrix(jnp.zeros(self.clients, used.dtype), used)
        return jax.tree.map(lambda a: _product(matrix.astype(a.dtype), a), x), arrived, acked

    def _matrix(self, own: jax.Array, by_slot: jax.Array) -> jax.Array:
        """Lay weights by slot `[C, D]` and on oneself `[C]` out as a matrix over all clients."""
        return jnp.diag(own).at[jnp.arange(self.clients)[:, None], self._where].add(by_slot)

    def swap(self, x: Tree) -> tuple[Tree, jax.Array]:
        """See `Peers.swap`."""
        mutual = self.tables.twin >= 0
        arrived = self._delivered(self._next_exchange()) & mutual
        self._charge("heard", self.present & mutual, message_bytes(x, leading=2))
        x = self._whole(x)

        def received(a: jax.Array) -> jax.Array:
            value = a[self._where, self.tables.twin]
            return jnp.where(column(arrived, value), value, jnp.zeros_like(value))

        return jax.tree.map(received, x), arrived

    def ask(self, fn: Callable, x: Tree, own: Tree, weights: jax.Array | None = None) -> tuple[Tree, jax.Array]:
        """See `Peers.ask`."""
        told = self._tell(self._whole(x), "mirror")
        x, size = told.value, told.size if isinstance(told.size, int) else told.size[:, None]
        arrived = self._delivered(self._next_exchange())
        own = self._whole(own)

        def answers(k: Any) -> Tree:
            given = self.each(fn, x, jax.tree.map(lambda a: a[self._where[:, k]], own))
            # Zero where nothing arrived, not only weighed with zero: an empty slot asks the client itself, and what
            # `fn` makes of that (a division by a distance, say) need not be finite.
            return jax.tree.map(lambda a: jnp.where(column(arrived[:, k], a), a, jnp.zeros_like(a)), given)

        shape = jax.eval_shape(lambda: self.each(fn, x, own))
        self._charge("told", self.present, size)
        self._charge("heard", self.present, message_bytes(shape))
        slots = self._where.shape[1]
        if weights is not None:
            start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
            return fold_slots(slots, answers, jnp.where(arrived, weights, 0), start, self.seal), arrived
        if slots == 0:
            return jax.tree.map(lambda a: jnp.zeros((a.shape[0], 0, *a.shape[1:]), a.dtype), shape), arrived
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), lax.map(answers, jnp.arange(slots))), arrived

    def mean(
        self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None = None, since: Tree = None
    ) -> tuple[Tree, jax.Array]:
        """See `Peers.mean`."""
        label, count = (None, 1) if groups is None else (groups[0].astype(jnp.int32), groups[1])
        counts_from = since if groups is None else None
        told = self._tell(self._whole(x), "mirror" if counts_from is None else "update", weight > 0, since=counts_from)
        tick = self._next_exchange()
        self._charge_mean(x, weight, label, told)
        label = jnp.zeros_like(self.ids) if label is None else label
        arrived = jnp.ones(self.clients, bool)
        if self._arrivals is not None:
            weight, arrived = jnp.where(self._arrivals.up[tick], weight, 0), self._arrivals.down[tick]
        if told.vector is None or counts_from is None:
            totals, mass = self._averages(told.value, weight, label, count)
        else:
            (change, rest), mass = self._averages((told.vector, told.rest), weight, label, count)
            totals = told.join(self._hub_holds(told, counts_from, change, mass), rest)
        arrived = arrived & (mass[label] > 0)
        return jax.tree.map(lambda t, a: jnp.where(column(arrived, a), t[label], a), totals, x), arrived

    def _averages(self, x: Tree, weight: jax.Array, label: jax.Array, count: int) -> tuple[Tree, jax.Array]:
        """Average `x [C, ...]` within each group: `[G, ...]`, and the weight behind it `[G]`."""
        x = self._whole(x)
        if self._exact:
            values, weights, labels = jax.tree.map(lambda a: a[self.tables.order], (x, weight, label))
            # Sealed: what a client does with the mean must not be joined with the division that made it.
            return self.seal(fold_clients(values, weights, labels, count, self.seal))
        matrix = jax.nn.one_hot(label, count, axis=0, dtype=weight.dtype) * weight  # [G, C]
        mass = matrix.sum(1)
        matrix = matrix / jnp.where(mass > 0, mass, 1)[:, None]
        return jax.tree.map(lambda a: _product(matrix.astype(a.dtype), a), x), mass

    def centres(
        self,
        x: Tree,
        weight: jax.Array,
        clusters: tuple[jax.Array, int],
        across: jax.Array | None = None,
        certain: bool = False,
    ) -> tuple[Centres, jax.Array]:
        """See `Peers.centres`."""
        said = self._tell(self._whole(x), "mirror", weight > 0)
        self._charge_centres(x, weight, across, said)
        label, count = clusters[0].astype(jnp.int32), clusters[1]
        sent = arrived = weight > 0
        if not certain:
            tick = self._next_exchange()
            if self._arrivals is not None:
                sent = sent & self._arrivals.up[tick]
                arrived = sent & self._arrivals.down[tick]
        told = jax.tree.map(lambda a: jnp.where(column(sent, a), a, jnp.zeros_like(a)), said.value)

        def average(weight: jax.Array, label: jax.Array, count: int) -> tuple[Tree, jax.Array]:
            totals, mass = self._averages(told, jnp.where(sent, weight, 0), label, count)
            back = jax.tree.map(lambda t, a: jnp.where(column(arrived, a), t[label], a), totals, x)
            return back, jnp.where(arrived, mass[label], 0)

        near = average(weight, label, count)
        far = (None, None) if across is None else average(across, jnp.zeros_like(label), 1)
        return Centres(*near, *far), arrived

    def hub(
        self, fn: Callable[[Tree, jax.Array, Tree], tuple[Tree, Tree]], x: Tree, memory: Tree, certain: bool = False
    ) -> tuple[Tree, jax.Array, Tree]:
        """See `Peers.hub`."""
        told = self._tell(self._whole(x), "update")
        up = down = jnp.ones(self.clients, bool)
        if not certain:
            tick = self._next_exchange()
            if self._arrivals is not None:
                up, down = self._arrivals.up[tick], self._arrivals.down[tick]
        up = up & self._finite(x)
        heard = jax.tree.map(lambda a: jnp.where(column(up, a), a, jnp.zeros_like(a))[self.tables.order], told.value)
        # Every device does all of the hub's work. Shared out, its solver would wait for the others in every step, and
        # forever where two devices come to two sums in another order.
        heard, memory = self._whole((heard, memory))
        answers, memory = self._whole(fn(heard, up[self.tables.order], memory))
        self._charge_hub(told, answers)
        answers = jax.tree.map(lambda a: a[self.ids], answers)
        return jax.tree.map(lambda a: jnp.where(column(down, a), a, jnp.zeros_like(a)), answers), down, memory

    def most(self, x: Tree) -> Tree:
        """See `Peers.most`."""
        self._charge_most(x)
        return jax.tree.map(lambda a: jnp.broadcast_to(a.max(0), a.shape), self._whole(x))

    def share(self, x: Tree, certain: bool = False) -> tuple[Tree, jax.Array]:
        """See `Peers.share`."""
        self._charge_share(x)
        arrived = jnp.ones(self.clients, bool)
        if not certain:
            tick = self._next_exchange()
            arrived = arrived if self._arrivals is None else self._arrivals.up[tick]
        arrived = arrived[self.tables.order]

        def table(a: jax.Array) -> jax.Array:
            a = a[self.tables.order]
            return jnp.where(column(arrived, a), a, jnp.zeros_like(a))

        return jax.tree.map(table, self._whole(x)), arrived


class Simulation(PeersFactory):
    """All clients live in this process: messages are rows of arrays."""

    def __init__(self, plan: Plan):
        self._plan = plan

    def make(self, tables: Tables, arrivals: Arrivals | None = None, coder: Coder | None = None) -> LocalPeers:
        """See `PeersFactory.make`."""
        return LocalPeers(tables, self._plan, arrivals, coder)


def _product(matrix: jax.Array, x: jax.Array) -> jax.Array:
    """Multiply `[R, C]` with `x [C, ...]` in full precision: averages of models must not be rounded to TF32."""
    return jnp.tensordot(matrix, x, axes=1, precision=lax.Precision.HIGHEST)
