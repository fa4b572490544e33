"""Cost per client-step and peak memory as the number of clients grows: FedAvg, logistic regression on 20 features.

    python benchmarks/many_clients.py --device cpu
    python benchmarks/many_clients.py --device gpu --sizes 1000 30000 100000

Each size runs in its own process, so that peak memory is that of the size. The baseline is the smallest size: the
figure is the cost of a client-step at 30,000 clients over that at 1,000.
"""

import argparse
import json
import resource
import subprocess
import sys
from typing import Any

import jax
import numpy as np
from common import best_of, federation, publish

from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.plan import plan_for
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.models.linear import Linear


def measure(args: argparse.Namespace, clients: int) -> dict[str, Any]:
    """Time rounds of local steps of all clients."""
    device = choose_device(args.device)
    data = federation(clients, args.samples, (20,), 10)
    task = Task.of(data, Linear())
    engine = Engine(task, data, device, plan_for(task, data, device))
    method = FedAvg(lr=0.01, batch_size=10, steps=args.steps)
    training = Training(engine, method, Graph.empty(clients), np.zeros((clients, 0)), 0)
    state, _ = training.init()

    def block() -> None:
        nonlocal state
        state, _ = training.advance(state, 1, 1)
        jax.block_until_ready(state)

    seconds = best_of(args.repeats, block)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device.platform == "gpu":
        peak = device.devices[0].memory_stats()["peak_bytes_in_use"]
    return {"nanoseconds_per_client_step": 1e9 * seconds / (clients * args.steps), "peak_bytes": int(peak)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10000, 30000])
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", type=int, help="measure one size and print JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args, args.only)))
        return
    figures: dict[str, Any] = {}
    for size in args.sizes:
        command = [sys.executable, *sys.argv, "--only", str(size)]
        figures[str(size)] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    small, large = (figures[str(size)] for size in (args.sizes[0], args.sizes[-1]))
    key = "nanoseconds_per_client_step"
    growth = (large["peak_bytes"] - small["peak_bytes"]) / (args.sizes[-1] - args.sizes[0])
    summary = {
        "cost_ratio_largest_to_smallest": round(large[key] / small[key], 3),
        "bytes_per_extra_client": round(growth),
    }
    publish("many-clients", choose_device(args.device).label, {"clients": figures, **summary})


if __name__ == "__main__":
    main()
