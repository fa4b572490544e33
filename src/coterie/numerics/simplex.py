"""Small quadratic programs over a client's slots, solved exactly inside a compiled round.

Methods that learn weights solve one of two programs: the nearest point of the simplex (weights that sum to one), or
the best non-negative combination of the neighbours' gradients. Both are tiny and there is one per client, so they are
written to be batched with `jax.vmap`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["nonnegative_qp", "project_simplex"]


def project_simplex(v: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return the nearest point of the probability simplex: argmin_x |x - v|^2 with x >= 0 and sum(x) = 1.

    Exact, by sorting (Held, Wolfe and Crowder 1974): x = max(v - t, 0), where t is one of the partial means.

    Args:
        v: `[..., D]`.
        mask: `[..., D]` true where an entry may be positive; default everywhere. A row that is all false gives zeros.
    """
    if v.shape[-1] == 0:
        return v
    mask = jnp.ones(v.shape, bool) if mask is None else mask
    top = jnp.max(jnp.where(mask, v, -jnp.inf), axis=-1, keepdims=True)
    v = jnp.where(mask, v - jnp.where(jnp.isfinite(top), top, 0), 0)  # a shift only affects rounding
    ordered = -jnp.sort(jnp.where(mask, -v, jnp.inf), axis=-1)  # the largest first, masked entries last
    excess = jnp.cumsum(jnp.where(jnp.isfinite(ordered), ordered, 0), axis=-1) - 1
    place = jnp.arange(1, v.shape[-1] + 1, dtype=v.dtype)
    support = jnp.sum(place * ordered > excess, axis=-1, keepdims=True)
    last = jnp.maximum(support - 1, 0)
    threshold = jnp.take_along_axis(excess, last, axis=-1) / (last + 1).astype(v.dtype)
    return jnp.where(mask, jnp.maximum(v - threshold, 0), 0)


def nonnegative_qp(Q: jax.Array, c: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Minimise 1/2 u^T Q u + c^T u over u >= 0 by the active-set method of Lawson and Hanson (1974, chapter 23).

    With Q = G G^T and c = G g it finds the non-negative multipliers for which g + G^T u is shortest. Every variable
    is first scaled so that Q has a unit diagonal, and a ridge of a few rounding errors keeps equal rows of G apart:
    g + G^T u is unique even then, u itself is not.

    Args:
        Q: `[D, D]` positive semi-definite.
        c: `[D]`.
        mask: `[D]` true where u may be positive; default everywhere.
    """
    size = c.shape[0]
    if size == 0:
        return c
    scale = jnp.sqrt(jnp.diagonal(Q))
    free = (scale > 0) if mask is None else mask & (scale > 0)
    inverse = jnp.where(free, 1 / jnp.where(free, scale, 1), 0)
    epsilon, identity = jnp.finfo(c.dtype).eps, jnp.eye(size, dtype=Q.dtype)
    Q = jnp.where(free[:, None] & free, Q * inverse[:, None] * inverse, 0) + 4 * size * epsilon * identity
    c = jnp.where(free, c * inverse, 0)
    tolerance = 8 * size * epsilon * jnp.max(jnp.abs(c))

    def solve(active: jax.Array) -> jax.Array:
        """Minimise over the active variables, the others being zero."""
        return _solve(jnp.where(active[:, None] & active, Q, identity), jnp.where(active, -c, 0))

    def advance(carry: tuple) -> tuple:
        u, active, _, count = carry
        target = solve(active)
        feasible = jnp.all(~active | (target > 0))
        # Inside the orthant: move there, and let the variable with the steepest descent enter.
        slope = jnp.where(active | ~free, jnp.inf, Q @ target + c)
        enter = jnp.argmin(slope)
        done = feasible & (slope[enter] >= -tolerance)
        entered = active | ((jnp.arange(size) == enter) & ~done)
        # Outside: move towards it until the first variable becomes zero, and drop that one.
        blocking = active & (target <= 0)
        ratio = jnp.where(blocking & (u > 0), u / jnp.where(blocking & (u > 0), u - target, 1), 0)
        step = jnp.min(jnp.where(blocking, ratio, jnp.inf))
        dropped = blocking & (ratio <= step)
        reached = jnp.where(dropped, 0, jnp.maximum(u + step * (target - u), 0))
        u, active = jnp.where(feasible, target, reached), jnp.where(feasible, entered, active & ~dropped)
        return u, active, done, count + 1

    def goes_on(carry: tuple) -> Any:
        return ~carry[2] & (carry[3] < 5 * size + 5)

    start = (jnp.zeros_like(c), jnp.zeros(size, bool), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    return lax.while_loop(goes_on, advance, start)[0] * inverse


def _solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solve a small positive definite system by Gauss-Jordan elimination without pivoting.

    Not by `jnp.linalg.solve`: in a round of `cga` that two CPU devices share it never returned.
    """

    def eliminate(k: Any, table: jax.Array) -> jax.Array:
        row = table[k] / table[k, k]
        return (table - jnp.outer(table[:, k], row)).at[k].set(row)

    return lax.fori_loop(0, right.shape[0], eliminate, jnp.column_stack([matrix, right]))[:, -1]
