"""Do our methods agree with PFLlib's own program, on the same split of MNIST with its preset and its CNN?

    git clone https://github.com/TsingZ0/PFLlib
    python benchmarks/pfllib.py --program PFLlib/system --python .venv-bench/bin/python --out runs --device gpu

PFLlib's preset: 20 clients with Dirichlet(0.1) label shares, 75 % of a client's samples to train on, batches of 10, lr
0.005, one epoch a round. The split is ours (examples/pfllib_dirichlet.toml), written in PFLlib's files and read back by
examples/pfllib_data.py, so that both have the same numbers. Its program runs as it is (pfllib_program.py says what
happens with packages that are not there), one process for each method; --python is a Python with PyTorch.
PFLlib counts test samples, not clients, and takes the best round; the accuracy in the same round is compared too.
A run that is cut short is continued by the same command: whole runs are kept. docs/_build/pfllib.py writes the page.

Both programs start from PFLlib's weights; what is left to chance is the order of the samples. With --exact nothing is:
40 training samples for every client, all in one batch, three epochs a round. Where the method is the same, so is every
accuracy, to rounding.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from safetensors.numpy import save_file

import coterie as ct
from coterie import methods
from coterie.data.public import Mnist

BATCH = 40  # of --exact: all of a client's training samples
EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclasses.dataclass(frozen=True)
class Pair:
    """The same method in both programs: PFLlib's name and options, and ours."""

    name: str
    options: tuple[str, ...]
    ours: Any


PAIRS = {
    "fedavg": Pair("FedAvg", (), methods.FedAvg()),
    "local": Pair("Local", (), methods.Local()),
    "ditto": Pair("Ditto", ("-mu", "1"), methods.Ditto(tie=1.0)),
    "scaffold": Pair("SCAFFOLD", (), methods.Scaffold(counts="clients")),
    "moon": Pair("MOON", ("-mu", "1", "-tau", "0.5"), methods.Moon(mu=1.0, tau=0.5)),
    "fedrod": Pair("FedROD", (), methods.FedRoD()),
    "lg-fedavg": Pair("LG-FedAvg", (), methods.LGFedAvg()),
    "fedproto": Pair("FedProto", ("-lam", "1"), methods.FedProto(tie=1.0)),
}


def write_split(folder: Path, seed: int, fraction: float) -> None:
    """Write our split in PFLlib's files, once; images are scaled to [-1, 1] as PFLlib does."""
    if (folder / "config.json").exists():
        return
    # PFLlib wants 40 samples a client, so that there are batches to train on.
    least = 40 if fraction > 0.05 else 14
    own = {
        "alpha": 0.1,
        "at_least": least,
        "test_from": "pooled",
        "test": 0.25,
        "validation": 0.0,
        "fraction": fraction,
    }
    federation = ct.load("mnist", "dirichlet", clients=20, seed=seed, **own)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for split, clients in getattr(federation, part).stacks:
            for row, client in enumerate(clients):
                count = int(split.count[row])
                data = {"x": split.x[row, :count].astype(np.float32) / 127.5 - 1, "y": split.y[row, :count]}
                np.savez(folder / part / f"{int(client)}.npz", data=np.array(data, dtype=object))
    (folder / "config.json").write_text(json.dumps({"num_clients": 20, "partition": "dir", "alpha": 0.1}))


def write_exact(folder: Path, seed: int) -> None:
    """Write a split in which a client's training samples are one batch: 3 classes, 40 samples, 100 to test on."""
    if (folder / "config.json").exists():
        return
    pool, random = Mnist().load(), np.random.default_rng(seed)
    for client in range(20):
        own = np.flatnonzero(np.isin(pool.y, random.choice(10, 3, replace=False)))
        chosen = random.choice(own, BATCH + 100, replace=False)
        for part, rows in (("train", chosen[:BATCH]), ("test", chosen[BATCH:])):
            (folder / part).mkdir(parents=True, exist_ok=True)
            data = {"x": pool.x[rows].astype(np.float32) / 127.5 - 1, "y": pool.y[rows]}
            np.savez(folder / part / f"{client}.npz", data=np.array(data, dtype=object))
    (folder / "config.json").write_text(json.dumps({"num_clients": 20}))


def start_weights(asked: argparse.Namespace) -> Path:
    """Write the weights that PFLlib's runs start from under our names, and return the file."""
    file = asked.out / "start.safetensors"
    if not file.exists():
        theirs = file.with_suffix(".npz")
        program = str(Path(__file__).with_name("pfllib_program.py"))
        subprocess.run([asked.python, program, str(asked.program), "--start", str(theirs)], check=True)
        ours = {"conv1.0": "conv1", "conv2.0": "conv2", "fc1.0": "fc1", "fc": "fc2"}
        with np.load(theirs) as stored:
            named = {name.rpartition("."): stored[name] for name in stored.files}
            save_file({f"{ours[layer]}.{kind}": value for (layer, _, kind), value in named.items()}, file)
    return file


def read_split(folder: Path) -> Any:
    """Return the federation as the example reads it."""
    place = importlib.util.spec_from_file_location("pfllib_data", EXAMPLES / "pfllib_data.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module.federation(folder)


def start(asked: argparse.Namespace, name: str, seed: int) -> subprocess.Popen:
    """Start PFLlib's program; its figures are in what it prints."""
    folder = asked.out / f"seed-{seed}" / name  # its program reads ../dataset
    folder.mkdir(parents=True, exist_ok=True)
    pair = PAIRS[name]
    command = [asked.python, "-u", str(Path(__file__).with_name("pfllib_program.py").resolve())]
    command += [str(asked.program.resolve()), "-data", "MNIST", "-m", "CNN", "-algo", pair.name, *pair.options]
    command += ["-gr", str(asked.rounds), "-eg", str(asked.every), "-dev", asked.their_device, "-go", name]
    command += ["-lbs", str(BATCH), "-ls", "3", "-pls", "3", "-lr", "0.05"] if asked.exact else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(asked.threads), "MKL_NUM_THREADS": str(asked.threads)}
    with (folder / "printed.log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment)


def theirs(asked: argparse.Namespace, name: str, seed: int) -> dict[int, float]:
    """Return PFLlib's accuracy by round, in per cent, as far as it has come."""
    log = asked.out / f"seed-{seed}" / name / "printed.log"
    found: dict[int, float] = {}
    number = -1
    for line in log.read_text().splitlines() if log.exists() else ():
        if match := re.search(r"Round number: (\d+)", line):
            number = int(match[1])
        elif match := re.search(r"Averaged Test Accuracy: ([\d.]+)", line):
            found[number] = 100 * float(match[1])  # ditto prints the shared model first, then the personal ones
    return found


def ours(asked: argparse.Namespace, name: str, seed: int, federation: Any) -> None:
    """Train with our method, unless that is done; a line for every evaluation."""
    file = asked.out / f"seed-{seed}" / name / "ours.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    if max(mine(asked, name, seed), default=-1) >= asked.rounds:
        return
    weight = np.asarray(federation.test.count, float)
    started = time.perf_counter()
    with file.open("w") as lines:

        def keep(event: dict[str, Any]) -> None:
            scores = 100 * np.asarray(event["clients"]["test_score"], float)
            line = {
                "round": event["round"],
                "by_samples": float(scores @ weight / weight.sum()),
                "by_clients": float(scores.mean()),
                "seconds": round(time.perf_counter() - started, 1),
            }
            lines.write(json.dumps(line) + "\n")
            lines.flush()

        method = dataclasses.replace(PAIRS[name].ours, lr=0.005, batch_size=10)
        settings = {"rounds": asked.rounds, "evaluate_every": asked.every, "seed": seed, "progress": False}
        settings["init"] = str(start_weights(asked))
        if asked.exact:
            method = dataclasses.replace(method, lr=0.05, batch_size=0, epochs=3)
        ct.run(federation, "cnn", method, device=asked.device, on_evaluation=keep, **settings)


def mine(asked: argparse.Namespace, name: str, seed: int, key: str = "by_samples") -> dict[int, float]:
    """Return our accuracy by round, in per cent, as far as it has come."""
    file = asked.out / f"seed-{seed}" / name / "ours.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []
    return {line["round"]: line[key] for line in lines}


def compared(asked: argparse.Namespace) -> dict[str, Any]:
    """Return both programs' accuracies over the rounds that both have, for every method."""
    table: dict[str, Any] = {}
    for name in asked.methods:
        rows = []
        for seed in asked.seeds:
            their, our = theirs(asked, name, seed), mine(asked, name, seed)
            common_rounds = sorted(number for number in set(their) & set(our) if number > 0)
            if not common_rounds:
                continue
            last = common_rounds[-1]
            figures = {"seed": seed, "rounds": last}
            for label, found in (("pfllib", their), ("ours", our)):
                figures[f"{label}_best"] = round(max(found[number] for number in common_rounds), 2)
                figures[f"{label}_last"] = round(found[last], 2)
                figures[f"{label}_curve"] = {number: round(found[number], 2) for number in common_rounds}
            figures["ours_by_clients"] = round(mine(asked, name, seed, "by_clients")[last], 2)
            rows.append(figures)
        if rows:
            gap = {key: [row[f"ours_{key}"] - row[f"pfllib_{key}"] for row in rows] for key in ("best", "last")}
            table[name] = {
                "pfllib_name": PAIRS[name].name,
                "options": " ".join(PAIRS[name].options),
                "runs": rows,
                **{f"gap_{key}": round(float(np.mean(values)), 2) for key, values in gap.items()},
            }
    return table


def main() -> None:
    """Run both, compare, and write a result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="PFLlib's folder `system`")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", choices=PAIRS, nargs="*", default=list(PAIRS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="rounds between evaluations")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the images, to try it")
    parser.add_argument("--exact", action="store_true", help="a small split and full batches: nothing is random")
    parser.add_argument("--device", default="auto", help="ours")
    parser.add_argument("--their-device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of each of PFLlib's processes")
    parser.add_argument("--parallel", type=int, default=2, help="of PFLlib's processes at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="end after so many minutes, with what there is")
    parser.add_argument("--only", choices=("ours", "theirs", "comparison"), help="do only this part")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that PFLlib's processes are ended, too
    asked.out = asked.out.resolve()
    end = time.monotonic() + 60 * asked.minutes
    for seed in asked.seeds:
        folder = asked.out / f"seed-{seed}" / "dataset" / "MNIST"
        if asked.exact:
            write_exact(folder, seed)
        else:
            write_split(folder, seed, asked.fraction)
    jobs = [(name, seed) for seed in asked.seeds for name in asked.methods]
    waiting = [] if asked.only in ("ours", "comparison") else list(jobs)
    waiting = [job for job in waiting if max(theirs(asked, *job), default=-1) < asked.rounds]
    running: list[subprocess.Popen] = []

    def tend() -> None:
        running[:] = [process for process in running if process.poll() is None]
        while waiting and len(running) < asked.parallel and time.monotonic() < end:
            running.append(start(asked, *waiting.pop(0)))

    try:
        tend()
        if asked.only not in ("theirs", "comparison"):
            for seed in asked.seeds:
                federation = read_split(asked.out / f"seed-{seed}" / "dataset" / "MNIST")
                for name in asked.methods:
                    if time.monotonic() < end:
                        ours(asked, name, seed, federation)
                        tend()
        while (running or waiting) and time.monotonic() < end:
            time.sleep(1)
            tend()
    finally:
        for process in running:
            process.terminate()
    figures = {"rounds": asked.rounds, "every": asked.every, "fraction": asked.fraction, "methods": compared(asked)}
    figures["their_device"] = asked.their_device
    exact = " --exact" if asked.exact else ""
    part = f" --fraction {asked.fraction:g}" if asked.fraction < 1 else ""
    options = f"{exact}{part} --rounds {asked.rounds} --every {asked.every} --methods {' '.join(asked.methods)}"
    figures["command"] = f"benchmarks/pfllib.py --program PFLlib/system{options}"
    common.publish("pfllib-exact" if asked.exact else "pfllib", asked.device, figures)


if __name__ == "__main__":
    main()
