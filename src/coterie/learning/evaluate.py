"""Evaluation, explicit because it is so often done wrong.

Which model: the client's personal one. On which data: the client's own test (and validation) samples, each of them
once, and no padding. With which head: all classes (`score`), and only the client's own labels (`own_score`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables

__all__ = ["BATCH", "Metrics", "client_metrics", "evaluate", "validation_loss"]

BATCH = 64  # samples at a time, so that memory does not grow with the test set


FEW = 10  # validation samples with which a client counts half as much as one with very many


class Metrics(NamedTuple):
    """What evaluation reports for a client."""

    loss: jax.Array  # mean over its samples
    score: jax.Array  # the task's score, with all classes
    own_score: jax.Array  # the score when only the client's own labels compete (equal to `score` elsewhere)


def client_metrics(task: Task, variables: Variables, data: Split, labels: jax.Array, unit: Any = None) -> Metrics:
    """Return one client's mean loss and scores on one of its splits; zeros where the split is empty.

    Scores are of outputs and targets times `unit`: a regression on standardised targets is scored in their own unit.
    """
    n = data.x.shape[0]
    size = min(BATCH, n)
    batches = -(-n // size)

    def add(b: Any, carry: tuple[Metrics, Any]) -> tuple[Metrics, Any]:
        total, outputs = carry
        place = b * size + jnp.arange(size)
        inside = jnp.minimum(place, n - 1)  # the last batch may be short; what is repeated is masked
        output, _ = task.apply(variables, data.x[inside])
        values = _per_sample(task, output, data.y[inside], labels, unit)
        sums = (jnp.where(place < data.count, value, 0).sum() for value in values)
        if outputs is not None:
            outputs = lax.dynamic_update_slice_in_dim(outputs, output, b * size, 0)
        return Metrics(*map(jnp.add, total, sums)), outputs

    outputs = None if task.score.whole is None else _no_outputs(task, variables, data.x[:1], batches * size)
    total, outputs = lax.fori_loop(0, batches, add, (Metrics(*[jnp.zeros((), task.dtype)] * 3), outputs))
    means = Metrics(*(value / jnp.maximum(data.count, 1) for value in total))
    if task.score.whole is None:
        return Metrics(means.loss, *map(task.score.finish, means[1:]))
    mask = jnp.arange(n) < data.count
    y = _in_unit(data.y, unit)
    whole = [task.score.whole(_in_unit(head, unit), y, mask) for head in _heads(task, outputs[:n], labels)]
    return Metrics(means.loss, *(jnp.where(mask.any(), value, 0) for value in whole))


def _in_unit(values: jax.Array, unit: Any) -> jax.Array:
    """Return outputs or targets in the target's own unit, but for its mean, which differences do not have."""
    return values if unit is None else values * unit.astype(values.dtype)


def _per_sample(task: Task, output: jax.Array, y: jax.Array, labels: jax.Array, unit: Any) -> Metrics:
    """Return the loss and the scores of every sample `[B]`; zeros for a score of all samples at once."""
    losses, each = task.losses(output, y), task.score.each
    if each is None:
        return Metrics(losses, *[jnp.zeros_like(losses)] * 2)
    y = _in_unit(y, unit)
    return Metrics(losses, *(each(_in_unit(head, unit), y) for head in _heads(task, output, labels)))


def _heads(task: Task, output: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the outputs with all classes, and with the client's own labels only."""
    return output, jnp.where(labels, output, -jnp.inf) if task.kind == "classification" else output


def _no_outputs(task: Task, variables: Variables, x: jax.Array, count: int) -> jax.Array:
    """Return the place for the outputs of `count` samples."""
    output = jax.eval_shape(lambda: task.apply(variables, x)[0])
    return jnp.zeros((count, *output.shape[1:]), output.dtype)


def evaluate(task: Task, peers: Any, models: Variables, clients: Clients) -> dict[str, Metrics]:
    """Return every client's metrics on its validation and its test split."""

    def one(variables: Variables, split: Split, labels: jax.Array, *unit: jax.Array) -> Metrics:
        return client_metrics(task, variables, split, labels, *unit)

    splits = {"validation": clients.validation, "test": clients.test}
    unit = () if clients.unit is None else (clients.unit,)
    return {name: peers.each(one, models, split, clients.labels, *unit) for name, split in splits.items()}


def validation_loss(row: Mapping[str, np.ndarray], count: np.ndarray) -> float:
    """Return the clients' mean loss on validation data, by which settings and rounds are chosen.

    The loss and not the score: on a client's three validation samples accuracy knows only four values, and ties would
    decide. A client with n samples has weight n / (n + 10): three count for a quarter, and 1,500 for little more than a
    hundred. Clients without any do not count.

    Args:
        row: every client's metrics `[K]`, with `validation_loss`.
        count: their numbers of validation samples `[K]`.
    """
    return _over_clients(row["validation_loss"], count)


def validation_score(row: Mapping[str, np.ndarray], count: np.ndarray) -> float:
    """Return the clients' mean score on validation data, weighted as `validation_loss` is."""
    return _over_clients(row["validation_score"], count)


def _over_clients(values: np.ndarray, count: np.ndarray) -> float:
    weight = np.asarray(count) / (np.asarray(count) + FEW)
    return float(np.average(np.where(weight > 0, values, 0), weights=weight))
