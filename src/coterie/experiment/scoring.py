"""Evaluate the models a run keeps once more, by all scores of the task's kind.

One small program gives the values per sample of the scores that are means, and where other scores exist the outputs;
these are then scored on the host, with NumPy. Memory grows with the number of test samples, as that of the data does.
The program takes models and data only, so that all methods of a comparison that train the same model share it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.data.buckets import Part, Split
from coterie.data.clients import Clients, Federation
from coterie.experiment.scores import Scores
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.buckets import real_rows
from coterie.learning.evaluate import BATCH
from coterie.learning.score import Score, scores_of
from coterie.learning.task import Task, Variables
from coterie.peers.local import LocalPeers
from coterie.peers.shards import fetched
from coterie.peers.tables import make_tables

__all__ = ["score_models"]


def score_models(training: Training, models: Variables, federation: Federation) -> Scores:
    """Return all scores of every client's model `[K, ...]` on its own validation and test samples.

    Args:
        training: what trained the models.
        models: the personal models.
        federation: the data, whose targets are on the host; of several processes, each has those of its clients.
    """
    engine, task = training.engine, training.task
    tables = make_tables(Graph.empty(engine.size), np.zeros((engine.size, 0)))  # nobody talks to anybody

    def program(method: Any, models: Variables, clients: Clients) -> dict[str, Any]:
        peers = LocalPeers(jax.tree.map(jnp.asarray, tables), engine.plan)
        splits = {"validation": clients.validation, "test": clients.test}
        return {name: peers.each(lambda *a: _outputs(task, *a), models, split) for name, split in splits.items()}

    method = None if task is engine.task else training.method  # a method with a model of its own has its own program
    inputs, light = (method, engine.place_kept(models), engine.clients), engine.evaluates_little(task, 1)
    found = fetched(engine.call(program, "scores", *inputs, light=light))
    rows = {part: real_rows(found[part], np.asarray(getattr(federation, part).count)) for part in found}

    def targets(part: str) -> Part:
        split: Part = getattr(federation, part)
        if federation.here is None or not isinstance(split, Split):  # a mesh has no buckets
            return split
        return split._replace(y=engine.fetched(getattr(engine.clients, part).y))

    unit = federation.target_std
    scores = {part: _scores(task.kind, targets(part), unit, rows[part]) for part in ("validation", "test")}

    def values(score: Score) -> np.ndarray:
        each = np.concatenate([each[score.name] for each, _ in rows["test"]])
        return each * np.asarray(unit**score.power, each.dtype)

    by_name = {score.name: values(score) for score in scores_of(task.kind) if score.each is not None}
    return Scores(scores["test"], scores["validation"], np.asarray(federation.test.count), by_name)


def _outputs(task: Task, variables: Variables, data: Split) -> tuple[dict[str, jax.Array], jax.Array | None]:
    """Return one client's values per sample `[n]` by score, and its outputs `[n, ...]` where a score needs them all."""
    n = data.x.shape[0]
    size = min(BATCH, n)
    scores = scores_of(task.kind)

    def batch(b: jax.Array) -> tuple[dict[str, jax.Array], jax.Array | None]:
        inside = jnp.minimum(b * size + jnp.arange(size), n - 1)
        output, _ = task.apply(variables, data.x[inside])
        each = {score.name: score.each(output, data.y[inside]) for score in scores if score.each is not None}
        return each, output if any(score.whole is not None for score in scores) else None

    stacked = lax.map(batch, jnp.arange(-(-n // size)))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:n], stacked)


def _scores(kind: str, split: Part, unit: float, rows: list[Any]) -> dict[str, Any]:
    """Return every score of every client `[K]` on one part of its data, in the unit of the target."""

    def value(score: Score, client: int) -> float:
        each, outputs = rows[client]
        if score.each is not None:
            return score.mean(each[score.name])
        return score.measure(outputs.astype(np.float64), np.asarray(split.rows(client)[1]))

    return {
        score.name: score.in_unit(np.array([value(score, i) for i in range(len(rows))]), unit)
        for score in scores_of(kind)
    }
