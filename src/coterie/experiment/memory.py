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

__all__ = ["available_memory", "check_fit", "parameters_of"]

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def parameters_of(build: Callable[[jax.Array], Any]) -> int:
    """Count the parameters of a model that is made from a key, without making it."""
    shapes = eqx.filter_eval_shape(build, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "shape"))


def check_fit(parameters: int, clients: int, dtype: Any) -> None:
    """Refuse models that cannot fit, with their size and what to lower.

    Args:
        parameters: of one client's model, all its members together.
        clients: how many there are.
        dtype: floating type of the parameters.
    """
    memory = available_memory()
    # A round has the state before it and the one after it; what a GPU holds comes to the host once, at the end.
    copies = 2 if jax.default_backend() == "cpu" else 1
    size = copies * parameters * clients * np.dtype(dtype).itemsize
    if memory is not None and size > memory:
        raise CoterieError(
            f"{clients:,} model{'s' * (clients > 1)} of {parameters:,} parameters need at least {_gigabytes(size)}, "
            f"and {_gigabytes(memory)} are free: lower the sizes in [model], model.members or partition.clients"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 10**9:,.1f} GB"


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
