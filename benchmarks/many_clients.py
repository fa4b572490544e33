"""Time and memory of whole runs as the number of clients grows, and the exponents of that growth.

    python benchmarks/many_clients.py --device cpu
    python benchmarks/many_clients.py --device gpu --clients 100000 --rounds 100
    python benchmarks/many_clients.py --draw benchmarks/results/DATE-many-clients-DEVICE.json

Logistic regression on 20 features, 20 training samples for each client, who is one of 50 planted kinds. `gossip-sgd`
has a random graph with 16 neighbours each, `scool-attention` the candidates that the graph `similarity` finds: the 16
nearest of each client by local models, in both directions, at most 32. Making the graph is part of the time.

With several numbers of clients every run has a process of its own, so that its peak memory is its own. The exponent is
the slope of a line through the logarithms; of the time without compilation, which does not depend on the clients.
Seconds are of the processor (all threads), since wall time on a busy machine says little; on a GPU of the clock.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import publish

import coterie
from coterie.data.buckets import Split
from coterie.data.clients import Federation
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.graphs.similarity import Similarity
from coterie.graphs.topologies import KRegular
from coterie.methods.scool_attention import ScoolAttention

METHODS = ("gossip-sgd", "fedavg", "scool-attention")
FEATURES, SAMPLES, KINDS, NEIGHBOURS = 20, 20, 50, 16
MEASURED = ("seconds_without_compilation", "peak_bytes_of_the_process")
FIGURE = Path(__file__).parent.parent / "docs" / "images" / "many-clients.svg"


def federation(clients: int, seed: int = 0) -> Federation:
    """Return clients whose labels follow one of a few planted coefficient vectors."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, KINDS, clients)
    truth = random.standard_normal((KINDS, FEATURES)).astype(np.float32)[kind]

    def part(count: int) -> Split:
        x = random.standard_normal((clients, count, FEATURES), np.float32)
        y = random.logistic(size=(clients, count)) < 2 * np.einsum("knd,kd->kn", x, truth)
        return Split(x, y.astype(np.int32), np.full(clients, count, np.int32))

    names = tuple(f"client-{i}" for i in range(clients))
    return Federation(names, part(SAMPLES), part(2), part(5), "classification", 2)


def settings(method: str, clients: int) -> dict[str, Any]:
    """Return the method and the graph of a run."""
    if method == "gossip-sgd":
        return {"method": method, "graph": KRegular(k=NEIGHBOURS)}
    if method == "scool-attention":
        graph = Similarity(space="model", k=NEIGHBOURS, most=2 * NEIGHBOURS, connect=True)
        return {"method": ScoolAttention(fraction=min(1.0, NEIGHBOURS / clients)), "graph": graph}
    return {"method": method}


def seconds(device: str) -> float:
    """Return the time so far: of all threads of the processor, or of the clock where another device computes."""
    return time.process_time() if device == "cpu" else time.perf_counter()


def measure(args: argparse.Namespace, method: str, clients: int, data: Federation) -> dict[str, Any]:
    """Run one method to its end."""
    compiling, compile_program = [0.0], Engine.compile

    def timed(self: Engine, *arguments: Any, **named: Any) -> Any:
        start = seconds(args.device)
        try:
            return compile_program(self, *arguments, **named)
        finally:
            compiling[0] += seconds(args.device) - start

    Engine.compile = timed  # type: ignore[method-assign]
    wall, start = time.perf_counter(), seconds(args.device)
    with_folder = {} if args.out is None else {"out": Path(args.out) / f"{method}-{clients}"}
    result = coterie.run(
        data, "logistic", rounds=args.rounds, device=args.device, **with_folder, **settings(method, clients)
    )
    total, wall = seconds(args.device) - start, time.perf_counter() - wall
    Engine.compile = compile_program  # type: ignore[method-assign]
    figures = {
        "seconds": round(total, 2),
        "seconds_without_compilation": round(total - compiling[0], 2),
        "wall_seconds": round(wall, 2),
        "wall_seconds_inside_programs": round(result.seconds["program"], 2),
        "peak_bytes_of_the_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "test_accuracy": round(float(np.mean(result.rows[-1]["test_score"])), 4),
    }
    if args.device != "cpu":
        import jax

        figures["peak_bytes_of_the_device"] = int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    return figures


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of the line through the logarithms."""
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)


def exponents(figures: dict[str, dict[str, Any]], least: int = 0) -> dict[str, Any]:
    """Return the exponents of time and memory of every method, over the sizes from `least` on."""
    found: dict[str, Any] = {}
    for method, sizes in figures.items():
        chosen = {int(size): values for size, values in sizes.items() if int(size) >= least}
        if len(chosen) > 1:
            found[method] = {name: exponent(list(chosen), [f[name] for f in chosen.values()]) for name in MEASURED}
    return found


def draw(file: str) -> None:
    """Draw time and memory against the number of clients, both axes logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    record = json.loads(Path(file).read_text())
    what = {"seconds_without_compilation": "processor seconds, without compilation", "peak_bytes_of_the_process": "GiB"}
    _, panes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for pane, (name, label) in zip(panes, what.items(), strict=True):
        unit = 2**30 if label == "GiB" else 1
        for (method, sizes), colour in zip(record["methods"].items(), ("#0072b2", "#d55e00", "#009e73"), strict=False):
            x = [int(size) for size in sizes]
            y = [figures[name] / unit for figures in sizes.values()]
            slope = record["exponents"][method][name]
            pane.loglog(x, y, "o-", color=colour, label=f"{method}: exponent {slope:.2f}")
        pane.set(xlabel="clients", ylabel=label, title="time" if unit == 1 else "peak memory of the process")
        pane.grid(alpha=0.3)
        pane.legend(fontsize=8)
    plt.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 3000, 10_000, 30_000, 100_000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--out", help="write the folders of the runs here")
    parser.add_argument("--draw", metavar="FILE", help="only draw the figure of the docs from a result")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.draw:
        draw(args.draw)
        return
    if "OUT" in os.environ:
        os.environ["COTERIE_BENCHMARKS"] = os.environ["OUT"]
    methods, begun = args.methods.split(","), time.perf_counter()
    figures: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for clients in args.clients:
        data = federation(clients) if args.alone or len(args.clients) == 1 else None
        for method in methods:
            if data is None:
                command = [sys.executable, __file__, "--alone", "--device", args.device, "--clients", str(clients)]
                command += ["--rounds", str(args.rounds), "--methods", method]
                command += [] if args.out is None else ["--out", args.out]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                figures[method][str(clients)] = json.loads(done.stdout.splitlines()[-1])
            else:
                figures[method][str(clients)] = measure(args, method, clients, data)
            print(method, clients, figures[method][str(clients)], file=sys.stderr, flush=True)
    if args.alone:
        print(json.dumps(figures[methods[0]][str(args.clients[0])]))
        return
    record: dict[str, Any] = {"rounds": args.rounds, "all_seconds": round(time.perf_counter() - begun, 1)}
    record["methods"] = figures
    if len(args.clients) > 1:
        record["exponents"] = exponents(figures)
        record["exponents_from_10000_clients"] = exponents(figures, least=10_000)
    publish("many-clients", choose_device(args.device).label, record)


if __name__ == "__main__":
    main()
