"""Writes the numbers of a message in full, or as bfloat16: the first 16 bits of a float32.

bfloat16 has the range of float32 (a gradient may be tiny) and 8 significant bits: an error of at most 0.2 %, small
compared with the error of a codec that sends few numbers. Rounding works on the bits, as integers, so that the compiler
cannot skip it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.bits import Reader, bits_of

__all__ = ["SHORT", "fit_short", "pack_numbers", "pack_short", "shortened", "unpack_short"]

SHORT = 2  # bytes
LARGEST = 0x7F7F  # the largest bfloat16, without its sign


def shortened(x: jax.Array) -> jax.Array:
    """Round to the nearest bfloat16, of two the even one; larger numbers become the largest."""
    narrow = x.astype(jnp.float32)
    bits = bits_of(narrow)
    magnitude = bits & 0x7FFFFFFF
    magnitude = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    short = (bits >> 31 << 15) | jnp.minimum(magnitude, LARGEST)
    rounded = lax.bitcast_convert_type(short << 16, jnp.float32).astype(x.dtype)
    if x.dtype == jnp.float64:  # below the normal range of float32: send zero
        rounded = jnp.where(jnp.abs(x) < np.finfo(np.float32).tiny, 0, rounded)
    return jnp.where(jnp.isfinite(x), rounded, x)  # so that a diverging model is noticed


def fit_short(bits: Any) -> Any:
    """Return which numbers can be sent with 16 bits, given their bits; for NumPy and JAX."""
    if bits.dtype == np.uint32:
        return (bits & 0xFFFF) == 0
    exponent = (bits >> 52) & 0x7FF
    normal = (exponent >= 1023 - 126) & (exponent <= 1023 + 127)
    return ((bits & (2**45 - 1)) == 0) & (normal | ((bits & (2**63 - 1)) == 0))


def pack_numbers(x: np.ndarray) -> bytes:
    """Write numbers in full."""
    return x.astype(x.dtype.newbyteorder("<")).tobytes()


def pack_short(x: np.ndarray) -> bytes:
    """Write numbers that fit in 16 bits each."""
    return (bits_of(x.astype(np.float32)) >> 16).astype("<u2").tobytes()


def unpack_short(reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
    """Read what `pack_short` wrote."""
    bits = reader.values(count, np.dtype(np.uint16)).astype(np.uint32) << 16
    return bits.view(np.float32).astype(dtype)
