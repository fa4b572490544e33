"""Division of whole numbers that are not negative.

`//` and `%` of JAX also serve negative numbers, for which they compile five kernels instead of one.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

__all__ = ["quotient", "remainder"]


def quotient(a: Array, b: Any) -> Array:
    """Return a // b for a >= 0 and b > 0."""
    return lax.div(*_alike(a, b))


def remainder(a: Array, b: Any) -> Array:
    """Return a % b for a >= 0 and b > 0."""
    return lax.rem(*_alike(a, b))


def _alike(a: Array, b: Any) -> list[Array]:
    return jnp.broadcast_arrays(a, jnp.asarray(b, a.dtype))
