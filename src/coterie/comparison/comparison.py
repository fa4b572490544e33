"""The result of a comparison: scores of the same clients under several methods, the leaderboard and the verdict."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.comparison.config import label_of
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.verdict import paired_interval, verdict
from coterie.errors import CoterieError
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result, worst
from coterie.learning.score import Score
from coterie.storage.toml import difference

__all__ = ["Comparison", "baseline_of"]

TIE = 1e-9  # a smaller difference of two scores is none: it comes from rounding the mean over seeds


@dataclasses.dataclass
class Comparison:
    """Methods compared on the same clients.

    Attributes:
        results: for each method's label, one result per seed.
        clients: names, sizes, label counts and groups of the clients, and what is predicted.
        baseline: the label of training alone, if it is among the methods.
        command: the command that repeats the comparison.
        folder: its folder, if it has one.
        failures: methods that diverged or refused these clients, and why; they are not among the results.
        tuning: for each method that was tuned, one record per split: `candidates`, `chosen`, `values`, `seconds`.
    """

    results: dict[str, list[Result]]
    clients: dict[str, Any]
    baseline: str | None
    command: str
    folder: Path | None = None
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    tuning: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    @property
    def score(self) -> Score:
        """How the score is computed and written."""
        return self._first.score

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self._first.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.score.higher_is_better

    @property
    def _first(self) -> Result:
        return next(iter(self.results.values()))[0]

    def role(self, method: str) -> str:
        """Return what a method is here: "alone", "ceiling" (it needs all data in one place) or "cooperates"."""
        return self.results[method][0].role

    def scores(self, method: str) -> np.ndarray:
        """Return every client's final test score `[K]`, averaged over seeds."""
        seeds = np.stack([result.final["test_score"] for result in self.results[method]])
        return seeds.astype(np.float64).mean(axis=0)

    def gains(self, method: str) -> np.ndarray | None:
        """Return every client's gain over training alone `[K]` (positive: better off); None without a baseline."""
        if self.baseline is None:
            return None
        difference = self.scores(method) - self.scores(self.baseline)
        difference[np.abs(difference) < TIE] = 0
        return difference if self.higher_is_better else -difference

    def leaderboard(self) -> list[dict[str, Any]]:
        """Return one row per method, the best first and the ceiling last."""
        rows = [self._row(method) for method in self.results]
        return sorted(rows, key=lambda row: (row["ceiling"], -self.score.sign * row["mean"]))

    def best(self) -> str:
        """Return the best method that cooperates; without one, the best that is not the ceiling."""
        preference = ("ceiling", "alone", "cooperates")
        mean = {method: self.score.sign * self.scores(method).mean() for method in self.results}
        return max(self.results, key=lambda method: (preference.index(self.role(method)), mean[method]))

    def _row(self, method: str) -> dict[str, Any]:
        score, gain, results = self.scores(method), self.gains(method), self.results[method]
        if method == self.baseline:
            gain = None
        interval = None if gain is None else paired_interval(gain)
        compiling = float(np.mean([result.seconds["compile"] for result in results]))
        return {
            "method": method,
            "mean": float(score.mean()),
            "std": float(score.std()),
            "worst": worst(score, self.score),
            "worst_label": "worst decile" if len(score) >= 20 else "worst client",
            "beat_alone": None if gain is None else int((gain > 0).sum()),
            "clients": len(score),
            "bytes_per_client": float(np.mean([result.ledger.bytes_per_client() for result in results])),
            "seconds": float(np.mean([result.seconds["wall"] for result in results])) - compiling,
            "compile": compiling,
            "mean_gain": None if interval is None else interval.mean,
            "gain_error": None if interval is None or len(score) < 2 else interval.error,
            "ceiling": self.role(method) == "ceiling",
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "seeds": len(results),
        }

    def verdict(self) -> str:
        """Say in one sentence whether cooperation helps these clients, with which method and by how much."""
        if self.baseline is None:
            return "Whether cooperation helps these clients is open: training alone (local) is not among the methods."
        cooperating = [method for method in self.results if self.role(method) == "cooperates"]
        gains = {method: gain for method in cooperating if (gain := self.gains(method)) is not None}
        return verdict(gains, self.clients["names"], self.score)

    def to_dict(self) -> dict[str, Any]:
        """Return verdict, leaderboard and scores as plain values, for scripts."""
        names = self.clients["names"]
        scores = {method: dict(zip(names, self.scores(method).tolist(), strict=True)) for method in self.results}
        return {
            "verdict": self.verdict(),
            "baseline": self.baseline,
            "leaderboard": self.leaderboard(),
            "scores": scores,
            "command": self.command,
            "folder": None if self.folder is None else str(self.folder),
        }

    @classmethod
    def read(cls, folders: Sequence[str | Path]) -> "Comparison":
        """Read complete runs and comparisons from their folders; all must be of the same clients."""
        if isinstance(folders, str | Path):
            folders = [folders]
        labelled: list[tuple[str, list[Result]]] = []
        commands = []
        failures: dict[str, str] = {}
        tuning: dict[str, list[dict[str, Any]]] = {}
        for path in map(Path, folders):
            folder = ComparisonFolder(path)
            if folder.exists():
                labelled += folder.results().items()
                failures |= folder.failures()
                tuning |= folder.tuning()
                commands.append(folder.read()["compare"]["command"])
            else:
                result = Result.read(path)
                labelled.append((label_of(result.config["method"]["name"]), [result]))
                commands.append(f"coterie run {path / 'config.toml'}")
        if not labelled and failures:
            raise CoterieError(f"no method has a result: {next(iter(failures.values()))}")
        if not labelled:
            raise CoterieError("there is nothing to compare: name at least one folder of a run or a comparison")
        first = labelled[0][1][0]
        for _, runs in labelled[1:]:
            _check_same_clients(first, runs[0])  # those that follow may be on other splits of the same clients' samples
        clients = {key: value for key, value in RunFolder(first.folder or "").clients().items() if key != "digest"}
        results = _by_label(labelled)
        where = Path(folders[0]) if len(folders) == 1 else None
        failures = {label: why for label, why in failures.items() if label not in results}
        command = " && ".join(commands)
        return cls(results, clients, baseline_of(results), command, where, failures=failures, tuning=tuning)


def baseline_of(results: dict[str, list[Result]]) -> str | None:
    """Return the label of training alone; if several methods do, that of the best, to compare with the strongest."""
    alone = {label: runs for label, runs in results.items() if runs[0].role == "alone"}
    mean = {label: np.mean([run.final["test_score"].mean() for run in runs]) for label, runs in alone.items()}
    return max(alone, key=lambda label: alone[label][0].score.sign * mean[label], default=None)


def _check_same_clients(first: Result, other: Result) -> None:
    """Refuse runs on other data, by the fingerprints in their folders; the message names the setting that differs."""
    digests = [RunFolder(result.folder or "").clients().get("digest") for result in (first, other)]
    if digests[0] == digests[1]:
        return
    here, there = ({s: t for s, t in r.config.items() if s in ("data", "partition")} for r in (first, other))
    why = difference(there, here) or "the data have changed between the two"
    raise CoterieError(f"{other.folder} has other clients than {first.folder}: {why}; only the same can be compared")


def _by_label(labelled: list[tuple[str, list[Result]]]) -> dict[str, list[Result]]:
    """Collect the runs of each method; methods that differ only in settings get labels that name these settings.

    The runs of a label in one comparison stay together, though each split may have been tuned to its own settings.
    """
    groups: dict[str, list[tuple[dict, list[Result]]]] = {}
    for label, runs in labelled:
        config = runs[0].config
        about = {s: table for s, table in config.items() if s not in ("format", "data", "partition")}
        about = about | {"run": {key: value for key, value in about["run"].items() if key != "seed"}}
        group = groups.setdefault(label, [])
        same = next((results for config, results in group if config == about), None)
        if same is None:
            group.append((about, list(runs)))
            continue
        for result in runs:
            if result.config["run"]["seed"] in [r.config["run"]["seed"] for r in same]:
                raise CoterieError(f"{result.folder} is given twice, or repeats the seed of another run; leave one out")
            same.append(result)
    return {label: runs for name, group in groups.items() for label, runs in _told_apart(name, group).items()}


def _told_apart(name: str, group: list[tuple[dict, list[Result]]]) -> dict[str, list[Result]]:
    """Label runs of one method by the settings in which they differ."""
    flat = [{(s, key): value for s, table in config.items() for key, value in table.items()} for config, _ in group]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    varying = [key for key in keys if any(settings.get(key) != flat[0].get(key) for settings in flat)]
    results = {}
    for settings, (_, runs) in zip(flat, group, strict=True):
        words = ", ".join(f"{key[1]}={settings.get(key)}" for key in varying)
        results[f"{name} ({words})" if varying else name] = runs
    return results
