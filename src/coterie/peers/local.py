"""All clients live here: messages are rows of arrays.

Two modes. `exact` runs clients one after another and adds in a fixed order: bit-equal to clients that live elsewhere.
`fast` batches clients and adds with matrix products, means on a CPU in float64: equal to rounding. On several devices
of this host each takes a share of the clients in `each`; the verbs then see whole arrays, so that the numbers do not
depend on the devices.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.learning.buckets import buckets_of
from coterie.learning.streams import streamed_of
from coterie.numerics.tree import column, product
from coterie.peers import ALL_TO_ALL, DENSE_LIMIT, EXCHANGE, LOCAL
from coterie.peers.arithmetic import product_averages, wide_averages
from coterie.peers.base import Arrivals, Tables, Tree
from coterie.peers.batched import Batched, Plan
from coterie.peers.coding import Coder, Outgoing
from coterie.peers.factory import Lost, PeersFactory
from coterie.peers.injection import NUMBERS, FaultTables, poisoned, spoiled
from coterie.peers.losses import all_finite, masked
from coterie.peers.messages import Received
from coterie.peers.pushed import Step

__all__ = ["LocalPeers", "Plan", "Simulation"]


class LocalPeers(Batched):
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
        self._use_plan(plan)
        self._careful = self._exact or self._faults is not None  # whether every message is looked at before it is used
        self._where = tables.order[tables.neighbours]  # [C, D] rows of the neighbours
        self._hearers = tables.order[tables.listeners]  # [C, L] rows of the listeners

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
        """See `Peers._averages`; in fast mode a matrix product, and on a CPU a sum in float64."""
        if self._exact:
            return super()._averages(x, weight, label, count)

        by_product = partial(product_averages, groups=count)
        return lax.platform_dependent(x, weight, label, cpu=partial(self._wide, count), default=by_product)

    def _wide(self, count: int, x: Tree, weight: jax.Array, label: jax.Array) -> tuple[Tree, jax.Array]:
        """Return averages whose order of additions does not matter."""
        return wide_averages(x, weight, label, count)


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
