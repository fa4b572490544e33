"""Encodes indices into a table sorted by frequency: frequent entries have small indices, which take few bits.

With n entries each index takes ceil(log2 n) bits, or fewer where some entries are much more frequent than others: then
index + 1 is written in Elias gamma code, or in Golomb-Rice code with one of four b, as gaps are (`places.py`). The
shortest is taken. For gradients after k-means that is within a few per cent of the entropy, and unlike with a Huffman
code all indices are read at once.

Layout: code (1 byte: b, 255 for gamma, 254 for a fixed width) | unary | bits.
"""

from typing import Any

import numpy as np

from coterie.codecs.bits import (
    Broken,
    Reader,
    array_module,
    bit_length,
    pack,
    pack_unary,
    total,
    unpack,
    unpack_unary,
    whole_bytes,
)
from coterie.codecs.places import GAMMA, pack_gamma, unpack_gamma

__all__ = ["indices_bytes", "pack_indices", "unpack_indices"]

FIXED = 254
CHOICES = 4  # values of b that are tried: quotients are below 16, so that their sum fits 32 bits
LONGEST = 32  # bits of an index in any of the codes


def indices_bytes(counts: Any, entries: Any) -> Any:
    """Return how many bytes the indices take, for NumPy and JAX.

    Args:
        counts: `[n]`, how often each index occurs, the most frequent first; zeros may follow the last.
        entries: how many of the counts belong to entries of the table.
    """
    xp = array_module(counts)
    return 1 + xp.min(xp.stack([size for size, _ in _codes(counts, entries)]))


def _codes(counts: Any, entries: Any) -> list[tuple[Any, Any]]:
    """Return the size of each code and its name, in the order of preference."""
    xp = array_module(counts)
    index = xp.arange(counts.size, dtype=counts.dtype)
    unary = total(counts * bit_length(index + 1))
    count, width = total(counts), bit_length(entries - 1)
    codes = [(whole_bytes(count * width), FIXED), (whole_bytes(unary) + whole_bytes(unary - count), GAMMA)]
    for choice in range(CHOICES):
        shift = xp.maximum(width, CHOICES) - CHOICES + choice
        quotients = total(counts * (index >> shift))
        codes.append((whole_bytes(quotients + count) + whole_bytes(count * shift), shift))
    return codes


def pack_indices(indices: np.ndarray, counts: np.ndarray) -> bytes:
    """Encode indices; index i occurs `counts[i]` times, the most frequent first."""
    _, code = min(_codes(counts, len(counts)), key=lambda each: each[0])
    if code == FIXED:
        body = pack(indices, (len(counts) - 1).bit_length())
    elif code == GAMMA:
        body = pack_gamma(indices + 1)
    else:
        body = pack_unary(indices >> code) + pack(indices, int(code))
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
