"""One client after another, with the same bits wherever each of them lives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Split
from coterie.numerics.tree import seal

__all__ = ["one_by_one"]

Tree = Any


def one_by_one(fn: Callable, stacked: Tree, zero: jax.Array) -> Tree:
    """Run `fn` for each row of some stacked arrays, one after another.

    The compiler does away with a loop that it knows to run once, and joins what was inside with the code around it: a
    product and a sum become one operation with one rounding, which they do not where several clients share a program.
    So a single row has a loop, too, whose length the compiler cannot know.

    Args:
        fn: of one row.
        stacked: a tuple of trees of arrays `[C, ...]`.
        zero: 0, in a form that the compiler cannot know: see `Peers.seal`.
    """
    if jax.tree.leaves(stacked)[0].shape[0] != 1:
        return lax.map(lambda row: fn(*row), stacked)
    once = jax.jit(lambda row: fn(*row))  # traced once, for its shapes and for the loop
    outline = jax.eval_shape(lambda: once(_only_row(stacked, zero)))
    start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), outline)
    done = lax.fori_loop(0, 1 + zero, lambda turn, _: once(_only_row(stacked, turn)), start)
    return jax.tree.map(lambda a: a[None], done)


def _only_row(stacked: Tree, turn: Any) -> Tree:
    """Return the only row in a form that seems to depend on the turn: else all that is done with it leaves the loop.

    Samples stay as they are, since this would copy them; nothing is computed from them but with models or keys.
    """

    def row(a: Any) -> Any:
        if isinstance(a, Split):
            return Split(a.x[0], a.y[0], row(a.count))
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(row(jax.random.key_data(a)), impl=jax.random.key_impl(a))
        if a.dtype == jnp.bool_:
            return a[0] ^ (turn != 0)
        return a[0] + turn.astype(a.dtype) if jnp.issubdtype(a.dtype, jnp.integer) else seal(a[0], turn)

    return jax.tree.map(row, stacked, is_leaf=lambda a: isinstance(a, Split))
