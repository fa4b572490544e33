"""Small operations on arrays and on pytrees of arrays with the client axis first, shared by all packages."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = [
    "Same",
    "broadcast",
    "column",
    "count_of",
    "divide",
    "divisor",
    "dot",
    "flat",
    "for_each",
    "is_same",
    "minus",
    "of_clients",
    "plus",
    "product",
    "scale",
    "seal",
    "times",
    "where",
]

Tree = Any


class Same(NamedTuple):
    """A value that is the same for all clients, in place of one that has them as its first axis: kept only once.

    The verbs `each` and `each_of` hand it to every client as it is; `for_each` makes a row for each of them.
    """

    value: Any


def is_same(value: Any) -> bool:
    """Whether a node of a tree is `Same`, for `is_leaf`."""
    return isinstance(value, Same)


def for_each(x: Tree, clients: int) -> Tree:
    """Return arrays on the host with one row for each client, also where they are the same; those take no memory."""
    if not is_same(x):
        return x
    return jax.tree.map(lambda a: np.broadcast_to(np.asarray(a), (clients, *np.shape(a))), x.value)


def of_clients(fn: Callable[[Any], Any], x: Tree) -> Tree:
    """Return `fn` of all arrays that have the clients as their first axis; what is the same for all stays as it is."""
    return jax.tree.map(lambda a: a if is_same(a) else fn(a), x, is_leaf=is_same)


def count_of(stacked: Tree) -> int:
    """Return the number of clients whose values these are."""
    return next(a.shape[0] for a in jax.tree.leaves(stacked, is_leaf=is_same) if not is_same(a))


def plus(a: Tree, b: Tree) -> Tree:
    """Return a + b."""
    return jax.tree.map(jnp.add, a, b)


def minus(a: Tree, b: Tree) -> Tree:
    """Return a - b."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Any, a: Tree) -> Tree:
    """Return factor * a for a number."""
    return jax.tree.map(lambda leaf: factor * leaf, a)


def column(values: jax.Array, like: jax.Array) -> jax.Array:
    """Reshape `values [C]` so that they broadcast against `like [C, ...]`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def times(factor: jax.Array, a: Tree) -> Tree:
    """Multiply each client's part of `a [C, ...]` by its own `factor [C]`, in the type of `a`."""
    return jax.tree.map(lambda leaf: column(factor, leaf).astype(leaf.dtype) * leaf, a)


def divide(a: Tree, by: jax.Array) -> Tree:
    """Divide each client's part of `a [C, ...]` by its own number `by [C]`, in the type of `a`.

    By a product with 1 / by. The compiler itself makes this of a division by what is the same for many numbers, which
    has another last bit, but not in every program: of some arrays that are spread over devices it does not.
    """
    return jax.tree.map(lambda leaf: leaf * column(1 / by.astype(leaf.dtype), leaf), a)


def where(mask: jax.Array, a: Tree, b: Tree) -> Tree:
    """Take `a` for the clients where `mask [C]` is true and `b` for the others."""
    return jax.tree.map(lambda u, v: jnp.where(column(mask, u), u, v), a, b)


def broadcast(a: Tree, clients: int) -> Tree:
    """Give each of `clients` clients the same value."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), a)


def flat(x: Tree) -> tuple[jax.Array, Callable[[jax.Array], Tree]]:
    """Return `x [C, ...]` as one matrix `[C, d]`, and the function that turns `[..., d]` back into such a tree."""
    leaves, structure = jax.tree.flatten(x)
    shapes, dtypes = [a.shape[1:] for a in leaves], [a.dtype for a in leaves]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    common = jnp.result_type(*dtypes)
    matrix = jnp.concatenate([a.reshape(a.shape[0], -1).astype(common) for a in leaves], axis=1)

    def join(matrix: jax.Array) -> Tree:
        parts = zip(jnp.split(matrix, ends[:-1], axis=-1), shapes, dtypes, strict=True)
        return jax.tree.unflatten(
            structure, [part.reshape(*matrix.shape[:-1], *shape).astype(dtype) for part, shape, dtype in parts]
        )

    return matrix, join


def dot(a: Tree, b: Tree) -> jax.Array:
    """Return the inner product of two trees, all leaves together, in full precision."""
    products = jax.tree.map(lambda u, v: jnp.vdot(u, v, precision=lax.Precision.HIGHEST), a, b)
    return jnp.asarray(sum(jax.tree.leaves(products), start=0.0))


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply `a [..., n]` with `b [n, ...]` in the full precision of their type; GPUs would round to TF32."""
    return jnp.tensordot(a, b, axes=1, precision=lax.Precision.HIGHEST)


def divisor(x: Any) -> jax.Array:
    """Return x where it is positive and 1 elsewhere, for divisions whose result is not used elsewhere."""
    return jnp.where(x > 0, x, 1)


def seal(x: Tree, zero: jax.Array) -> Tree:
    """Add `zero` to the bits of all floating-point arrays, so that the compiler cannot fuse operations across it.

    `zero` must be 0, or False, in a way that the compiler cannot know: see `Peers.seal`.
    """

    def detour(a: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        bits = jnp.dtype(f"int{8 * a.dtype.itemsize}")
        return lax.bitcast_convert_type(lax.bitcast_convert_type(a, bits) + zero.astype(bits), a.dtype)

    return jax.tree.map(detour, x)
