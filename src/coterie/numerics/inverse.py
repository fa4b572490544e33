"""The inverse of a positive definite matrix inside a compiled program, without LAPACK.

LAPACK's routines hang inside a program that several CPU devices share. Blocked Gauss-Jordan elimination needs only
matrix products, and no pivoting for a positive definite matrix. (`simplex.py` has its own elimination, which solves for
one right-hand side and divides where this one multiplies by the inverse of the pivot: their bits differ.)
"""

import jax
import jax.numpy as jnp
from jax import lax

from coterie.numerics.tree import product

__all__ = ["inverse"]

BLOCK = 64  # rows eliminated at once: most of the work is then one product of [n, 64] and [64, n]


def inverse(A: jax.Array) -> jax.Array:
    """Return the inverse of a symmetric positive definite matrix `[n, n]`; 2 n^3 operations."""
    n = A.shape[0]
    if n <= BLOCK:
        return _eliminated(A, 1)
    padded = -(-n // BLOCK) * BLOCK
    whole = jnp.eye(padded, dtype=A.dtype).at[:n, :n].set(A)
    inverted = _eliminated(whole, BLOCK)[:n, :n]
    return (inverted + inverted.T) / 2


def _eliminated(A: jax.Array, block: int) -> jax.Array:
    """Return the inverse of A, eliminating `block` rows at a time."""
    n = A.shape[0]

    def eliminate(k: jax.Array, A: jax.Array) -> jax.Array:
        at = k * block
        rows, columns = lax.dynamic_slice(A, (at, 0), (block, n)), lax.dynamic_slice(A, (0, at), (n, block))
        pivot = lax.dynamic_slice(rows, (0, at), (block, block))
        pivot = _eliminated(pivot, 1) if block > 1 else 1 / pivot
        right = product(pivot, rows)
        A = A - product(columns, right)
        A = lax.dynamic_update_slice(A, right, (at, 0))
        A = lax.dynamic_update_slice(A, -product(columns, pivot), (0, at))
        return lax.dynamic_update_slice(A, pivot, (at, at))

    return lax.fori_loop(0, n // block, eliminate, A)
