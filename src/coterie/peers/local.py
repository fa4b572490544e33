"""All clients live here: messages are rows of arrays.

Two modes. `exact` runs clients one after another and adds in a fixed order: bit-equal to clients that live elsewhere.
`fast` batches clients and adds with matrix products: equal to rounding. On several devices of this host each takes a
share of the clients in `each`; the verbs then see whole arrays, so that the numbers do not depend on the devices.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coterie.learning.buckets import buckets_of, without_same
from coterie.learning.streams import group_by_group, group_of, groups_of, streamed_of
from coterie.numerics.tree import column, count_of, divisor, is_same, of_clients, product
from coterie.peers import ALL_TO_ALL, DENSE_LIMIT, EXCHANGE, LOCAL
from coterie.peers.arithmetic import add_clients, divided, in_chunks, no_clients
from coterie.peers.base import Arrivals, Tables, Tree
from coterie.peers.coding import Coder, Outgoing
from coterie.peers.factory import Lost, PeersFactory
from coterie.peers.injection import NUMBERS, FaultTables, poisoned, spoiled
from coterie.peers.losses import Losses, all_finite, masked
from coterie.peers.messages import Received
from coterie.peers.pushed import Step
from coterie.peers.turns import one_by_one

__all__ = ["LocalPeers", "Plan", "Simulation"]


class Plan(NamedTuple):
    """How `each` runs: the mode, how many clients at a time (0: all), and the devices that share the work.

    With `spread` they share the models, too: no device ever has all of them (`mesh.py`).
    """

    mode: Literal["exact", "fast"] = "fast"
    chunk: int = 0
    mesh: Mesh | None = None
    spread: bool = False


class LocalPeers(Losses):
    """The verbs for "all clients live here".

    Args:
        tables: who may talk to whom; `ids` may be any order of 0..K-1.
        plan: how to run.
        arrivals: a recorded loss to repeat in this round, or faults; None delivers everything.
        coder: the codec at work; None sends everything as it is.
        hub: whether there is one. The numbers are the same without, the price is not.
        robust: how far received values may be away (`robust.py`); None: as far as they are.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
        most: clients that take part in a round at most, where faults have a world; None: all.
        same: whether nothing can get lost or change on the way to a hub and back.
    """

    def __init__(
        self,
        tables: Tables,
        plan: Plan = Plan(),  # noqa: B008
        arrivals: Arrivals | FaultTables | None = None,
        coder: Coder | None = None,
        hub: bool = True,
        robust: float | None = None,
        all_to_all: int = ALL_TO_ALL,
        most: int | None = None,
        same: bool = False,
    ):
        super().__init__(tables, arrivals, coder, hub, robust, all_to_all)
        self.same = same and arrivals is None
        self.most_present = self.clients if most is None else most
        self._plan = plan
        self._exact = plan.mode == "exact"
        self._careful = self._exact or self._faults is not None  # whether every message is looked at before it is used
        self._where = tables.order[tables.neighbours]  # [C, D] rows of the neighbours
        self._hearers = tables.order[tables.listeners]  # [C, L] rows of the listeners

    def _each(self, fn: Callable, *stacked: Tree) -> Tree:
        """See `Here._each`: shared out over the devices."""
        if streamed_of(stacked) is not None:  # they are on one device
            return group_by_group(partial(self._batched, fn), *stacked)
        return self._on_each_device(lambda *part: self._batched(fn, *part), *stacked)

    def _batched(self, fn: Callable, *part: Tree) -> Tree:
        """Run `fn` for each client of one device: one after another, or batched in chunks."""
        fn, part = without_same(fn, part)
        size = jax.tree.leaves(part)[0].shape[0]
        if self._exact:
            return one_by_one(fn, part, self._zero)
        if self._plan.chunk and self._plan.chunk < size:
            return lax.map(lambda each: fn(*each), part, batch_size=self._plan.chunk)
        return jax.vmap(fn)(*part)

    def _on_each_device(self, run: Callable[..., Tree], *stacked: Tree) -> Tree:
        """Run a function of stacked clients on every device with its share of them."""
        mesh = self._plan.mesh
        if mesh is None:
            return run(*stacked)
        count = count_of(stacked)
        missing = -count % mesh.size
        if missing:
            stacked = self._with_last(stacked, missing)
        split = PartitionSpec("clients")
        parts = jax.tree.map(lambda a: PartitionSpec() if is_same(a) else split, stacked, is_leaf=is_same)
        done = jax.shard_map(run, mesh=mesh, in_specs=parts, out_specs=split, check_vma=False)(*stacked)
        return jax.tree.map(lambda a: a[:count], done) if missing else done

    def _with_last(self, stacked: Tree, times: int) -> Tree:
        """Repeat the last client so many times, so that every device has equally many."""
        # Whole, because it takes a dozen kernels to share out a concatenation, for each array.
        return self._whole(of_clients(lambda a: jnp.concatenate([a, jnp.repeat(a[-1:], times, 0)]), stacked))

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

    def _rows(self, x: Tree, which: jax.Array, second: jax.Array | None = None) -> Tree:
        """Return `x[which]`, or `x[which, second]`: rows of other clients."""
        return jax.tree.map(lambda a: a[which] if second is None else a[which, second], x)

    def _finite(self, x: Tree) -> jax.Array:
        """Say for each client whether all its numbers are finite."""
        return all_finite(x, self.ids.shape)

    # -- the exchanges -----------------------------------------------------------------------------------

    def _to_slots(self, message: Outgoing, to: jax.Array) -> Received:
        """See `Messages._to_slots`."""
        # No client has a listener when all slots are empty; there is then no row to look into.
        sent = self.present & to[self._where, self.tables.back] if to.shape[1] else self.present
        x = self._whole(message.value)
        finite = self._finite(x)
        rows = masked(finite, x)
        came = sent & self._delivered(essential=message.mode == "mirror")
        arrived = came & finite[self._where]
        size = message.size if isinstance(message.size, int) else message.size[self._where]
        return Received(
            lambda k: self._rows(rows, self._where[:, k]),
            arrived,
            sent,
            size,
            rows,
            message.vector is not None,
            came & ~arrived,
        )

    def _acknowledge(self, arrived: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Messages._acknowledge`."""
        self._next_frames()
        return arrived, self.tables.listening & arrived[self._hearers, self.tables.seat]

    def _swap_slots(self, x: Tree, mutual: jax.Array) -> tuple[Tree, jax.Array]:
        """See `Messages._swap_slots`."""
        values = self._rows(self._whole(x), self._where, self.tables.twin)
        arrived = self._delivered() & mutual
        if self._careful:  # what is not finite does not arrive, as on a network
            arrived = arrived & all_finite(values, arrived.shape)
        return masked(arrived, values), arrived

    def _ask_slots(self, fn: Callable, message: Outgoing, own: Tree) -> tuple[Received, Tree]:
        """See `Messages._ask_slots`: answers are computed slot by slot, when they are needed."""
        asked = self._asked(essential=message.mode == "mirror")
        arrived = self._delivered() & asked
        x, own = message.value, self._whole(own)
        if self._careful:  # a question that is not finite does not arrive, as on a network
            arrived = arrived & self._finite(x)[:, None]

        like = jax.eval_shape(lambda: self.each(fn, x, own))
        answer = self._answers(fn, x, own, like)

        if self._faults is not None and any(jnp.issubdtype(a.dtype, jnp.floating) for a in jax.tree.leaves(like)):
            for kind in NUMBERS:  # and neither does an answer
                arrived = arrived & ~poisoned(self._faults, kind, self.neighbours)

        def answers(k: Any) -> Tree:
            given = answer(k)
            if self._faults is not None:
                given = spoiled(given, self._faults, self.neighbours[:, k])
            # Zero where nothing arrived, not only weighted with zero: an empty slot asks the client itself, and the
            # value of `fn` there (a division by a distance, say) need not be finite.
            return masked(arrived[:, k], given)

        return Received(answers, arrived, self.present), like

    def _answers(self, fn: Callable, x: Tree, own: Tree, like: Tree) -> Callable[[Any], Tree]:
        """Return a function of the slot: what that neighbour of each client answers."""
        if buckets_of(own) is None:
            return lambda k: self.each(fn, x, self._rows(own, self._where[:, k]))
        places = self._hearers.shape[1]
        if not places:
            return lambda k: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)

        def for_listener(place: Any) -> Tree:
            return self.each(fn, jax.tree.map(lambda a: a[self._hearers[:, place]], x), own)

        # Samples in buckets cannot be handed to those who ask: each client answers its listeners, one after another.
        given = lax.map(for_listener, jnp.arange(places))  # [L, C, ...]
        return lambda k: jax.tree.map(lambda a: a[self.tables.back[:, k], self._where[:, k]], given)

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
        exchange, x = None if certain else self._next_exchange(), self._whole(x)
        if not self._has_hub:
            sent = active.astype(jnp.uint32)
            each = sent * jnp.asarray(size, jnp.uint32)
            self._charge_everyone(active, size, sent.sum() - sent, each.sum() - each)
        came = self._at_hub(active, exchange, essential=site is not None)
        if self._direct(for_average):
            return x, came, exchange, whole
        arrived, order = came & self._finite(x), self.tables.order
        self._watch(hub_lost=(active & ~came)[order], hub_refused=(came & ~arrived)[order])
        if not self._stays(for_average):
            x, arrived = jax.tree.map(lambda a: a[order], (x, arrived))
        return masked(arrived, x), arrived, exchange, whole

    def _direct(self, for_average: bool) -> bool:
        """Whether there is no copy of all models for an average: they are neither put in order nor masked."""
        return for_average and not self._careful

    def _stays(self, for_average: bool) -> bool:
        """Whether the hub has values in the order of the rows, not of the ids."""
        return self._direct(for_average)

    def _by_id(self, values: jax.Array) -> jax.Array:
        """See `Messages._by_id`."""
        return values[self.tables.order] if self._stays(for_average=True) else values

    def _from_hub(
        self,
        rows: Tree,
        which: jax.Array,
        took_part: jax.Array,
        exchange: Any,
        copies: bool = True,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array]:
        """See `Messages._from_hub`."""
        if not self._stays(for_average):
            which, took_part = which[self.ids], took_part[self.ids]
        arrived = self._from_there(jnp.ones(self.ids.shape, bool) if copies else took_part, exchange)
        return masked(arrived, jax.tree.map(lambda a: a[which], rows)), arrived

    def _from_hub_to_all(self, x: Tree) -> Tree:
        """See `Messages._from_hub_to_all`."""
        self._next_frames()
        return x

    def _pass_on(self, x: Tree, step: Step) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Messages._pass_on`."""
        hears = jnp.asarray(step.hears)[self.ids]
        came = self._from_partner(hears)
        values = self._rows(self._whole(x), self.tables.order[hears])
        arrived = came & all_finite(values, came.shape) if self._careful else came
        return masked(arrived, values), came, arrived

    # -- a mean without all values ------------------------------------------------------------------------

    def _mean_of(
        self, fn: Callable, weight: jax.Array, at_most: int, otherwise: Tree, *stacked: Tree
    ) -> tuple[Tree, jax.Array, Tree]:
        """See `Peers._mean_of`: one client after another, or in chunks, where not all of them are batched at once."""
        fn = jax.named_scope(LOCAL)(fn)  # what is done with its values is exchange
        if streamed_of(stacked) is not None:
            return self._mean_in_groups(fn, weight, at_most, otherwise, *stacked)
        if buckets_of(stacked) is None:
            if self._exact and self._plan.mesh is None:
                return self._mean_in_turn(fn, weight, at_most, otherwise, *stacked)
            sharers = 1 if self._plan.mesh is None else self._plan.mesh.size
            some = self._plan.spread and at_most < self.clients  # they live on devices that are not known here
            if not (self._exact or some) and 0 < self._plan.chunk < -(-min(at_most, weight.shape[0]) // sharers):
                return self._mean_in_chunks(fn, weight, at_most, otherwise, *stacked)
        nothing = jax.eval_shape(lambda *rows: self.each(fn, *rows)[0], *stacked)
        none = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), nothing)
        values, beside = self.each_of(weight > 0, at_most, fn, (none, otherwise), *stacked)
        at_hub, arrived, _, _ = self._to_hub(values, weight > 0, True, 0, for_average=True)
        weights = weight if self._stays(for_average=True) else weight[self.tables.order]
        labels = jnp.zeros(arrived.shape, jnp.int32)
        mean, mass = self._averages(at_hub, jnp.where(arrived, weights, 0), labels, 1)
        return jax.tree.map(lambda a: a[0], mean), mass[0], beside

    def _mean_in_turn(
        self, fn: Callable, weight: jax.Array, at_most: int, otherwise: Tree, *stacked: Tree
    ) -> tuple[Tree, jax.Array, Tree]:
        """Add one client's value after another, in the order of ids: the same bits as a mean of all of them."""
        fn, stacked = without_same(fn, stacked)
        order, here = self.tables.order, weight.shape[0]
        taking_part = jnp.nonzero((weight > 0)[order], size=min(at_most, here), fill_value=here)[0]
        rows = jnp.append(order, 0)[taking_part]  # of those who are fewer, the first row, which then does not count
        used = jnp.where(taking_part < here, weight[rows], 0)
        shape = jax.eval_shape(fn, *jax.tree.map(lambda a: a[0], stacked))[0]
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), shape)

        def one(sums: Tree, inputs: tuple) -> tuple[Tree, Tree]:
            row, used = inputs
            value, beside = fn(*jax.tree.map(lambda a: a[row], stacked))
            value = jax.tree.map(lambda a: a[None], value)
            arrived = all_finite(value, (1,)) & (used > 0)
            value, counts = masked(arrived, value), jnp.where(arrived, used, 0)
            return add_clients(sums, value, counts, jnp.zeros(1, jnp.int32), self.seal), beside

        sums, beside = lax.scan(one, no_clients(like, weight, 1), (rows, used))
        mean, mass = self.seal(divided(sums))
        place = jnp.where(taking_part < here, rows, here)
        beside = jax.tree.map(lambda a, b: b.at[place].set(a, mode="drop"), beside, otherwise)
        return jax.tree.map(lambda a: a[0], mean), mass[0], beside

    def _mean_in_groups(
        self, fn: Callable, weight: jax.Array, at_most: int, otherwise: Tree, *stacked: Tree
    ) -> tuple[Tree, jax.Array, Tree]:
        """Add the values of one group of clients after another, whose samples are fetched while the last one trains."""
        here = weight.shape[0]
        chosen = jnp.arange(here)
        if at_most < here:
            chosen = jnp.nonzero(weight > 0, size=at_most, fill_value=here)[0]
            stacked = of_clients(lambda a: a[jnp.minimum(chosen, here - 1)], stacked)
        count = chosen.shape[0]
        places = groups_of(stacked, count)
        real = (jnp.arange(places.size) < count).reshape(places.shape)  # who is repeated counts only once
        used = jnp.where(real, jnp.append(weight, 0)[chosen][places], 0)

        def group(number: Any) -> tuple[Tree, Tree]:
            return self._batched(fn, *group_of(stacked, places, number))

        def add(sums: Tree, number: Any) -> tuple[Tree, Tree]:
            values, beside = group(number)
            usable = all_finite(values, places.shape[1:]) & (used[number] > 0)
            weights = jnp.where(usable, used[number], 0) if self._exact else used[number]
            if self._exact:
                values = masked(usable, values)
                return add_clients(sums, values, weights, jnp.zeros(weights.shape, jnp.int32), self.seal), beside
            with jax.named_scope(EXCHANGE):
                total = jax.tree.map(lambda a: product(weights.astype(a.dtype)[None], a), values)
            return jax.tree.map(jnp.add, sums, (total, weights.sum()[None])), beside

        like = jax.eval_shape(lambda: group(0)[0])
        sums, beside = lax.scan(add, no_clients(like, weight, 1), jnp.arange(places.shape[0]))
        mean, mass = self.seal(divided(sums))
        beside = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], beside)
        beside = jax.tree.map(lambda a, b: b.at[chosen].set(a, mode="drop"), beside, otherwise)
        beside = jax.tree.map(lambda a, b: jnp.where(column(weight > 0, a), a, b), beside, otherwise)
        return jax.tree.map(lambda a: a[0], mean), mass[0], beside

    def _mean_in_chunks(
        self, fn: Callable, weight: jax.Array, at_most: int, otherwise: Tree, *stacked: Tree
    ) -> tuple[Tree, jax.Array, Tree]:
        """Add the values of one chunk of clients after another, on each device those of its own."""
        here, mass = weight.shape[0], weight.sum()
        share, chosen = weight / divisor(mass), jnp.arange(here)
        if at_most < here:
            chosen = jnp.nonzero(weight > 0, size=at_most, fill_value=here)[0]
            share = jnp.append(share, 0)[chosen]
            stacked = of_clients(lambda a: a[jnp.minimum(chosen, here - 1)], stacked)
        missing = 0 if self._plan.mesh is None else -share.shape[0] % self._plan.mesh.size
        if missing:  # the repeated client counts only once
            share, stacked = self._whole(jnp.pad(share, (0, missing))), self._with_last(stacked, missing)

        def chunk(share: jax.Array, *rows: Tree) -> tuple[Tree, Tree]:
            alone, own = without_same(fn, rows)
            values, beside = jax.vmap(alone)(*own)
            with jax.named_scope(EXCHANGE):
                return jax.tree.map(lambda a: product(share.astype(a.dtype)[None], a), values), beside

        sums, beside = self._on_each_device(partial(in_chunks, chunk, self._plan.chunk), share, *stacked)
        done = jax.tree.map(lambda a, b: b.at[chosen].set(a[: chosen.shape[0]], mode="drop"), beside, otherwise)
        beside = jax.tree.map(lambda a, b: jnp.where(column(weight > 0, a), a, b), done, otherwise)
        return jax.tree.map(lambda a: a.sum(0), sums), mass, beside

    # -- batched arithmetic -----------------------------------------------------------------------------------

    def _weighted(self, received: Received, weights: jax.Array, kept: jax.Array | None, x: Tree) -> Tree:
        """See `Peers._weighted`; in fast mode one matrix product, if the matrix is not too large."""
        if self._exact or self.clients > DENSE_LIMIT or received.rows is None:
            return super()._weighted(received, weights, kept, x)
        # With a codec the others' copy of a client may differ from its own value, which is then added apart.
        apart = kept is not None and received.coded
        own = jnp.zeros(self.clients, weights.dtype) if kept is None or apart else kept
        matrix = jnp.diag(own).at[jnp.arange(self.clients)[:, None], self._where].add(weights)
        total = jax.tree.map(lambda a: product(matrix.astype(a.dtype), a), received.rows)
        if kept is None:
            return total
        if apart:
            total = jax.tree.map(lambda m, a: m + column(kept, a).astype(a.dtype) * a, total, x)
        finite = self._finite(x)
        return jax.tree.map(lambda m, a: jnp.where(column(finite, a), m, a), total, x)

    @jax.named_scope(EXCHANGE)
    def _averages(self, x: Tree, weight: jax.Array, label: jax.Array, count: int) -> tuple[Tree, jax.Array]:
        """See `Peers._averages`; in fast mode one matrix product."""
        if self._exact:
            return super()._averages(x, weight, label, count)
        matrix = jax.nn.one_hot(label, count, axis=0, dtype=weight.dtype) * weight  # [G, K]
        mass = matrix.sum(1)
        matrix = matrix / divisor(mass)[:, None]
        return jax.tree.map(lambda a: product(matrix.astype(a.dtype), a), x), mass


class Simulation(PeersFactory):
    """All clients live in this process: messages are rows of arrays.

    Args:
        plan: how to run.
        hub: whether the run that is simulated has a hub; it is priced accordingly.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
    """

    def __init__(self, plan: Plan, hub: bool = True, all_to_all: int = ALL_TO_ALL):
        self._plan, self._hub, self._all_to_all = plan, hub, all_to_all

    @property
    def programs(self) -> Hashable:
        """A program counts what it sends."""
        return Simulation, *self._settings()

    def make(self, tables: Tables, arrivals: Lost = None, coder: Coder | None = None) -> LocalPeers:
        """See `PeersFactory.make`."""
        return LocalPeers(tables, self._plan, arrivals, coder, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        """What the verbs need to know besides, in the order in which they take it."""
        return self._hub, self.robust, self._all_to_all, self.most_present, self.certain and self._hub
