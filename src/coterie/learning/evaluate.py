"""Evaluation, explicit because it is so often done wrong.

Which model: the client's personal one. On which data: the client's own test (and validation) samples, every one of
them once and no padding. With which head: all classes (`score`), and only the client's own labels (`own_score`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Metrics, Task, Variables

__all__ = ["client_metrics", "evaluate"]

BATCH = 64  # samples at a time, so that memory does not grow with the test set


def client_metrics(task: Task, variables: Variables, data: Split, labels: jax.Array) -> Metrics:
    """Return one client's mean loss and scores on one of its splits; zeros where the split is empty."""
    n = data.x.shape[0]
    size = min(BATCH, n)

    def add(b: Any, total: Metrics) -> Metrics:
        place = b * size + jnp.arange(size)
        inside = jnp.minimum(place, n - 1)  # the last batch may be short; what is repeated is masked
        mask = place < data.count
        found = task.metrics(variables, data.x[inside], data.y[inside], mask, labels)
        return Metrics(*map(jnp.add, total, found))

    total = lax.fori_loop(0, -(-n // size), add, Metrics(*[jnp.zeros((), task.dtype)] * 3))
    means = Metrics(*(value / jnp.maximum(data.count, 1) for value in total))
    if task.kind == "regression":
        return Metrics(means.loss, jnp.sqrt(means.score), jnp.sqrt(means.own_score))
    return means


def evaluate(task: Task, peers: Any, models: Variables, clients: Clients) -> dict[str, Metrics]:
    """Return every client's metrics on its validation and its test split."""

    def one(variables: Variables, split: Split, labels: jax.Array) -> Metrics:
        return client_metrics(task, variables, split, labels)

    splits = {"validation": clients.validation, "test": clients.test}
    return {name: peers.each(one, models, split, clients.labels) for name, split in splits.items()}
