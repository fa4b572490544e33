"""What one member sends another in one exchange: a note that says what is in it, and the frames one after another.

The note names every pair that may carry a frame, so that a receiver never waits for one that was not sent: a length of
0 says "nothing this time". It is small and is read first; frames are looked at only if it makes sense.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from coterie.codecs.frame import read_header
from coterie.peers.line import Frames
from coterie.peers.records import Pair

__all__ = ["Parcel", "open_parcel", "pack_parcel", "read_note"]

_TOP = struct.Struct("<QIIH")  # run, round, exchange, number of entries
_ENTRY = struct.Struct("<IIQ")  # sender, receiver, length of the frame


class Parcel(NamedTuple):
    """A note that was read."""

    run: int
    round: int
    exchange: int
    lengths: dict[Pair, int]


def pack_parcel(
    run: int, number: int, exchange: int, frames: Mapping[Pair, bytes | None]
) -> tuple[bytes, bytes | bytearray]:
    """Return the note and the frames; None stands for "nothing this time"."""
    entries = [_ENTRY.pack(*pair, len(frame or b"")) for pair, frame in frames.items()]
    there = [frame for frame in frames.values() if frame is not None]
    body = there[0] if len(there) == 1 else b"".join(there)  # most often one, which need not be copied
    return _TOP.pack(run, number, exchange, len(entries)) + b"".join(entries), body


def read_note(note: bytes, most: int) -> Parcel | None:
    """Read a note with at most so many entries; None for anything else."""
    if len(note) < _TOP.size:
        return None
    run, number, exchange, count = _TOP.unpack_from(note)
    if count > most or len(note) != _TOP.size + count * _ENTRY.size:
        return None
    entries = list(_ENTRY.iter_unpack(note[_TOP.size :]))
    lengths = {(sender, receiver): length for sender, receiver, length in entries}
    return Parcel(run, number, exchange, lengths) if len(lengths) == count else None


def open_parcel(parcel: Parcel, body: bytes) -> Frames | None:
    """Cut the frames out of a parcel; None unless every header says what the note says."""
    frames, start = {}, 0
    for pair, length in parcel.lengths.items():
        if length == 0:
            continue
        frame = body if length == len(body) else body[start : start + length]
        header = read_header(frame)
        if header is None or header[1:] != (parcel.run, parcel.round, parcel.exchange, *pair):
            return None
        frames[pair] = frame
        start += length
    return frames if start == len(body) else None
