"""The experiment that all programs of this folder run: its data, first weights, settings, clock and command line.

It needs NumPy only, so that it can be read in every rival's environment.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "SHAPES",
    "Clock",
    "Workload",
    "arguments",
    "deal",
    "first_weights",
    "processes",
    "read",
    "report",
    "synthetic",
    "write",
]

TOKEN = "COTERIE_RIVAL"  # a variable of the environment by which a program's processes are known
CLASSES = 10
# FedAvg's CNN for MNIST, and for CIFAR's shape, where the pixels are always made up.
SHAPES = {"mlp": (784,), "cnn": (1, 28, 28), "cnn-colour": (3, 32, 32)}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One federated experiment.

    Attributes:
        x, y: `[clients, samples, ...]` pixels in [0, 1], and labels.
        x_test, y_test: the samples that the final model is scored on.
        weights: where everybody starts: `fc1`, `fc2` of the MLP, `conv1`, `conv2`, `fc1`, `fc2` of the CNN, each with
            `.weight` and `.bias` in PyTorch's layout.
        lr, batch, epochs: plain SGD; a client passes `epochs` times over its samples, each time in a new order.
        block, blocks: the program runs `blocks` times `block` rounds; the first block warms it up.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    weights: dict[str, np.ndarray]
    lr: float
    batch: int
    epochs: int
    block: int
    blocks: int

    @property
    def clients(self) -> int:
        return len(self.x)

    @property
    def samples(self) -> int:
        return self.x.shape[1]

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * (self.samples // self.batch)

    @property
    def convolutional(self) -> bool:
        return "conv1.weight" in self.weights


def synthetic(count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes and labels that can be learned: a picture for each class, and noise."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 128, (CLASSES, *shape), np.uint8)
    y = random.integers(0, CLASSES, count)
    return pictures[y] + random.integers(0, 128, (count, *shape), np.uint8), y


def deal(
    x: np.ndarray, y: np.ndarray, clients: int, samples: int, test: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Deal samples as the FedAvg paper does: sorted by label and cut into shards, of which every client gets two.

    Returns the clients' samples `[clients, samples, ...]` and labels, and `test` other samples with theirs.
    """
    random = np.random.default_rng(seed)
    needed = clients * samples + test
    if len(x) < needed:
        raise SystemExit(f"{clients} clients of {samples} samples and {test} to test on need {needed}, not {len(x)}")
    order = random.permutation(len(x))[:needed]
    held_out, own = order[:test], order[test:]
    shards = own[np.argsort(y[own], kind="stable")].reshape(2 * clients, samples // 2)
    rows = shards[random.permutation(2 * clients)].reshape(clients, samples)
    return x[rows], y[rows], x[held_out], y[held_out]


def first_weights(model: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw first weights as PyTorch does: uniform, within one over the root of the number of inputs."""
    random, shape = np.random.default_rng(seed), SHAPES[model]
    if model == "mlp":
        layers: dict[str, tuple[int, ...]] = {"fc1": (64, shape[0]), "fc2": (CLASSES, 64)}
    else:
        left = ((shape[1] - 4) // 2 - 4) // 2
        layers = {"conv1": (32, shape[0], 5, 5), "conv2": (64, 32, 5, 5)}
        layers |= {"fc1": (512, 64 * left * left), "fc2": (CLASSES, 512)}
    drawn = {}
    for name, size in layers.items():
        bound = np.prod(size[1:]) ** -0.5
        drawn[f"{name}.weight"] = random.uniform(-bound, bound, size).astype(np.float32)
        drawn[f"{name}.bias"] = random.uniform(-bound, bound, size[:1]).astype(np.float32)
    return drawn


def write(file: Path, dealt: tuple[np.ndarray, ...], weights: dict[str, np.ndarray], **settings: float) -> None:
    """Write a workload: the dealt bytes and labels, the first weights and the settings of `Workload`."""
    names = ("x", "y", "x_test", "y_test")
    np.savez(
        file, **dict(zip(names, dealt, strict=True)), **{f"weights/{k}": v for k, v in weights.items()}, **settings
    )


def read(file: str | Path, block: int = 0) -> Workload:
    """Read a workload, with another number of rounds in a block if one is given.

    Bytes become numbers in [0, 1] here, for everyone.
    """
    with np.load(file) as stored:
        weights = {name.removeprefix("weights/"): stored[name] for name in stored if name.startswith("weights/")}
        pixels = {name: stored[name].astype(np.float32) / 255 for name in ("x", "x_test")}
        labels = {name: stored[name].astype(np.int64) for name in ("y", "y_test")}
        counts = {name: int(stored[name]) for name in ("batch", "epochs", "block", "blocks")}
        counts["block"] = block or counts["block"]
        return Workload(**pixels, **labels, weights=weights, lr=float(stored["lr"]), **counts)


class Clock:
    """Wall time and CPU seconds between marks: one before the first block of rounds, and one after each."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, ...]] = []

    def mark(self) -> None:
        """End one interval and begin the next; looking at the processes belongs to neither."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        self._marks.append((wall, cpu, time.perf_counter(), _cpu_seconds()))

    def intervals(self) -> dict[str, list[float]]:
        """Return the seconds of each block."""
        pairs = list(zip(self._marks[:-1], self._marks[1:], strict=True))
        return {
            "wall_s": [end[0] - begin[2] for begin, end in pairs],
            "cpu_s": [end[1] - begin[3] for begin, end in pairs],
        }


def processes(token: str) -> list[int]:
    """Return the processes that carry a token in their environment: a program and all that it started."""
    found, word = [], f"{TOKEN}={token}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if word in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, of all that carry its token, and of those of them that have ended."""
    times, token = os.times(), os.environ.get(TOKEN)
    total = time.process_time() + times.children_user + times.children_system
    for process in set(processes(token)) - {os.getpid()} if token else ():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def arguments(about: str | None, **more: dict[str, Any]) -> argparse.Namespace:
    """Read the command line that all programs share; `more` are options of this one."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("workloads", nargs="+", help="files that run.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the times and the final weights")
    parser.add_argument("--label", default="result", help="how the files in it are called, after the workload")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of one process")
    parser.add_argument("--block", type=int, default=0, help="rounds of a block, instead of the workload's")
    for name, options in more.items():
        parser.add_argument(f"--{name}", **options)
    return parser.parse_args()


def report(
    args: argparse.Namespace, file: str, work: Workload, clock: Clock, weights: dict[str, Any], **more: Any
) -> None:
    """Write the seconds of each block and the final weights under their names in `Workload.weights`."""
    args.out.mkdir(parents=True, exist_ok=True)
    place = args.out / f"{Path(file).stem}-{args.label}"
    np.savez(f"{place}.npz", **{name: np.asarray(value, np.float32) for name, value in weights.items()})
    place.with_name(place.name + ".json").write_text(
        json.dumps({**clock.intervals(), "block": work.block, **more}) + "\n"
    )
