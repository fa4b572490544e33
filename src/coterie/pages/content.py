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
from coterie.pages.path import cluster_paths
from coterie.pages.weights import client_order, evenly, weight_maps
from coterie.pages.words import clip, count_text, label_text

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["content", "per_client", "worst_clients"]

CLIENTS = 500  # clients drawn one by one, for each method
CLIENTS_IN_ALL = 6000  # clients drawn one by one, for all methods together
CURVE_POINTS = 400
PARTITION_CLIENTS = 200
PARTITION_CLASSES = 200
BAND = (0.1, 0.9)


def content(comparison: "Comparison") -> dict[str, Any]:
    """Return everything `report.js` draws, as plain values ready for JSON."""
    board = comparison.leaderboard()
    clients = comparison.clients
    methods = [row["method"] for row in board]
    drawn = {name: _sampled(comparison, name, len(methods)) for name in methods}
    partition = _partition(clients)
    used = {i for part in drawn.values() for i in part["ids"]} | set(partition["ids"])
    score = comparison.score
    drawing = {
        "metric": score.name,
        "metric_name": score.label,
        "percent": score.percent,
        "higher_is_better": score.higher_is_better,
        "baseline": comparison.baseline,
        "chosen": comparison.best(),
        "methods": [
            {key: row[key] for key in ("method", "pooled", "mean", "bytes_per_client")} | {"color": i}
            for i, row in enumerate(board)
        ],
        "count": len(clients["names"]),
        "clients": {str(i): _about(clients, i) for i in sorted(used)},
        "curves": {name: _curve(comparison.results[name]) for name in methods},
        "per_client": drawn,
        "weights": weight_maps({name: comparison.results[name][0] for name in methods}, clients),
        "quality": {
            name: _quality(comparison.results[name]) for name in methods if "graph_l1" in _last(comparison, name)
        },
        "paths": cluster_paths({name: comparison.results[name][0] for name in methods}, clients),
        "partition": partition,
    }
    return _plain(drawing)


def per_client(comparison: "Comparison", method: str) -> dict[str, np.ndarray | None]:
    """Return `score`, `alone` and `gain` of every client, `[K]` each, means over seeds (None without a baseline)."""
    baseline = comparison.baseline
    gain = None if baseline in (None, method) else comparison.gains(method)
    alone = None if gain is None or baseline is None else _over_seeds(comparison.scores(baseline))
    return {
        "score": _over_seeds(comparison.scores(method)),
        "alone": alone,
        "gain": None if gain is None else _over_seeds(gain),
    }


def worst_clients(comparison: "Comparison", method: str, most: int = 10) -> list[dict[str, Any]]:
    """Return the clients a method serves worst: name, score, training alone, gain, training samples, labels."""
    values = per_client(comparison, method)
    order = _worst_first(values["score"], comparison.score)[:most]
    return [
        {name: None if value is None else float(value[i]) for name, value in values.items()}
        | _about(comparison.clients, int(i))
        for i in order
    ]


def _over_seeds(values: Any) -> np.ndarray:
    """Return one number per client: `[seeds, K]` becomes `[K]`."""
    array = np.asarray(values, float)
    return array.mean(0) if array.ndim == 2 else array


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
        shown["median_gain"] = float(np.median(gain))
    note = ""
    if len(ids) < len(order):
        note = f"{count_text(len(ids))} of {count_text(len(order))} clients are drawn, evenly spaced in order of score."
    return shown | {"ids": ids.tolist(), "note": note}


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
            curve[name].append(_band(np.concatenate([np.asarray(row[f"test_{name}"], float) for row in reached])))
        sent = [np.mean(row["bytes_sent"]) + np.mean(row["bytes_received"]) for row in reached if "bytes_sent" in row]
        curve["bytes"].append(float(np.mean(sent)) if sent else None)
    for name in ("score", "loss"):
        curve[name] = dict(zip(("mean", "low", "high"), zip(*curve[name], strict=True), strict=True))
    curve["stopped_early"] = len({result.rows[-1]["round"] for result in results}) > 1
    return curve


def _last(comparison: "Comparison", name: str) -> dict[str, Any]:
    return comparison.results[name][0].rows[-1]


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


def _band(values: np.ndarray) -> tuple[float, float, float]:
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
        table |= {"classes": classes, "counts": labels[np.ix_(ids, classes)].T}
    elif clients["kind"] == "classification":
        notes.append("The labels of so many clients are not recorded; these are their numbers of samples.")
    return table | {"note": " ".join(notes)}


def _about(clients: dict[str, Any], i: int) -> dict[str, Any]:
    labels, groups = clients.get("label_counts"), clients.get("groups")
    return {
        "name": clip(str(clients["names"][i])),
        "samples": int(clients["sizes"]["train"][i]),
        "labels": label_text(labels[i]) if labels and len(labels[i]) else "",
        "group": None if groups is None else groups[i],
    }


def _plain(value: Any) -> Any:
    """Return plain JSON values: six significant digits draw any plot, and JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
