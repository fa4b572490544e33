"""One client after another, with the same bits wherever each of them lives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Split

__all__ = ["one_by_one"]

Tree = Any


def one_by_one(fn: Callable, stacked: Tree, zero: jax.Array) -> Tree:
    """Run `fn` for each row of some stacked arrays, one after another.

    The compiler does away with a loop that it knows to run once, and joins what was inside with the code around it: a
    product and a sum become one operation with one rounding, which they do not where several clients share a program.
    So a single row has the loop of two rows, which ends after the first; the compiler cannot know that. It reads and
    writes rows as that of several clients does: what is written, and then used again, is rounded in another way where
    it is no part of a larger array.

    Args:
        fn: of one row.
        stacked: a tuple of trees of arrays `[C, ...]`.
        zero: 0, in a form that the compiler cannot know: see `Peers.seal`.
    """
    if jax.tree.leaves(stacked)[0].shape[0] != 1:
        return lax.map(lambda row: fn(*row), stacked)
    once = jax.jit(lambda row: fn(*row))  # traced once, for its shapes and for the loop
    two = jax.tree.map(_and_another, stacked, is_leaf=_is_split)
    outline = jax.eval_shape(lambda: once(_row(two, 0)))
    start = jax.tree.map(lambda a: jnp.zeros((2, *a.shape), a.dtype), outline)

    def turn(number: Any, done: Tree) -> Tree:
        write = lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, number, 0)  # noqa: E731
        return jax.tree.map(write, done, once(_row(two, number)))

    return jax.tree.map(lambda a: a[:1], lax.fori_loop(0, 1 + zero, turn, start))


def _is_split(node: Any) -> bool:
    return isinstance(node, Split)


def _and_another(a: Any) -> Any:
    """Add a row that nobody reads, except to samples, which would be copied."""
    return a._replace(count=_and_another(a.count)) if _is_split(a) else jnp.concatenate([a, jnp.zeros_like(a)])


def _row(two: Tree, number: Any) -> Tree:
    """Return one of two rows; of samples the only one, so that it seems to depend on the number.

    Else what is computed from samples alone would leave the loop, and be compiled in another way.
    """

    def row(a: Any) -> Any:
        if _is_split(a):
            x, y, _ = lax.optimization_barrier((a.x[0], a.y[0], number))
            return Split(x, y, row(a.count))
        return lax.dynamic_index_in_dim(a, number, keepdims=False)

    return jax.tree.map(row, two, is_leaf=_is_split)
