"""How often does the verdict say "helps" or "hurts" where nothing does, and how often where something does?

    python benchmarks/verdict_errors.py [--comparisons 1000] [--seed 2026] [--out FILE]

The cases and what they assume: `tests/support/verdict_cases.py`. NumPy only; about one minute.
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.verdict_cases import Case, said

ROWS: tuple[int | str, ...] = (3, 30, 1000, "3 to 1000", "one of 1000")
RUNS = ({"runs": 1}, {"runs": 2, "splits": 2}, {"runs": 5, "splits": 5}, {"runs": 5, "splits": 1})


def null_cases() -> Iterator[tuple[str, Case]]:
    """Yield cases without any effect, with the name of their family."""
    for clients, rows, spread, binary, runs in itertools.product(
        (2, 3, 5, 10, 20, 100), ROWS, (0.0, 0.1), (True, False), RUNS
    ):
        for seed in (0.0, 0.3):
            yield f"seed {seed:g}", Case(clients, rows, spread, seed, binary=binary, **runs)
    for clients, rows, runs, count in itertools.product((20, 100), (30, "3 to 1000"), RUNS, (3, 5, 10)):
        for uneven in (False, True):
            yield "groups .7", Case(clients, rows, groups=count, alike=0.7, uneven=uneven, **runs)
    for clients, rows, seed, runs in itertools.product((3, 20, 100), (30, "3 to 1000"), (0.0, 0.3), RUNS):
        yield "7 methods", Case(clients, rows, seed=seed, methods=7, **runs)


def limit_cases() -> Iterator[tuple[str, Case]]:
    """Yield cases that the interval is not made for: a seed as strong as all clients' differences, skewed gains."""
    for clients, runs in itertools.product((5, 20, 100), RUNS):
        yield "seed 1", Case(clients, 50, 0.1, seed=1.0, **runs)
        yield "skewed", Case(clients, 1000, 0.1, skewed=True, binary=False, **runs)


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


def run(count: int, seed: int) -> dict[str, Any]:
    """Return the rates of all cases."""
    random = np.random.default_rng(seed)
    rows: dict[str, list[dict[str, Any]]] = {}
    for kind, cases in (("no effect", null_cases()), ("limits", limit_cases()), ("effect", power_cases())):
        rows[kind] = []
        for family, case in cases:
            helps, hurts = said(case, count, random)
            rows[kind].append({"family": family, **dataclasses.asdict(case), "helps": helps, "hurts": hurts})
    return rows


def main() -> None:
    """Run all cases, print a summary and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    start = time.process_time()
    rows = run(arguments.comparisons, arguments.seed)
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
        "seed": arguments.seed,
        "largest": max(rates),
        "above 0.05": sum(rate > 0.05 for rate in rates),
        **rows,
    }
    out = arguments.out or Path(__file__).parent / "results" / f"{record['date']}-verdict-errors.json"
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"largest false rate {max(rates):.3f} of {len(rates)} cases; {out}")


if __name__ == "__main__":
    main()
