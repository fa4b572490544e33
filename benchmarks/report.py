"""The report of very many clients: its size, how long it takes to write, and until a browser has drawn all of it.

    python benchmarks/report.py --clients 2000,20000

Made-up results of eight methods with two runs each, one of them with a graph of three neighbours. Drawn is the shortest
of several loads in headless Chromium, from the request to the end of the page's own scripts, with every plot in place.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import publish

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.experiment.result import Result
from coterie.pages import write_report
from coterie.peers.ledger import Ledger

METHODS = ("local", "pooled", "fedavg", "fedavg-finetuned", "ditto", "apfl", "fedprox", "gossip-sgd")
ROLES = {"local": "alone", "pooled": "pooled"}
ROUNDS = range(5, 205, 5)
DRAWN = "() => [...document.querySelectorAll('.plot')].every((place) => place.querySelector('svg'))"


def comparison(count: int, classes: int = 10) -> Comparison:
    """Return made-up results."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 30, (count, classes))
    names = tuple(f"client-{i}" for i in range(count))
    clients: dict[str, Any] = {"names": names, "kind": "classification", "classes": classes, "about": "made up"}
    clients |= {"groups": None, "label_counts": labels.tolist()}
    clients["sizes"] = {"train": labels.sum(1).tolist(), "validation": [5] * count, "test": [20] * count}
    results = {method: [_result(names, method, seed, random) for seed in range(2)] for method in METHODS}
    return Comparison(results, clients, baseline_of(results), "coterie compare", None)


def _result(names: tuple[str, ...], method: str, seed: int, random: np.random.Generator) -> Result:
    count = len(names)
    skill, graphs = random.uniform(0.4, 0.9, count), {}
    rows = []
    for number in ROUNDS:
        score = skill * (1 - np.exp(-number / 40))
        rows.append({"round": number, "test_score": score, "test_own_score": score, "test_loss": 2 - score})
        if method == "gossip-sgd":
            neighbours = (np.arange(count)[:, None] + random.integers(1, count, (count, 3))) % count
            weights = random.uniform(0, 0.2, (count, 3))
            graphs[number] = {"neighbours": neighbours, "present": np.ones((count, 3), bool), "weights": weights}
    config = {"data": {"name": "digits"}, "method": {"name": method}, "run": {"rounds": ROUNDS[-1], "seed": seed}}
    return Result(
        config=config,
        names=names,
        rows=rows,
        ledger=Ledger(names, np.zeros((count, 0), int), []),
        graphs=graphs,
        seconds={"wall": 3.0, "compile": 1.0, "program": 2.0},
        best_round=ROUNDS[-1],
        metric="accuracy",
        device="cpu",
        role=ROLES.get(method, "cooperates"),
    )


def drawn(file: Path, repeats: int) -> float:
    """Return the shortest time until a browser has drawn a report."""
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(repeats):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            start = time.perf_counter()
            page.goto(file.as_uri())
            page.wait_for_function(DRAWN)
            times.append(time.perf_counter() - start)
            page.close()
        browser.close()
    return min(times)


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="2000,20000")
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, given.clients.split(",")):
            made = comparison(count)
            start = time.perf_counter()
            file = write_report(made, Path(folder) / f"{count}.html")
            written = time.perf_counter() - start
            size = file.stat().st_size / 1e6
            rows.append({"clients": count, "megabytes": round(size, 2), "seconds to write": round(written, 2)})
            rows[-1]["seconds until drawn"] = round(drawn(file, given.repeats), 2)
    publish("report", "cpu", {"table": rows})


if __name__ == "__main__":
    main()
