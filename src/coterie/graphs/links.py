"""What a graph says of its links, checked: with which probability they work, or in which steps.

Kept apart from `graph.py`, which is about who may talk to whom at all.
"""

from typing import Any

import numpy as np

from coterie.errors import CoterieError

__all__ = ["checked_probability", "checked_schedule", "square_matrices"]


def checked_probability(values: Any, neighbours: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return probabilities by slot `[K, D]`, 0 in unused slots; refuse those outside (0, 1]."""
    chance = np.asarray(values, float)
    if chance.shape != present.shape:
        raise CoterieError(f"probability {chance.shape} must have one number a slot, {present.shape}")
    for i, k in np.argwhere(present & ~((chance > 0) & (chance <= 1)))[:1]:
        raise CoterieError(
            f"probability must lie in (0, 1] on every link, but client {i} hears client {neighbours[i, k]} with "
            f"{chance[i, k]:g}; leave out links that never work"
        )
    chance = np.where(present, chance, 0.0)
    chance.flags.writeable = False
    return chance


def checked_schedule(values: Any, neighbours: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return which links work in each step, `[T, K, D]`, false in unused slots; refuse a link that never works."""
    live = np.asarray(values, bool)
    if live.ndim != 3 or live.shape[1:] != present.shape or len(live) == 0:
        raise CoterieError(f"schedule {live.shape} must be [steps, clients, slots], the last two {present.shape}")
    for i, k in np.argwhere(present & ~live.any(0))[:1]:
        raise CoterieError(
            f"schedule: client {i} never hears client {neighbours[i, k]}; leave that link out of the graph"
        )
    live = live & present
    live.flags.writeable = False
    return live


def square_matrices(values: Any, axes: int, what: str) -> np.ndarray:
    """Read finite numbers whose last two of so many axes are over clients, with zeros on the diagonal.

    What a client hears from itself means nothing: it always holds what it holds.
    """
    shape = "[clients, clients]" if axes == 2 else "[steps, clients, clients]"
    try:
        found = np.array(values, float)
    except (TypeError, ValueError) as error:
        raise CoterieError(f"{what} must be numbers {shape} ({error})") from error
    if found.ndim != axes or found.shape[-1] != found.shape[-2] or found.size == 0:
        raise CoterieError(f"{what} must have shape {shape}, not {found.shape}")
    clients = np.arange(found.shape[-1])
    found[..., clients, clients] = 0
    if not np.isfinite(found).all():
        raise CoterieError(f"{what} contain NaN or infinity; use 0 where there is no link")
    return found
