"""Where something is among d elements: the sorted places as gaps, which are small numbers where places are many.

A gap is the distance to the place before (to -1 for the first), hence at least 1. All gaps of a message are written in
one of two codes, whichever is shorter:

- Elias gamma: L = floor(log2 gap) in unary, then the L lowest bits. Good where gaps differ wildly.
- Golomb-Rice: (gap - 1) >> b in unary, then the b lowest bits, with b = floor(log2(d / places)). That is nearly the
  entropy of places at random; b = 0 is a bitmap.

The unary parts come first and the bits after them, each as one section: both can be read without a loop over gaps.
Layout: number of places (`counter_bytes(d)` bytes) | code (1 byte: b, or 255 for gamma) | unary | bits.
The same sizes are computed twice, on the host and inside a program, where nothing has a shape that depends on data.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.bits import (
    Broken,
    Reader,
    pack,
    pack_unary,
    pack_varying,
    unpack,
    unpack_unary,
    unpack_varying,
)

__all__ = [
    "GAMMA",
    "bit_length",
    "counter_bytes",
    "gamma_bytes",
    "gamma_bytes_on_host",
    "pack_gamma",
    "pack_places",
    "places_bytes",
    "places_bytes_on_host",
    "unpack_gamma",
    "unpack_places",
    "whole_bytes",
]

GAMMA = 255
WIDEST = 32  # bits of a gap


def counter_bytes(size: int) -> int:
    """Return how many bytes a number from 0 to `size` takes; both ends know the size."""
    return -(-max(1, size).bit_length() // 8)


def whole_bytes(bits: jax.Array) -> jax.Array:
    """Return how many bytes so many bits take."""
    return (bits + 7) // 8


def bit_length(values: jax.Array) -> jax.Array:
    """Return how many bits each unsigned number takes; 0 takes none."""
    return 32 - lax.clz(values)


# -- inside a program ----------------------------------------------------------------------------------------------


def places_bytes(mask: jax.Array) -> jax.Array:
    """Return how many bytes the places where `mask [d]` is true take."""
    (size,), count = mask.shape, jnp.sum(mask, dtype=jnp.uint32)
    place = jnp.arange(size, dtype=jnp.int32)
    last = lax.cummax(jnp.where(mask, place, -1))
    before = jnp.concatenate([jnp.full(1, -1, jnp.int32), last[:-1]])
    gaps = (place - before).astype(jnp.uint32)
    shift = bit_length(jnp.maximum(1, jnp.uint32(size) // jnp.maximum(1, count))) - 1
    quotients = jnp.sum(jnp.where(mask, (gaps - 1) >> shift, 0), dtype=jnp.uint32)
    rice = whole_bytes(quotients + count) + whole_bytes(count * shift)
    return counter_bytes(size) + 1 + jnp.minimum(gamma_bytes(gaps, mask), rice)


def gamma_bytes(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Return how many bytes the numbers where `mask [d]` is true take in Elias gamma code."""
    unary = jnp.sum(jnp.where(mask, bit_length(values), 0), dtype=jnp.uint32)
    return whole_bytes(unary) + whole_bytes(unary - jnp.sum(mask, dtype=jnp.uint32))


# -- on the host ---------------------------------------------------------------------------------------------------


def places_bytes_on_host(places: np.ndarray, size: int) -> int:
    """Return the length of `pack_places`, without making it."""
    gaps, shift = np.diff(places, prepend=-1), _shift(size, len(places))
    return counter_bytes(size) + 1 + min(gamma_bytes_on_host(gaps), _rice_size(gaps, shift))


def pack_places(places: np.ndarray, size: int) -> bytes:
    """Encode sorted places, all smaller than `size`."""
    gaps, shift = np.diff(places, prepend=-1), _shift(size, len(places))
    head = len(places).to_bytes(counter_bytes(size), "little")
    if gamma_bytes_on_host(gaps) <= _rice_size(gaps, shift):
        return head + bytes([GAMMA]) + pack_gamma(gaps)
    return head + bytes([shift]) + pack_unary((gaps - 1) >> shift) + pack(gaps - 1, shift)


def unpack_places(reader: Reader, size: int) -> np.ndarray:
    """Read what `pack_places` wrote."""
    count, code = reader.number(counter_bytes(size)), reader.number(1)
    if count > size or (code > WIDEST and code != GAMMA):
        raise Broken("its places are not in order")
    if code == GAMMA:
        gaps = unpack_gamma(reader, count, size)
    else:
        quotients = unpack_unary(reader, count, size)
        gaps = (quotients << code) + unpack(reader, count, code) + 1
    places = np.cumsum(gaps) - 1
    if count and places[-1] >= size:
        raise Broken("its places are not in order")
    return places


def gamma_bytes_on_host(values: np.ndarray) -> int:
    """Return the length of `pack_gamma`, without making it."""
    bits = int(_log2(values).sum())
    return -(-(bits + len(values)) // 8) + -(-bits // 8)


def pack_gamma(values: np.ndarray) -> bytes:
    """Encode numbers of at least 1 in Elias gamma code."""
    widths = _log2(values)
    return pack_unary(widths) + pack_varying(values, widths)


def unpack_gamma(reader: Reader, count: int, most: int) -> np.ndarray:
    """Read what `pack_gamma` wrote, of which the unary part took at most `most` bits."""
    widths = unpack_unary(reader, count, most)
    if widths.max(initial=0) > WIDEST:
        raise Broken("it holds a number that is too large")
    return unpack_varying(reader, widths) + (np.int64(1) << widths)


def _shift(size: int, count: int) -> int:
    return max(1, size // max(1, count)).bit_length() - 1


def _rice_size(gaps: np.ndarray, shift: int) -> int:
    return -(-(int(((gaps - 1) >> shift).sum()) + len(gaps)) // 8) + -(-len(gaps) * shift // 8)


def _log2(values: np.ndarray) -> np.ndarray:
    """Return floor(log2) of positive integers below 2**53, exactly: it is the exponent of a floating number."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
