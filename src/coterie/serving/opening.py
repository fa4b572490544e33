"""Open a trained run from its folder alone, without any data: `coterie.open`.

Three kinds of folder are opened: that of a run, that of a comparison (one of its runs), and that of a single client's
model, which `coterie export` and `coterie join-trained` write.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.experiment.folder import RunFolder, model_file
from coterie.experiment.personal_model import PersonalModel, read_model
from coterie.experiment.prediction import Answers, read_record, route
from coterie.experiment.result import ALL_MODELS, MODEL_FILES, SHARED_MODEL
from coterie.learning.score import score_named, verdict_score
from coterie.spec import nearest
from coterie.storage.toml import read_toml

__all__ = ["MODEL_FILE", "RECORD_FILE", "TrainedRun", "open"]

RECORD_FILE = "model.json"  # of the folder of a single client's model
MODEL_FILE = "model.safetensors"
FORMAT = 1


class TrainedRun:
    """The models of a run, ready to predict.

    Args:
        path: the folder, for messages.
        config: the run's config.
        about: names, sizes and groups of the clients, and what inputs and targets are (clients.json).
        load: a client's number and the task to its model; number -1 is the model that everybody shares, or None.
        answers: how rows become inputs and outputs predictions.
        model: the model, where it is one of the user's own that the config cannot name.
        joined: how a client that joined later got its model, and its weights over the others.
        trust_code: whether code that the folder names (FILE.py:CLASS) may run.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        about: Mapping[str, Any],
        load: Callable[[int, Any], Any],
        answers: Answers,
        model: Any = None,
        joined: Mapping[str, Any] | None = None,
        trust_code: bool = False,
    ):
        self.path, self.config, self.about, self.answers, self.joined = path, config, about, answers, joined
        self.load, self._model, self.trust_code = load, model, trust_code

    def __repr__(self) -> str:
        count = len(self.clients)
        return f"<{self.config['method']['name']} from {self.path}: {count} client{'s' * (count != 1)}>"

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients."""
        return tuple(self.about["names"])

    @cached_property
    def task(self) -> Any:
        """What each client learned."""
        from coterie.experiment.rebuilding import task_of

        return task_of(self.config, self.about, self.path, self._model, self.trust_code)

    def model(self, client: str) -> PersonalModel:
        """Return a client's personal model: `.predict(rows)`, or a function of a batch of inputs."""
        if client not in self.clients:
            guess = nearest(str(client), self.clients) or "; one that took no part gets its model from .new_client()"
            raise CoterieError(f"there is no client {client!r} in {self.path}{guess}")
        variables = self.load(self.clients.index(client), self.task)
        return PersonalModel(self.task, variables, lambda: self.answers, client)

    def predict(self, rows: Any, level: float = 0.9) -> Any:
        """Predict each row of a table with the model of its client, named in the client column.

        Returns:
            A DataFrame in the order of the rows: client, prediction, a probability for each class (or, for numbers, low
            and high: an interval that covers the share `level`), and a note on what was missing or unknown in the row.
        """
        return route(self.answers, rows, lambda name, part: self.model(name).predict(part, level), self.clients)

    def everyone(self) -> Any:
        """Return the models of all clients, stacked `[K, ...]`."""
        import jax

        models = [self.load(i, self.task) for i in range(len(self.clients))]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *models)

    def new_client(self, rows: Any = None, *, group: int | str | None = None, name: str = "new") -> PersonalModel:
        """Return the model of a client that took no part in training: what the run's method defines for it.

        Args:
            rows: labelled rows of the new client, for methods that choose among the clients' models: a frame with the
                target, or a pair (x, y). Nothing is trained; `coterie.join_trained` trains.
            group: for methods of known clusters: the number of its group, or the name of a client in it.
            name: how the client is called in the predictions.
        """
        from coterie.serving.newcomers import model_of_newcomer

        return model_of_newcomer(self, rows, group, name)


def open(
    path: str | Path,
    method: str | None = None,
    *,
    seed: int | None = None,
    model: Any = None,
    trust_code: bool = False,
) -> TrainedRun:
    """Open a trained run from its folder; no data file is needed.

    Args:
        path: the folder of a run, of a comparison, or of one client's model (`coterie export`).
        method: of a comparison: the method's label; default: the best on the leaderboard that needs no pooled data.
        seed: of a comparison: which run of the method; default: the first.
        model: the model the run was trained with, if it is a module or a function of your own.
        trust_code: whether code that the folder names (FILE.py:CLASS) may run: it can do whatever you can do.
    """
    folder = Path(path)
    if (folder / RECORD_FILE).is_file():
        return _single(folder, model, trust_code)
    if (folder / "comparison.toml").is_file():
        folder = _run_of_comparison(folder, method, seed)
    elif method is not None or seed is not None:
        raise CoterieError(f"method and seed choose a run of a comparison, and {path} is none; leave them out")
    run = RunFolder(folder)
    config = run.config()
    if not run.complete:
        raise CoterieError(f"{folder} is not complete; continue it with `coterie resume {folder}`")
    about = run.clients()
    names = about["names"]

    def load(place: int, task: Any) -> Any:
        models = folder / "models"
        if place < 0:
            return read_model(models / SHARED_MODEL, task) if (models / SHARED_MODEL).is_file() else None
        if len(names) > MODEL_FILES:
            return read_model(models / ALL_MODELS, task, place, len(names))
        return read_model(models / model_file(place, names[place]), task)

    return TrainedRun(folder, config, about, load, Answers.read(folder, about, config), model, None, trust_code)


def _single(folder: Path, model: Any, trust_code: bool) -> TrainedRun:
    """Open the folder of one client's model."""
    record = read_record(folder / RECORD_FILE)
    if record.get("format") != FORMAT:
        raise CoterieError(f"{folder / RECORD_FILE} is of another format; open it with a newer version of coterie")
    answers = Answers.read(folder, record["about"], record["config"])
    answers.client = record.get("client_column") or answers.client

    def load(place: int, task: Any) -> Any:
        return None if place < 0 else read_model(folder / MODEL_FILE, task)

    joined = record.get("joined")
    return TrainedRun(folder, record["config"], record["about"], load, answers, model, joined, trust_code)


def _run_of_comparison(folder: Path, method: str | None, seed: int | None) -> Path:
    """Return the folder of one run of a comparison."""
    tables = read_toml(folder / "comparison.toml")
    labels = list(tables["compare"]["methods"])
    if method is not None and method not in labels:
        guess = nearest(method, labels) or f"; it has {', '.join(labels)}"
        raise CoterieError(f"{folder} has no method {method!r}{guess}")
    first = tables["run"]["seed"]
    if method is None:
        scores = {label: _test_score(sorted((folder / label).glob("seed-*"))) for label in labels}
        usable = {label: score for label, score in scores.items() if score is not None}
        if not usable:
            raise CoterieError(f"no method of {folder} is complete; `coterie resume {folder}` continues it")
        method = max(usable, key=lambda label: usable[label])
    return folder / method / f"seed-{first if seed is None else seed}"


def _test_score(paths: list[Path]) -> float | None:
    """Return the mean test score of a method's runs (larger is better) by which the comparison judges.

    None: no run is complete, or no site could use the method, since it needs all data in one place or has no model.
    """
    runs = [run for run in map(RunFolder, paths) if run.complete]
    if not runs or runs[0].summary().get("role") in ("ceiling", "pooled", "guess"):
        return None
    means = []
    for run in runs:
        about, summary = run.clients(), run.summary()
        scores, name = run.scores(), summary["metric"]
        if scores is None:  # a run of version 0.1
            means.append(score_named(name).sign * summary["mean"])
            continue
        if run.config()["run"].get("metric") is None:
            name = verdict_score(about["kind"], about["label_counts"])
        means.append(score_named(name).sign * float(np.nanmean(scores[f"test.{name}"])))
    return float(np.mean(means))
