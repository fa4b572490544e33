"""What a comparison found: scores of the same clients under several methods, the leaderboard and the verdict."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.lineup import entry_of
from coterie.comparison.verdict import paired_interval, verdict
from coterie.errors import CoterieError
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result, worst
from coterie.storage.toml import difference

__all__ = ["Comparison", "baseline_of"]

ALONE, CEILING = ("local", "local-exact"), "pooled"
TIE = 1e-9


@dataclasses.dataclass
class Comparison:
    """Methods compared on the same clients.

    Attributes:
        results: for each method's label, one result a seed.
        clients: names, sizes, label counts and groups of the clients, and what is predicted.
        baseline: the label of training alone, if it is among the methods.
        command: the command that repeats the comparison.
        folder: where it is kept.
    """

    results: dict[str, list[Result]]
    clients: dict[str, Any]
    baseline: str | None
    command: str
    folder: Path | None = None

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self._first.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self._first.higher_is_better

    @property
    def _first(self) -> Result:
        return next(iter(self.results.values()))[0]

    def is_ceiling(self, method: str) -> bool:
        """Whether a method needs all data in one place, so that it is a ceiling and no cooperation."""
        return _name(self.results[method]) == CEILING

    def scores(self, method: str) -> np.ndarray:
        """Return every client's final test score `[K]`, averaged over seeds."""
        seeds = np.stack([result.final["test_score"] for result in self.results[method]])
        return seeds.astype(np.float64).mean(axis=0)

    def gains(self, method: str) -> np.ndarray | None:
        """Return every client's gain over training alone `[K]` (positive: better off); None without a baseline."""
        if self.baseline is None:
            return None
        difference = self.scores(method) - self.scores(self.baseline)
        difference[np.abs(difference) < TIE] = 0  # the rounding of a mean over seeds must not make a winner of a tie
        return difference if self.higher_is_better else -difference

    def leaderboard(self) -> list[dict[str, Any]]:
        """Return one row a method, the best first and the ceiling last."""
        rows = [self._row(method) for method in self.results]
        sign = -1 if self.higher_is_better else 1
        return sorted(rows, key=lambda row: (row["ceiling"], sign * row["mean"]))

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
            "worst": worst(score, self.higher_is_better),
            "worst_label": "worst decile" if len(score) >= 20 else "worst client",
            "beat_alone": None if gain is None else int((gain > 0).sum()),
            "clients": len(score),
            "bytes_per_client": float(np.mean([result.ledger.bytes_per_client() for result in results])),
            "seconds": float(np.mean([result.seconds["wall"] for result in results])) - compiling,
            "compile": compiling,
            "mean_gain": None if interval is None else interval.mean,
            "gain_error": None if interval is None or len(score) < 2 else interval.error,
            "ceiling": self.is_ceiling(method),
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "seeds": len(results),
        }

    def verdict(self) -> str:
        """Say in one sentence whether cooperation helps these clients, with which method and by how much."""
        if self.baseline is None:
            return "Whether cooperation helps these clients is open: training alone (local) is not among the methods."
        gains: dict[str, np.ndarray] = {}
        for method, results in self.results.items():
            found = self.gains(method)
            if found is not None and _name(results) not in (*ALONE, CEILING):
                gains[method] = found
        return verdict(gains, self.clients["names"], self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Return everything a script wants, as plain values."""
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
        found: list[tuple[str, Result]] = []
        commands = []
        for folder in map(Path, folders):
            held = ComparisonFolder(folder)
            if held.exists():
                found += held.results()
                commands.append(held.read()["compare"]["command"])
            else:
                result = Result.read(folder)
                found.append((entry_of(result.config["method"]["name"]).label, result))
                commands.append(f"coterie run {folder / 'config.toml'}")
        if not found:
            raise CoterieError("there is nothing to compare: name at least one folder of a run or a comparison")
        first = found[0][1]
        for _, result in found[1:]:
            _check_same_clients(first, result)
        clients = {key: value for key, value in RunFolder(first.folder or "").clients().items() if key != "digest"}
        results = _by_label(found)
        where = Path(folders[0]) if len(folders) == 1 else None
        return cls(results, clients, baseline_of(results), " && ".join(commands), where)


def _name(results: list[Result]) -> str:
    return results[0].config["method"]["name"]


def baseline_of(results: dict[str, list[Result]]) -> str | None:
    """Return the label of training alone; of several, that of the best, so that nobody beats a straw man."""
    alone = [label for label, held in results.items() if _name(held) in ALONE]
    sign = 1 if next(iter(results.values()))[0].higher_is_better else -1
    mean = {label: sign * np.mean([result.final["test_score"].mean() for result in results[label]]) for label in alone}
    return max(alone, key=mean.__getitem__, default=None)


def _check_same_clients(first: Result, other: Result) -> None:
    """Refuse runs on other data, by the fingerprints in their folders, naming the setting that makes the difference."""
    digests = [RunFolder(result.folder or "").clients().get("digest") for result in (first, other)]
    if digests[0] == digests[1]:
        return
    here, there = ({s: t for s, t in r.config.items() if s in ("data", "partition")} for r in (first, other))
    why = difference(there, here) or "the data have changed between the two"
    raise CoterieError(f"{other.folder} has other clients than {first.folder}: {why}; only the same can be compared")


def _by_label(found: list[tuple[str, Result]]) -> dict[str, list[Result]]:
    """Collect seeds under a label; the same method with other settings gets a label that says which."""
    groups: dict[str, list[tuple[dict, list[Result]]]] = {}
    for label, result in found:
        about = {s: table for s, table in result.config.items() if s not in ("format", "data", "partition")}
        about = about | {"run": {key: value for key, value in about["run"].items() if key != "seed"}}
        held = groups.setdefault(label, [])
        same = next((results for config, results in held if config == about), None)
        if same is None:
            held.append((about, [result]))
        elif result.config["run"]["seed"] in [r.config["run"]["seed"] for r in same]:
            raise CoterieError(f"{result.folder} is given twice, or repeats the seed of another run; leave one out")
        else:
            same.append(result)
    results = {}
    for label, held in groups.items():
        flat = [{(s, key): value for s, table in config.items() for key, value in table.items()} for config, _ in held]
        keys = dict.fromkeys(key for each in flat for key in each)
        varying = [key for key in keys if any(each.get(key) != flat[0].get(key) for each in flat)]
        for settings, (_, runs) in zip(flat, held, strict=True):
            words = ", ".join(f"{key[1]}={settings.get(key)}" for key in varying)
            results[f"{label} ({words})" if varying else label] = runs
    return results
