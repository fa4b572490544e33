"""How the clients that live here run: one by one, batched, over several devices; and means that add up as they go.

A mean over all clients needs no memory for all their values: they are added client by client, chunk by chunk, or group
by group while the samples of the next group are fetched.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coterie.learning.buckets import without_same
from coterie.learning.streams import group_by_group, group_of, groups_of, streamed_of
from coterie.numerics.tree import column, count_of, divisor, is_same, of_clients, product
from coterie.peers import EXCHANGE
from coterie.peers.arithmetic import add_clients, divided, in_chunks, no_clients
from coterie.peers.base import Tree
from coterie.peers.losses import Losses, all_finite, masked
from coterie.peers.ring import SPREAD
from coterie.peers.turns import one_by_one

__all__ = ["Batched", "Plan"]


class Plan(NamedTuple):
    """How `each` runs: the mode, how many clients at a time (0: all), and the devices that share the work.

    With `spread` they share the models, too: no device ever has all of them (`mesh.py`).
    """

    mode: Literal["exact", "fast"] = "fast"
    chunk: int = 0
    mesh: Mesh | None = None
    spread: bool = False


class Batched(Losses):
    """Runs the clients that live here as a plan says."""

    def _use_plan(self, plan: Plan) -> None:
        self._plan, self._exact = plan, plan.mode == "exact"

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
            # Not by `lax.map`, which makes a copy of everything, samples too, in chunks.
            return in_chunks(lambda *rows: ((), jax.vmap(fn)(*rows)), self._plan.chunk, *part)[1]
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
        parts = jax.tree.map(lambda a: PartitionSpec() if is_same(a) else SPREAD, stacked, is_leaf=is_same)
        done = jax.shard_map(run, mesh=mesh, in_specs=parts, out_specs=SPREAD, check_vma=False)(*stacked)
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

    # -- means without all values ------------------------------------------------------------------------------

    def _mean_in_turn(
        self, fn: Callable, weight: jax.Array, at_most: int, otherwise: Tree, *stacked: Tree
    ) -> tuple[Tree, jax.Array, Tree]:
        """Add one client's value after another, in the order of ids: the same bits as a mean of all of them."""
        fn, stacked = without_same(fn, stacked)
        order, here = self.tables.order, weight.shape[0]
        taking_part = jnp.nonzero((weight > 0)[order], size=min(at_most, here), fill_value=here)[0]
        rows = jnp.append(order, 0)[taking_part]  # of those who are fewer, the first row, which then does not count
        used = jnp.where(taking_part < here, weight[rows], 0)
        sums, beside = lax.scan(self._adding(fn, stacked), _none_of(fn, stacked, weight), (rows, used))
        mean, mass = self.seal(divided(sums))
        place = jnp.where(taking_part < here, rows, here)
        beside = jax.tree.map(lambda a, b: b.at[place].set(a, mode="drop"), beside, otherwise)
        return jax.tree.map(lambda a: a[0], mean), mass[0], beside

    def _adding(self, fn: Callable, stacked: Tree) -> Callable[[Tree, tuple], tuple[Tree, Tree]]:
        """Return what adds the value of the client in a row, with a weight, to the sums of those before it."""

        def one(sums: Tree, inputs: tuple) -> tuple[Tree, Tree]:
            row, used = inputs
            value, beside = fn(*jax.tree.map(lambda a: a[row], stacked))
            value = jax.tree.map(lambda a: a[None], value)
            arrived = all_finite(value, (1,)) & (used > 0)
            value, counts = masked(arrived, value), jnp.where(arrived, used, 0)
            return add_clients(sums, value, counts, jnp.zeros(1, jnp.int32), self.seal), beside

        return one

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

        size = self._plan.chunk or places.shape[1]

        def chunk(weights: jax.Array, *rows: Tree) -> tuple[Tree, Tree]:
            alone, own = without_same(fn, rows)
            values, beside = jax.vmap(alone)(*own)
            with jax.named_scope(EXCHANGE):
                total = jax.tree.map(lambda a: product(weights.astype(a.dtype)[None], a), values)
            return (total, weights.sum()[None]), beside

        def add(sums: Tree, number: Any) -> tuple[Tree, Tree]:
            rows = group_of(stacked, places, number)
            if self._exact:
                alone, own = without_same(fn, rows)
                return lax.scan(self._adding(alone, own), sums, (jnp.arange(places.shape[1]), used[number]))
            some, beside = in_chunks(chunk, min(size, places.shape[1]), used[number], *rows)
            return jax.tree.map(jnp.add, sums, some), beside

        alone, own = without_same(fn, group_of(stacked, places, 0))  # for its shapes only
        sums, beside = lax.scan(add, _none_of(alone, own, weight), jnp.arange(places.shape[0]))
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


def _none_of(fn: Callable, stacked: Tree, weight: jax.Array) -> tuple[Tree, jax.Array]:
    """Return the sums of the values of no clients, and their weight."""
    shape = jax.eval_shape(fn, *jax.tree.map(lambda a: a[0], stacked))[0]
    return no_clients(jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), shape), weight, 1)
