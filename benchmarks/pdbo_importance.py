"""PDBO-MTL: how much should a client's samples count? The part of the hyper-gradient through x learns it, or nothing.

    python benchmarks/pdbo_importance.py --seeds 10                                # digits, minutes on two cores
    python benchmarks/pdbo_importance.py --dataset fashion-mnist --seeds 5
    python benchmarks/pdbo_importance.py --seeds 5 --unchecked                     # the careless judge, too

Twenty clients with like shares of the classes on a random directed network. Eight of them label carelessly: their
training labels are drawn at random. Everyone has a few samples with labels that were checked, the validation samples.
Rows: `sgp` on the training samples; the same with the checked samples trained on, too; PDBO-MTL, whose weights the
checked samples judge, with its local estimate and with the part through x; with `importance`, for three predictors and
for one; and `sgp` without the eight's training samples, which nobody can run who does not know them. Every seed draws
its own partition and labels. Settings are those of pdbo_outer.py on the digits, not tuned here; the last round
counts, on test samples of all clients.
"""

import argparse
import dataclasses
import time
from typing import Any

import numpy as np
from common import publish
from pdbo_outer import of_one_shape, paired, scores
from scipy import stats

from coterie.data import load
from coterie.data.clients import Federation, Split
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.learning.task import Task
from coterie.methods.base import Method
from coterie.methods.pdbo_mtl import PDBOMTL
from coterie.methods.sgp import SGP
from coterie.models.mlp import Mlp

CLIENTS, CARELESS = 20, 8
FRACTION = {"digits": 1.0, "fashion-mnist": 0.04, "mnist": 0.04}  # of the data: 68 to 120 samples a client
BASE = "local estimate"
INNER: dict[str, Any] = {"lr": 0.2, "batch_size": 16, "weight_decay": 0.001, "pushes": 20, "steps": 1}
OUTER: dict[str, Any] = {"inner": "warm", "upper": "validation", "depth": 10, "gossip": 3, "damping": 0.1}
THROUGH: dict[str, Any] = {**INNER, **OUTER, "estimator": "neumann"}
ROWS: dict[str, tuple[str, Method]] = {  # with the samples of which it learns
    "sgp": ("given", SGP(**INNER)),
    "sgp, checked samples, too": ("more", SGP(**INNER)),
    BASE: ("given", PDBOMTL(**INNER, **OUTER, estimator="local")),
    "through x": ("given", PDBOMTL(**THROUGH)),
    "through x, importance": ("given", PDBOMTL(**THROUGH, importance=True)),
    "through x, importance, one predictor": ("given", PDBOMTL(**THROUGH, importance=True, predictors=1)),
    "sgp without the careless": ("good", SGP(**INNER)),
}


def federations(dataset: str, seed: int, unchecked: bool = False) -> dict[str, Federation]:
    """Return a partition with careless labels; with the checked samples added; without the careless labels.

    With `unchecked` the validation samples of the careless have random labels, too.
    """
    some = FRACTION[dataset]
    whole = load(dataset, "dirichlet", clients=CLIENTS, seed=seed, alpha=100.0, fraction=some, validation=0.25)
    random, train = np.random.default_rng(seed), whole.train
    labels = train.y.copy()
    labels[:CARELESS] = random.integers(0, 10, labels[:CARELESS].shape)
    given = dataclasses.replace(whole, train=train._replace(y=labels), redraw=None)
    if unchecked:
        judged = whole.validation.y.copy()
        judged[:CARELESS] = random.integers(0, 10, judged[:CARELESS].shape)
        given = dataclasses.replace(given, validation=given.validation._replace(y=judged))
    more = [_joined(given.train.client(i), given.validation.client(i)) for i in range(CLIENTS)]
    # Of a careless client only its checked samples remain: a client without any cannot take part.
    good = [given.validation.client(i) if i < CARELESS else given.train.client(i) for i in range(CLIENTS)]
    return {
        "given": given,
        "more": dataclasses.replace(given, train=_stacked(more)),
        "good": dataclasses.replace(given, train=_stacked(good)),
    }


def _joined(first: Split, second: Split) -> Split:
    """Return the samples of both, without padding."""
    parts = [(part.x[: int(part.count)], part.y[: int(part.count)]) for part in (first, second)]
    x, y = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    return Split(x, y, np.int32(len(y)))


def _stacked(clients: list[Split]) -> Split:
    """Return the samples of all clients, padded to one length."""
    rows = max(int(one.count) for one in clients)

    def padded(array: np.ndarray) -> np.ndarray:
        array = array[:rows]
        return np.pad(array, [(0, rows - len(array) if axis == 0 else 0) for axis in range(array.ndim)])

    counts = np.array([int(one.count) for one in clients], np.int32)
    return Split(np.stack([padded(one.x) for one in clients]), np.stack([padded(one.y) for one in clients]), counts)


def leads(runs: dict[str, list[dict[str, dict[str, Any]]]]) -> dict[str, list[float]]:
    """Return each row's lead over the local estimate in points: mean over the seeds, half of the 95 % interval."""
    ends = {label: np.array([run["last"]["mean"] for run in each]) for label, each in runs.items()}
    table = {}
    for label, values in ends.items():
        gaps = values - ends[BASE]
        half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.nan
        table[label] = [round(float(gaps.mean()), 2), round(float(half), 2)]
    return table


def importance(runs: dict[str, list[dict[str, dict[str, Any]]]]) -> dict[str, dict[str, float]]:
    """Return how many times the samples of careless and of other clients count at the end, means over the seeds."""
    ends = {label: np.array([run["counts"].get("importance", []) for run in each]) for label, each in runs.items()}
    return {
        label: {
            "careless": round(float(each[:, :CARELESS].mean()), 3),
            "others": round(float(each[:, CARELESS:].mean()), 3),
        }
        for label, each in ends.items()
        if each.size
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=list(FRACTION), default="digits")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--unchecked", action="store_true", help="careless clients judge by careless labels, too")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device, began = choose_device(args.device), time.time()
    drawn = [federations(args.dataset, seed, args.unchecked) for seed in range(args.seeds)]
    shaped = of_one_shape([each[kind] for each in drawn for kind in each])
    data = [dict(zip(each, shaped[3 * i : 3 * i + 3], strict=True)) for i, each in enumerate(drawn)]
    task, engine = Task.of(shaped[0], Mlp()), None
    labels = [label for label, (kind, _) in ROWS.items() if kind == "given" or not args.unchecked]
    runs: dict[str, list[dict[str, dict[str, Any]]]] = {label: [] for label in labels}
    for seed, kinds in enumerate(data):
        engines: dict[str, Engine] = {}
        for kind, federation in kinds.items():
            engines[kind] = engine = Engine(task, federation, device, like=engine)
        for label in labels:
            kind, method = ROWS[label]
            runs[label].append(scores(engines[kind], method, args.rounds, seed))
            print(f"{time.time() - began:6.0f} s seed {seed} {label:36s} {runs[label][-1]['last']}", flush=True)
    figures = {"dataset": args.dataset, "rounds": args.rounds, "lead": leads(runs), "table": paired(runs, BASE)}
    figures |= {"importance": importance(runs), "runs": runs}
    publish(f"pdbo-importance-{args.dataset}{'-unchecked' * args.unchecked}", device.label, figures)


if __name__ == "__main__":
    main()
