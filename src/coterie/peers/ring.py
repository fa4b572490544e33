"""Rows of arrays that are spread over devices, fetched by the rows of others: the shards travel round a ring.

A compiler would bring all rows together on every device before it picks some of them. Here a device holds its own shard
and one that is passing by, so that the memory of each falls as devices are added. JAX's collectives do the sending.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from coterie.numerics.tree import product, times

__all__ = ["CLIENTS", "SPREAD", "in_turn", "passing", "take", "weighted_sum"]

Tree = Any
CLIENTS = "clients"  # the axis of the mesh
SPREAD = PartitionSpec(CLIENTS)
WRITTEN_OUT = 32  # devices of a CPU up to which a loop over them is no loop in the program
BLOCK = 4096  # rows of a shard up to which a square matrix beats a fold over slots


def passing(mesh: Mesh, fold: Callable[..., Tree], start: Tree, moving: Tree, *fixed: Tree) -> Tree:
    """Let every device see all shards of `moving`: `carry = fold(carry, shard, first, *fixed)` for each of them.

    All arrays are spread over the devices by their first axis; `first` is the row with which the visiting shard begins,
    and `fixed` is the device's own part. Each device begins with its own shard.
    """
    to_next = [(i, (i - 1) % mesh.size) for i in range(mesh.size)]
    # A loop needs less memory, and within one process `experiment/device.py` sees to enough threads.
    written_out = _on_cpu(mesh) and _of_several_processes(mesh)

    def here(start: Tree, moving: Tree, *fixed: Tree) -> Tree:
        rows, me = jax.tree.leaves(moving)[0].shape[0], lax.axis_index(CLIENTS)

        def step(number: Any, carried: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            carry, shard = carried
            carry = fold(carry, shard, (me + number) % mesh.size * rows, *fixed)
            return carry, jax.tree.map(lambda a: lax.ppermute(a, CLIENTS, to_next), shard)

        return _repeated(mesh, step, (start, moving), written_out)[0]

    return jax.shard_map(here, mesh=mesh, in_specs=SPREAD, out_specs=SPREAD, check_vma=False)(start, moving, *fixed)


def in_turn(mesh: Mesh, fold: Callable[..., Tree], start: Tree, *stacked: Tree) -> Tree:
    """Return `fold(carry, *shard)` of one device after another, in the order of the rows; everyone gets the result.

    The order of additions is then that of one device. `start` and the result have no client axis.
    """

    def here(start: Tree, *shard: Tree) -> Tree:
        me = lax.axis_index(CLIENTS)

        def step(number: Any, carry: Tree) -> Tree:
            mine = jax.tree.map(lambda a: jnp.where(me == number, a, jnp.zeros_like(a)), fold(carry, *shard))
            return jax.tree.map(lambda a: lax.psum(a, CLIENTS), mine)  # of one number and zeros: exact

        return _repeated(mesh, step, start, _on_cpu(mesh))

    whole = PartitionSpec()
    specs = (whole, *[SPREAD] * len(stacked))
    return jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False)(start, *stacked)


def _repeated(mesh: Mesh, step: Callable[[Any, Tree], Tree], start: Tree, written_out: bool) -> Tree:
    """Return `start` after `step(number, carry)` for every device; in a loop, or `written_out`."""
    if not written_out or mesh.size > WRITTEN_OUT:
        return lax.fori_loop(0, mesh.size, step, start)
    for number in range(mesh.size):
        start = lax.optimization_barrier(step(number, start))  # one after another: shards sent on early would pile up
    return start


def _on_cpu(mesh: Mesh) -> bool:
    """Return whether the devices are those of a CPU, where loops with collectives are dangerous.

    There XLA may begin a collective that comes after a loop while the loop's own are still to come, on one device and
    not on another. In one process they then wait for each other until no thread is left; between processes the wrong
    arrays meet.
    """
    return bool(mesh.devices.flat[0].platform == "cpu")


def _of_several_processes(mesh: Mesh) -> bool:
    return len({device.process_index for device in mesh.devices.flat}) > 1


def take(mesh: Mesh, rows: Tree, which: jax.Array, second: jax.Array | None = None) -> Tree:
    """Return `rows[which]`, or `rows[which, second]`: `which [C, ...]` are rows of all devices."""

    def fold(found: Tree, shard: Tree, first: Any, which: jax.Array, *second: jax.Array) -> Tree:
        size = jax.tree.leaves(shard)[0].shape[0]
        inside = (which >= first) & (which < first + size)
        place = (jnp.clip(which - first, 0, size - 1), *second)
        return jax.tree.map(lambda old, new: jnp.where(_along(inside, new[place]), new[place], old), found, shard)

    axes = 1 if second is None else 2
    start = jax.tree.map(lambda a: jnp.zeros((*which.shape, *a.shape[axes:]), a.dtype), rows)
    return passing(mesh, fold, start, rows, which, *(() if second is None else (second,)))


def weighted_sum(mesh: Mesh, rows: Tree, which: jax.Array, weights: jax.Array, start: Tree) -> Tree:
    """Return `start + sum_k weights[:, k] * rows[which[:, k]]`: `which` and `weights [C, D]`."""

    def fold(total: Tree, shard: Tree, first: Any, which: jax.Array, weights: jax.Array) -> Tree:
        size = jax.tree.leaves(shard)[0].shape[0]
        inside = (which >= first) & (which < first + size)
        place, used = jnp.clip(which - first, 0, size - 1), jnp.where(inside, weights, 0)
        if size <= BLOCK:
            square = jnp.zeros((size, size), weights.dtype).at[jnp.arange(size)[:, None], place].add(used)
            return jax.tree.map(lambda t, a: t + product(square.astype(a.dtype), a), total, shard)

        def add(k: Any, total: Tree) -> Tree:
            return jax.tree.map(lambda t, a: t + times(used[:, k], a[place[:, k]]), total, shard)

        return lax.fori_loop(0, which.shape[1], add, total)

    return passing(mesh, fold, start, rows, which, weights)


def _along(mask: jax.Array, like: jax.Array) -> jax.Array:
    """Give a mask as many axes as an array has."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))
