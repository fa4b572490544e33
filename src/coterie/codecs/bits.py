"""Numbers as bits, packed with NumPy: the lowest bit first, and each section filled up to a whole byte.

Bit i of a section is bit i % 8 of its byte i // 8, so that the bytes are the same on every machine. A section whose
fields differ in width is packed bit by bit over all fields at once; nothing loops over the fields.
"""

import numpy as np

__all__ = ["Broken", "Reader", "pack", "pack_unary", "pack_varying", "unpack", "unpack_unary", "unpack_varying"]


class Broken(Exception):  # noqa: N818 - what the bytes are; `Codec.decode` makes a sentence of it
    """Bytes that no encoder wrote."""


class Reader:
    """Bytes that are read from front to back."""

    def __init__(self, data: bytes):
        self._data, self._place = data, 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self.left:
            raise Broken("it ends too early")
        self._place += size
        return self._data[self._place - size : self._place]

    def peek(self, size: int) -> bytes:
        """Return the next bytes, or what is left of them, and stay before them."""
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
    """Pack each number as so many zeros and a one."""
    ends = np.cumsum(values + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return _joined(bits)


def unpack_unary(reader: Reader, count: int, most: int) -> np.ndarray:
    """Read what `pack_unary` wrote, which took at most `most` bits."""
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
