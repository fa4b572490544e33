"""Clients whose images are read from disk in groups while others train: with reading ahead, without, all in memory.

    python benchmarks/stream.py                                # 100,000 clients of 10 images, 784 MB, at most 256 MB
    python benchmarks/stream.py --clients 2000 --memory 8MB    # a small one
    python benchmarks/stream.py --device gpu --rounds 0        # no times, only the memory that limits lead to

Images of 28 x 28 bytes are drawn and written to a folder of mapped files (`coterie.data.mapped`), which is kept in
--folder for the next time. FedAvg trains a logistic regression on them. Before each run the system is asked to forget
the files, so that they come from the disk. The three ways take turns; the shortest round of each counts.

Then, in a process of its own for a quarter of --memory and for all of it, memory is measured: after a first round and
evaluation, which compile, how much the second ones take beyond what there is between rounds. On a CPU that is the
process's own memory, looked at every few milliseconds: groups that are read and the device's arrays. Pages of the
mapped files are counted apart, since the system drops them when it needs room. On a GPU it is what the device's own
allocator says, looked at as often; its highest count of the whole process, compilation included, is recorded beside it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

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
from coterie.storage.memory import giving_back, in_bytes

SHAPE, CLASSES, BLOCK = (1, 28, 28), 10, 1000
SAMPLES = {"train": 10, "test": 2}
EVERY = 0.003  # seconds


def write(folder: Path, clients: int) -> None:
    """Draw images, a block of clients at a time: each class has a mean image of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    means = random.integers(0, 128, (CLASSES, *SHAPE), np.uint8)
    for part, count in SAMPLES.items():
        x = np.lib.format.open_memmap(folder / f"{part}_x.npy", "w+", np.uint8, (clients, count, *SHAPE))
        y = np.lib.format.open_memmap(folder / f"{part}_y.npy", "w+", np.int32, (clients, count))
        for start in range(0, clients, BLOCK):
            labels = random.integers(0, CLASSES, (min(BLOCK, clients - start), count))
            y[start : start + BLOCK] = labels
            x[start : start + BLOCK] = means[labels] + random.integers(0, 128, (*labels.shape, *SHAPE), np.uint8)
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
            for reader in self.readers():
                reader.ahead = ahead
        self.training = Training(self.engine, method, job.graph, job.weights, 0)
        self.state, self.round, self.seconds = self.training.init()[0], 0, []

    def readers(self) -> list[Any]:
        """Return what reads the clients' images in groups."""
        parts = (self.engine.clients.train, self.engine.clients.test)
        return [part.reader for part in parts if hasattr(part, "reader")]

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


class Watch:
    """Looks at the memory of this process and its device every few milliseconds, while it is used as a context."""

    def __init__(self, device: Any):
        self._device = device

    def __enter__(self) -> Self:
        self.peak, self._over = taken(self._device), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            self.peak = {name: max(size, self.peak[name]) for name, size in taken(self._device).items()}


def taken(device: Any) -> dict[str, int]:
    """Return the bytes of this process in memory, its own and pages of files, and those in use on a GPU."""
    status = Path("/proc/self/status").read_text()
    sizes = {name: re.search(rf"{name}:\s+(\d+) kB", status) for name in ("RssAnon", "RssFile")}
    bytes_of = {name: int(size[1]) * 1024 for name, size in sizes.items() if size}
    stats = device.memory_stats()  # None on a CPU
    return bytes_of | ({"device": stats["bytes_in_use"]} if stats else {})


def memory_of(folder: Path, kind: str, limit: int) -> dict[str, Any]:
    """Return what a round and an evaluation take beyond what there is between rounds, with a limit of `limit`."""
    device = the_device(kind)
    way = Way(coterie.load(folder), device, limit)
    way.step(), way.accuracy()  # they compile
    for reader in way.readers():
        reader.drop()
    own = device.devices[0]
    with giving_back():
        rest = taken(own)
    with Watch(own) as watch:
        way.step(), way.accuracy()
    beyond = {name: watch.peak[name] - size for name, size in rest.items()}
    found: dict[str, Any] = {
        "limit_bytes": limit,
        "clients_in_a_group": way.readers()[0].group,
        "clients_in_a_batch": way.engine.plan.chunk,
        "own_bytes_between_rounds": rest["RssAnon"],
        "own_bytes_beyond": beyond["RssAnon"],
        "bytes_of_file_pages": watch.peak["RssFile"],
    }
    if "device" in rest:
        found |= {
            "device_bytes_between_rounds": rest["device"],
            "device_bytes_beyond": beyond["device"],
            "device_peak_bytes_with_compilation": own.memory_stats()["peak_bytes_in_use"],
        }
    return found | {"share_of_limit": round(beyond.get("device", beyond["RssAnon"]) / limit, 3)}


def times_of(folder: Path, kind: str, limit: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of a round of each way."""
    data, device = coterie.load(folder), the_device(kind)
    running = {"read ahead": Way(data, device, limit), "not read ahead": Way(data, device, limit, False)}
    group = running["read ahead"].readers()[0].group
    chunk = min(group, running["read ahead"].engine.plan.chunk or group)  # as many at a time as the others have
    running["all in memory"] = Way(data, device, None, chunk=chunk)
    for _ in range(rounds):
        for way in running.values():
            forget(folder)
            way.step()
    best = {name: min(way.seconds[1:]) for name, way in running.items()}
    return {
        "clients_in_a_group": group,
        "seconds_of_a_round": {name: way.seconds[1:] for name, way in running.items()},
        "shortest_round": best,
        "not_ahead_over_ahead": round(best["not read ahead"] / best["read ahead"], 3),
        "ahead_over_in_memory": round(best["read ahead"] / best["all in memory"], 3),
        "test_accuracy": {name: way.accuracy() for name, way in running.items()},
    }


def the_device(kind: str) -> Any:
    """Return a GPU, or one virtual device of the CPU."""
    return choose_device("cpu:1" if kind == "cpu" else kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--memory", default="256MB")
    parser.add_argument("--rounds", type=int, default=4, help="of each way; the first one compiles; 0: no times")
    parser.add_argument("--folder", help="default: a temporary one")
    parser.add_argument("--one-limit", action="store_true", help="print the memory of --memory alone; for this program")
    args = parser.parse_args()
    limit = in_bytes(args.memory, "--memory")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary) / f"images-{args.clients}"
        if not (folder / "federation.json").is_file():
            write(folder, args.clients)
        if args.one_limit:
            print(json.dumps(memory_of(folder, args.device, limit)))
            return
        record: dict[str, Any] = {
            "clients": args.clients,
            "bytes_of_all_images": args.clients * sum(SAMPLES.values()) * int(np.prod(SHAPE)),
            "limit_bytes": limit,
        }
        again = [sys.executable, __file__, "--one-limit", "--device", args.device, "--clients", str(args.clients)]
        record["memory"] = []
        for one in (limit // 4, limit):
            command = [*again, "--folder", str(folder.parent), "--memory", f"{one}B"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                raise SystemExit(run.stderr)
            record["memory"].append(json.loads(run.stdout.splitlines()[-1]))
        if args.rounds:
            record |= times_of(folder, args.device, limit, args.rounds)
    publish("stream", the_device(args.device).label, record)


if __name__ == "__main__":
    main()
