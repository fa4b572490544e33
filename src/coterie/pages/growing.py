"""The page that grows while a comparison trains: what has happened so far, as `live.js` draws it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.comparison.folder import ComparisonFolder
from coterie.experiment.folder import RunFolder
from coterie.learning.score import score_of
from coterie.pages import plotly_javascript
from coterie.pages.content import band, plain
from coterie.pages.html import asset, document, figure, h, join
from coterie.pages.weights import evenly
from coterie.pages.words import count_text
from coterie.storage.owned import holds

__all__ = ["Growing"]

CLIENTS = 1000  # clients whose scores make the bands, at most
NOTES = 20  # notes that are kept
ENDED = ("end", "read")


class Growing:
    """What has happened in a comparison so far.

    Args:
        methods: the label of each method and its role.
        runs: how many runs there are in all.
        folder: the folder of the comparison: what its first run has written about the clients is shown.
        metric: the name of the score; None is the default of the task.
    """

    def __init__(self, methods: Mapping[str, str], runs: int, folder: Path | None, metric: str | None):
        self.methods, self.runs, self.folder, self.metric = dict(methods), runs, folder, metric
        self.clients: dict[str, Any] | None = None
        self.failures: dict[str, str] = {}
        self._curves: dict[str, dict[int, dict[str, list[np.ndarray]]]] = {label: {} for label in self.methods}
        self._running: dict[tuple[str, int], tuple[str, int, int]] = {}
        self._notes: list[str] = []
        self._started = time.monotonic()

    def update(self, label: str, seed: int, stage: str, number: int, rounds: int, metrics: Mapping[str, Any]) -> None:
        """Take one event of a run (see `coterie.comparison.compare.ComparisonProgress`)."""
        if stage == "note":
            self._notes = [*self._notes, str(metrics["note"])][-NOTES:]
            return
        if stage == "plan":
            self.runs = rounds
            return
        self.methods.setdefault(label, "cooperates")
        known = self._running.get((label, seed))
        self._running[label, seed] = (stage, number, rounds)
        if "test_score" not in metrics or (stage in ENDED and known is not None):
            return  # the end repeats the kept evaluation
        at = self._curves.setdefault(label, {}).setdefault(number, {"score": [], "loss": []})
        for name, values in at.items():
            if (given := metrics.get(f"test_{name}")) is not None:
                array = np.asarray(given, float)
                values.append(array[evenly(len(array), CLIENTS)])

    def state(self) -> dict[str, Any]:
        """Return what the page draws, as plain values."""
        self._read_folder()
        score = None if self.clients is None else score_of(self.clients["kind"], self.metric)
        state = {
            "methods": [{"method": label, "role": role} for label, role in self.methods.items()],
            "baseline": next((label for label, role in self.methods.items() if role == "alone"), None),
            "metric_name": "score" if score is None else score.label,
            "percent": score is not None and score.percent,
            "curves": {label: _drawn(points) for label, points in self._curves.items()},
            "running": [
                {"method": label, "seed": seed, "stage": stage, "round": number, "rounds": rounds}
                for (label, seed), (stage, number, rounds) in self._running.items()
            ],
            "done": sum(stage in ENDED for stage, _, _ in self._running.values()),
            "runs": max(self._expected(), len(self._running)),
            "failures": self.failures,
            "about": "" if self.clients is None else _about(self.clients),
            "seconds": round(time.monotonic() - self._started, 1),
            "notes": self._notes,
        }
        return plain(state)

    def _expected(self) -> int:
        """Return how many runs there will be: a method that failed has no more."""
        each = self.runs // max(len(self.methods), 1)
        begun = sum(label in self.failures for label, _ in self._running)
        return each * (len(self.methods) - len(self.failures)) + begun

    def _read_folder(self) -> None:
        """Read what the comparison has written: its plan, what failed, and about the clients."""
        folder = None if self.folder is None else ComparisonFolder(self.folder)
        if folder is None or not folder.exists():
            return
        self.failures = folder.failures()
        if self.clients is not None:
            return
        plan = folder.read()["compare"]
        self.methods = {label: self.methods.get(label, "cooperates") for label in plan["methods"]}
        self.runs = max(plan["seeds"], plan["splits"]) * len(self.methods)
        begun = (folder.run(*at) for at in self._running)
        self.clients = next((RunFolder(run).clients() for run in begun if holds(run, "clients.json")), None)

    def page(self) -> str:
        """Return the page: the look and the curves of the report."""
        opening = h(
            "header",
            h("h1", "Does cooperation help these clients?"),
            h("p", "Training is about to begin.", id="status", class_="verdict", aria_live="polite"),
            h("p", id="about", class_="about"),
            h("ul", id="runs", class_="runs"),
            h("ul", id="notes", class_="warnings", hidden=True),
        )
        legend = h("div", id="legend", class_="chips", role="group", aria_label="Methods shown")
        plots = [figure(f"{name}-curve", f"Test {name} over rounds", f"Test {name}") for name in ("score", "loss")]
        curves = join(
            h("p", "The mean over clients on their own test samples so far; the band holds the middle 80 % of them."),
            h("div", legend, class_="controls"),
            h("div", plots, class_="pair"),
        )
        return document(
            "coterie: training",
            opening,
            [("rounds", "Over rounds", curves)],
            self.state(),
            [plotly_javascript(), asset("figures.js"), asset("page.js"), asset("live.js")],
            connects=True,
            closing="This page grows while the comparison trains, and becomes its report.",
        )


def _drawn(points: Mapping[int, Mapping[str, list[np.ndarray]]]) -> dict[str, Any]:
    """Return a method's curves: mean and band over the clients of all runs that have come so far."""
    rounds = sorted(points)
    curve: dict[str, Any] = {"rounds": rounds}
    for name in ("score", "loss"):
        bands = [band(np.concatenate(points[number][name] or [np.empty(0)])) for number in rounds]
        curve[name] = {part: [values[i] for values in bands] for i, part in enumerate(("mean", "low", "high"))}
    return curve


def _about(clients: Mapping[str, Any]) -> str:
    samples = count_text(sum(clients["sizes"]["train"]))
    words = f"{count_text(len(clients['names']))} clients with {samples} training samples."
    return f"{words} {clients['about']}" if clients.get("about") else words
