"""A made-up comparison with everything the report can show: hospitals in three groups, and a table that went in."""

from pathlib import Path

import numpy as np

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.experiment.scores import Scores
from support.report_cases import make_clients, make_result

LEVELS = {
    "local": 0.70,
    "fedavg": 0.66,
    "fedavg-finetuned": 0.73,
    "ditto": 0.74,
    "scool-sbm": 0.81,
    "network-lasso": 0.79,
    "pooled": 0.68,
    "guess": 0.45,
}
COST = {"local": 0, "guess": 0, "pooled": 400, "scool-sbm": 3100, "network-lasso": 2200}  # bytes; others 1,000
ROLES = {"local": "alone", "pooled": "pooled", "guess": "guess"}
SITES = ("Aachen", "Bergen", "Cork", "Delft", "Espoo", "Fulda", "Ghent", "Halle", "Izmir", "Jena", "Kiel", "Lund")
INTAKE = {
    "task": "classification, 2 classes: no 1,203, yes 292 (target died)",
    "inputs": 8,
    "columns": [
        {"name": "age", "kind": "number", "missing": 0.031, "becomes": ["age", "age missing"], "note": ""},
        {"name": "ward", "kind": "words", "missing": 0.0, "becomes": list("abc"), "note": "icu, medical, surgical"},
        {"name": "admitted", "kind": "date", "missing": 0.004, "becomes": ["time", "month", "hour"], "note": "a date"},
        {"name": "patient", "kind": "identifier", "missing": 0.0, "becomes": [], "note": "1,495 different values"},
        {"name": "country", "kind": "constant", "missing": 0.0, "becomes": [], "note": ""},
    ],
    "warnings": ["discharge_code alone predicts died almost perfectly (AUROC 0.99): is it known in advance?"],
    "statistics": "numbers are scaled with the mean and deviation of all sites' training rows",
}
SCORES = {"accuracy": 0.0, "auroc": 0.03}


def block_graph(groups, seed=0, blur=0.04):
    """Weights that are large within a group, and small between groups."""
    draw = np.random.default_rng(seed)
    groups = np.asarray(groups)
    count = len(groups)
    neighbours = np.array([[j for j in range(count) if j != i] for i in range(count)])
    raw = (groups[neighbours] == groups[:, None]) + blur * draw.random(neighbours.shape)
    weights = 0.6 * raw / np.maximum(raw.sum(1, keepdims=True), 1)
    return {"neighbours": neighbours, "present": np.ones(neighbours.shape, bool), "weights": weights}


def make_answer(
    count=12, kind="classification", plain=False, known=False, runs=2, names=None, class_names=("no", "yes")
):
    """Return the comparison; a plain one has neither a learned graph nor tuning, failures, other scores or a table."""
    groups = [i * 3 // count for i in range(count)]
    names = names or [SITES[i % 12] + (f" {i // 12 + 1}" if count > 12 else "") for i in range(count)]
    clients = make_clients(count, kind, len(class_names), groups if known else None, names)
    methods = ("local", "fedavg", "ditto", "pooled") if plain else tuple(LEVELS)
    results = {}
    for method in methods:
        graphs = {}
        if method in ("scool-sbm", "network-lasso"):
            blur = 0.0 if method == "network-lasso" else 2.0
            graphs = {n: block_graph(groups, n, blur / n) for n in (5, 10, 15, 20)}
        runs = [
            make_result(clients, method, seed, level=LEVELS[method], size=COST.get(method, 1000), graphs=graphs)
            for seed in range(2)
        ]
        for result in runs:
            result.role = ROLES.get(method, "cooperates")
            result.seconds = {"wall": 3.5 + COST.get(method, 1000) / 500, "compile": 1.25, "program": 2.0}
            if not plain and kind == "classification":
                test = {name: result.final["test_score"] + more for name, more in SCORES.items()}
                result.scored = Scores(test, {}, np.full(count, 7), {})
        results[method] = runs
    comparison = Comparison(results, clients, baseline_of(results), "coterie compare visits.csv", Path("comparison"))
    if plain:
        return comparison
    clients |= {"class_names": list(class_names) if kind == "classification" else [], "intake": INTAKE}
    comparison.failures = {"fedprox": "training diverged in round 3; try a smaller method.lr"}
    comparison.tuning = {
        method: [tuned(method, split) for split in range(3)] for method in ("local", "fedavg", "ditto")
    }
    return comparison


def tuned(method, split):
    """The record of one split: three learning rates, the best of which depends on the split; one diverged."""
    values = {"lr": [0.02, 0.1, 2.0]} | ({"tie": [0.1, 1.0]} if method == "ditto" else {})
    rate = 0.02 if split == 2 else 0.1
    losses = {0.02: 0.5, 0.1: 0.6 if split == 2 else 0.4, 2.0: None}
    candidates = [{"settings": {"lr": lr}, "rounds": 20, "validation_loss": loss} for lr, loss in losses.items()]
    chosen = {"lr": rate} | ({"tie": 1.0} if method == "ditto" else {})
    return {"values": values, "candidates": candidates, "chosen": chosen, "seconds": 1.5}
