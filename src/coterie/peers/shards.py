"""Arrays that are spread over the devices of one or several processes: how they get there, and how they come back.

Where several processes share a mesh, none of them can reach all rows. Each gives the rows of its own devices, and what
everyone has to know (losses, metrics, messages) is brought together by a small program; all processes must ask for it.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

__all__ = ["Tree", "elsewhere", "fetched", "my_rows", "own_rows", "placed", "rows_placed", "spread_rows"]

Tree = Any


def elsewhere(mesh: Mesh | None) -> bool:
    """Whether some devices of a mesh belong to other processes."""
    return mesh is not None and mesh.is_multi_process


def my_rows(mesh: Mesh | None, rows: int) -> slice:
    """Say which of `rows` rows, shared out evenly over the devices, are those of this process."""
    if mesh is None or not mesh.is_multi_process:
        return slice(0, rows)
    each, devices = rows // mesh.size, list(mesh.devices.flat)
    mine = [place for place, device in enumerate(devices) if device.process_index == jax.process_index()]
    return slice(mine[0] * each, (mine[-1] + 1) * each)


def spread_rows(devices: int, clients: int) -> int:
    """Return how many rows an array of all clients has on a mesh: equally many on each device."""
    return -(-clients // devices) * devices


def placed(x: Tree, shardings: Tree) -> Tree:
    """Copy arrays to devices; `shardings` is one for all arrays, or a tree of them.

    Of an array that all processes have, each takes the rows of its own devices.
    """
    whole = jax.tree.leaves(shardings)
    if all(sharding.is_fully_addressable for sharding in whole):
        return jax.device_put(x, shardings)
    leaves, structure = jax.tree.flatten(x)
    return jax.tree.unflatten(structure, map(_placed, leaves, whole * len(leaves) if len(whole) == 1 else whole))


def _placed(x: Any, sharding: Sharding) -> jax.Array:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:  # it is on these devices already
        same = x.sharding.is_equivalent_to(sharding, x.ndim)
        return x if same else jax.jit(lambda a: a, out_shardings=sharding)(x)
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _placed(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index], dtype=values.dtype)


def rows_placed(x: Tree, mesh: Mesh | None, rows: int, there: slice) -> Tree:
    """Spread host arrays over a mesh of several processes, the last row repeated until there are `rows`.

    Args:
        x: the arrays; only the rows of this process are read, which may lie in a file.
        mesh: the devices.
        rows: of each array on the devices.
        there: which of all rows the arrays have: all, or at least those of this process.
    """
    assert mesh is not None
    sharding = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))

    def spread(a: Any) -> jax.Array:
        dtype = jax.dtypes.canonicalize_dtype(a.dtype)  # of a type JAX has

        def part(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(rows)
            wanted = np.minimum(np.arange(first, last), there.stop - 1) - there.start
            in_a_row = wanted[-1] - wanted[0] == len(wanted) - 1  # a slice of a file is not copied twice
            return np.asarray(a[wanted[0] : wanted[-1] + 1] if in_a_row else a[wanted], dtype)

        return jax.make_array_from_callback((rows, *a.shape[1:]), sharding, part, dtype=dtype)

    return jax.tree.map(spread, x)


def fetched(x: Tree) -> Tree:
    """Copy arrays to the host, whole; where several processes share them, all must call this."""
    leaves, structure = jax.tree.flatten(x)
    apart = [isinstance(a, jax.Array) and not (a.is_fully_addressable or a.is_fully_replicated) for a in leaves]
    if any(apart):
        some = [a for a, is_apart in zip(leaves, apart, strict=True) if is_apart]
        whole = [NamedSharding(_mesh(a), PartitionSpec()) for a in some]
        together = iter(jax.jit(lambda *arrays: arrays, out_shardings=tuple(whole))(*some))
        leaves = [next(together) if is_apart else a for a, is_apart in zip(leaves, apart, strict=True)]
    return jax.tree.unflatten(structure, jax.device_get(leaves))


def own_rows(x: Tree) -> Tree:
    """Copy the rows of this process to the host, from arrays that are spread by their first axis."""

    def rows(a: jax.Array) -> np.ndarray:
        if a.is_fully_replicated:
            return np.asarray(a)[my_rows(_mesh(a), len(a))]
        parts = sorted(a.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(part.data) for part in parts])

    return jax.tree.map(rows, x)


def _mesh(a: jax.Array) -> Mesh:
    assert isinstance(a.sharding, NamedSharding)
    mesh = a.sharding.mesh
    assert isinstance(mesh, Mesh)
    return mesh
