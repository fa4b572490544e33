"""What a client gets that took no part in training, as the method defines it (`Method.newcomer`).

    shared    the model that everybody shares; layers that stay with clients are the mean of theirs
    cluster   the mean of the models of its known group
    mixture   the clients' models, each with a weight by how well it fits labelled rows of the new client
    nearest   the model that fits these rows best: that of its place in the similarity network
    none      nothing: it has to train alone

The weight of model k after n labelled rows is exp(-z^2 / 2) with z^2 = n m^2 / (v + m^2 / n), where m and v are mean
and variance of the differences between the errors of model k and of the best one (cross-entropy, or the absolute error
of numbers): z is by how many standard errors it is worse. Models that the rows cannot tell from the best one get a
weight like it; the more rows, the fewer such models. There is no temperature to choose.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.labels import text_of
from coterie.errors import CoterieError, shown
from coterie.experiment.personal_model import PersonalModel, mean_model
from coterie.experiment.prediction import Answers, run_model

if TYPE_CHECKING:
    from coterie.serving.opening import TrainedRun

__all__ = ["MixtureModel", "errors_of", "fit_weights", "labelled", "model_of_newcomer"]

LIGHT = 0.05  # a model below this share of the best one's weight is left out


class MixtureModel(PersonalModel):
    """Several clients' models as one: their probabilities (or numbers) are averaged with weights."""

    def __init__(self, task: Any, models: list[Any], weights: np.ndarray, answers: Any, client: str):
        super().__init__(task, models[int(np.argmax(weights))], answers, client)
        self.models, self.weights = models, np.asarray(weights, np.float64)

    @property
    def module(self) -> Any:
        """A mixture is not one Equinox module."""
        raise CoterieError("a mixture of several models has no single module; use coterie.join_trained to get one")

    def __call__(self, x: Any) -> np.ndarray:
        """Return the logarithm of the mixed probabilities, or the mixed numbers, for a batch `x [B, ...]`."""
        return self.outputs(np.asarray(x))

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the logarithm of the mixed probabilities, or the mixed numbers."""
        outputs = np.stack([run_model(self._task, model, x) for model in self.models]).astype(np.float64)
        weights = self.weights.reshape(-1, *[1] * (outputs.ndim - 1))
        if self._task.kind == "regression":
            return (weights * outputs).sum(0)
        odds = np.exp(outputs - outputs.max(-1, keepdims=True))
        return np.log(np.maximum((weights * odds / odds.sum(-1, keepdims=True)).sum(0), 1e-300))


def model_of_newcomer(run: "TrainedRun", rows: Any, group: int | str | None, name: str) -> PersonalModel:
    """Return the model of a client that took no part: see `TrainedRun.new_client`."""
    from coterie.experiment.rebuilding import method_of

    method = method_of(run.config, run.path, run.trust_code)
    label, rule = run.config["method"]["name"], "mixture" if method is None else method.newcomer
    if group is not None and rule != "cluster":
        raise CoterieError(f"group is for methods of known clusters, and {label} knows none; leave it out")
    if rule == "none":
        raise CoterieError(
            f"{label} has no model for a client that took no part: its clients share nothing; choose another method, "
            "or let the new client train from the best of their models: coterie join-trained"
        )
    task = run.task
    if rule == "shared":
        shared = run.load(-1, task)
        shared = mean_model(run.everyone()) if shared is None else shared
        return PersonalModel(task, shared, lambda: run.answers, name)
    if rule == "cluster":
        return PersonalModel(task, _cluster(run, group), lambda: run.answers, name)
    if rows is None:
        raise CoterieError(
            f"{label} chooses a new client's model among those of its clients: give some of its rows with the target, "
            "new_client(rows=...) or --rows"
        )
    answers = run.answers.with_client(name, rows)
    weights = fit_weights(errors_of(task, run.everyone(), *labelled(answers, rows, name)))
    if rule == "nearest":
        weights = np.eye(len(weights))[int(np.argmax(weights))]
    used = np.flatnonzero(weights)
    models = [run.load(int(place), task) for place in used]
    return MixtureModel(task, models, weights[used], lambda: answers, name)


def labelled(answers: Answers, rows: Any, client: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of labelled rows: a frame with the target, or a pair (x, y)."""
    if hasattr(rows, "columns"):
        return answers.inputs(rows, client)[0], answers.targets(rows)
    if not (isinstance(rows, tuple | list) and len(rows) == 2):
        raise CoterieError("labelled rows are a frame with the target column, or a pair (x, y)")
    x, y = answers.inputs(rows[0], client)[0], np.asarray(rows[1])
    if len(x) != len(y):
        raise CoterieError(f"rows: x has {len(x)} samples and y {len(y)}; they must match")
    return x, _codes(answers, y)


def _codes(answers: Answers, y: np.ndarray) -> np.ndarray:
    """Return targets as models are trained on them."""
    about = answers.about
    if about["kind"] == "regression":
        return ((y - about.get("target_mean", 0.0)) / about.get("target_std", 1.0)).astype(np.float32)
    if y.dtype.kind in "iu" and y.max(initial=0) < about["classes"] and not about.get("class_names"):
        return y.astype(np.int32)
    names, words = answers.class_names, text_of(y, "rows: y").tolist()
    unknown = sorted(set(words) - set(names))
    if unknown:
        raise CoterieError(f"rows: the models know no class {unknown[0]!r}; they know {', '.join(names)}")
    return np.array([names.index(word) for word in words], np.int32)


def errors_of(task: Any, models: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the error of every row under every model, `[K, n]`: its cross-entropy, or the absolute error."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from coterie.experiment.job import precision

    with precision(np.dtype(task.dtype).name):
        inputs, targets = jnp.asarray(x), jnp.asarray(y)
        of_all = jax.jit(lambda models: lax.map(lambda m: task.losses(task.apply(m, inputs)[0], targets), models))
        losses = np.asarray(of_all(models), np.float64)
    return np.sqrt(2 * losses) if task.kind == "regression" else losses  # the loss is half the squared error


def fit_weights(errors: np.ndarray) -> np.ndarray:
    """Return the weight of each model `[K]` from its errors `[K, n]` (see the module); they sum to one."""
    difference = errors - errors[np.argmin(errors.mean(1))]
    rows, square = errors.shape[1], difference.mean(1) ** 2
    spread = difference.var(1) + square / rows
    weights = np.exp(-rows * square / np.where(spread > 0, spread, 1) / 2)
    weights[weights < LIGHT * weights.max()] = 0
    return weights / weights.sum()


def _cluster(run: "TrainedRun", group: int | str | None) -> Any:
    """Return the mean of the models of a known group; without groups in the data, of all."""
    import jax

    groups = run.about.get("groups")
    models = run.everyone()
    if groups is None:
        return mean_model(models)
    if isinstance(group, str) and group in run.clients:
        group = groups[run.clients.index(group)]
    if group not in groups:
        known = ", ".join(map(str, sorted(set(groups))))
        raise CoterieError(
            f"{run.config['method']['name']} gives a new client the model of its group: name the group ({known}) or a "
            f"client in it, not {shown(group)}"
        )
    members = np.flatnonzero(np.asarray(groups) == group)
    return mean_model(jax.tree.map(lambda a: a[members], models))
