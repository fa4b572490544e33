"""Simulated comparisons: how often does the verdict say "helps" or "hurts"?

Shared by `test_verdict_errors.py` (a few cases) and `benchmarks/verdict_errors.py` (all of them). Every case draws
comparisons from the model of `docs/concepts/evaluation.md`: clients whose true gains differ, in groups or not, a seed
that moves all clients of a run together, and test rows drawn from each client's pool, so that repeated splits share
rows. They are judged by the functions that the product uses, many at a time.
"""

import dataclasses
from typing import Any

import numpy as np

from coterie.comparison.intervals import estimate, half_width, noise_of, repetitions
from coterie.comparison.verdict import FEW, RISK

DISAGREE = 0.3  # share of rows on which a method is right and training alone wrong, or the other way round


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of comparison.

    Attributes:
        clients: K.
        rows: test rows of a client: a number, "3 to 1000" (geometric), or "one of 1000" (the others have 3).
        spread: standard deviation of the clients' true gains.
        seed: effect of the seed, as a share of the spread of the gains that one run shows.
        runs: runs of each method.
        splits: different splits among them.
        groups: known groups; 0: none.
        alike: correlation of the gains of a group.
        uneven: one group has half of the clients.
        methods: how many there are to choose from; all have the same true effect.
        binary: accuracy, else a continuous score.
        effect: the true mean gain.
        held_out: test rows / all rows of a client.
        skewed: the clients' true gains are skewed (exponential), which a Student interval does not expect.
    """

    clients: int
    rows: int | str = 50
    spread: float = 0.1
    seed: float = 0.0
    runs: int = 1
    splits: int = 1
    groups: int = 0
    alike: float = 0.0
    uneven: bool = False
    methods: int = 1
    binary: bool = True
    effect: float = 0.0
    held_out: float = 0.25
    skewed: bool = False

    def sizes(self) -> np.ndarray:
        """Return the clients' test rows `[K]`."""
        if self.rows == "3 to 1000":
            return np.round(np.geomspace(3, 1000, self.clients)).astype(int)
        if self.rows == "one of 1000":
            return np.where(np.arange(self.clients) == 0, 1000, 3)
        return np.full(self.clients, int(self.rows))

    def group_of(self) -> np.ndarray | None:
        """Return each client's group `[K]`."""
        if not self.groups:
            return None
        if not self.uneven:
            return np.arange(self.clients) % self.groups
        half = self.clients // 2
        return np.r_[np.zeros(half, int), 1 + np.arange(self.clients - half) % (self.groups - 1)]


def draw(case: Case, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return gains and their variance over rows, `[methods, count, runs, clients]` each."""
    rows, group = case.sizes(), case.group_of()
    shape = (case.methods, count, 1, case.clients)
    own = random.exponential(size=shape) - 1 if case.skewed else random.standard_normal(shape)
    if group is not None:
        shared = random.standard_normal((case.methods, count, 1, case.groups))[..., group]
        own = np.sqrt(case.alike) * shared + np.sqrt(1 - case.alike) * own
    true = case.effect + case.spread * own
    seen = np.sqrt(case.spread**2 + DISAGREE / np.median(rows))
    moved = case.seed * seen * random.standard_normal((case.methods, count, case.runs, 1))
    pool = np.maximum(np.round(rows / case.held_out).astype(int), rows)
    split = np.arange(case.runs) % case.splits
    draw_rows = _binary if case.binary else _continuous
    return draw_rows(true, moved, rows, pool, split, random)


def _binary(
    true: np.ndarray, moved: np.ndarray, rows: np.ndarray, pool: np.ndarray, split: np.ndarray, random: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a pool of won, lost and equal rows for every client, then the test rows of every split from it."""
    true = np.clip(true, -0.95, 0.95)
    differ = np.maximum(DISAGREE, np.abs(true))
    pool = np.broadcast_to(pool, true.shape)
    won = random.binomial(pool, (differ + true) / 2)
    lost = random.binomial(pool - won, np.clip((differ - true) / 2 / (1 - (differ + true) / 2), 0, 1))
    some = np.broadcast_to(rows, (*true.shape[:2], split.max() + 1, len(rows)))
    up = random.hypergeometric(won, pool - won, some)
    down = random.hypergeometric(lost, pool - won - lost, some - up)[..., split, :]
    up = up[..., split, :]
    flips = random.binomial(np.broadcast_to(rows, up.shape), np.clip(np.abs(moved), 0, 1) + np.zeros(up.shape))
    gains = (up - down + np.sign(moved) * flips) / rows
    return gains, np.clip((up + down + flips) / rows - gains**2, 0, None)


def _continuous(
    true: np.ndarray, moved: np.ndarray, rows: np.ndarray, pool: np.ndarray, split: np.ndarray, random: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the mean of every client's pool, then that of the test rows of every split given the pool's."""
    whole = true + np.sqrt(DISAGREE / pool) * random.standard_normal(true.shape)
    shape = (*true.shape[:2], split.max() + 1, len(rows))
    tested = whole + np.sqrt(DISAGREE * (1 / rows - 1 / pool)) * random.standard_normal(shape)
    squares = DISAGREE * random.chisquare(rows - 1, shape) / rows
    return tested[..., split, :] + moved, squares[..., split, :]


def said(case: Case, count: int, random: np.random.Generator) -> tuple[float, float]:
    """Return how often the verdict is "helps" and "hurts"."""
    gains, spread = draw(case, count, random)
    group = case.group_of()
    splits = np.arange(case.runs) % case.splits
    rows = np.broadcast_to(case.sizes(), (case.runs, case.clients))
    overlap = case.held_out / (1 - case.held_out)
    low, high = [], []
    for own, variance in zip(gains, spread, strict=True):
        noise = noise_of(variance, rows, case.binary, splits, overlap)
        known = estimate(repetitions(own, splits), noise, group)
        if (case.groups or case.clients) < FEW:
            return 0.0, 0.0
        reach = half_width(known, RISK / case.methods)
        low.append(known.mean - reach)
        high.append(known.mean + reach)
    helps, hurts = np.max(low, 0) > 0, np.max(high, 0) < 0
    return float(helps.mean()), float(hurts.mean())
