"""Does cooperation help these clients? The statistics behind the answer, and the answer as one sentence.

A client that trains alone is compared with itself under a method: differences are paired, and their mean comes with a
Student interval over clients. The best of several methods looks better than it is, so the interval is corrected for the
choice (Bonferroni). Seeds are averaged before, so that a client counts once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes half a second to import

from coterie.learning.score import Score

__all__ = ["Interval", "paired_interval", "verdict"]

MANY = 0.25  # share of losing clients from which the verdict names them


class Interval(NamedTuple):
    """A mean of paired differences, its standard error, and where the true mean lies."""

    mean: float
    error: float
    low: float
    high: float


def paired_interval(differences: np.ndarray, confidence: float = 0.95, choices: int = 1) -> Interval:
    """Return the mean of paired differences with its Student interval.

    Args:
        differences: one per client.
        confidence: of all intervals together.
        choices: the number of methods it is the best of; each gets an equal share of the risk.
    """
    count, mean = len(differences), float(np.mean(differences))
    if count < 2:
        return Interval(mean, math.nan, -math.inf, math.inf)
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    reach = float(stdtrit(count - 1, 1 - (1 - confidence) / (2 * choices))) * error
    return Interval(mean, error, mean - reach, mean + reach)


def verdict(gains: Mapping[str, np.ndarray], names: Sequence[str], score: Score) -> str:
    """Say in one sentence whether cooperation helps.

    Args:
        gains: for each cooperating method, each client's gain over training alone (positive is better).
        names: the clients' names.
        score: what the gains are differences of.
    """
    if not gains:
        return (
            "No method of this comparison lets the clients cooperate, so it does not say whether that would help them."
        )
    if len(names) < 2:
        return "There is only one client, so there is nobody to cooperate with."
    if not any(np.any(gain) for gain in gains.values()):
        return f"Cooperation makes no difference to these clients: each has the same {score.name} as alone."
    intervals = {method: paired_interval(gain, choices=len(gains)) for method, gain in gains.items()}
    ranked = sorted(gains, key=lambda method: -intervals[method].mean)
    helpful = [method for method in ranked if intervals[method].low > 0]
    best = helpful[0] if helpful else ranked[0]
    if helpful:
        opening = f"Cooperation helps these clients: with {best}"
    elif all(interval.high < 0 for interval in intervals.values()):
        opening = f"Cooperation does not help these clients: even with the best method, {best},"
    else:
        opening = f"Whether cooperation helps these clients cannot be told from noise: with the best method, {best},"
    better = int((gains[best] > 0).sum())
    choice = f", corrected for choosing among {len(gains)} methods" if len(gains) > 1 else ""
    mean, low, high = (score.gain(getattr(intervals[best], name)) for name in ("mean", "low", "high"))
    return (
        f"{opening} the mean gain over training alone is {mean} {score.unit} "
        f"(95 % confidence interval {low} to {high}, paired over clients{choice}), and "
        f"{better} of {len(names)} clients do better than alone{_losers(gains[best], names, score)}."
    )


def _losers(gain: np.ndarray, names: Sequence[str], score: Score) -> str:
    """Name the clients that lose most, if many lose."""
    worst_first = [i for i in np.argsort(gain, kind="stable") if gain[i] < 0]
    if len(worst_first) < MANY * len(names):
        return ""
    named = [f"{names[i]} ({score.gain(gain[i])})" for i in worst_first[:3]]
    return f"; {len(worst_first)} lose, most of all {', '.join(named)}"
