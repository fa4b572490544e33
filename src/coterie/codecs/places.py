"""Encodes a sorted index set as gaps, in Elias gamma or Golomb-Rice code.

The indices ("places") are below d, the length of the vector. A gap is the distance to the previous place (to -1 for the
first), hence at least 1. All gaps of a message are written in one of two codes, whichever is shorter:

- Elias gamma: L = floor(log2 gap) in unary, then the L lowest bits. Good where gaps differ wildly.
- Golomb-Rice: (gap - 1) >> b in unary, then the b lowest bits, with b = floor(log2(d / places)). That is nearly the
  entropy of random places; b = 0 is a bitmap.

The unary parts come first and the bits after them, each as one section, so that both are read without a loop over gaps.
Layout: number of places (`counter_bytes(d)` bytes) | code (1 byte: b, or 255 for gamma) | unary | bits.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.bits import (
    Broken,
    Reader,
    array_module,
    bit_length,
    pack,
    pack_unary,
    pack_varying,
    total,
    unpack,
    unpack_unary,
    unpack_varying,
    whole_bytes,
)

__all__ = [
    "GAMMA",
    "counter_bytes",
    "gamma_bytes",
    "pack_gamma",
    "pack_places",
    "places_bytes",
    "unpack_gamma",
    "unpack_places",
]

GAMMA = 255
WIDEST = 32  # bits of a gap


# -- sizes, for NumPy and JAX --------------------------------------------------------------------------------------


def counter_bytes(size: int) -> int:
    """Return how many bytes a number from 0 to `size` takes; both ends know the size."""
    return -(-max(1, size).bit_length() // 8)


def places_bytes(mask: Any) -> Any:
    """Return how many bytes the places where `mask [d]` is true take."""
    gamma, rice, _ = _codes(*_gaps(mask), mask.shape[0])
    return counter_bytes(mask.shape[0]) + 1 + array_module(mask).minimum(gamma, rice)


def gamma_bytes(values: Any, mask: Any) -> Any:
    """Return how many bytes the numbers where `mask [d]` is true take in Elias gamma code."""
    unary = total(array_module(values).where(mask, bit_length(values), 0))
    return whole_bytes(unary) + whole_bytes(unary - total(mask))


def _codes(gaps: Any, mask: Any, size: int) -> tuple[Any, Any, Any]:
    """Return the bytes of the gaps where `mask` is true in gamma code and in Rice code, and the b of the latter."""
    xp, count = array_module(gaps), total(mask)
    shift = bit_length(xp.maximum(1, xp.asarray(size, count.dtype) // xp.maximum(1, count))) - 1
    quotients = total(xp.where(mask, (gaps - 1) >> shift, 0))
    return gamma_bytes(gaps, mask), whole_bytes(quotients + count) + whole_bytes(count * shift), shift


def _gaps(mask: Any) -> tuple[Any, Any]:
    """Return gaps, and which of them are those of places.

    In a program, where no shape can depend on values, every element gets a gap; on the host only the places do.
    """
    if array_module(mask) is np:
        gaps = np.diff(np.flatnonzero(mask), prepend=-1)
        return gaps, np.ones(len(gaps), bool)
    place = jnp.arange(mask.shape[0], dtype=jnp.int32)
    last = lax.cummax(jnp.where(mask, place, -1))
    before = jnp.concatenate([jnp.full(1, -1, jnp.int32), last[:-1]])
    return (place - before).astype(jnp.uint32), mask


# -- bytes, on the host --------------------------------------------------------------------------------------------


def pack_places(places: np.ndarray, size: int) -> bytes:
    """Encode sorted places, all smaller than `size`."""
    gaps = np.diff(places, prepend=-1)
    gamma, rice, shift = _codes(gaps, np.ones(len(gaps), bool), size)
    head = len(places).to_bytes(counter_bytes(size), "little")
    if gamma <= rice:
        return head + bytes([GAMMA]) + pack_gamma(gaps)
    return head + bytes([shift]) + pack_unary((gaps - 1) >> shift) + pack(gaps - 1, int(shift))


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


def pack_gamma(values: np.ndarray) -> bytes:
    """Encode numbers of at least 1 in Elias gamma code."""
    widths = bit_length(values) - 1
    return pack_unary(widths) + pack_varying(values, widths)


def unpack_gamma(reader: Reader, count: int, most: int) -> np.ndarray:
    """Read what `pack_gamma` wrote with a unary part of at most `most` bits."""
    widths = unpack_unary(reader, count, most)
    if widths.max(initial=0) > WIDEST:
        raise Broken("it holds a number that is too large")
    return unpack_varying(reader, widths) + (np.int64(1) << widths)
