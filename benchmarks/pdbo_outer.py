"""PDBO-MTL: does it pay to judge the weights on held-out samples, and does the part of the gradient through x?

    python benchmarks/pdbo_outer.py --dataset digits --device cpu
    python benchmarks/pdbo_outer.py --dataset fashion-mnist --device gpu
    python benchmarks/pdbo_outer.py --dataset shakespeare --seeds 3 --rounds 30 --device gpu

Clients, models and network are those of `coterie reproduce pdbo`, with smaller minibatches; every seed draws its own
partition. Rounds of 20 pushes go on from the last solution. Every row is compared with "held-out, local" of the same
seed, at the end and where validation accuracy is best: difference, ± the standard error over seeds.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import publish

from coterie import registry
from coterie.data import load
from coterie.data.clients import Federation
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.directed import RandomDirected
from coterie.learning.task import Task
from coterie.methods.base import Method
from coterie.reproduce import pdbo
from coterie.spec import build

PUSHES, EVERY = 20, 5
BATCH = {"digits": 16}  # 32 elsewhere: a client has some 40 samples
DAMPING = {"lstm": 1.0}  # 0.1 elsewhere: a tenth of the learning rate, below 2 / the largest curvature
BASE = "held-out, local"
ROWS: dict[str, dict[str, Any]] = {
    BASE: {"upper": "held-out", "estimator": "local"},
    "held-out, neumann": {"upper": "held-out", "estimator": "neumann"},
    "train, local": {"upper": "train", "estimator": "local"},
    "train, neumann": {"upper": "train", "estimator": "neumann"},
    "sgp": {},
}


def method_of(label: str, dataset: str) -> Method:
    """Return the method of a row."""
    size = pdbo.DATASETS[dataset]
    settings: dict[str, Any] = {"lr": size.lr, "batch_size": BATCH.get(dataset, 32), "weight_decay": pdbo.WEIGHT_DECAY}
    settings |= {"pushes": PUSHES, "steps": 1}
    if label == "sgp":
        return build(registry.load("methods", "sgp"), settings, "sgp")
    settings |= {"inner": "warm", "outer_lr": 0.1, "depth": 10, "gossip": 3, "damping": DAMPING.get(size.model, 0.1)}
    return build(registry.load("methods", "pdbo-mtl"), settings | ROWS[label], "pdbo-mtl")


def scores(engine: Engine, method: Method, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Train and return the figures of the last evaluation, and of the one with the best validation accuracy.

    With them every client's counts, for methods that have any.
    """
    graph = RandomDirected().build(engine.size, 0)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), seed)
    state, _ = training.init()
    curve = []
    for first in range(1, rounds + 1, EVERY):
        state, block = training.advance(state, first, EVERY)
        row = {name: np.asarray(values) for name, values in training.evaluate(state, first + EVERY - 1).items()}
        test = 100 * row["test_score"]
        figures = {"round": first + EVERY - 1, "mean": test.mean(), "p10": np.percentile(test, 10)}
        figures |= {"loss": row["test_loss"].mean(), "validation": 100 * row["validation_score"].mean()}
        curve.append({name: round(float(value), 4) for name, value in figures.items()})
    counts = {name: np.round(values, 3).tolist() for name, values in (block.counts or {}).items()}
    return {"last": curve[-1], "best": max(curve, key=lambda figures: figures["validation"]), "counts": counts}


def paired(runs: dict[str, list[dict[str, dict[str, Any]]]], base: str = BASE) -> dict[str, Any]:
    """Return the means of every row, and its differences from the base row of the same seed, ± standard error."""
    table: dict[str, Any] = {}
    for label, each in runs.items():
        for at in ("last", "best"):
            for name in ("mean", "p10", "loss", "validation"):
                values = np.array([run[at][name] for run in each])
                gaps = values - np.array([run[at][name] for run in runs[base][: len(values)]])
                error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.nan
                table.setdefault(label, {})[f"{at} {name}"] = f"{values.mean():.3f} ({gaps.mean():+.3f} ± {error:.3f})"
    return table


def of_one_shape(federations: Sequence[Federation]) -> list[Federation]:
    """Pad the clients of all partitions to the same number of rows, so that one program serves them all."""
    parts = ("train", "validation", "test")
    federations = [each.in_buckets([np.arange(len(each))]) for each in federations]  # one stack
    rows = {part: max(getattr(each, part).x.shape[1] for each in federations) for part in parts}

    def padded(array: np.ndarray, count: int) -> np.ndarray:
        return np.pad(array, [(0, count - n if axis == 1 else 0) for axis, n in enumerate(array.shape)])

    def one(federation: Federation) -> Federation:
        splits = {part: getattr(federation, part) for part in parts}
        wider: dict[str, Any] = {
            part: split._replace(x=padded(split.x, rows[part]), y=padded(split.y, rows[part]))
            for part, split in splits.items()
        }
        return dataclasses.replace(federation, redraw=None, **wider)

    return [one(federation) for federation in federations]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=list(pdbo.DATASETS), default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", default=",".join(ROWS).replace(", ", "-"), help="held-out-local,train-local, ...")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device, began, size = choose_device(args.device), time.time(), pdbo.DATASETS[args.dataset]
    model = build(registry.load("models", size.model), {}, size.model)
    part = {key: value for key, value in size.partition.items() if key != "name"}
    labels = [label for label in ROWS if label.replace(", ", "-") in args.rows.split(",")]
    runs: dict[str, list[dict[str, dict[str, Any]]]] = {label: [] for label in labels}
    data = [load(args.dataset, size.partition["name"], clients=size.clients, seed=s, **part) for s in range(args.seeds)]
    assert len({(str(each.mean), str(each.std)) for each in data}) == 1, "one task serves all partitions"
    data, engine = of_one_shape(data), None
    task = Task.of(data[0], model, members=pdbo.MEMBERS)
    for seed, federation in enumerate(data):
        engine = Engine(task, federation, device, like=engine)
        for label in labels:
            runs[label].append(scores(engine, method_of(label, args.dataset), args.rounds, seed))
            print(f"{time.time() - began:6.0f} s seed {seed} {label:20s} {runs[label][-1]}", flush=True)
    figures = {"dataset": args.dataset, "rounds": args.rounds, "pushes": PUSHES, "table": paired(runs), "runs": runs}
    publish(f"pdbo-outer-{args.dataset}", device.label, figures | {"seconds": round(time.time() - began, 1)})


if __name__ == "__main__":
    main()
