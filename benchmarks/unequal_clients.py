"""Memory and time of many small clients and a large one, against clients that share the same rows equally.

    python benchmarks/unequal_clients.py --device cpu

Logistic regression on 10 inputs. Unequal: 1,000 clients of 10 rows and one of 100,000; equal: 1,001 clients of 110
rows; padded: 100 clients of 10 rows and one of 10,000, all padded to the largest (fewer, so that it fits), beside the
same clients in buckets. Each case runs in a process of its own: peak memory, and the fastest of some rounds.
"""

import argparse
import json
import resource
import subprocess
import sys

import jax
import numpy as np
from common import best_of, publish

import coterie as ct
from coterie import registry
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Exponential
from coterie.learning.task import Task
from coterie.models.linear import Linear

CASES = {"unequal": [10] * 1000 + [100_000], "equal": [110] * 1001, "buckets": [10] * 100 + [10_000]}
CASES["padded"] = CASES["buckets"]


def measure(case: str, method: str, name: str, repeats: int) -> dict[str, float]:
    """Measure one round of a method."""
    sizes = CASES[case]
    random = np.random.default_rng(0)
    x = random.normal(size=(sum(sizes), 10)).astype(np.float32)
    owner = np.repeat([f"client-{i}" for i in range(len(sizes))], sizes)
    federation = ct.load(ct.pool(x, (x[:, 0] > 0).astype(int), owner=owner), "natural")
    if case in ("padded", "buckets"):
        large = np.asarray(sizes) > 10
        places = [np.flatnonzero(large), np.flatnonzero(~large)] if case == "buckets" else [np.arange(len(sizes))]
        federation = federation.in_buckets(places)
    device = choose_device(name)
    engine = Engine(Task.of(federation, Linear()), federation, device)
    graph = Exponential().build(len(sizes), 0)
    training = Training(engine, registry.load("methods", method)(), graph, metropolis(graph)[0], 0)
    state, _ = training.init()

    def one_round() -> None:
        nonlocal state
        state, _ = training.advance(state, 1, 1)
        jax.block_until_ready(state)

    seconds = best_of(repeats, one_round)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"seconds_per_round": seconds, "peak_megabytes": round(peak)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "gossip-sgd", "ditto"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs=2, help="measure one case and method, and print JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(*args.only, args.device, args.repeats)))
        return
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for method in args.methods:
        for case in CASES:
            command = [sys.executable, *sys.argv, "--only", case, method]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            figures.setdefault(method, {})[case] = json.loads(answer)
    publish("unequal-clients", choose_device(args.device).label, figures)


if __name__ == "__main__":
    main()
