"""Paired differences of two methods on the same test rows, from the results of their runs; the score they are in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.comparison.verdict import Paired, Setting
from coterie.experiment.result import Result
from coterie.learning.score import SCORES, Score, score_named, verdict_score, verdict_words

__all__ = ["TIE", "common_runs", "judged_by", "paired", "score_of_verdict", "setting_of", "split_of", "values"]

TIE = 1e-9  # a smaller difference of two scores is none: it comes from rounding
SHARES = ("accuracy", "balanced-accuracy", "auroc", "auprc")  # scores between 0 and 1: their error has a bound
CORRELATION = 0.5  # assumed between two methods' scores on the same rows, where the rows' own scores are not known


def score_of_verdict(results: Mapping[str, Sequence[Result]], clients: Mapping[str, Any]) -> Score:
    """Return the score that methods are judged by: the metric a user has set, else one that suits the task.

    Runs of version 0.1 have only the metric of their training.
    """
    runs = [run for each in results.values() for run in each]
    if runs[0].chosen_metric is None and clients.get("kind"):
        name = verdict_score(clients["kind"], clients.get("label_counts") or ())
        if all(name in run.scores for run in runs):
            return score_named(name)
    return runs[0].score


def judged_by(score: Score, clients: Mapping[str, Any]) -> str:
    """Say by which score methods are judged, and why where the score was not chosen by the user."""
    kind, counts = clients.get("kind"), clients.get("label_counts") or ()
    if kind is not None and verdict_score(kind, counts) == score.name:
        return verdict_words(kind, counts, clients.get("class_names") or ())
    return f"Methods are judged by {score.label}{'' if score.higher_is_better else ' (lower is better)'}."


def values(result: Result, score: Score) -> np.ndarray:
    """Return every client's test score `[K]`; a run of version 0.1 has only its own metric."""
    own = result.scores.get(score.name)
    return np.asarray(result.final["test_score"] if own is None else own, np.float64)


def common_runs(results: Mapping[str, Sequence[Result]]) -> dict[str, list[Result]]:
    """Return the runs that all methods have: those with the same seeds; the first ones, where no seed is common."""
    seeds = [[_seed(run) for run in runs] for runs in results.values()]
    common = [seed for seed in seeds[0] if all(seed in each for each in seeds)]
    if common:
        return {label: [run for run in runs if _seed(run) in common] for label, runs in results.items()}
    least = min(len(runs) for runs in results.values())
    return {label: list(runs[:least]) for label, runs in results.items()}


def paired(ours: Sequence[Result], theirs: Sequence[Result], score: Score, clients: Mapping[str, Any]) -> Paired:
    """Return by how much each client is better off in our runs than in theirs, `[R, K]`, and how this varies by row."""
    gains, spreads = [], []
    for mine, other in zip(ours, theirs, strict=True):
        first, second = values(mine, score), values(other, score)
        difference = score.sign * (first - second)
        difference[np.abs(difference) < TIE] = 0
        gains.append(difference)
        rows = _row_differences(mine, other, score, first, second)
        spreads.append(_bound(first, second, score, clients) if rows is None else _variance(*rows))
    known = [spread for spread in spreads if spread is not None]
    return Paired(np.stack(gains), np.stack(known) if len(known) == len(gains) else None)


def setting_of(runs: Sequence[Result], score: Score, clients: Mapping[str, Any]) -> Setting:
    """Return what the runs of all methods share."""
    count = len(clients["names"])
    sizes = clients.get("sizes", {})
    usual = np.asarray(sizes.get("test", np.ones(count)), np.float64)
    rows = [usual if (each := _each(run, score)) is None else _per_client(np.isfinite, *each) for run in runs]
    train = np.asarray(sizes.get("train", np.full(count, np.inf)), np.float64)
    drawn = [split_of(run) for run in runs]
    splits = [drawn.index(split) for split in drawn]
    groups = None if clients.get("planted") else clients.get("groups")
    return Setting(
        names=list(clients["names"]),
        score=score,
        rows=np.maximum(np.stack(rows), 1.0),
        groups=None if groups is None else np.asarray(groups),
        splits=None if len(set(splits)) == 1 else np.asarray(splits),
        overlap=usual / np.maximum(train, 1),
    )


def split_of(run: Result) -> Any:
    """Return what names the split of a run: the partition's seed, or the fingerprint of data from Python."""
    return run.config.get("partition", {}).get("seed", run.config.get("data", {}).get("digest"))


def _seed(run: Result) -> Any:
    return run.config["run"]["seed"]


Rows = tuple[np.ndarray, np.ndarray]  # the values of all test rows `[N]`, client after client, and how many each has


def _each(run: Result, score: Score) -> Rows | None:
    """Return the score of every test row; None where nobody wrote it down (a run of version 0.1)."""
    scored = None if score.each is None else run.all_scores()
    if scored is None or score.name not in scored.values:
        return None
    return np.asarray(scored.values[score.name], np.float64), np.asarray(scored.counts)


def _per_client(what: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the sum over each client's rows `[K]` of a function of the values."""
    return np.bincount(np.repeat(np.arange(len(counts)), counts), what(rows), minlength=len(counts))


def _row_differences(mine: Result, other: Result, score: Score, first: np.ndarray, second: np.ndarray) -> Rows | None:
    """Return what each test row adds to the paired difference.

    A root mean square is not a mean: its row adds the linear part, error^2 / (2 root).
    """
    ours, theirs = _each(mine, score), _each(other, score)
    if ours is None or theirs is None or not np.array_equal(ours[1], theirs[1]):
        return None
    (one, counts), (two, _) = ours, theirs
    if score.name == SCORES["rmse"].name:
        one, two = (each / np.repeat(np.maximum(2 * root, TIE), counts) for each, root in ((one, first), (two, second)))
    return one - two, counts


def _variance(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the variance over each client's rows `[K]`."""
    known = np.maximum(_per_client(np.isfinite, rows, counts), 1)
    mean = _per_client(_finite, rows, counts) / known
    return _per_client(lambda values: _finite(values - np.repeat(mean, counts)) ** 2, rows, counts) / known


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0)


def _bound(first: np.ndarray, second: np.ndarray, score: Score, clients: Mapping[str, Any]) -> np.ndarray | None:
    """Return the variance on one row where only clients' scores are known: that of shares; None for other scores.

    For a score over pairs of classes only the rows of the rarer class count.
    """
    if score.name not in SHARES or "sizes" not in clients:
        return None
    rows = np.maximum(np.asarray(clients["sizes"]["test"], np.float64), 1)
    shares = [(rows * value + 1) / (rows + 2) for value in (first, second)]
    variance = (1 - CORRELATION) * sum(share * (1 - share) for share in shares)
    return variance if score.name == "accuracy" else variance / _rarer(clients, rows)


def _rarer(clients: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
    """Return the share of each client's rarer class among its training rows, at least one test row's."""
    counts = np.asarray(clients.get("label_counts") or np.ones((len(rows), 1)), np.float64)
    least = np.where(counts > 0, counts, np.inf).min(1) / np.maximum(counts.sum(1), 1)
    return np.clip(least, 1 / rows, 0.5)
