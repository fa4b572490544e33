"""How much memory is free: to refuse what cannot fit before it is allocated, instead of being ended by the system."""

from pathlib import Path

__all__ = ["bytes_text", "free_memory"]

SYSTEM = Path("/proc/meminfo")
# Containers may have less than their machine: the limit and the use of the second and the first version of cgroups.
CONTAINER = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def free_memory() -> int | None:
    """Return the bytes of memory that a process may still take; None where the system does not say."""
    free = [value for value in (_of_system(), *(_of_container(*files) for files in CONTAINER)) if value is not None]
    return min(free, default=None)


def bytes_text(size: float) -> str:
    """Write a number of bytes as people read it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def _of_system() -> int | None:
    try:
        for line in SYSTEM.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _of_container(limit: Path, used: Path) -> int | None:
    try:
        # What is used includes files that were read and can be dropped at any time, so that this is a lower bound; a
        # quarter of the limit is always taken for free.
        most = int(limit.read_text())
        return max(most - int(used.read_text()), most // 4)
    except (OSError, ValueError):  # no container, or its limit is "max"
        return None
