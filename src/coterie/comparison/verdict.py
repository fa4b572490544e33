"""Does cooperation help these clients? Four answers, each with one sentence for a person who has to decide.

Clients are compared with themselves: gain = score under a method - score alone, positive is better. `intervals.py` says
how far the mean gain may be off. The best of several methods looks better than it is, so every method's interval is
corrected for the choice (Bonferroni).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.comparison import wording
from coterie.comparison.intervals import (
    Estimate,
    Noise,
    client_errors,
    estimate,
    half_width,
    half_width_here,
    noise_of,
    repetitions,
)
from coterie.learning.score import Score

__all__ = ["ClientGain", "Interval", "Outcome", "Paired", "Setting", "Verdict", "client_gains", "interval_of", "judge"]

Outcome = Literal["helps", "hurts", "cannot-tell", "nobody-beats-guessing"]
RISK = 0.035  # of a "95 %" interval: less than 0.05, so that no simulated case goes beyond 5 % (see the page)
FEW = 3  # fewer clients (or known groups) say too little about others like them
POWER = 1 + 0.8416 / 1.96  # how much wider than half the interval a gain must be to be seen in 80 of 100 comparisons
MOST_ROWS = 10_000_000  # more test rows than that is "not with test rows"


class Interval(NamedTuple):
    """A mean gain, its standard error, and where the true mean lies."""

    mean: float
    error: float
    low: float
    high: float


class ClientGain(NamedTuple):
    """The gain of one client: as measured, with its own interval, and drawn towards the others' (`shrunk`)."""

    client: str
    gain: float
    low: float | None
    high: float | None
    shrunk: float
    rows: int


class Paired(NamedTuple):
    """Paired differences of one method: `gains [R, K]`, and their variance over the rows of a client `[R, K]`."""

    gains: np.ndarray
    spread: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all methods of a comparison share.

    Attributes:
        names: the clients.
        score: what the gains are differences of.
        rows: test rows `[R, K]`.
        groups: the known group of each client `[K]`, or None.
        splits: the split of each run `[R]`; None: all runs have the same.
        overlap: test rows / training rows of each client `[K]`; only used with several splits.
    """

    names: Sequence[str]
    score: Score
    rows: np.ndarray
    groups: np.ndarray | None = None
    splits: np.ndarray | None = None
    overlap: Any = 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The answer of a comparison.

    Attributes:
        outcome: "helps", "hurts", "cannot-tell" or "nobody-beats-guessing".
        sentence: the answer in one sentence.
        method: the method that the sentence names, or None.
        interval: of its mean gain over training alone (over guessing, where nobody beats that).
        per_method: the interval of every method that cooperates, all corrected for choosing among them.
        per_client: each client's gain with that method.
        rows_needed: how many more test rows would probably tell, where the answer is "cannot-tell"; None otherwise,
            and where test rows alone cannot tell.
        notes: what else a careful reader should know, one sentence each.
    """

    outcome: Outcome
    sentence: str
    method: str | None = None
    interval: Interval | None = None
    per_method: Mapping[str, Interval] = dataclasses.field(default_factory=dict)
    per_client: tuple[ClientGain, ...] = ()
    rows_needed: int | None = None
    notes: tuple[str, ...] = ()


def judge(gains: Mapping[str, Paired], setting: Setting, over_guess: Mapping[str, Paired] | None = None) -> Verdict:
    """Say whether cooperation helps.

    Args:
        gains: for each method that cooperates, the gains over training alone.
        setting: what they share.
        over_guess: for each method that trains, also alone or on all data, the gains over guessing; None without it.
    """
    if not gains:
        return Verdict("cannot-tell", wording.NOBODY_COOPERATES)
    setting, gains, over_guess, left_out = _usable(setting, gains, over_guess or {})
    if len(setting.names) < 2:
        return Verdict("cannot-tell", wording.one_client(left_out), notes=wording.left_out(left_out, setting.score))
    notes = wording.left_out(left_out, setting.score) + wording.limits(setting, gains)
    guessing = {method: _here(paired, setting, len(over_guess)) for method, paired in over_guess.items()}
    if guessing and all(interval.low <= 0 for interval in guessing.values()):
        return _nobody(guessing, setting, over_guess, notes)
    estimates = {method: _estimate(paired, setting) for method, paired in gains.items()}
    intervals = {method: _interval(known, RISK / len(gains)) for method, known in estimates.items()}
    best, outcome = _choose(intervals)
    units = len(setting.names) if setting.groups is None else len(set(setting.groups))
    rows_needed = None
    if units < FEW:
        outcome = "cannot-tell"
    elif outcome == "cannot-tell":
        rows_needed = _rows_needed(estimates[best], RISK / len(gains), setting)
    clients = client_gains(gains[best], setting)
    said = wording.Said(setting, best, intervals[best], clients, len(gains), rows_needed, units, FEW)
    same = not any(np.any(paired.gains) for paired in gains.values())
    sentence = wording.no_difference(setting.score) if same else wording.sentence(outcome, said)
    return Verdict(outcome, sentence, best, intervals[best], intervals, clients, rows_needed, notes)


def interval_of(paired: Paired, setting: Setting, choices: int = 1) -> Interval:
    """Return the mean gain over clients like these with its 95 % interval, corrected for a choice among methods."""
    setting, gains, _, _ = _usable(setting, {"": paired}, {})
    if len(setting.names) < 2:
        mean = float(gains[""].gains.mean()) if setting.names else math.nan
        return Interval(mean, math.nan, -math.inf, math.inf)
    paired = gains[""]
    return _interval(_estimate(paired, setting), RISK / choices)


def client_gains(paired: Paired, setting: Setting) -> tuple[ClientGain, ...]:
    """Return every client's gain, with an interval from its own test rows and runs (95 % for each client).

    Clients whose score is not a number are left out, as in `judge`.
    """
    setting, gains, _, _ = _usable(setting, {"": paired}, {})
    if not setting.names:
        return ()
    paired = gains[""]
    runs = repetitions(paired.gains, setting.splits)
    noise = _noise(paired, setting)
    errors = client_errors(runs, paired.spread, setting.rows, noise)
    mean, reach = runs.mean(0), 1.96 * errors
    shrunk = mean
    if len(setting.names) > 1:
        whole = estimate(runs, noise, setting.groups)
        variance = np.nan_to_num(errors**2)
        trust = np.where(variance > 0, whole.between / np.where(variance > 0, whole.between + variance, 1), 1.0)
        shrunk = whole.mean + trust * (mean - whole.mean)
    edge = 1.0 if setting.score.percent else math.inf
    low, high = np.maximum(mean - reach, -edge), np.minimum(mean + reach, edge)
    known = np.isfinite(reach)
    return tuple(
        ClientGain(
            name,
            float(mean[k]),
            float(low[k]) if known[k] else None,
            float(high[k]) if known[k] else None,
            float(shrunk[k]),
            round(float(noise.rows[k])),
        )
        for k, name in enumerate(setting.names)
    )


def _usable(
    setting: Setting, gains: Mapping[str, Paired], over_guess: Mapping[str, Paired]
) -> tuple[Setting, dict[str, Paired], dict[str, Paired], list[str]]:
    """Leave out clients whose score is not a number, and groups that say nothing (all in one, or each in its own)."""
    every = [*gains.values(), *over_guess.values()]
    usable = np.all([np.isfinite(paired.gains).all(0) for paired in every], axis=0)
    names = [name for name, use in zip(setting.names, usable, strict=True) if use]
    left_out = [name for name, use in zip(setting.names, usable, strict=True) if not use]
    groups = None if setting.groups is None else np.unique(np.asarray(setting.groups)[usable], return_inverse=True)[1]
    if groups is not None and len(set(groups)) in (1, len(groups)):
        groups = None
    overlap = np.broadcast_to(setting.overlap, usable.shape)[usable]
    rows = np.broadcast_to(setting.rows, (len(every[0].gains), len(usable)))[:, usable]
    smaller = dataclasses.replace(setting, names=names, rows=rows, groups=groups, overlap=overlap)

    def select(paired: Paired) -> Paired:
        spread = None if paired.spread is None else paired.spread[:, usable]
        return Paired(paired.gains[:, usable], spread)

    ours, theirs = ({name: select(p) for name, p in given.items()} for given in (gains, over_guess))
    return smaller, ours, theirs, left_out


def _noise(paired: Paired, setting: Setting) -> Noise:
    return noise_of(paired.spread, setting.rows, setting.score.percent, setting.splits, setting.overlap)


def _estimate(paired: Paired, setting: Setting) -> Estimate:
    return estimate(repetitions(paired.gains, setting.splits), _noise(paired, setting), setting.groups)


def _interval(known: Estimate, risk: float) -> Interval:
    mean, reach = float(known.mean), float(half_width(known, risk))
    error = float(np.sqrt(np.maximum(known.clients, known.sampling) + known.runs))
    return Interval(mean, error, mean - reach, mean + reach)


def _here(paired: Paired, setting: Setting, choices: int) -> Interval:
    """Return the interval of the mean gain of these very clients."""
    known, noise = _estimate(paired, setting), _noise(paired, setting)
    mean, reach = float(known.mean), float(half_width_here(known, noise, RISK / choices))
    return Interval(mean, float(np.sqrt(known.sampling + known.measured)), mean - reach, mean + reach)


def _choose(intervals: Mapping[str, Interval]) -> tuple[str, Outcome]:
    """Return the method that the sentence names, and what its interval says."""
    ranked = sorted(intervals, key=lambda method: -intervals[method].mean)
    helpful = [method for method in ranked if intervals[method].low > 0]
    if helpful:
        return helpful[0], "helps"
    return ranked[0], "hurts" if all(interval.high < 0 for interval in intervals.values()) else "cannot-tell"


def _nobody(
    guessing: Mapping[str, Interval], setting: Setting, over_guess: Mapping[str, Paired], notes: tuple[str, ...]
) -> Verdict:
    """Return the verdict that no method was shown to be better than guessing."""
    best = max(guessing, key=lambda method: guessing[method].mean)
    sentence = wording.nobody(setting, best, guessing[best], len(guessing))
    clients = client_gains(over_guess[best], setting)
    return Verdict("nobody-beats-guessing", sentence, best, guessing[best], guessing, clients, None, notes)


def _rows_needed(known: Estimate, risk: float, setting: Setting) -> int | None:
    """Return how many more test rows would show a gain of this size in 80 of 100 comparisons; None: no number would.

    More rows remove the error of the test sets and nothing else: clients and seeds differ as before.
    """
    wanted = (float(known.mean) / POWER) ** 2
    removable = min(float(known.clients), float(known.sampling))

    def squared(factor: float) -> float:
        """Return half the width, squared, with so many times the rows."""
        scatter = float(known.clients) - removable + removable / factor
        shrinks = scatter / float(known.clients) if known.clients > 0 else 1 / factor
        runs = known.runs if len(setting.rows) > 1 else known.runs * shrinks  # one run: assumed from the scatter
        later = known._replace(clients=scatter, sampling=known.sampling / factor, runs=runs)
        return float(half_width(later, risk)) ** 2

    total = float(setting.rows.mean(0).sum())
    if squared(1 + MOST_ROWS / total) > wanted:
        return None
    few, many = 1.0, 1 + MOST_ROWS / total
    while many / few > 1.001:
        middle = math.sqrt(few * many)
        few, many = (few, middle) if squared(middle) <= wanted else (middle, many)
    return wording.rounded_up(total * (many - 1))
