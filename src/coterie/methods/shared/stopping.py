"""Early stopping inside a compiled round: remember the model that did best on the client's own validation samples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.learning.task import Variables
from coterie.numerics import tree

__all__ = ["Best", "keep_best", "start_best"]


class Best(NamedTuple):
    """The best model so far, its validation loss, and for how many rounds nothing was better."""

    variables: Variables
    loss: jax.Array  # [C]
    waited: jax.Array  # [C]


def start_best(variables: Variables, loss: jax.Array) -> Best:
    """Begin before the first round: anything finite is better than infinity."""
    return Best(variables, jnp.full_like(loss, jnp.inf), jnp.zeros(loss.shape, jnp.int32))


def keep_best(best: Best, variables: Variables, loss: jax.Array, patience: int, can_validate: jax.Array) -> Best:
    """Keep the better model of each client, until it has waited `patience` rounds (0: for ever).

    A client without validation samples has nothing to go by and keeps its newest model.
    """
    stopped = (best.waited >= patience) & (patience > 0)
    better = ~can_validate | ((loss < best.loss) & ~stopped)
    kept: Any = tree.where(better, variables, best.variables)
    return Best(kept, jnp.where(better, loss, best.loss), jnp.where(better, 0, best.waited + 1))
