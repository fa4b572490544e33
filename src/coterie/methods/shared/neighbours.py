"""Functions for methods that compare models: distance of two models, mean loss over a split, which of two is worse."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Split
from coterie.learning.evaluate import BATCH
from coterie.learning.measures import accuracy
from coterie.learning.task import Task, Variables
from coterie.numerics.tree import dot

__all__ = ["ENOUGH", "clearly_worse", "distance", "makes_more_mistakes", "mean_loss"]

ENOUGH = 5  # validation samples from which a client may conclude something about a model


def distance(a: Any, b: Any) -> jax.Array:
    """Return the Euclidean distance of two models of one client."""
    difference = jax.tree.map(jnp.subtract, a, b)
    return jnp.sqrt(dot(difference, difference))


def mean_loss(task: Task, variables: Variables, data: Split) -> jax.Array:
    """Return one client's mean loss over a split, computed in batches; zero if the split is empty.

    Differentiable, with memory that does not grow with the number of samples.
    """

    def batch(place: jax.Array, inside: jax.Array) -> jax.Array:
        @jax.checkpoint
        def total(variables: Variables) -> jax.Array:
            return jnp.where(place < data.count, _losses(task, variables, data, inside), 0).sum()

        return total(variables)

    return _summed(batch, data, jnp.zeros((), task.dtype)) / jnp.maximum(data.count, 1)


def clearly_worse(task: Task, model: Variables, other: Variables, data: Split) -> jax.Array:
    """Return whether a model's mean loss over a split is larger than another's by more than its standard error.

    Sample by sample, so that hard samples do not count as noise. With fewer than `ENOUGH` samples nothing is clear,
    because so few say little about the error either. A loss that is not finite is clear: such a model is worse than one
    whose losses are finite, and never preferred.
    """

    def batch(place: jax.Array, inside: jax.Array) -> jax.Array:
        of_model, of_other = _losses(task, model, data, inside), _losses(task, other, data, inside)
        gap = of_model - of_other
        return jnp.where(place < data.count, jnp.stack([gap, gap**2, of_model, of_other]), 0).sum(1)

    total, squares, of_model, of_other = _summed(batch, data, jnp.zeros(4, task.dtype))
    worse = (data.count >= ENOUGH) & _clear(total, squares)
    return jnp.isfinite(of_other) & (worse | ~jnp.isfinite(of_model))


def makes_more_mistakes(task: Task, model: Variables, other: Variables, data: Split) -> jax.Array:
    """Return whether a model gets clearly more samples (or characters) of a split wrong than another one does.

    Clearly as in `clearly_worse`. A model that has trained for longer is often surer of itself, so that its loss is
    larger although it is right as often.
    """

    def batch(place: jax.Array, inside: jax.Array) -> jax.Array:
        right = (accuracy(task.apply(each, data.x[inside])[0], data.y[inside]) for each in (model, other))
        gap = -jnp.subtract(*right)
        return jnp.where(place < data.count, jnp.stack([gap, gap**2]), 0).sum(1)

    return (data.count >= ENOUGH) & _clear(*_summed(batch, data, jnp.zeros(2, task.dtype)))


def _clear(total: jax.Array, squares: jax.Array) -> jax.Array:
    """Return whether the mean of some numbers is above its standard error, from their sum and the sum of their squares.

    How many there are cancels out. Of mistakes it asks whether McNemar's statistic is above one, in exact counts.
    """
    return (total > 0) & (total**2 > squares)


def _losses(task: Task, variables: Variables, data: Split, rows: jax.Array) -> jax.Array:
    return task.losses(task.apply(variables, data.x[rows])[0], data.y[rows])


def _summed(batch: Callable[[jax.Array, jax.Array], jax.Array], data: Split, zero: jax.Array) -> jax.Array:
    """Add `batch(place, inside)` over the batches of a split: numbers of its samples, the last batch filled up."""
    n = data.x.shape[0]
    size = min(BATCH, n)

    def add(b: Any, total: jax.Array) -> jax.Array:
        place = b * size + jnp.arange(size)
        return total + batch(place, jnp.minimum(place, n - 1))  # the last batch may be short: repeated samples

    return lax.fori_loop(0, -(-n // size), add, zero)
