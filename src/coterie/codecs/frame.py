"""A message as bytes: a fixed header and the arrays, little-endian, one after the other.

Both ends compile the same program, so shapes and types are known and only their digest is sent. The simulation counts
messages with `frame_bytes`, a carrier sends what `encode` returns: both ledgers agree to the byte.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["HEADER", "Header", "decode", "encode", "frame_bytes", "layout_digest", "read_header"]

# magic, format, kind, run, round, exchange, sender, receiver, digest of the layout, payload bytes
_LAYOUT = struct.Struct("<4sHHQIIII8sQ")
HEADER = _LAYOUT.size
_MAGIC, _FORMAT = b"cote", 1


class Header(NamedTuple):
    """The kind of a message, its run, round and exchange, its sender and its receiver."""

    kind: int
    run: int
    round: int
    exchange: int
    sender: int
    receiver: int


def layout_digest(arrays: Sequence[Any]) -> bytes:
    """Return eight bytes that differ when the number, the types or the shapes of the arrays do."""
    text = ";".join(f"{np.dtype(a.dtype).str}{tuple(a.shape)}" for a in arrays)
    return hashlib.sha256(text.encode()).digest()[:8]


def frame_bytes(arrays: Sequence[Any]) -> int:
    """Return the size of the frame that carries these arrays (anything with `shape` and `dtype`)."""
    return HEADER + sum(int(np.prod(a.shape)) * np.dtype(a.dtype).itemsize for a in arrays)


def encode(header: Header, arrays: Sequence[np.ndarray], coded: bytes = b"", like: Any = None) -> bytes:
    """Return the frame; `coded` is the last array, of the shape and type of `like`, already encoded by a codec."""
    parts = [np.ascontiguousarray(a, np.dtype(a.dtype).newbyteorder("<")) for a in arrays]
    layout = arrays if like is None else [*arrays, like]
    size = sum(part.nbytes for part in parts) + len(coded)
    top = _LAYOUT.pack(_MAGIC, _FORMAT, *header, layout_digest(layout), size)
    return b"".join([top, *(part.data if part.size else b"" for part in parts), coded])  # the only copy


def read_header(frame: bytes) -> Header | None:
    """Return the header of a whole frame, or None for anything else; the arrays are not looked at."""
    if len(frame) < HEADER:
        return None
    magic, version, *fields, _, size = _LAYOUT.unpack_from(frame)
    return Header(*fields) if (magic, version, size) == (_MAGIC, _FORMAT, len(frame) - HEADER) else None


def decode(frame: bytes, like: Sequence[Any], coded: bool = False) -> tuple[Header, list[np.ndarray]] | None:
    """Return header and arrays, or None for anything but a whole frame of the expected layout.

    The arrays are views of the frame, and read-only.

    With `coded` the last array was encoded by a codec, and its bytes are returned undecoded.
    """
    if len(frame) < HEADER:
        return None
    magic, version, *fields, digest, size = _LAYOUT.unpack(frame[:HEADER])
    if magic != _MAGIC or version != _FORMAT or size != len(frame) - HEADER or digest != layout_digest(like):
        return None
    arrays, offset = [], HEADER
    plain = like[:-1] if coded else like
    if size < frame_bytes(plain) - HEADER or (not coded and size > frame_bytes(plain) - HEADER):
        return None
    for a in plain:
        dtype = np.dtype(a.dtype)
        count = int(np.prod(a.shape))
        values = np.frombuffer(frame, dtype.newbyteorder("<"), count, offset)
        arrays.append(values.astype(dtype, copy=False).reshape(a.shape))
        offset += count * dtype.itemsize
    if coded:
        arrays.append(np.frombuffer(frame, np.uint8, offset=offset))
    return Header(*fields), arrays
