"""The result of a comparison: scores of the same clients under several methods, the leaderboard and the verdict."""

import dataclasses
import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.comparison.pairing import TIE, common_runs, judged_by, paired, score_of_verdict, setting_of, values
from coterie.comparison.reading import read_folders
from coterie.comparison.verdict import (
    ClientGain,
    Interval,
    Paired,
    Setting,
    Verdict,
    client_gains,
    interval_of,
    judge,
)
from coterie.errors import CoterieError
from coterie.experiment.result import Result, worst
from coterie.learning.score import SCORES, Score, score_named

__all__ = ["Comparison", "baseline_of"]

ORDER = {"cooperates": 0, "alone": 0, "guess": 1, "pooled": 2}  # of the leaderboard
NO_BASELINE = "Whether cooperation helps these clients is open: training alone (local) is not among the methods."


@dataclasses.dataclass(repr=False)
class Comparison:
    """Methods compared on the same clients.

    Attributes:
        results: for each method's label, one result per run.
        clients: names, sizes, label counts and groups of the clients, and what is predicted.
        baseline: the label of training alone, if it is among the methods.
        command: the command that repeats the comparison.
        folder: its folder, if it has one.
        failures: for each method that has no result, one sentence that says why.
        tuning: for each method that was tuned, what was tried and chosen.
    """

    results: dict[str, list[Result]]
    clients: dict[str, Any]
    baseline: str | None
    command: str
    folder: Path | None = None
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    tuning: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def score(self) -> Score:
        """The score that methods are judged by: the one chosen, or one that suits the task."""
        return score_of_verdict(self.results, self.clients)

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self.score.name

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.score.higher_is_better

    @property
    def guess(self) -> str | None:
        """The label of guessing without a model, if it is among the methods."""
        return next((method for method in self.results if self.role(method) == "guess"), None)

    def role(self, method: str) -> str:
        """Return what a method is here: "guess", "alone", "pooled" (one model on all data) or "cooperates"."""
        return self.results[method][0].role

    def scores(self, method: str, score: str | None = None) -> np.ndarray:
        """Return every client's final test score `[K]`, averaged over the runs that have it; NaN where none has."""
        chosen = self.score if score is None else score_named(score)
        runs = np.stack([values(result, chosen) for result in self.results[method]])
        count = np.isfinite(runs).sum(axis=0)
        return np.where(count > 0, np.nansum(runs, axis=0) / np.maximum(count, 1), np.nan)

    def gains(self, method: str) -> np.ndarray | None:
        """Return every client's gain over training alone `[K]` (positive: better off); None without a baseline."""
        if self.baseline is None:
            return None
        gains = self._paired(method, self.baseline)[1].gains.mean(0)
        gains[np.abs(gains) < TIE] = 0  # the same scores in another order of runs
        return gains

    def client_gains(self, method: str) -> tuple[ClientGain, ...]:
        """Return every client's gain over training alone, each with its own interval."""
        if self.baseline is None:
            raise CoterieError(f"{method} has no gains: training alone (local) is not among the methods")
        setting, gains = self._paired(method, self.baseline)
        return client_gains(gains, setting)

    @functools.cached_property
    def _common(self) -> tuple[Setting, dict[str, list[Result]]]:
        """What all methods share, and the runs that all of them have."""
        runs = common_runs(self.results)
        return setting_of(next(iter(runs.values())), self.score, self.clients), runs

    def _paired(self, method: str, other: str) -> tuple[Setting, Paired]:
        """Return the gains of a method over another, computed once."""
        setting, runs = self._common
        if (method, other) not in self._pairs:
            self._pairs[method, other] = paired(runs[method], runs[other], self.score, self.clients)
        return setting, self._pairs[method, other]

    @functools.cached_property
    def _pairs(self) -> dict[tuple[str, str], Paired]:
        return {}

    def judgement(self) -> Verdict:
        """Return whether cooperation helps these clients: outcome, sentence, intervals, gains of clients, notes."""
        return self._judgement

    @functools.cached_property
    def _judgement(self) -> Verdict:
        if self.baseline is None:
            return Verdict("cannot-tell", NO_BASELINE)
        setting = self._common[0]
        gains = {m: self._paired(m, self.baseline)[1] for m in self.results if self.role(m) == "cooperates"}
        guess = self.guess
        trained = [method for method in self.results if method != guess]
        over_guess = None if guess is None else {m: self._paired(m, guess)[1] for m in trained}
        verdict = judge(gains, setting, over_guess)
        return dataclasses.replace(verdict, notes=verdict.notes + self._more_notes())

    def _more_notes(self) -> tuple[str, ...]:
        """Return what the verdict does not judge: one model on all data, and methods that have no result."""
        notes = [judged_by(self.score, self.clients)]
        for method in self.results:
            if self.role(method) == "pooled" and (interval := self._interval(method)) is not None:
                low, high = self.score.gain(interval.low), self.score.gain(interval.high)
                gain = f"{self.score.gain(interval.mean)} {self.score.unit} ({low} to {high})"
                notes.append(f"One model on all data ({method}) gains {gain} over training alone.")
        return (*notes, *(f"{method} has no result: {why}" for method, why in self.failures.items()))

    def _interval(self, method: str) -> Interval | None:
        """Return the interval of a method's gain over training alone; corrected for the choice if it cooperates."""
        if self.baseline in (None, method) or len(self.clients["names"]) < 2:
            return None
        setting, gains = self._paired(method, self.baseline or "")
        cooperating = [other for other in self.results if self.role(other) == "cooperates"]
        return interval_of(gains, setting, len(cooperating) if method in cooperating else 1)

    def verdict(self) -> str:
        """Say in one sentence whether cooperation helps these clients, with which method and by how much."""
        return self._judgement.sentence

    def leaderboard(self) -> list[dict[str, Any]]:
        """Return one row per method: the best first, then guessing, one model on all data, and what has no result."""
        rows = [self._row(method) for method in self.results]
        rows.sort(key=lambda row: (ORDER[row["role"]], row["mean"] is None, -self.score.sign * (row["mean"] or 0)))
        empty = dict.fromkeys(rows[0] if rows else ("method", "failed"))
        return rows + [empty | {"method": method, "failed": why} for method, why in self.failures.items()]

    def best(self) -> str:
        """Return the best method that cooperates; without one, the best that trains alone."""
        preference = ("guess", "pooled", "alone", "cooperates")
        mean = {method: self.score.sign * (_mean(self.scores(method)) or 0.0) for method in self.results}
        named = self._judgement.method if self._judgement.outcome == "helps" else None
        return named or max(self.results, key=lambda method: (preference.index(self.role(method)), mean[method]))

    def _row(self, method: str) -> dict[str, Any]:
        score, gain, results = self.scores(method), self.gains(method), self.results[method]
        if method == self.baseline:
            gain = None
        interval = self._interval(method)
        ends = {} if interval is None else _fields(interval)
        compiling = float(np.mean([result.seconds["compile"] for result in results]))
        known = score[np.isfinite(score)]
        return {
            "method": method,
            "role": self.role(method),
            "mean": _mean(score),
            "std": float(known.std()) if len(known) else None,
            "std_over_runs": _spread([_mean(values(result, self.score)) for result in results]),
            "worst": worst(known, self.score) if len(known) else None,
            "worst_label": "worst decile" if len(score) >= 20 else "worst client",
            "beat_alone": None if gain is None else int((gain > 0).sum()),
            "clients": len(score),
            "bytes_per_client": float(np.mean([result.ledger.bytes_per_client() for result in results])),
            "seconds": float(np.mean([result.seconds["wall"] for result in results])) - compiling,
            "compile": compiling,
            "mean_gain": ends.get("mean", None if gain is None else _mean(gain)),
            "gain_error": ends.get("error"),
            "low": ends.get("low"),
            "high": ends.get("high"),
            "pooled": self.role(method) == "pooled",
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "seeds": len(results),
            "scores": self._all_scores(method),
            "failed": None,
        }

    def _all_scores(self, method: str) -> dict[str, float | None]:
        """Return the mean over clients of every score that all runs have; None where no client has it."""
        results = self.results[method]
        names = [name for name in SCORES if all(name in result.scores for result in results)]
        return {name: _mean(self.scores(method, name)) for name in names}

    def who(self, method: str | None = None, top: int | None = None) -> Any:
        """Return with whom every client learns as a DataFrame: see `coterie.comparison.who.who`."""
        from coterie.comparison.who import who

        return who(self, method, top)

    def to_latex(self) -> str:
        """Return the table of a paper: mean ± standard deviation over runs, best bold, second underlined, daggers."""
        from coterie.comparison.publishing import latex

        return latex(self)

    def to_markdown(self) -> str:
        """Return the same table as Markdown."""
        from coterie.comparison.publishing import markdown

        return markdown(self)

    def to_long(self) -> Any:
        """Return every number as a DataFrame: method, seed, split, client, round, metric, value."""
        from coterie.comparison.publishing import long_frame

        return long_frame(self)

    def as_pfllib(self) -> Any:
        """Return the scores as PFLlib counts them, which is optimistic: see `publishing.pfllib_frame`."""
        from coterie.comparison.publishing import pfllib_frame

        return pfllib_frame(self)

    def to_frame(self) -> Any:
        """Return the leaderboard as a DataFrame: one row per method, with a column for every score."""
        import pandas as pd

        rows = self.leaderboard()
        flat = [{k: v for k, v in row.items() if k != "scores"} | (row.get("scores") or {}) for row in rows]
        return pd.DataFrame(flat).set_index("method")

    def to_dict(self) -> dict[str, Any]:
        """Return verdict, leaderboard and scores as plain values, for scripts."""
        names = self.clients["names"]
        scores = {method: dict(zip(names, map(_plain, self.scores(method)), strict=True)) for method in self.results}
        judged = self._judgement
        return {
            "verdict": judged.sentence,
            "judgement": {
                "outcome": judged.outcome,
                "method": judged.method,
                "interval": None if judged.interval is None else _fields(judged.interval),
                "per_method": {method: _fields(interval) for method, interval in judged.per_method.items()},
                "per_client": [_fields(client) for client in judged.per_client],
                "rows_needed": judged.rows_needed,
                "notes": list(judged.notes),
            },
            "baseline": self.baseline,
            "leaderboard": self.leaderboard(),
            "scores": scores,
            "failures": dict(self.failures),
            "command": self.command,
            "folder": None if self.folder is None else str(self.folder),
        }

    def __repr__(self) -> str:
        methods, clients = len(self.results), len(self.clients["names"])
        return f"<Comparison of {methods} methods on {clients} clients: {self.verdict()}>"

    def _repr_html_(self) -> str:
        frame = self.to_frame()[["mean", "mean_gain", "low", "high", "beat_alone", "bytes_per_client", "seconds"]]
        table = frame.to_html(float_format=lambda value: f"{value:.4g}", na_rep="", border=0)
        return f"<p><strong>{html.escape(self.verdict())}</strong></p>{table}"

    @classmethod
    def read(cls, folders: Sequence[str | Path]) -> "Comparison":
        """Read complete runs and comparisons from their folders; all must be of the same clients."""
        if isinstance(folders, str | Path):
            folders = [folders]
        contents = read_folders(folders)
        baseline = baseline_of(contents.results, contents.clients)
        where = Path(folders[0]) if len(folders) == 1 else None
        command = " && ".join(contents.commands)
        return cls(contents.results, contents.clients, baseline, command, where, contents.failures, contents.tuning)


def baseline_of(results: Mapping[str, Sequence[Result]], clients: Mapping[str, Any] | None = None) -> str | None:
    """Return the label of training alone; if several methods do, that of the best, to compare with the strongest."""
    alone = {label: runs for label, runs in results.items() if runs[0].role == "alone"}
    if len(alone) < 2:
        return next(iter(alone), None)
    score = score_of_verdict(results, clients or {})
    mean = {label: _mean(np.stack([values(run, score) for run in runs])) or 0.0 for label, runs in alone.items()}
    return max(alone, key=lambda label: score.sign * mean[label])


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the values that are numbers."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _spread(means: Sequence[float | None]) -> float | None:
    """Return the standard deviation of what is known; None for fewer than two."""
    known = [mean for mean in means if mean is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _fields(record: Any) -> dict[str, Any]:
    """Return a named tuple as plain values; what is not finite is None."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in record._asdict().items()}
