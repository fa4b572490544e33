"""How much memory is free, and a sentence for what would not fit, before it is allocated."""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from coterie.errors import CoterieError, shown

__all__ = ["available", "giving_back", "in_bytes", "in_words", "keeping", "refuse_beyond"]

GROUP = Path("/sys/fs/cgroup")  # a container's limits, where there are any
LIMITS = {  # of the two versions of control groups: the limit, what is used, and what of it can be given back
    "": ("memory.max", "memory.current", ("active_file", "inactive_file")),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}


def available() -> int:
    """Return the bytes that can still be used: of the machine or, where that is less, of the container."""
    return max(0, min(_machine(), *(_container(GROUP / folder, *names) for folder, names in LIMITS.items())))


def _container(folder: Path, limit: str, used: str, cached: tuple[str, ...]) -> int:
    try:
        free = int((folder / limit).read_text()) - int((folder / used).read_text())
        entries = (line.partition(" ") for line in (folder / "memory.stat").read_text().splitlines())
        return free + sum(int(size) for name, _, size in entries if name in cached)
    except (OSError, ValueError):  # no such file, or the word "max"
        return 1 << 62


def _machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # not Linux: half of all memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (OSError, ValueError, AttributeError):
        return 4 << 30


@contextlib.contextmanager
def giving_back() -> Iterator[None]:
    """Give memory that was freed back to the system, before and after something that needs much for a while.

    The C library of Linux keeps it for itself otherwise: hundreds of megabytes after a table was read or a program
    compiled. Elsewhere, nothing is done.
    """
    _trim()
    try:
        yield
    finally:
        _trim()


def _trim() -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keeping(size: int) -> None:
    """Let this process keep up to so many bytes that were freed, for messages that come and go in every round.

    The C library of Linux gives large blocks back at once, and fetching new ones from the system costs more than all
    that is done with them. Elsewhere, nothing is done.
    """
    trim, direct = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(trim, min(size, 1 << 30))
        library.mallopt(direct, 32 << 20)  # the most it takes


def refuse_beyond(size: int, what: str, fix: str) -> None:
    """Refuse to allocate more than is free."""
    free = available()
    if size > free:
        raise CoterieError(f"{what} needs about {in_words(size)} of memory, and {in_words(free)} are free; {fix}")


def in_bytes(words: str, where: str) -> int:
    """Read a number of bytes as people write it: "2 GB", "256MB"; `where` is the setting, for the message."""
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B?\s*", words, re.IGNORECASE)
    size = 0 if number is None else int(float(number[1]) * 1000 ** " kmgt".index(number[2].lower() or " "))
    if size < 1:
        raise CoterieError(f'{where} must be a size such as "2 GB" or "256MB", not {shown(words)}')
    return size


def in_words(size: int) -> str:
    """Write a number of bytes for people."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            return f"{size / 10**power:,.1f} {unit}"
    return f"{size} bytes"
