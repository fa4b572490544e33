"""A file that grows by records and is whole wherever a process dies: each record has its number, length and checksum.

    4 bytes   the letters CTB1
    8 bytes   a number that grows from record to record: the round
    8 bytes   length of the content
    4 bytes   CRC-32 of number, length and content
    content   (all numbers are little-endian)

One file with a thousand records is kinder to a file system, a backup and a copy than a thousand files.
"""

import struct
import zlib
from collections.abc import Iterator

from coterie.storage.owned import Unreadable

__all__ = ["append_to", "read_blocks", "whole_blocks"]

MAGIC = b"CTB1"
HEADER = struct.Struct("<4sQQI")


def append_to(number: int, content: bytes) -> bytes:
    """Return a record, ready to be appended."""
    return HEADER.pack(MAGIC, number, len(content), _checksum(number, content)) + content


def whole_blocks(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield number, content and end of each record, up to the first that is torn or damaged."""
    place, before = 0, -1
    while place + HEADER.size <= len(data):
        magic, number, length, checksum = HEADER.unpack_from(data, place)
        end = place + HEADER.size + length
        if magic != MAGIC or end > len(data) or number <= before:
            return
        content = data[end - length : end]
        if _checksum(number, content) != checksum:
            return
        yield number, content, end
        place, before = end, number


def read_blocks(data: bytes, file: object) -> list[tuple[int, bytes]]:
    """Return number and content of all records; the file must be whole."""
    records = list(whole_blocks(data))
    if (records[-1][2] if records else 0) != len(data):
        raise Unreadable(f"{file} cannot be read (record {len(records) + 1} is damaged)")
    return [(number, content) for number, content, _ in records]


def _checksum(number: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(struct.pack("<QQ", number, len(content))))
