"""Packing numbers into bits with NumPy, and counting bits and bytes with NumPy or JAX.

Packed sections have the lowest bit first and are padded to a whole byte: bit i of a section is bit i % 8 of its byte
i // 8, so that the bytes are the same on every machine. A section whose fields differ in width is packed bit by bit
over all fields at once; nothing loops over the fields.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = [
    "Broken",
    "Reader",
    "array_module",
    "bit_length",
    "bits_of",
    "pack",
    "pack_unary",
    "pack_varying",
    "total",
    "unpack",
    "unpack_unary",
    "unpack_varying",
    "whole_bytes",
]


class Broken(Exception):  # noqa: N818 - describes the bytes; `Codec.decode` makes a sentence of it
    """Bytes that no encoder wrote."""


# -- for NumPy and JAX ---------------------------------------------------------------------------------------------


def array_module(*values: Any) -> Any:
    """Return `jax.numpy` if one of the values is a JAX array (also inside a program), else `numpy`."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def bits_of(x: Any) -> Any:
    """Return the bits of floating-point numbers as unsigned integers, with which -0.0 and NaN compare exactly."""
    dtype = np.dtype(f"uint{8 * x.dtype.itemsize}")
    return lax.bitcast_convert_type(x, dtype) if array_module(x) is jnp else np.ascontiguousarray(x).view(dtype)


def bit_length(values: Any) -> Any:
    """Return how many bits each unsigned number takes; 0 takes none."""
    if array_module(values) is jnp:
        return 32 - lax.clz(values)
    return np.frexp(np.asarray(values, np.float64))[1].astype(np.int64)  # exact below 2**53


def total(values: Any) -> Any:
    """Return the sum of whole numbers or truth values: with 32 bits in a program, with 64 on the host."""
    xp = array_module(values)
    return xp.sum(values, dtype=xp.uint32 if xp is jnp else np.int64)


def whole_bytes(bits: Any) -> Any:
    """Return how many bytes so many bits take."""
    return (bits + 7) // 8


# -- on the host ---------------------------------------------------------------------------------------------------


class Reader:
    """Reads bytes from front to back."""

    def __init__(self, data: bytes):
        self._data, self._place = data, 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self.left:
            raise Broken("it ends too early")
        self._place += size
        return self._data[self._place - size : self._place]

    def peek(self, size: int) -> bytes:
        """Return the next bytes, or the remaining ones if there are fewer, without moving on."""
        return self._data[self._place : self._place + size]

    def number(self, size: int) -> int:
        """Return the next bytes as one number."""
        return int.from_bytes(self.take(size), "little")

    def values(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Return the next bytes as numbers of a type."""
        return np.frombuffer(self.take(count * dtype.itemsize), dtype.newbyteorder("<")).astype(dtype)

    @property
    def left(self) -> int:
        """The number of bytes that have not been read."""
        return len(self._data) - self._place


def pack(values: np.ndarray, width: int) -> bytes:
    """Pack numbers of `width` bits each (0 to 32)."""
    if width == 0 or len(values) == 0:
        return b""
    octets = np.ascontiguousarray(values, "<u4").view(np.uint8).reshape(-1, 4)
    return _joined(np.unpackbits(octets, axis=1, count=width, bitorder="little").reshape(-1))


def unpack(reader: Reader, count: int, width: int) -> np.ndarray:
    """Read what `pack` wrote."""
    if width == 0 or count == 0:
        return np.zeros(count, np.uint32)
    bits = _bits(reader.take(-(-count * width // 8)), count * width).reshape(count, width)
    octets = np.zeros((count, 4), np.uint8)
    octets[:, : -(-width // 8)] = np.packbits(bits, axis=1, bitorder="little")
    return octets.view("<u4").reshape(-1).astype(np.uint32)


def pack_varying(values: np.ndarray, widths: np.ndarray) -> bytes:
    """Pack the lowest `widths[i]` bits of `values[i]`."""
    starts = np.cumsum(widths) - widths
    bits = np.zeros(int(widths.sum()), np.uint8)
    for bit in range(int(widths.max(initial=0))):
        wide = np.flatnonzero(widths > bit)
        bits[starts[wide] + bit] = (values[wide] >> bit) & 1
    return _joined(bits)


def unpack_varying(reader: Reader, widths: np.ndarray) -> np.ndarray:
    """Read what `pack_varying` wrote."""
    starts, total = np.cumsum(widths) - widths, int(widths.sum())
    bits = _bits(reader.take(-(-total // 8)), total)
    values = np.zeros(len(widths), np.int64)
    for bit in range(int(widths.max(initial=0))):
        wide = np.flatnonzero(widths > bit)
        values[wide] |= bits[starts[wide] + bit].astype(np.int64) << bit
    return values


def pack_unary(values: np.ndarray) -> bytes:
    """Pack each number n as n zeros and a one."""
    ends = np.cumsum(values + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return _joined(bits)


def unpack_unary(reader: Reader, count: int, most: int) -> np.ndarray:
    """Read what `pack_unary` wrote with at most `most` bits."""
    if count == 0:
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(_bits(reader.peek(-(-most // 8)), None))[:count]
    if len(ends) < count:
        raise Broken("it ends too early")
    reader.take(int(ends[-1]) // 8 + 1)
    return np.diff(ends, prepend=-1) - 1


def _joined(bits: np.ndarray) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _bits(data: bytes, count: int | None) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
