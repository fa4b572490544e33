"""Made-up comparisons for the tests of the report, and a reader of what it writes."""

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.experiment.result import Result
from coterie.pages import write_report
from coterie.peers.ledger import Ledger

EVIL = "</script><script>alert(1)</script>"
LIMIT = 10_000_000
ROLES = {"local": "alone", "local-exact": "alone", "pooled": "pooled", "pooled-exact": "pooled"}


def make_clients(count=12, kind="classification", classes=4, groups=None, names=None, seed=0):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 30, (count, classes)) * (draw.random((count, classes)) < 0.5)
    labels[np.arange(count), np.arange(count) % classes] += 10
    if kind != "classification":
        labels = np.zeros((count, 0), int)
    train = labels.sum(1) if kind == "classification" else draw.integers(10, 90, count)
    return {
        "names": names or [f"client-{i}" for i in range(count)],
        "kind": kind,
        "classes": classes,
        "about": "made up for a test",
        "groups": groups,
        "sizes": {"train": train.tolist(), "validation": [5] * count, "test": [7] * count},
        "label_counts": labels.tolist() if count <= 5000 else [],
    }


def make_graph(count, degree=3, seed=0):
    draw = np.random.default_rng(seed)
    neighbours = np.stack([np.delete(np.arange(count), i)[draw.permutation(count - 1)[:degree]] for i in range(count)])
    weights = draw.random((count, degree)) / (2 * degree)
    return {"neighbours": neighbours, "present": np.ones((count, degree), bool), "weights": weights}


def make_result(clients, method, seed=0, rounds=(5, 10, 15, 20), level=0.8, size=1000, graphs=None, stop=None):
    """Return a result whose clients get better over the rounds, with a hub that sends `size` bytes each way."""
    draw = np.random.default_rng([seed, *method.encode()])
    names = tuple(clients["names"])
    regression = clients["kind"] == "regression"
    skill = np.clip(level + 0.1 * draw.standard_normal(len(names)), 0.05, 1)
    rows = []
    for number in rounds:
        if stop is not None and number > stop:
            break
        progress = skill * (1 - np.exp(-number / 6))
        score = 2 - progress if regression else progress
        sent = np.full(len(names), size * number)
        rows.append(
            {
                "round": number,
                "test_score": score.tolist(),
                "test_loss": (2 - progress).tolist(),
                "test_own_score": score.tolist(),
                "bytes_sent": sent.tolist(),
                "bytes_received": sent.tolist(),
            }
        )
    last = rows[-1]["round"]
    traffic = np.full((last, len(names)), size)
    block = {"rounds": np.arange(last) + 1, "up_bytes": traffic, "down_bytes": traffic}
    return Result(
        config={
            "format": 1,
            "data": {"name": "digits"},
            "method": {"name": method, "lr": 0.1},
            "run": {"rounds": rounds[-1], "seed": seed},
        },
        names=names,
        rows=rows,
        ledger=Ledger(names, np.zeros((len(names), 0), int), [block] if size else []),
        graphs=graphs or {},
        seconds={"wall": 3.5, "compile": 1.25, "program": 2.0},
        best_round=last,
        metric="rmse" if regression else "accuracy",
        device="cpu (a test)",
        role=ROLES.get(method, "cooperates"),
    )


def make_comparison(clients=None, methods=("local", "pooled", "fedavg", "gossip-sgd"), seeds=2, **more):
    clients = clients or make_clients()
    results = {}
    for i, method in enumerate(methods):
        graphs = {}
        if method == "gossip-sgd":
            graphs = {number: make_graph(len(clients["names"]), seed=number) for number in (5, 10, 15, 20)}
        size = 0 if method == "local" else 1000
        results[method] = [
            make_result(clients, method, seed, level=0.6 + 0.05 * i, size=size, graphs=graphs, **more)
            for seed in range(seeds)
        ]
    return Comparison(results, clients, baseline_of(results), "coterie compare --methods 'a & b'", Path("folder"))


class Page(HTMLParser):
    """What a browser sees: elements, the text of scripts, and the cells of tables."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.tables, self._open, self._inside = [], [], [], False, ""
        self.table = {}  # those with an id
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")
        if tag == "table":
            self.tables.append([])
            self.table[dict(attributes).get("id")] = self.tables[-1]
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._open = True

    def handle_endtag(self, tag):
        self._inside = ""
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._open:
            self.tables[-1][-1][-1] += data

    @property
    def data(self):
        at = [a for tag, a in self.elements if tag == "script"].index({"type": "application/json", "id": "data"})
        return json.loads(self.scripts[at])


def write_and_read(comparison, tmp_path):
    path = write_report(comparison, tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html"
    assert path.stat().st_size < LIMIT
    return path.read_text(encoding="utf-8")


def unpack(heat_map, at):
    size = len(heat_map["labels"])
    steps = np.frombuffer(base64.b64decode(heat_map["tables"][at]), "<u2").reshape(size, size)
    return heat_map["low"] + (heat_map["high"] - heat_map["low"]) * steps / 65535
