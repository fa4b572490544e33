"""The result of a run: metrics as a DataFrame, personal models, the cooperation graph, the ledger. No JAX until a
model is asked for."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.experiment import cooperation
from coterie.experiment.figures import role_of, summary_of, worst
from coterie.experiment.folder import RunFolder, model_file
from coterie.experiment.members import Members
from coterie.experiment.personal_model import PersonalModel, by_name, read_model
from coterie.experiment.prediction import Answers, route
from coterie.experiment.scores import Scores
from coterie.learning.score import Score, score_named
from coterie.peers.ledger import Ledger
from coterie.spec import nearest
from coterie.storage.commands import command
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.owned import inside

__all__ = ["SHARED_MODEL", "Result", "worst"]

ALL_MODELS = "all-clients.safetensors"
SHARED_MODEL = "shared.safetensors"  # what a client gets that took no part, where the method has a model for everybody
MODEL_FILES = 2000  # clients up to which every model gets a file of its own


@dataclasses.dataclass(repr=False)
class Result:
    """The outcome of a run.

    Attributes:
        config: the complete experiment.
        names: the clients' names.
        rows: one entry per evaluation: `round` and the metrics of every client `[K]`.
        ledger: messages and bytes.
        graphs: by round, `neighbours`, `present` and `weights [K, D]`; empty where the method has no graph, or where
            only some clients live here.
        seconds: wall time in total, in compilation, in the compiled program.
        best_round: the evaluation whose models are kept: the last, or the best where a run stops early or has a path.
        metric: the name of the score.
        device: where it ran.
        role: what the method is in a comparison: "guess", "alone", "pooled" or "cooperates".
        folder: the folder of the run, if it has one.
        task: what each client learned; None if the result was read from a folder and no model has been loaded.
        variables: the personal models `[K, ...]`, on the host; None where they are only in the folder.
        scored: every score of the kept models, or what computes them (see `all_scores`).
        answers: how rows become inputs and outputs predictions, or what makes that (see `prediction_rules`).
        learns_weights: whether the method learns with whom to cooperate.
        trust_code: whether code that the folder names (FILE.py:CLASS) may run when a model is asked for.
        members: of a run on a network, all its members and which of them live here; None for a simulation.
        cooperation: the rows of `graphs` of the clients that live here.
    """

    config: dict[str, Any]
    names: tuple[str, ...]
    rows: list[dict[str, Any]]
    ledger: Ledger
    graphs: dict[int, dict[str, np.ndarray]]
    seconds: dict[str, float]
    best_round: int
    metric: str
    device: str
    role: str = "cooperates"
    folder: Path | None = None
    task: Any = None
    variables: Any = None
    scored: Scores | Callable[[], Scores] | None = None
    answers: Any = None
    learns_weights: bool = False
    trust_code: bool = False
    members: Members | None = None
    cooperation: dict[int, dict[str, np.ndarray]] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        from coterie.experiment.describe import line

        return line(self)

    def _repr_html_(self) -> str:
        from coterie.experiment.describe import html

        return html(self)

    @property
    def score(self) -> Score:
        """How the score is computed and written."""
        return score_named(self.metric)

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.score.higher_is_better

    @property
    def metrics(self) -> Any:
        """Return every metric as a DataFrame: one row per client and evaluation."""
        import pandas as pd

        frames = [pd.DataFrame({"client": self.names, **row}) for row in self.rows]
        return pd.concat(frames, ignore_index=True)[["round", "client", *_columns(self.rows)]]

    @property
    def final(self) -> dict[str, np.ndarray]:
        """Return the metrics of the kept models, `[K]` each."""
        row = next((row for row in self.rows if row["round"] == self.best_round), None)
        if row is None:
            raise CoterieError(f"metrics.jsonl of {self.folder} lacks round {self.best_round}; restore it from a copy")
        return {name: np.asarray(value) for name, value in row.items() if name != "round"}

    @property
    def chosen_metric(self) -> str | None:
        """The score the user has chosen (`run.metric`); None where it is the default of the kind of task."""
        return self.config["run"].get("metric")

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """Return every score of the task's kind for the kept models, `[K]` each, on the clients' test samples.

        NaN where a score has no meaning for a client: AUROC, AUPRC and balanced accuracy if all its samples have one
        class, R2 if all have one value. Leave these clients out of a mean (`np.nanmean`). A run of version 0.1 has only
        its own metric.
        """
        scored = self.all_scores()
        return {self.metric: self.final["test_score"]} if scored is None else scored.test

    @property
    def validation_scores(self) -> dict[str, np.ndarray]:
        """Return the same on the clients' validation samples; NaN for a client that has none."""
        scored = self.all_scores()
        return {self.metric: self.final["validation_score"]} if scored is None else scored.validation

    def each(self, score: str) -> np.ndarray:
        """Return a score's value for every test sample `[K, n]`, NaN after a client's last one.

        Only scores that are means over samples have it: accuracy, log-loss, Brier; for rmse these are squared errors,
        for mae absolute ones.
        """
        scored = self.all_scores()
        if scored is None:
            raise CoterieError(f"{self.folder or 'this result'} has no scores per sample; run it again to get them")
        return scored.each(score)

    def all_scores(self) -> Scores | None:
        """Return every score of the kept models, computed or read when asked for; None in a run of version 0.1."""
        if callable(self.scored):
            self.scored = self.scored()
        if self.scored is None and self.folder is not None:
            arrays = RunFolder(self.folder).scores()
            self.scored = None if arrays is None else Scores.of(arrays)
        return self.scored

    def summary(self) -> dict[str, Any]:
        """Return the figures of the leaderboard: mean, standard deviation, worst decile (or client), cost."""
        return summary_of(self)

    def index(self, client: str | int) -> int:
        """Return a client's number from its name."""
        if isinstance(client, int) and 0 <= client < len(self.names):
            return client
        if client in self.names:
            return self.names.index(str(client))
        raise CoterieError(f"there is no client {client!r}{nearest(str(client), self.names)}")

    def model(self, client: str | int) -> PersonalModel:
        """Return a client's personal model: a function of a batch of inputs (`.module` is the Equinox module)."""
        place = self.index(client)
        variables = self._variables(place)  # first: it may build the task
        return PersonalModel(self.task, variables, self.prediction_rules, self.names[place])

    def predict(self, rows: Any, level: float = 0.9) -> Any:
        """Predict each row of a table with the model of its client, named in the client column.

        Returns:
            A DataFrame in the order of the rows: client, prediction, a probability for each class (or, for numbers, low
            and high: an interval that covers the share `level`), and a note on what was missing or unknown in the row.
        """
        return route(
            self.prediction_rules(), rows, lambda name, part: self.model(name).predict(part, level), self.names
        )

    def prediction_rules(self) -> Answers:
        """Return how rows become inputs and outputs predictions, computed or read when it is asked for."""
        if callable(self.answers):
            self.answers = self.answers()
        if self.answers is None:
            if self.folder is None:
                raise CoterieError("this result does not know what its inputs mean: run again, or give it a folder")
            self.answers = Answers.read(self.folder, RunFolder(self.folder).clients(), self.config)
        return self.answers

    def forget_models(self) -> None:
        """Free the memory of the models; those of a run with a folder are loaded from there when they are asked for."""
        self.variables = None

    def save_models(self, folder: str | Path) -> list[Path]:
        """Write every client's model as a safetensors file with PyTorch's parameter names; returns the files."""
        folder = Path(folder)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files = []
        for i, name in enumerate(self.names):
            files.append(folder / model_file(i, name))
            durable_write(files[-1], self._encode(self._variables(i), name))
        return files

    def model_files(self, models: Any, here: range) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of the files in `models/`: one per client, or a single one for very many clients.

        Args:
            models: those of the clients `here`, in their order.
            here: the clients whose models are in this process.
        """
        import jax

        if len(self.names) > MODEL_FILES:
            yield ALL_MODELS, self._encode(models, "all")
            return
        for row, i in enumerate(here):
            variables = jax.tree.map(lambda a, row=row: np.asarray(a[row]), models)  # a lone number stays an array
            yield model_file(i, self.names[i]), self._encode(variables, self.names[i])

    def _encode(self, variables: Any, client: str) -> bytes:
        from coterie.models.naming import encode

        return encode(by_name(variables), {"client": client, "method": self.config["method"]["name"]})

    def encode_shared(self, variables: Any) -> bytes:
        """Return the file of the model for a client that took no part."""
        return self._encode(variables, "shared")

    def _variables(self, i: int) -> Any:
        """Return client i's model, from memory or from the folder."""
        import jax

        if self.variables is not None:
            return jax.tree.map(lambda a: np.asarray(a[i]), self.variables)  # a lone number stays an array
        if self.folder is None:
            raise CoterieError("this result has no models")
        if self.task is None:
            from coterie.experiment.rebuilding import task_of_run

            self.task = task_of_run(self.config, self.folder, self.trust_code)
        if len(self.names) <= MODEL_FILES:
            return read_model(inside(self.folder, "models", model_file(i, self.names[i])), self.task)
        return read_model(inside(self.folder, "models", ALL_MODELS), self.task, i, len(self.names))

    def weights(self, round: int | None = None) -> np.ndarray:
        """Return the cooperation weights as a matrix: row i is how client i weighs the others, and itself."""
        return cooperation.weight_matrix(self._graph_at(round))

    def graph(self, round: int | None = None) -> Any:
        """Return the cooperation weights as a NetworkX graph: an edge u -> v is the weight that v gives to u."""
        return cooperation.weight_graph(self._graph_at(round), self.names)

    def save_graph(self, path: str | Path, round: int | None = None) -> Path:
        """Write the cooperation weights of a round (default: the last) as GraphML, or as a matrix to a .npy file."""
        return cooperation.save_weights(Path(path), self._graph_at(round), self.names)

    def clusters(self, round: int | None = None) -> np.ndarray:
        """Return each client's cluster `[K]` after a round (default: of the kept models), named by its lowest client.

        Clients of a cluster are joined by positive weights; with `network-lasso` and `component` these are the clients
        that have the same personal part.
        """
        from coterie.experiment.cluster_path import clusters_of

        return clusters_of(self._graph_at(self.best_round if round is None else round))

    def path(self) -> Any:
        """Return the path of lam as a DataFrame: round, lam, clusters, validation_score, test_score, kept, labels."""
        from coterie.experiment.cluster_path import path_of

        return path_of(self)

    def _graph_at(self, round: int | None) -> dict[str, np.ndarray]:
        if not self.graphs:
            name = self.config["method"]["name"]
            raise CoterieError(f"{name} has no cooperation graph: its clients talk to a hub or to nobody")
        chosen = max(self.graphs) if round is None else round
        if chosen not in self.graphs:
            raise CoterieError(f"there are no weights of round {round}; rounds: {', '.join(map(str, self.graphs))}")
        return self.graphs[chosen]

    @classmethod
    def read(cls, path: str | Path, task: Any = None, *, trust_code: bool = False) -> "Result":
        """Read the result of a complete run from its folder; a model is loaded when it is asked for.

        Args:
            path: the folder.
            task: what each client learned, where it is known.
            trust_code: whether code that the folder names (FILE.py:CLASS) may run: it can do whatever you can do.
        """
        folder = RunFolder(path)
        config = folder.config()
        if not folder.complete:
            how = f"`{command('resume', path)}`" if folder.members() is None else "coterie join, as it was begun"
            raise CoterieError(f"{path} is not complete; continue it with {how}")
        summary, rows = folder.summary(), folder.lines("metrics.jsonl")
        if summary["round"] not in [row["round"] for row in rows]:
            raise CoterieError(
                f"{folder.path / 'metrics.jsonl'} lacks round {summary['round']}, which summary.json names"
            )
        members, graphs = folder.members(), folder.graphs()
        return cls(
            config=config,
            names=tuple(folder.clients()["names"]),
            rows=rows,
            ledger=folder.ledger(),
            graphs=graphs if members is None else {},
            cooperation=graphs,
            members=members,
            seconds=summary["seconds"],
            best_round=summary["round"],
            metric=summary["metric"],
            device=summary["device"],
            role=role_of(summary, config),
            folder=folder.path,
            task=task,
            learns_weights=summary.get("learns_weights", False),
            trust_code=trust_code,
        )


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return [name for name in rows[0] if name != "round"]
