"""Open a trained run from its folder alone, without any data: `coterie.open`.

Four kinds of folder are opened: that of a run, that of a comparison or a sweep (one of its runs), and that of a single
client's model, which `coterie export` and `coterie join-trained` write.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError, shown
from coterie.experiment.folder import RunFolder, model_file
from coterie.experiment.personal_model import PersonalModel, read_model
from coterie.experiment.prediction import Answers, route
from coterie.experiment.result import ALL_MODELS, MODEL_FILES, SHARED_MODEL
from coterie.experiment.schemas import clients_schema, read_comparison
from coterie.learning.score import score_named, verdict_score
from coterie.spec import nearest
from coterie.storage.commands import command
from coterie.storage.owned import OwnedFolder, holds, inside
from coterie.storage.schema import each, maybe, plain, read_json, table, text, whole

__all__ = ["MODEL_FILE", "RECORD_FILE", "TrainedRun", "open", "read_model_record"]

RECORD_FILE = "model.json"  # of the folder of a single client's model
MODEL_FILE = "model.safetensors"
FORMAT = 1
SEED_FOLDER = re.compile(r"seed-\d{1,20}")
NAMED = table({"name": text}, rest=plain)
RECORD = table(
    {
        "format": whole(FORMAT, FORMAT),
        "about": lambda value: clients_schema(value, full=False),
        "config": table({"model": NAMED, "method": NAMED}, rest=plain),
    },
    {"client_column": maybe(text)},
    rest=plain,
)


SWEEP = table(
    {
        "best": maybe(whole(1, 10**6)),
        "rows": each(table({"candidate": whole(1, 10**6), "seed": whole(0)}, rest=plain), least=1),
    },
    rest=plain,
)


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
            raise CoterieError(f"there is no client {shown(client)} in {self.path}{guess}")
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
        path: the folder of a run, of a comparison, of a sweep, or of one client's model (`coterie export`).
        method: of a comparison: the method's label; default: the best on the leaderboard that needs no pooled data. Of
            a sweep: a candidate such as "candidate-003"; default: the best on validation samples.
        seed: of a comparison or a sweep: which run of the method or candidate; default: the first.
        model: the model the run was trained with, if it is a module or a function of your own.
        trust_code: whether code that the folder names (FILE.py:CLASS) may run: it can do whatever you can do.
    """
    folder = Path(path)
    if holds(folder, RECORD_FILE):
        return _single(folder, model, trust_code)
    if holds(folder, "comparison.toml"):
        folder = _run_of_comparison(folder, method, seed)
    elif holds(folder, "sweep.toml"):
        folder = _run_of_sweep(folder, method, seed)
    elif method is not None or seed is not None:
        raise CoterieError(f"method and seed choose a run of a comparison, and {path} is none; leave them out")
    run = RunFolder(folder)
    config = run.config()
    if not run.complete:
        raise CoterieError(f"{folder} is not complete; continue it with `{command('resume', folder)}`")
    about = run.clients()
    names = about["names"]

    def load(place: int, task: Any) -> Any:
        if place < 0:
            shared = inside(folder, "models", SHARED_MODEL)
            return read_model(shared, task) if holds(folder, "models", SHARED_MODEL) else None
        if len(names) > MODEL_FILES:
            return read_model(inside(folder, "models", ALL_MODELS), task, place, len(names))
        return read_model(inside(folder, "models", model_file(place, names[place])), task)

    return TrainedRun(folder, config, about, load, Answers.read(folder, about, config), model, None, trust_code)


def _single(folder: Path, model: Any, trust_code: bool) -> TrainedRun:
    """Open the folder of one client's model."""
    record = read_model_record(folder)
    answers = Answers.read(folder, record["about"], record["config"])
    answers.client = record.get("client_column") or answers.client

    def load(place: int, task: Any) -> Any:
        return None if place < 0 else read_model(inside(folder, MODEL_FILE), task)

    joined = record.get("joined")
    return TrainedRun(folder, record["config"], record["about"], load, answers, model, joined, trust_code)


def read_model_record(folder: Path) -> dict[str, Any]:
    """Read model.json of the folder of one client's model."""
    return read_json(folder, RECORD_FILE, RECORD)


def _run_of_comparison(folder: Path, method: str | None, seed: int | None) -> Path:
    """Return the folder of one run of a comparison."""
    tables = read_comparison(folder)
    labels = list(tables["compare"]["methods"])
    if method is not None and method not in labels:
        guess = nearest(method, labels) or f"; it has {', '.join(labels)}"
        raise CoterieError(f"{folder} has no method {shown(method)}{guess}")
    first = tables["run"]["seed"]
    if method is None:
        owned = OwnedFolder(folder, "comparison")
        runs = {label: [inside(folder, label, name) for name in owned.names(label, SEED_FOLDER)] for label in labels}
        scores = {label: _test_score(paths) for label, paths in runs.items()}
        usable = {label: score for label, score in scores.items() if score is not None}
        if not usable:
            raise CoterieError(f"no method of {folder} is complete; `{command('resume', folder)}` continues it")
        method = max(usable, key=lambda label: usable[label])
    return inside(folder, method, f"seed-{first if seed is None else seed}")


def _run_of_sweep(folder: Path, label: str | None, seed: int | None) -> Path:
    """Return the folder of one run of a sweep."""
    if not holds(folder, "sweep.json"):
        raise CoterieError(f"{folder} is not complete; continue it with `{command('resume', folder)}`")
    summary = read_json(folder, "sweep.json", SWEEP)
    if label is None:
        if summary["best"] is None:
            raise CoterieError(f"no candidate of {folder} has a result to choose by: its results.csv says why")
        label = f"candidate-{summary['best']:03d}"
    rows = [row for row in summary["rows"] if f"candidate-{row['candidate']:03d}" == label]
    row = next((row for row in rows if seed is None or row["seed"] == seed), None)
    if row is None:
        known = dict.fromkeys(f"candidate-{row['candidate']:03d}" for row in summary["rows"])
        guess = nearest(label, known) if label not in known else ""
        raise CoterieError(f"{folder} has no {shown(label)}{'' if seed is None else f' with seed {seed}'}{guess}")
    return inside(folder, label, f"seed-{row['seed']}")


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
        if run.config()["run"].get("metric") is None and scores is not None:
            name = verdict_score(about["kind"], about["label_counts"])
        if scores is None or f"test.{name}" not in scores:  # a run of version 0.1 has its mean only
            name, mean = summary["metric"], summary.get("mean", np.nan)
        else:
            mean = float(np.nanmean(scores[f"test.{name}"]))
        means.append(score_named(name).sign * mean)
    return float(np.mean(means))
