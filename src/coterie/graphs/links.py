"""Checks of a graph's links: the probability with which each one works, or the steps in which it does."""

from typing import Any

import numpy as np

from coterie.errors import CoterieError

__all__ = ["checked_probability", "checked_schedule", "square_matrices"]


def checked_probability(values: Any, neighbours: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return probabilities by slot `[K, D]`, 0 in unused slots; refuse those outside (0, 1]."""
    chance = np.asarray(values, float)
    if chance.shape != present.shape:
        raise CoterieError(f"probability {chance.shape} must have one number per slot, {present.shape}")
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
    """Read finite numbers with this many axes, the last two over clients; the diagonal is set to 0."""
    shape = "[clients, clients]" if axes == 2 else "[steps, clients, clients]"
    try:
        numbers = np.array(values, float)
    except (TypeError, ValueError) as error:
        raise CoterieError(f"{what} must be numbers {shape} ({error})") from error
    if numbers.ndim != axes or numbers.shape[-1] != numbers.shape[-2] or numbers.size == 0:
        raise CoterieError(f"{what} must have shape {shape}, not {numbers.shape}")
    clients = np.arange(numbers.shape[-1])
    numbers[..., clients, clients] = 0
    if not np.isfinite(numbers).all():
        raise CoterieError(f"{what} contain NaN or infinity; use 0 where there is no link")
    return numbers
