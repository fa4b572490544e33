"""How often does the verdict say "helps" or "hurts" where nothing does, and how often where something does?

    python benchmarks/verdict_errors.py [--comparisons 1000] [--out FILE]

Every case draws comparisons from the model of `docs/concepts/evaluation.md`: clients whose true gains differ, in groups
or not, a seed that moves all clients of a run together, and test rows drawn from each client's pool, so that repeated
splits share rows. They are judged by the functions that the product uses, many at a time. NumPy only; about two minutes.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
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
    own = random.standard_normal(shape)
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


ROWS: tuple[int | str, ...] = (3, 30, 1000, "3 to 1000", "one of 1000")
RUNS = ({"runs": 1}, {"runs": 2, "splits": 2}, {"runs": 5, "splits": 5}, {"runs": 5, "splits": 1})


def null_cases() -> Iterator[tuple[str, Case]]:
    """Yield cases without any effect, with the name of their family."""
    for clients, rows, spread, binary, runs in itertools.product(
        (2, 3, 5, 10, 20, 100), ROWS, (0.0, 0.1), (True, False), RUNS
    ):
        for seed in (0.0, 0.3, 1.0):
            yield f"seed {seed:g}", Case(clients, rows, spread, seed, binary=binary, **runs)
    for clients, rows, runs, count in itertools.product((20, 100), (30, "3 to 1000"), RUNS, (3, 5, 10)):
        for uneven in (False, True):
            yield "groups .7", Case(clients, rows, groups=count, alike=0.7, uneven=uneven, **runs)
    for clients, rows, seed, runs in itertools.product((3, 20, 100), (30, "3 to 1000"), (0.0, 0.3), RUNS):
        yield "7 methods", Case(clients, rows, seed=seed, methods=7, **runs)


def power_cases() -> Iterator[tuple[str, Case]]:
    """Yield cases with an effect, as a person would describe them."""
    for methods, runs in itertools.product((1, 7), RUNS):
        for effect, clients, rows, spread in (
            (0.08, 20, 50, 0.03),
            (0.08, 20, 50, 0.1),
            (0.08, 10, 50, 0.05),
            (0.15, 5, 100, 0.05),
            (0.05, 100, "3 to 1000", 0.1),
            (0.08, 20, "3 to 1000", 0.1),
        ):
            words = f"+{100 * effect:.0f} points, {clients} clients, {rows} rows, spread {100 * spread:.0f}"
            yield words, Case(clients, rows, spread, methods=methods, effect=effect, **runs)
    for runs in RUNS:
        yield "+15 points, 20 clients in 3 groups", Case(20, 50, 0.03, groups=3, alike=0.7, effect=0.15, **runs)


def run(count: int) -> dict[str, Any]:
    """Return the rates of all cases."""
    random = np.random.default_rng(2026)
    rows: dict[str, list[dict[str, Any]]] = {"no effect": [], "effect": []}
    for kind, cases in (("no effect", null_cases()), ("effect", power_cases())):
        for family, case in cases:
            helps, hurts = said(case, count, random)
            rows[kind].append({"family": family, **dataclasses.asdict(case), "helps": helps, "hurts": hurts})
    return rows


def main() -> None:
    """Run all cases, print a summary and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    start = time.process_time()
    rows = run(arguments.comparisons)
    rates = [row["helps"] + row["hurts"] for row in rows["no effect"]]
    for family in dict.fromkeys(row["family"] for row in rows["no effect"]):
        of_family = [rate for rate, row in zip(rates, rows["no effect"], strict=True) if row["family"] == family]
        print(f"{family:12} {len(of_family):4} cases: mean {np.mean(of_family):.3f}, largest {max(of_family):.3f}")
    record = {
        "benchmark": "verdict-errors",
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "comparisons": arguments.comparisons,
        "cpu_seconds": round(time.process_time() - start, 1),
        "largest": max(rates),
        **rows,
    }
    out = arguments.out or Path(__file__).parent / "results" / f"{record['date']}-verdict-errors.json"
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"largest false rate {max(rates):.3f} of {len(rates)} cases; {out}")


if __name__ == "__main__":
    main()
