"""A graph that changes begins a new stage: the method names the rounds, says which edges stay, carries its state over.

A method with stages has three more functions: `stages()`, the rounds after which the graph changes; `keep(state,
present, clients)`, which slots stay; `narrow(state, take)`, its state with arrays over slots passed through `take`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["slot_taker", "stage_ends"]


def stage_ends(method: Any) -> tuple[int, ...]:
    """Return the rounds after which a method changes its graph; most never do."""
    return method.stages() if hasattr(method, "stages") else ()


def slot_taker(slots: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Return a function that carries `x [C, D, ...]` over to the slots `[C, D']` that were kept."""
    return lambda x: jnp.take_along_axis(x, slots.reshape(slots.shape + (1,) * (x.ndim - 2)), axis=1)
