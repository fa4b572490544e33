"""Early stopping inside a compiled round: keep the model with the lowest loss on the client's validation samples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.learning.task import Variables
from coterie.numerics import tree

__all__ = ["Best", "keep_best", "start_best"]


class Best(NamedTuple):
    """The best model so far, its validation loss, and the number of rounds since then."""

    variables: Variables
    loss: jax.Array  # [C]
    waited: jax.Array  # [C]


def start_best(variables: Variables, loss: jax.Array) -> Best:
    """Return the value before the first round: infinite loss, so that any finite one is better."""
    return Best(variables, jnp.full_like(loss, jnp.inf), jnp.zeros(loss.shape, jnp.int32))


def keep_best(best: Best, variables: Variables, loss: jax.Array, patience: int, can_validate: jax.Array) -> Best:
    """Keep the better model of each client; after `patience` rounds without a better one, stop (0: never).

    A client without validation samples keeps its newest model.
    """
    stopped = (best.waited >= patience) & (patience > 0)
    better = ~can_validate | ((loss < best.loss) & ~stopped)
    kept: Any = tree.where(better, variables, best.variables)
    return Best(kept, jnp.where(better, loss, best.loss), jnp.where(better, 0, best.waited + 1))
