"""Functions for methods that compare models: distance of two models, mean loss over a split."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Split
from coterie.learning.evaluate import BATCH
from coterie.learning.task import Task, Variables
from coterie.numerics.tree import dot

__all__ = ["distance", "mean_loss"]


def distance(a: Any, b: Any) -> jax.Array:
    """Return the Euclidean distance of two models of one client."""
    difference = jax.tree.map(jnp.subtract, a, b)
    return jnp.sqrt(dot(difference, difference))


def mean_loss(task: Task, variables: Variables, data: Split) -> jax.Array:
    """Return one client's mean loss over a split, computed in batches; zero if the split is empty.

    Differentiable, with memory that does not grow with the number of samples.
    """
    n = data.x.shape[0]
    size = min(BATCH, n)

    @jax.checkpoint
    def batch(variables: Variables, b: Any) -> jax.Array:
        place = b * size + jnp.arange(size)
        inside = jnp.minimum(place, n - 1)  # the last batch may be short: repeated samples are masked
        losses = task.losses(task.apply(variables, data.x[inside])[0], data.y[inside])
        return jnp.where(place < data.count, losses, 0).sum()

    zero = jnp.zeros((), task.dtype)
    total = lax.fori_loop(0, -(-n // size), lambda b, total: total + batch(variables, b), zero)
    return total / jnp.maximum(data.count, 1)
