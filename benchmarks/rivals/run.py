"""The same FedAvg experiment through coterie, Flower, pfl, FedJAX, a PyTorch loop and the best PyTorch we can write.

    python benchmarks/rivals/run.py                                     # MLP and CNN on a CPU, every rival installed
    python benchmarks/rivals/run.py --models mlp --rivals coterie fedjax
    python benchmarks/rivals/run.py --device gpu --environment active   # with the PyTorch and JAX that are here

Everyone gets the same file: images dealt to clients as in the FedAvg paper (MNIST from COTERIE_DATA, else made up),
first weights, plain SGD in batches of 10, 50 local steps a round. Each rival is installed from the package index into
an environment of its own (.venv-bench) and runs as a program of its own, with each of its settings once
(environments.py); the ones with the shortest round and with the fewest CPU seconds are then measured --repeats times,
in turns with the others. The first block of rounds warms up (compiles, starts actors) and is told apart. CPU seconds
are those of all processes of a program: they tell more than wall time where a machine is busy. Final weights are scored
here (by_hand.py).

Before that, everyone runs a small experiment in which nothing is left to chance. The largest difference of a weight to
the one worked out by hand in NumPy says that it is the same experiment. What does not install or run is listed with its
error.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import by_hand
import numpy as np
import record
import workload
from environments import HERE, RIVALS, python_of

EXACT = "exact"


class Runner:
    """Starts programs on workloads, and remembers why one cannot run."""

    def __init__(self, asked: argparse.Namespace, folder: Path):
        self.asked, self.folder = asked, folder
        self.errors: dict[str, str] = {}

    def command(self, rival: str, way: str, files: list[Path], label: str, out: Path) -> list[str]:
        """Return the words of a program's command line after Python."""
        this = RIVALS[rival]
        words = [*map(str, files), "--out", str(out), "--label", label, "--device", self.asked.device]
        module = this.launcher.get(way)
        start = [] if module is None else ["-m", *module]
        return [*start, str(HERE / this.program), *words, *getattr(this, self.asked.device)[way]]

    def measure(self, rival: str, way: str, files: list[Path], label: str) -> dict[str, dict[str, Any]]:
        """Run a rival on some workloads; returns what it measured, or its error, for each."""
        out = self.folder / "out"
        self._measured(rival, self.command(rival, way, files, label, out))
        return {file.stem: record.read(out / f"{file.stem}-{label}", self.errors.get(rival)) for file in files}

    def together(self, ways: dict[str, str], files: list[Path], label: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Run several rivals that have the same Python in one process, as `measure` does."""
        out, words = self.folder / "out", ["several.py"]
        for number, (rival, way) in enumerate(ways.items()):
            _, *rest = self.command(rival, way, files, f"{label}-{rival}", out)
            words += ["+"] * bool(number) + [RIVALS[rival].program, *rest]
        first = next(iter(ways))
        self._measured(first, [str(HERE / words[0]), *words[1:]])
        said = self.errors.pop(first, None)
        return {
            rival: {file.stem: record.read(out / f"{file.stem}-{label}-{rival}", said) for file in files}
            for rival in ways
        }

    def _measured(self, rival: str, words: list[str]) -> None:
        self.errors.pop(rival, None)
        try:
            python = python_of(
                RIVALS[rival], self.asked.torch, self.asked.torch_index, self.asked.environment == "active"
            )
        except RuntimeError as error:
            self.errors[rival] = str(error)
            return
        keep = rival == "coterie" or self.asked.environment == "active"
        error = run([python, *words], self.folder / "said.log", self.asked.limit, keep)
        if error:
            self.errors[rival] = error


def run(command: list[str], log: Path, limit: float, keep_path: bool) -> str | None:
    """Run a program with a time limit, and return why it failed."""
    token = uuid.uuid4().hex
    environment = {**os.environ, workload.TOKEN: token, "PYTHONWARNINGS": "ignore"}
    # Threads that wait by spinning take the others' core where a machine is busy, and gain little where it is not.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not keep_path:  # it may name packages of another environment
        environment.pop("PYTHONPATH", None)
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
    for left in workload.processes(token):  # what it started may outlive it
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
    process.wait()
    if code == 0:
        return None
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code is None:
        return f"took longer than {limit:g} s"
    last = lines[-1] if lines else f"exit code {code}"
    return next((line for line in reversed(lines) if "Error" in line), last)[:300]


def make_workloads(
    asked: argparse.Namespace, folder: Path, blocks: int, part: int = 1
) -> tuple[dict[str, Path], dict[str, str]]:
    """Write the workload of each model, with one in `part` clients; returns the files, and what the images are."""
    files, data = {}, {}
    for model in asked.models:
        clients = asked.clients or (100 if model == "mlp" or asked.device == "gpu" else 20)
        clients = max(2, clients // part)
        x, y, data[model] = images(model, clients * asked.samples + asked.test)
        dealt = workload.deal(x, y, clients, asked.samples, asked.test)
        files[model] = folder / f"{model}.npz"
        settings = {
            "lr": asked.lr,
            "batch": asked.batch,
            "epochs": asked.epochs,
            "block": asked.block,
            "blocks": blocks,
        }
        workload.write(files[model], dealt, workload.first_weights(model), **settings)
    return files, data


def make_exact(model: str, folder: Path) -> Path:
    """Write a small workload in which a client's samples are one batch, so that its answer is known.

    With four clients instead of three a maximum in the CNN is so near a tie that a change of the weights by 1e-7 moves
    the answer by 7e-6.
    """
    x, y = workload.synthetic(100, workload.SHAPES[model])
    file = folder / f"{EXACT}-{model}.npz"
    settings = {"lr": 0.1, "batch": 10, "epochs": 2, "block": 1, "blocks": 2}
    workload.write(file, workload.deal(x, y, 3, 10, 50), workload.first_weights(model), **settings)
    return file


def images(model: str, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return bytes, labels, and what they are."""
    shape = workload.SHAPES[model]
    if np.prod(shape) == 784 and os.environ.get("COTERIE_DATA"):
        from coterie.data.public import Mnist
        from coterie.errors import CoterieError

        try:
            pool = Mnist().load()
            return np.asarray(pool.x).reshape(-1, *shape), np.asarray(pool.y), "MNIST"
        except CoterieError as error:
            print(f"made-up images instead of MNIST: {error}", file=sys.stderr)
    return *workload.synthetic(count, shape), "made up"


def main() -> None:
    asked = read_arguments()
    began = time.time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runner, blocks = Runner(asked, folder), 1 + asked.timed
        files, data = make_workloads(asked, folder, blocks)
        rivals = [rival for rival in asked.rivals if getattr(RIVALS[rival], asked.device)]
        exact = {} if asked.no_check else check(runner, rivals, folder)
        trials = [] if asked.device == "gpu" else trial(runner, rivals, asked, folder)
        best = {
            (rival, model): best_ways(rival, model, asked.device, trials) for rival in rivals for model in asked.models
        }
        found: dict[tuple[str, str, str], list[dict[str, Any]]] = {
            (rival, way, model): [] for (rival, model), ways in best.items() for way in ways
        }
        load = []
        for number in range(asked.repeats):
            load.append(round(os.getloadavg()[0], 1))
            for rival, way, measured in repeat(runner, list(found), files, f"repeat-{number}"):
                for model, one in measured.items():
                    print(f"{rival} {model} with {way}, {number + 1}: {record.short(one)}", flush=True)
                    found[rival, way, model].append(one)
        for model in asked.models:
            work = workload.read(files[model])
            rows = [
                record.row(rival, way, measured, exact.get((rival, model)), work)
                for (rival, way, of), measured in found.items()
                if of == model
            ]
            own = [row for row in trials if row["model"] == model]
            record.write(asked, model, work, data[model], rows, own, load, time.time() - began)


def best_ways(rival: str, model: str, device: str, trials: list[dict[str, Any]]) -> list[str]:
    """Return the setting with the shortest round and the one with the fewest CPU seconds, which may be the same."""
    tried = [row for row in trials if (row["rival"], row["model"]) == (rival, model) and "error" not in row]
    if not tried:
        return [next(iter(getattr(RIVALS[rival], device)))]
    return list(dict.fromkeys(min(tried, key=lambda row: row[name])["way"] for name in ("wall_s", "cpu_s")))


def repeat(runner: Runner, wanted: list[tuple[str, str, str]], files: dict[str, Path], label: str) -> Any:
    """Measure every rival once with each of its settings; yields both and what was measured for each model."""
    asked = list(dict.fromkeys((rival, way) for rival, way, _ in wanted))
    if runner.asked.device == "gpu" and runner.asked.environment == "active":  # starting a GPU takes seconds: once
        others = {rival: way for rival, way in asked if RIVALS[rival].environment == "torch"}
        if others:
            for rival, measured in runner.together(others, list(files.values()), label).items():
                yield rival, others[rival], measured
        asked = [(rival, way) for rival, way in asked if rival not in others]
    for number, (rival, way) in enumerate(asked):
        own = [files[model] for one, its_way, model in wanted if (one, its_way) == (rival, way)]
        yield rival, way, runner.measure(rival, way, own, f"{label}-{number}")


def check(runner: Runner, rivals: list[str], folder: Path) -> dict[tuple[str, str], Any]:
    """Return the largest difference of a weight to the exact answer, or the error, for each rival and model."""
    files = {model: make_exact(model, folder) for model in runner.asked.models}
    answers = {model: by_hand.fedavg(workload.read(file)) for model, file in files.items()}
    found: dict[tuple[str, str], Any] = {}
    for rival in rivals:
        way = next(iter(getattr(RIVALS[rival], runner.asked.device)))
        measured = runner.measure(rival, way, list(files.values()), f"{EXACT}-{rival}")
        for model, answer in answers.items():
            one = measured[f"{EXACT}-{model}"]
            found[rival, model] = one.get("error") or record.difference(one["weights"], answer)
            print(f"{rival} {model}: largest difference of a weight {found[rival, model]}", flush=True)
    return found


def trial(runner: Runner, rivals: list[str], asked: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run each setting of each rival for a warm and a timed block, with a quarter of the clients."""
    (folder / "trial").mkdir()
    files, _ = make_workloads(asked, folder / "trial", 2, part=4)
    rows = []
    for rival in rivals:
        ways = RIVALS[rival].cpu
        for number, way in enumerate(ways if len(ways) > 1 else ()):
            for model, one in runner.measure(rival, way, list(files.values()), f"trial-{rival}-{number}").items():
                print(f"{rival} {model} with {way}: {record.short(one)}", flush=True)
                rows.append({"rival": rival, "model": model, "way": way, **record.timed(one)})
    return rows


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(workload.SHAPES), default=["mlp", "cnn"])
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--environment", choices=("own", "active"), default="own", help="active: the running Python")
    parser.add_argument("--torch", default="torch", help="the PyTorch to install, such as torch==2.13.0")
    parser.add_argument("--torch-index", default="", help="the package index it comes from; empty: pip's own")
    parser.add_argument("--clients", type=int, default=0, help="default 100; 20 for a CNN on a CPU")
    parser.add_argument("--samples", type=int, default=500, help="of each client")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them in a round")
    parser.add_argument("--test", type=int, default=5000, help="samples that final models are scored on")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--block", type=int, default=1, help="rounds between two looks at the clock")
    parser.add_argument("--timed", type=int, default=3, help="blocks after the first one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900, help="seconds that one process may take")
    parser.add_argument("--no-check", action="store_true", help="leave out the exact experiment")
    asked = parser.parse_args()
    if asked.samples % 2 or asked.samples % asked.batch:
        parser.error("--samples must be even and a multiple of --batch: two shards for each client, and whole batches")
    return asked


if __name__ == "__main__":
    main()
