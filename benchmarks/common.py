"""Shared parts of the benchmarks: synthetic federations, timing, and a dated result file that names the hardware."""

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.clients import Federation, stack
from coterie.experiment.ahead import compile_ahead
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph

RESULTS = Path(__file__).parent / "results"


def federation(
    clients: int,
    samples: int,
    shape: tuple[int, ...],
    classes: int,
    seed: int = 0,
    held_out: tuple[int, int] = (1, 2),
) -> Federation:
    """Return random inputs and labels, for timing only; `held_out` samples are for validation and test."""
    random = np.random.default_rng(seed)

    def one(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.standard_normal((count, *shape), np.float32)
        return x, random.integers(0, classes, count).astype(np.int32)

    return _of(one, clients, (samples, *held_out), "classification", classes)


def texts(clients: int, samples: int, shape: tuple[int, ...], characters: int, seed: int = 0) -> Federation:
    """Return random texts with the next character as target, for timing only."""
    random = np.random.default_rng(seed)

    def one(count: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = random.integers(0, characters, (count, shape[0] + 1)).astype(np.int32)
        return drawn[:, :-1], drawn[:, 1:]

    return _of(one, clients, (samples, 1, 2), "next-character", characters)


def _of(one: Callable[[int], tuple], clients: int, counts: tuple[int, ...], kind: Any, classes: int) -> Federation:
    train, validation, test = (stack([one(count) for _ in range(clients)]) for count in counts)
    return Federation(tuple(f"client-{i}" for i in range(clients)), train, validation, test, kind, classes)


def trained(
    engine: Engine,
    method: Any,
    rounds: int,
    seed: int = 0,
    every: int = 10,
    after: Callable[[Training, Any, int, Any], None] | None = None,
) -> tuple[Training, Any]:
    """Train in blocks of `every` rounds, or shorter where a stage of the method ends; return training and state.

    `after(training, state, round, block)` is called after every block, when a stage that ends there has ended.
    """
    graph = Graph.complete(engine.size) if method.topology == "graph" else Graph.empty(engine.size)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), seed)
    training.longest = every
    state, _ = training.init()
    compile_ahead(training, state, 1, rounds)
    done = 0
    while done < rounds:
        count = training.rounds_to_stage(done + 1, min(every, rounds - done))
        state, block = training.advance(state, done + 1, count)
        done += count
        state, _ = training.next_stage(state, done)
        if after is not None:
            after(training, state, done, block)
    return training, state


def best_of(repeats: int, run: Callable[[], None]) -> float:
    """Return the shortest wall time of several calls, after a first call that compiles."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def hardware(device: str) -> str:
    """Name the device and the software."""
    import jax

    software = f"{platform.system()} Python {platform.python_version()}, JAX {jax.__version__}"
    return f"{device}; {software}, {os.cpu_count()} cores"


def publish(name: str, device: str, figures: dict[str, Any]) -> None:
    """Print the figures and write them to a dated file."""
    out = Path(os.environ.get("COTERIE_BENCHMARKS", RESULTS))
    out.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    processor = (
        (device.partition("(")[2] or device).replace("(R)", "").replace("(TM)", "").split(",")[0].partition(")")[0]
    )
    slug = "".join(c if c.isalnum() else "-" for c in processor).strip("-").lower()
    record = {"benchmark": name, "date": today, "hardware": hardware(device), "command": " ".join(sys.argv), **figures}
    (out / f"{today}-{name}-{slug}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
