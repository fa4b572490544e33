"""Whether the models of a run fit into memory, asked before they are allocated."""

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from coterie.errors import CoterieError

__all__ = ["available_memory", "check_models_fit"]

COPIES = 2  # of every client's model at the least: the state before a round and after it
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def check_models_fit(build: Callable[[jax.Array], Any], members: int, clients: int, dtype: Any) -> None:
    """Refuse models that cannot fit, with their size and what to lower; only shapes are computed.

    Args:
        build: makes one model from a key.
        members: models of each client.
        clients: how many there are.
        dtype: floating type of the parameters.
    """
    memory = available_memory()
    if memory is None:
        return
    shapes = jax.tree.leaves(eqx.filter(eqx.filter_eval_shape(build, jax.random.key(0)), _is_array))
    parameters = sum(math.prod(leaf.shape) for leaf in shapes)  # exact, where NumPy's integers would overflow
    size = COPIES * parameters * members * clients * np.dtype(dtype).itemsize
    if size > memory:
        each = f"{members:,} models of {parameters:,}" if members > 1 else f"{parameters:,}"
        raise CoterieError(
            f"the models of {clients:,} clients with {each} parameters need at least {size / 2**30:,.1f} GiB, and "
            f"{memory / 2**30:,.1f} GiB are free: lower the sizes in [model], model.members or partition.clients"
        )


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def available_memory() -> int | None:
    """Return the bytes of memory that can still be allocated here, or None where the system does not say."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not found:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            found.append(int(Path(file).read_text()))
    return min(found, default=None)
