"""The numbers the report draws, reduced so that the file stays small however many clients there are.

Curves pool all clients and seeds, so they cost the same at any size. Plots of single clients show at most `CLIENTS`
of them, evenly spaced in the order in which they are drawn: the shape stays the same, and a note says so.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.experiment.result import Result
from coterie.learning.score import Score
from coterie.pages.answer import gains, partners
from coterie.pages.path import cluster_paths
from coterie.pages.weights import client_order, evenly, weight_maps
from coterie.pages.words import clip, count_text, label_text

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["band", "content", "drawn", "per_client", "plain", "worst_clients"]

CLIENTS = 300  # clients drawn one by one, for each method: more dots than that hide each other
CLIENTS_IN_ALL = 6000  # clients drawn one by one, for all methods together
CURVE_POINTS = 400
PARTITION_CLIENTS = 200
PARTITION_CLASSES = 200
BAND = (0.1, 0.9)
WRITTEN = ("gains", "partners")  # what only the sections use


def content(comparison: "Comparison") -> dict[str, Any]:
    """Return what the sections write and `report.js` draws; `drawn` is the part that is embedded as JSON."""
    board = [row for row in comparison.leaderboard() if not row["failed"]]
    clients = comparison.clients
    methods = [row["method"] for row in board]
    single = {name: _sampled(comparison, name, len(methods)) for name in methods}
    partition = _partition(clients)
    used = {i for part in single.values() for i in part["ids"]} | set(partition["ids"])
    score, learned = comparison.score, partners(comparison)
    first, found = (learned["method"], learned["found"]) if learned else (None, None)
    labels = found.labels if found is not None and len(found.groups) > 1 else None
    drawing = {
        "metric": score.name,
        **_unit(score),
        "trained": _unit(next(iter(comparison.results.values()))[0].score),  # of the curves
        "baseline": comparison.baseline,
        "chosen": comparison.best(),
        "methods": [
            {key: row[key] for key in ("method", "role", "bytes_per_client")}
            | {"end": _end(comparison.results[row["method"]])}
            for row in board
        ],
        "count": len(clients["names"]),
        "clients": {str(i): _about(clients, i) for i in sorted(used)},
        "curves": {name: _curve(comparison.results[name]) for name in methods},
        "per_client": single,
        "weights": weight_maps(
            {name: comparison.results[name][0] for name in sorted(methods, key=lambda name: name != first)},
            clients,
            labels,
        ),
        "quality": _qualities(comparison, methods),
        "paths": cluster_paths({name: comparison.results[name][0] for name in methods}, clients),
        "partition": partition,
    }
    return plain(drawing) | {"gains": gains(board), "partners": learned}


def drawn(data: dict[str, Any]) -> dict[str, Any]:
    """Return what `report.js` draws, as plain values ready for JSON."""
    return {name: value for name, value in data.items() if name not in WRITTEN}


def _unit(score: Score) -> dict[str, Any]:
    return {"metric_name": score.label, "percent": score.percent, "higher_is_better": score.higher_is_better}


def _end(results: Sequence[Result]) -> float:
    """Return the score of the kept models in the unit of the curves, mean over clients and runs."""
    return float(np.nanmean([np.nanmean(result.final["test_score"]) for result in results]))


def per_client(comparison: "Comparison", method: str) -> dict[str, np.ndarray | None]:
    """Return `score`, `alone` and `gain` of every client, `[K]` each, means over seeds (None without a baseline)."""
    baseline = comparison.baseline
    gain = None if baseline in (None, method) else comparison.gains(method)
    alone = None if gain is None or baseline is None else comparison.scores(baseline)
    return {"score": comparison.scores(method), "alone": alone, "gain": gain}


def worst_clients(comparison: "Comparison", method: str, most: int = 10) -> list[dict[str, Any]]:
    """Return the clients a method serves worst: name, score, training alone, gain, training samples, labels."""
    values = per_client(comparison, method)
    order = _worst_first(values["score"], comparison.score)[:most]
    return [
        {name: None if value is None else float(value[i]) for name, value in values.items()}
        | _about(comparison.clients, int(i))
        for i in order
    ]


def _worst_first(values: Any, score: Score) -> np.ndarray:
    return np.argsort(score.sign * values, kind="stable")


def _sampled(comparison: "Comparison", method: str, methods: int) -> dict[str, Any]:
    """Return a sample of clients from the worst to the best under one method, and how many of *all* clients gain."""
    values = per_client(comparison, method)
    order = _worst_first(values["score"], comparison.score)
    most = min(CLIENTS, max(50, CLIENTS_IN_ALL // methods))
    ids = order[evenly(len(order), most)]
    shown: dict[str, Any] = {name: None if value is None else value[ids] for name, value in values.items()}
    gain = values["gain"]
    if gain is not None:
        shown["gaining"], shown["losing"] = int((gain > 0).sum()), int((gain < 0).sum())
        shown["median_gain"] = float(np.nanmedian(gain))
        shown["reach"] = _reach(comparison, method, ids)
    note = ""
    if len(ids) < len(order):
        note = f"{count_text(len(ids))} of {count_text(len(order))} clients are drawn, evenly spaced in order of score."
    return shown | {"ids": ids.tolist(), "note": note}


def _reach(comparison: "Comparison", method: str, ids: np.ndarray) -> list[float | None] | None:
    """Return how far each drawn client's gain may be off (half its 95 % interval); None where it is not known."""
    if len(comparison.clients["names"]) > CLIENTS:
        return None
    known = {c.client: None if c.high is None else c.high - c.gain for c in comparison.client_gains(method)}
    return [known.get(comparison.clients["names"][i]) for i in ids]


def _curve(results: Sequence[Result]) -> dict[str, Any]:
    """Return score and loss over rounds: mean and band over all clients of all seeds, and the bytes so far."""
    numbers = sorted({row["round"] for result in results for row in result.rows})
    rounds = [numbers[i] for i in evenly(len(numbers), CURVE_POINTS)]
    curve: dict[str, Any] = {"rounds": rounds, "score": [], "loss": [], "bytes": []}
    for number in rounds:
        # A seed that stopped early stays where it stopped.
        rows = [max((r for r in result.rows if r["round"] <= number), key=_round, default=None) for result in results]
        reached = [row for row in rows if row is not None]
        for name in ("score", "loss"):
            curve[name].append(band(np.concatenate([np.asarray(row[f"test_{name}"], float) for row in reached])))
        sent = [np.mean(row["bytes_sent"]) + np.mean(row["bytes_received"]) for row in reached if "bytes_sent" in row]
        curve["bytes"].append(float(np.mean(sent)) if sent else None)
    for name in ("score", "loss"):
        curve[name] = dict(zip(("mean", "low", "high"), zip(*curve[name], strict=True), strict=True))
    curve["stopped_early"] = len({result.rows[-1]["round"] for result in results}) > 1
    return curve


def _qualities(comparison: "Comparison", methods: Sequence[str]) -> dict[str, Any]:
    """Return how good the learned graphs are; empty where no groups are known, so that nothing is right or wrong."""
    if comparison.clients.get("groups") is None:
        return {}
    last = {name: comparison.results[name][0].rows[-1] for name in methods}
    return {name: _quality(comparison.results[name]) for name in methods if "graph_l1" in last[name]}


def _quality(results: Sequence[Result]) -> dict[str, Any]:
    """Return how a learned graph compares with the true groups over rounds, means over seeds."""
    rounds = [row["round"] for row in results[0].rows]
    curves: dict[str, Any] = {"rounds": rounds}
    for name in ("graph_auroc", "graph_ari", "graph_l1"):
        values = [[row.get(name, math.nan) for row in result.rows if row["round"] in rounds] for result in results]
        same_length = [value for value in values if len(value) == len(rounds)]
        curves[name] = np.mean(same_length, axis=0)
    return curves


def _round(row: dict[str, Any]) -> int:
    return row["round"]


def band(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over clients, and between which values the middle 80 % of them lie."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return math.nan, math.nan, math.nan
    low, high = np.quantile(finite, BAND)
    return float(finite.mean()), float(low), float(high)


def _partition(clients: dict[str, Any]) -> dict[str, Any]:
    """Return what data each client has: label counts where there are labels, otherwise only sizes."""
    total = len(clients["names"])
    labels = np.asarray(clients.get("label_counts") or [], np.int64)
    has_labels = labels.ndim == 2 and labels.shape[1] > 0
    train = np.asarray(clients["sizes"]["train"])
    order = client_order(clients) if has_labels else np.argsort(train, kind="stable")
    ids = order[evenly(total, PARTITION_CLIENTS)]
    table: dict[str, Any] = {"ids": ids.tolist(), "counts": None, "classes": None}
    table["sizes"] = {part: np.asarray(count)[ids] for part, count in clients["sizes"].items()}
    notes = []
    if len(ids) < total:
        notes.append(f"{len(ids)} of {count_text(total)} clients are drawn, evenly spaced in this order.")
    if has_labels:
        classes = np.arange(labels.shape[1])
        if len(classes) > PARTITION_CLASSES:
            classes = np.sort(np.argsort(-labels.sum(0), kind="stable")[:PARTITION_CLASSES])
            notes.append(f"The {PARTITION_CLASSES} most frequent of {count_text(labels.shape[1])} classes are drawn.")
        names = clients.get("class_names") or range(labels.shape[1])
        table |= {"classes": [clip(str(names[c])) for c in classes], "counts": labels[np.ix_(ids, classes)].T}
    elif clients["kind"] == "classification":
        notes.append("The labels of so many clients are not recorded; these are their numbers of samples.")
    return table | {"note": " ".join(notes)}


def _about(clients: dict[str, Any], i: int) -> dict[str, Any]:
    labels, groups = clients.get("label_counts"), clients.get("groups")
    return {
        "name": clip(str(clients["names"][i])),
        "samples": int(clients["sizes"]["train"][i]),
        "labels": label_text(labels[i], clients.get("class_names") or ()) if labels and len(labels[i]) else "",
        "group": None if groups is None else groups[i],
    }


def plain(value: Any) -> Any:
    """Return plain JSON values: six significant digits draw any plot, and JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
