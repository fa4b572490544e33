"""A new member of a trained federation: its personal model, without the others training again (`join_trained`).

The new client starts from the shared model, from the client model that fits its rows best, from the mean of the
parameters of all clients weighted by fit, or from a fresh model, and trains a few passes on its own rows. Start, step
size and number of passes are chosen by cross-validation over its rows; within a fold the start, too, is chosen without
the rows that it is judged on. The model itself is trained on all rows. Where the rows cannot tell (one standard error),
no training is preferred to some, and an average of clients to a single one. A class that the new client has no row of
takes no part in its steps, so that a few rows do not unlearn what the federation knows of other classes (the restricted
softmax of Li and Zhan 2021).
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Split
from coterie.errors import CoterieError, shown
from coterie.experiment.intervals import interval_record
from coterie.experiment.job import precision
from coterie.experiment.personal_model import mean_model
from coterie.experiment.prediction import Answers
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.serving.exporting import write_model
from coterie.serving.newcomers import errors_of, fit_weights, labelled
from coterie.serving.opening import TrainedRun, open
from coterie.traced import changed

__all__ = ["Choice", "join_trained", "tuned"]

FOLDS = 5
STEP_SIZES = (0.3, 1.0, 4.0)  # times the step size of the run


class Choice(NamedTuple):
    """What cross-validation chose, and the model it gives."""

    variables: Variables
    start: str
    lr: float
    passes: int
    rows: np.ndarray  # the loss of each row under a model that was not trained on it
    outputs: np.ndarray  # of these models, row by row
    losses: dict[str, float]  # by start, the lowest mean of such losses

    @property
    def loss(self) -> float:
        """The mean loss over the rows."""
        return float(self.rows.mean())


def join_trained(
    run: TrainedRun | str | Path,
    rows: Any,
    *,
    name: str = "new",
    out: str | Path | None = None,
    passes: int = 100,
    patience: int = 10,
    seed: int = 0,
) -> TrainedRun:
    """Give a new client its personal model from a trained federation.

    Args:
        run: the trained run, or its folder.
        rows: labelled rows of the new client: a frame with the target column, or a pair (x, y).
        name: of the new client.
        out: the folder to write; `coterie.open` opens it. None keeps the model in memory.
        passes: at most so many passes over the rows from each start.
        patience: passes without a better cross-validated loss before a start is given up.
        seed: of the order of the rows, and of the fresh model.

    Returns:
        The new client's model as a run of one client; `.joined` says where it started, how far it trained, and its
        weights over the clients of the federation.
    """
    run = run if isinstance(run, TrainedRun) else open(run)
    if name in run.clients:
        raise CoterieError(f"{run.path} has a client {shown(name)} already; choose another name")
    known = run.answers.with_client(name, rows)
    x, y = labelled(known, rows, name)
    if len(x) < 2:
        raise CoterieError(
            f"{len(x)} row of {shown(name)} is too few to train on; predict with the model of a new client"
        )
    with precision(np.dtype(run.task.dtype).name):
        models = run.everyone()
        errors = errors_of(run.task, models, x, y)
        shared = run.load(-1, run.task)
        shared = mean_model(models) if shared is None else shared
        fresh = jax.device_get(run.task.init(jax.random.key(seed)))

        def starts(seen: np.ndarray) -> dict[str, Any]:
            """Return the models to start from, as the rows that may be seen choose them."""
            fit = errors[:, seen]
            best = int(np.argmin(fit.mean(1)))
            nearest = jax.tree.map(lambda a: a[best], models)
            return {"mixture": _mixed(models, fit_weights(fit)), "shared": shared, "nearest": nearest, "fresh": fresh}

        chosen = tuned(run.task, starts, x, y, _sgd(run), passes=passes, patience=patience, seed=seed)
    weights = fit_weights(errors) if chosen.start != "fresh" else np.zeros(len(run.clients))
    joined = {
        "run": str(run.path),
        "start": chosen.start,
        "lr": chosen.lr,
        "passes": chosen.passes,
        "loss": chosen.loss,
        "losses": chosen.losses,
        "weights": {run.clients[k]: float(weights[k]) for k in np.argsort(-weights, kind="stable") if weights[k] > 0},
    }
    answers = dataclasses.replace(known, intervals=_intervals(run, name, y, chosen.outputs))
    member = _member(run, name, len(x), chosen.variables, answers, joined)
    return member if out is None else write_model(member, name, out)


def tuned(
    task: Task,
    starts: Any,
    x: np.ndarray,
    y: np.ndarray,
    sgd: LocalSGD,
    *,
    passes: int,
    patience: int,
    seed: int = 0,
) -> Choice:
    """Train from each start and return the best by cross-validation, or one that is simpler and about as good.

    Args:
        task: model and loss.
        starts: the numbers of the rows that may be seen to models by name.
        x, y: inputs and targets.
        sgd: the local training.
        passes, patience, seed: see `join_trained`.
    """
    order, count = _folds(task.kind, y, min(FOLDS, len(x)), np.random.default_rng(seed))
    lanes = [starts(row[:size]) for row, size in zip(order, count, strict=True)]
    keys = jax.random.split(jax.random.key(seed), passes)
    one_pass, judge = _programs(task, sgd)
    rows = tuple(map(jnp.asarray, (x, y, order)))
    present = jnp.asarray(np.isin(np.arange(task.outputs), y) if task.kind == "classification" else [True])

    def judged(models: Any, name: str, lr: float, number: int) -> Choice:
        losses, outputs = (_by_row(np.asarray(values), order, count) for values in judge(models, *rows))
        return Choice(models, name, lr, number, losses, outputs, {})

    unchanged, trained = [], []
    for name in lanes[0]:
        begin = jax.tree.map(lambda *a: np.stack(a), *(lane[name] for lane in lanes))
        best = judged(begin, name, 0.0, 0)
        unchanged.append(best)
        for lr in (sgd.lr * factor for factor in STEP_SIZES):
            models, lowest, waited = begin, unchanged[-1].loss, 0
            for number in range(1, passes + 1):
                models = one_pass(models, *rows, jnp.asarray(count), present, keys[number - 1], lr)
                now = judged(models, name, float(lr), number)
                best = now if now.loss < best.loss else best
                waited, lowest = (0, now.loss) if now.loss < lowest else (waited + 1, lowest)
                if waited >= patience or not np.isfinite(now.loss):
                    break
        trained.append(best)
    chosen = min(trained, key=lambda choice: choice.loss)
    winner = next(choice for choice in [*unchanged, *trained] if _as_good(choice.rows - chosen.rows))
    final = jax.tree.map(lambda a: np.asarray(a[-1]), jax.device_get(winner.variables))  # the lane with all rows
    return winner._replace(variables=final, losses={choice.start: choice.loss for choice in trained})


def _as_good(difference: np.ndarray) -> bool:
    """Whether a model is at most one standard error worse than the best one, from the differences of row losses."""
    return bool(difference.mean() <= difference.std() / np.sqrt(len(difference)))


@functools.lru_cache(maxsize=4)
def _programs(task: Task, sgd: LocalSGD) -> tuple[Any, Any]:
    """Return compiled functions of the models of all lanes: one pass of training, and losses and outputs by row."""

    def train(model: Variables, x: Any, y: Any, order: Any, count: Any, present: Any, key: Any, lr: Any) -> Variables:
        def loss(params: Any, statistics: Any, x: Any, y: Any, mask: Any, key: Any) -> tuple:
            output, statistics = task.apply(Variables(params, statistics), x, key, True)
            output = jnp.where(present, output, -jnp.inf) if task.kind == "classification" else output
            return jnp.where(mask, task.losses(output, y), 0).sum() / jnp.maximum(mask.sum(), 1), statistics

        data, slope = Split(x[order], y[order], count), jax.value_and_grad(loss, has_aux=True)
        return changed(sgd, lr=lr).train(task, model, data, key, epochs=1, slope=slope).variables

    def rate(model: Variables, x: Any, y: Any, order: Any) -> tuple:
        output = task.apply(model, x[order])[0]
        return task.losses(output, y[order]), output

    lanes = jax.vmap(train, in_axes=(0, None, None, 0, 0, None, None, None))
    return jax.jit(lanes), jax.jit(jax.vmap(rate, in_axes=(0, None, None, 0)))


def _folds(kind: str, y: np.ndarray, folds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of the rows `[folds + 1, n]` and how many of them are for training; the last has all.

    Classes are spread evenly over the folds.
    """
    shuffled = rng.permutation(len(y))
    if kind == "classification":
        shuffled = shuffled[np.argsort(y[shuffled], kind="stable")]
    rows, counts = [], []
    for fold in range(folds):
        judged = np.arange(len(y)) % folds == fold
        rows.append(np.concatenate([shuffled[~judged], shuffled[judged]]))
        counts.append(int((~judged).sum()))
    return np.stack([*rows, shuffled]), np.array([*counts, len(y)], np.int32)


def _by_row(values: np.ndarray, order: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Collect values `[lanes, n, ...]` of each row from the lane that was not trained on it."""
    collected = np.zeros(values.shape[1:], values.dtype)
    for lane in range(len(order) - 1):
        judged = slice(count[lane], None)
        collected[order[lane, judged]] = values[lane, judged]
    return collected


def _mixed(models: Any, weights: np.ndarray) -> Any:
    """Return the mean of models `[K, ...]` with weights `[K]`."""

    def mean(a: np.ndarray) -> np.ndarray:
        return np.tensordot(weights, a, 1).astype(a.dtype) if a.dtype.kind == "f" else a[int(np.argmax(weights))]

    return jax.tree.map(mean, models)


def _sgd(run: TrainedRun) -> LocalSGD:
    """Return local training with the settings of the run's method, where it has them."""
    settings, sgd = run.config["method"], LocalSGD()
    chosen = {key: settings.get(key) for key in ("lr", "momentum", "weight_decay", "batch_size")}
    return changed(sgd, **{key: value for key, value in chosen.items() if isinstance(value, int | float)})


def _intervals(run: TrainedRun, name: str, y: np.ndarray, outputs: np.ndarray) -> dict[str, Any] | None:
    """Return the half-widths from the new client's cross-validated residuals, and the federation's pooled ones."""
    if run.task.kind != "regression":
        return None
    residuals = np.abs(outputs - y.reshape(outputs.shape)).reshape(len(y), -1).astype(np.float64)
    record = interval_record([name], [residuals * run.about.get("target_std", 1.0)])
    if run.answers.intervals is not None:
        record["pooled"] = run.answers.intervals["pooled"]
    return record


def _member(
    run: TrainedRun, name: str, rows: int, variables: Variables, answers: Answers, joined: dict[str, Any]
) -> TrainedRun:
    """Return a run of the new client alone."""
    sizes = {"train": [rows], "validation": [0], "test": [0]}
    about = {**run.about, "names": [name], "groups": None, "sizes": sizes, "label_counts": [], "about": ""}
    load = lambda place, task: None if place < 0 else variables  # noqa: E731
    return TrainedRun(run.path, run.config, about, load, answers, run._model, joined, run.trust_code)
