"""All clients live here, spread over a mesh of devices: each device holds the models and the data of its own clients.

A method, its state and the ledger are those of a simulation. The number of clients need not divide that of the devices:
rows are added at the end, which hear nobody, take part in nothing and are cut off before anybody sees a result.
"""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from coterie.numerics.tree import column, is_same, times
from coterie.peers import LOCAL
from coterie.peers.arithmetic import add_clients, divided, no_clients, wide_averages
from coterie.peers.base import Tables, Tree
from coterie.peers.coding import Coder
from coterie.peers.factory import Lost
from coterie.peers.here import only_where
from coterie.peers.local import LocalPeers, Plan, Simulation
from coterie.peers.messages import Received
from coterie.peers.pushed import Step
from coterie.peers.ring import CLIENTS, SPREAD, in_turn, take, weighted_sum

__all__ = ["MeshPeers", "MeshSimulation", "padded_rows", "padded_tables", "passes_left_out", "simulation"]


class MeshPeers(LocalPeers):
    """The verbs over clients that are spread over the devices of a mesh."""

    def __init__(self, tables: Tables, plan: Plan, *more: Any):
        super().__init__(tables, plan, *more)
        assert plan.mesh is not None
        self._mesh = plan.mesh
        self._real = self.ids < self.clients

    def _whole(self, x: Tree) -> Tree:
        """Leave everything where it is."""
        return x

    def _rows(self, x: Tree, which: jax.Array, second: jax.Array | None = None) -> Tree:
        """See `LocalPeers._rows`: the rows come round a ring."""
        return take(self._mesh, x, which, second)

    def sample(self, key: jax.Array, count: int) -> jax.Array:
        """See `Here.sample`."""
        return super().sample(key, count) & self._real

    @jax.named_scope(LOCAL)
    def each_of(self, active: jax.Array, at_most: int, fn: Callable, otherwise: Tree, *stacked: Tree) -> Tree:
        """See `Here.each_of`: every device looks for the active ones among its own clients."""
        here = -(-self.ids.shape[0] // self._mesh.size)
        if at_most >= here:
            return super().each_of(active, self.ids.shape[0], fn, otherwise, *stacked)

        def some(active: jax.Array, otherwise: Tree, *stacked: Tree) -> Tree:
            return only_where(active, at_most, lambda *rows: self._batched(fn, *rows), otherwise, *stacked)

        return self._on_each_device(some, active, otherwise, *stacked)

    def _to_hub(self, x: Tree, active: jax.Array, *more: Any, **named: Any) -> tuple[Tree, jax.Array, Any, Any]:
        """See `Messages._to_hub`; rows without a client send nothing."""
        return super()._to_hub(x, active & self._real, *more, **named)

    def _pass_on(self, x: Tree, step: Step) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Messages._pass_on`; rows without a client miss nothing."""
        values, came, arrived = super()._pass_on(x, step)
        return values, came | ~self._real, arrived | ~self._real

    def _stays(self, for_average: bool) -> bool:
        """See `LocalPeers._stays`: the order of the rows is that of the ids, and models stay where they are."""
        return for_average

    def _averages(self, x: Tree, weight: jax.Array, label: jax.Array, count: int) -> tuple[Tree, jax.Array]:
        """See `Peers._averages`; in exact mode one device after another, so that the order is that of the clients."""
        if not self._exact:
            return super()._averages(x, weight, label, count)

        def add(sums: Tree, x: Tree, weight: jax.Array, label: jax.Array) -> Tree:
            return add_clients(sums, x, weight, label, self.seal)

        return self.seal(divided(in_turn(self._mesh, add, no_clients(x, weight, count), x, weight, label)))

    def _wide(self, count: int, x: Tree, weight: jax.Array, label: jax.Array) -> tuple[Tree, jax.Array]:
        """See `LocalPeers._wide`: every device adds up its own clients."""

        def here(x: Tree, weight: jax.Array, label: jax.Array) -> tuple[Tree, jax.Array]:
            return wide_averages(x, weight, label, count, lambda sums: lax.psum(sums, CLIENTS))

        whole = PartitionSpec()
        return jax.shard_map(here, mesh=self._mesh, in_specs=SPREAD, out_specs=whole, check_vma=False)(x, weight, label)

    def _weighted(self, received: Received, weights: jax.Array, kept: jax.Array | None, x: Tree) -> Tree:
        """See `Peers._weighted`; in fast mode the shards go round once, not once for each slot."""
        if self._exact or received.rows is None or not weights.shape[1]:
            return super(LocalPeers, self)._weighted(received, weights, kept, x)
        start = jax.tree.map(jnp.zeros_like, x) if kept is None else times(kept, x)
        total = weighted_sum(self._mesh, received.rows, self._where, weights, start)
        if kept is None:
            return total
        finite = self._finite(x)
        return jax.tree.map(lambda m, a: jnp.where(column(finite, a), m, a), total, x)


class MeshSimulation(Simulation):
    """Makes the verbs for clients that are spread over a mesh."""

    @property
    def programs(self) -> Hashable:
        """See `PeersFactory.programs`."""
        return MeshSimulation, super().programs

    def make(self, tables: Tables, arrivals: Lost = None, coder: Coder | None = None) -> MeshPeers:
        """See `PeersFactory.make`."""
        return MeshPeers(tables, self._plan, arrivals, coder, *self._settings())


def simulation(plan: Plan, *settings: Any) -> Simulation:
    """Return what makes the verbs of clients that all live here, together or spread over a mesh; see `Simulation`."""
    return (MeshSimulation if plan.spread else Simulation)(plan, *settings)


def passes_left_out(plan: Plan) -> tuple[str, ...]:
    """Return what the compiler must not do, so that a program for several devices rounds as that for one does.

    For several devices XLA joins equal expressions before it simplifies them, for one device after it. Some of its
    rules ask how often a value is used: a division by a number that only one array is divided by becomes a product with
    its inverse, which has another last bit. So equal expressions are not joined in exact mode; it costs hardly a thing.
    """
    return ("cse",) if plan.mode == "exact" and plan.mesh is not None else ()


def padded_rows(x: Tree, rows: int, axis: int = 0) -> Tree:
    """Repeat the last row of NumPy or JAX arrays until there are `rows`; what is the same for all has none."""

    def more(a: Any) -> Any:
        if is_same(a):
            return a
        missing = rows - a.shape[axis]
        if missing <= 0:
            return a
        last = a[(slice(None),) * axis + (slice(-1, None),)]
        join, repeat = (np.concatenate, np.repeat) if isinstance(a, np.ndarray) else (jnp.concatenate, jnp.repeat)
        return join([a, repeat(last, missing, axis)], axis)

    return jax.tree.map(more, x, is_leaf=is_same)


def padded_tables(tables: Tables, rows: int) -> Tables:
    """Return tables with rows at the end that hear nobody and that nobody hears."""
    count = len(tables.ids)
    if rows == count:
        return tables
    wider = {
        name: padded_rows(getattr(tables, name), rows) for name in Tables._fields if name not in ("schedule", "order")
    }
    for name in ("present", "listening", "weights", "strength", "chance"):
        wider[name][count:] = 0
    wider["ids"] = np.concatenate([tables.ids, np.arange(count, rows, dtype=tables.ids.dtype)])
    wider["schedule"] = padded_rows(tables.schedule, rows, axis=1)
    wider["schedule"][:, count:] = False
    return tables._replace(**wider)
