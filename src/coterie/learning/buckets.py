"""Run a function of stacked clients bucket by bucket, where some of its arguments are `Buckets`.

A method hands `clients.train` to `peers.each` together with models, keys and weights `[C, ...]`. If the data lie in
buckets, the rows of everything else are taken for each bucket in turn, and the results are put back into the clients'
order; results whose shapes differ between buckets (values per sample) stay in buckets.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.buckets import Buckets
from coterie.numerics.tree import is_same

__all__ = ["bucket", "bucket_by_bucket", "buckets_of", "is_buckets", "put_together", "real_rows", "without_same"]

Tree = Any


def is_buckets(value: Any) -> bool:
    """Whether a node of a tree is `Buckets`, for `is_leaf`."""
    return isinstance(value, Buckets)


def buckets_of(stacked: Tree) -> Buckets | None:
    """Return the first `Buckets` in a tree; all of them have the same clients in the same buckets."""
    return next(filter(is_buckets, jax.tree.leaves(stacked, is_leaf=is_buckets)), None)


def bucket(stacked: Tree, layout: Buckets, number: int) -> Tree:
    """Return the rows of one bucket's clients."""
    places = layout.places[number]

    def rows(value: Any) -> Any:
        if is_same(value):
            return value
        return value.parts[number] if is_buckets(value) else jnp.asarray(value)[places]

    return jax.tree.map(rows, stacked, is_leaf=lambda node: is_same(node) or is_buckets(node))


def put_together(layout: Buckets, parts: list[Tree]) -> Tree:
    """Return the buckets' results in the clients' order: stacked if they have the same shapes, else as `Buckets`."""
    shapes = [jax.tree.map(lambda a: jax.typeof(a).shape[1:], part) for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        return Buckets(tuple(parts), layout.places, layout.order)
    return jax.tree.map(lambda *values: jnp.concatenate(values)[layout.order], *parts)


def bucket_by_bucket(run: Callable[..., Tree], *stacked: Tree) -> Tree:
    """Return `run(*stacked)` for a function whose results have the clients as their first axis."""
    layout = buckets_of(stacked)
    if layout is None:
        return run(*stacked)
    parts = [run(*bucket(stacked, layout, number)) for number in range(len(layout.parts))]
    return put_together(layout, parts)


def without_same(fn: Callable, stacked: Tree) -> tuple[Callable, Tree]:
    """Return a function of what differs between clients alone, and that: what is the same is a part of the function."""
    leaves, structure = jax.tree.flatten(stacked, is_leaf=is_same)
    differs = [not is_same(leaf) for leaf in leaves]
    if all(differs):
        return fn, stacked

    def of_rest(*rest: Any) -> Any:
        rows = iter(rest)
        own = [next(rows) if other else leaf.value for leaf, other in zip(leaves, differs, strict=True)]
        return fn(*jax.tree.unflatten(structure, own))

    return of_rest, tuple(leaf for leaf, other in zip(leaves, differs, strict=True) if other)


def real_rows(values: Tree, counts: Any) -> list[Any]:
    """Return each client's part of values per sample `[C, n, ...]`, without padding; on the host."""
    if not isinstance(values, Buckets):
        return [jax.tree.map(lambda a, i=i, n=n: a[i, :n], values) for i, n in enumerate(counts)]
    where = zip(*values.find(np.arange(len(counts))), counts, strict=True)
    return [jax.tree.map(lambda a, row=row, n=n: a[row, :n], values.parts[bucket]) for bucket, row, n in where]
