"""Clients whose images are read from disk in groups while others train: with reading ahead, without, all in memory.

    python benchmarks/stream.py                                # 100,000 clients of 10 images, 784 MB, at most 256 MB
    python benchmarks/stream.py --clients 2000 --memory 8MB    # a small one

Images of 28 x 28 bytes are drawn and written to a folder of mapped files (`coterie.data.mapped`), which is kept in
--folder for the next time. FedAvg trains a logistic regression on them. Before each run the system is asked to forget
the files, so that they come from the disk. The three ways take turns; the shortest round of each counts.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import publish

import coterie
from coterie.data.clients import Federation
from coterie.experiment.config import Experiment
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job
from coterie.experiment.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.storage.memory import in_bytes

SHAPE, CLASSES, BLOCK = (1, 28, 28), 10, 1000


def write(folder: Path, clients: int) -> None:
    """Draw images, a block of clients at a time: each class has a mean image of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    means = random.integers(0, 128, (CLASSES, *SHAPE))
    for part, count in (("train", 10), ("test", 2)):
        x = np.lib.format.open_memmap(folder / f"{part}_x.npy", "w+", np.uint8, (clients, count, *SHAPE))
        y = np.lib.format.open_memmap(folder / f"{part}_y.npy", "w+", np.int32, (clients, count))
        for start in range(0, clients, BLOCK):
            labels = random.integers(0, CLASSES, (min(BLOCK, clients - start), count))
            y[start : start + BLOCK] = labels
            x[start : start + BLOCK] = means[labels] + random.integers(0, 128, (*labels.shape, *SHAPE))
        x.flush(), y.flush()
    about = {"kind": "classification", "classes": CLASSES, "about": f"drawn images of {clients:,} clients"}
    (folder / "federation.json").write_text(json.dumps(about))


def forget(folder: Path) -> None:
    """Ask the system to drop the files from its cache."""
    for file in folder.glob("*.npy"):
        with open(file, "rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Way:
    """One way to hold the data; trains a round at a time."""

    def __init__(self, data: Federation, device: Any, memory: int | None, ahead: bool = True, chunk: int = 0):
        method = FedAvg(lr=0.05, batch_size=10)
        limit: dict[str, Any] = {"chunk": chunk} if memory is None else {"memory": f"{memory} B"}
        job = Job.of(Experiment.from_objects(data, "logistic", method, **limit), data)
        self.engine = Engine.of(job, device)
        if memory is not None:
            for part in (self.engine.clients.train, self.engine.clients.test):
                part.reader.ahead = ahead
        self.training = Training(self.engine, method, job.graph, job.weights, 0)
        self.state, self.round, self.seconds = self.training.init()[0], 0, []

    def step(self) -> None:
        """Train one round."""
        start = time.perf_counter()
        self.state, _ = self.training.advance(self.state, self.round + 1, 1)
        jax.block_until_ready(self.state)
        self.round += 1
        self.seconds.append(round(time.perf_counter() - start, 3))

    def accuracy(self) -> float:
        """Return the mean accuracy over the clients."""
        return round(float(self.training.evaluate(self.state, self.round)["test_score"].mean()), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--memory", default="256MB")
    parser.add_argument("--rounds", type=int, default=4, help="of each way; the first one compiles")
    parser.add_argument("--folder", help="default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary) / f"images-{args.clients}"
        if not (folder / "federation.json").is_file():
            write(folder, args.clients)
        data, device = coterie.load(folder), choose_device(f"{args.device}:1" if args.device == "cpu" else args.device)
        limit = in_bytes(args.memory, "--memory")
        running = {"read ahead": Way(data, device, limit), "not read ahead": Way(data, device, limit, False)}
        group = running["read ahead"].engine.clients.train.reader.group
        chunk = min(group, running["read ahead"].engine.plan.chunk or group)  # as many at a time as the others have
        running["all in memory"] = Way(data, device, None, chunk=chunk)
        for _ in range(args.rounds):
            for way in running.values():
                forget(folder)
                way.step()
        final = {
            name: float(way.training.evaluate(way.state, way.round)["test_score"].mean())
            for name, way in running.items()
        }
    best = {name: min(way.seconds[1:]) for name, way in running.items()}
    record = {
        "clients": args.clients,
        "bytes_of_all_images": args.clients * 12 * int(np.prod(SHAPE)),
        "limit_bytes": limit,
        "clients_in_a_group": group,
        "seconds_of_a_round": {name: way.seconds[1:] for name, way in running.items()},
        "shortest_round": best,
        "not_ahead_over_ahead": round(best["not read ahead"] / best["read ahead"], 3),
        "ahead_over_in_memory": round(best["read ahead"] / best["all in memory"], 3),
        "test_accuracy": final,
    }
    publish("stream", device.label, record)


if __name__ == "__main__":
    main()
