"""Indices into a table whose entries are in the order of their frequency: frequent ones are small, and cost few bits.

Of n entries each index takes ceil(log2 n) bits, or fewer where some entries are much more frequent than others: then
index + 1 is written in Elias gamma code, or in Golomb-Rice code with one of four b, as gaps are (`places.py`). The
shortest is taken. That is within a few per cent of the entropy for what k-means leaves of a gradient, and unlike with a
Huffman code all indices are read at once.

Layout: code (1 byte: b, 255 for gamma, 254 for equally many bits) | unary | bits.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.codecs.bits import Broken, Reader, pack, pack_unary, unpack, unpack_unary
from coterie.codecs.places import GAMMA, bit_length, pack_gamma, unpack_gamma, whole_bytes

__all__ = ["indices_bytes", "indices_bytes_on_host", "pack_indices", "unpack_indices"]

FIXED = 254
CHOICES = 4  # values of b that are tried: quotients are below 16, so that their sum fits 32 bits
LONGEST = 32  # bits of an index in any of the codes


def indices_bytes(counts: jax.Array, entries: jax.Array) -> jax.Array:
    """Return how many bytes the indices take; `counts [n]` is how often each occurs, the most frequent first."""
    index = jnp.arange(counts.size, dtype=jnp.uint32)
    unary = jnp.sum(counts * bit_length(index + 1), dtype=jnp.uint32)
    total, width = jnp.sum(counts, dtype=jnp.uint32), bit_length(entries - 1)
    sizes = [whole_bytes(total * width), whole_bytes(unary) + whole_bytes(unary - total)]
    for choice in range(CHOICES):
        shift = jnp.maximum(width, CHOICES) - CHOICES + choice
        quotients = jnp.sum(counts * (index >> shift), dtype=jnp.uint32)
        sizes.append(whole_bytes(quotients + total) + whole_bytes(total * shift))
    return 1 + jnp.min(jnp.stack(sizes))


def indices_bytes_on_host(counts: np.ndarray) -> int:
    """Return the length of `pack_indices`, without making it."""
    return 1 + min(size for size, _ in _codes(counts))


def pack_indices(indices: np.ndarray, counts: np.ndarray) -> bytes:
    """Encode indices, of which each occurs `counts` times, the most frequent first."""
    _, code = min(_codes(counts), key=lambda found: found[0])
    if code == FIXED:
        body = pack(indices, (len(counts) - 1).bit_length())
    elif code == GAMMA:
        body = pack_gamma(indices + 1)
    else:
        body = pack_unary(indices >> code) + pack(indices, code)
    return bytes([code]) + body


def unpack_indices(reader: Reader, count: int, entries: int) -> np.ndarray:
    """Read what `pack_indices` wrote: `count` indices, each smaller than `entries`."""
    code = reader.number(1)
    if code == FIXED:
        indices = unpack(reader, count, max(0, entries - 1).bit_length()).astype(np.int64)
    elif code == GAMMA:
        indices = unpack_gamma(reader, count, LONGEST * count) - 1
    elif code < LONGEST:
        quotients = unpack_unary(reader, count, LONGEST * count)
        indices = (quotients << code) + unpack(reader, count, code)
    else:
        raise Broken("its code is unknown")
    if indices.max(initial=0) >= entries:
        raise Broken("it names a number that it does not hold")
    return indices


def _codes(counts: np.ndarray) -> Iterator[tuple[int, Any]]:
    """Yield the size of each code and its name, in the order of preference."""
    index, total = np.arange(len(counts)), int(counts.sum())
    width = (len(counts) - 1).bit_length()
    yield -(-total * width // 8), FIXED
    low = int((counts * np.frexp(index + 1.0)[1]).sum()) - total
    yield -(-(low + total) // 8) + -(-low // 8), GAMMA
    for choice in range(CHOICES):
        shift = max(width, CHOICES) - CHOICES + choice
        yield -(-(int((counts * (index >> shift)).sum()) + total) // 8) + -(-total * shift // 8), shift
