"""SCooL beside other personal methods on images, everything tuned on validation samples with the same budget.

    python benchmarks/scool_images.py --data fashion-mnist --setting groups --device gpu

The table in docs/methods/learned-graphs.md. 100 clients with 2 classes each (`classes`), or five groups of 20 clients
with the classes of a group (`groups`); 40 training and 20 validation images a client, all test images of its classes;
the CNN of the FedAvg paper, 50 rounds of 5 epochs in batches of 10, weight decay 5e-4. Every method gets five
candidates: the learning rates 0.01, 0.05 and 0.1, and at the best of them two more values of its main own setting (two
more learning rates where it has none). The choice is made by validation accuracy on a partition of its own, whose test
images are not looked at; each seed then draws another partition and other initial models. The last round counts.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from scipy import stats

from coterie.data import load
from coterie.data.clients import Federation
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.learning.task import Task
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg_finetuned import FedAvgFinetuned
from coterie.methods.fedrep import FedRep
from coterie.methods.fomo import Fomo
from coterie.methods.local import Local
from coterie.methods.pfedgraph import PFedGraph
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_sbm import ScoolSBM
from coterie.models.cnn import Cnn
from coterie.models.mlp import Mlp

RATES = (0.01, 0.05, 0.1)
MORE_RATES: tuple[str, tuple[Any, ...]] = ("lr", (0.02, 0.2))
METHODS: dict[str, tuple[type, tuple[str, tuple[Any, ...]]]] = {
    "local": (Local, MORE_RATES),
    "fedavg-finetuned": (FedAvgFinetuned, ("finetune_epochs", (1, 10))),
    "ditto": (Ditto, ("tie", (0.01, 1.0))),
    "fedrep": (FedRep, MORE_RATES),
    "pfedgraph": (PFedGraph, ("alpha", (0.2, 3.2))),
    "scool-attention": (ScoolAttention, ("temperature", (1.0, 2.0))),
    "scool-sbm": (ScoolSBM, ("temperature", (1.0, 2.0))),
    "fomo": (Fomo, MORE_RATES),
}
SETTINGS: dict[str, dict[str, int]] = {"classes": {"classes": 2}, "groups": {"groups": 5}}
LAST_LR = 0.04  # of the first, with --falling: that of the tuned column of `coterie reproduce scool`
TUNED_ON = 1000  # the seed of the partition on which settings are chosen


class Bench:
    """The federations of a setting, and one engine for each task on the present one."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.device = asked, choose_device(asked.device)
        self.tasks: dict[bool, Task] = {}
        self.compiled: dict[bool, Engine] = {}
        self.engines: dict[bool, Engine] = {}

    def method(self, kind: type, settings: dict[str, Any]) -> Any:
        """Return a method of the experiment; with --falling its learning rate falls over the second half."""
        half, falling = self.asked.rounds // 2, {}
        if self.asked.falling:
            falling = {"decay": LAST_LR ** (1 / (self.asked.rounds - half)), "decay_after": half}
        return kind(**settings, **falling, epochs=5, batch_size=10, weight_decay=5e-4)

    def use(self, seed: int) -> None:
        """Draw the partition of a seed."""
        self.federation: Federation = load(
            self.asked.data,
            self.asked.setting,
            clients=self.asked.clients,
            seed=seed,
            samples=60,
            validation=1 / 3,
            **SETTINGS[self.asked.setting],
        )
        if seed == TUNED_ON:
            self.federation = dataclasses.replace(self.federation, test=self.federation.validation)
        self.engines = {}

    def engine(self, method: Any) -> Engine:
        """Return the engine for a method; the last layer is personal where layers must be."""
        personal = isinstance(method, FedRep)
        if personal not in self.tasks:
            model = Mlp(hidden=(8,)) if self.asked.tiny else Cnn()
            last = ("layers.1",) if self.asked.tiny else ("fc2",)
            self.tasks[personal] = Task.of(self.federation, model, personal=last if personal else ())
        if personal not in self.engines:
            like = self.compiled.get(personal)
            engine = Engine(self.tasks[personal], self.federation, self.device, like=like)
            self.engines[personal] = self.compiled[personal] = engine
        return self.engines[personal]

    def train(self, method: Any, seed: int, curve: bool) -> dict[str, Any]:
        """Train; return validation accuracy in per cent after every tenth round (or the last), and test accuracy.

        `lost` is the most that one client lost from the best of these rounds to the last, in points.
        """
        rounds = self.asked.rounds
        each: list[np.ndarray] = []
        test: list[float] = []

        def look(training: Training, state: Any, done: int, block: Any) -> None:
            if done == rounds or (curve and done % 10 == 0):
                metrics = training.evaluate(state, done)
                each.append(100 * np.asarray(metrics["validation_score"]))
                test.append(100 * float(metrics["test_score"].mean()))

        common.trained(self.engine(method), method, rounds, seed, every=10, after=look)
        scores = [round(float(values.mean()), 3) for values in each]
        lost = float((each[int(np.argmax(scores))] - each[-1]).max())
        return {"validation": scores, "test": round(test[-1], 3), "lost": round(lost, 1)}


def tune(bench: Bench, name: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the best of five candidates on validation samples, and all of them with their accuracies."""
    kind, (setting, values) = METHODS[name]
    tried: list[tuple[float, dict[str, Any]]] = []

    def attempt(settings: dict[str, Any]) -> None:
        tried.append((bench.train(bench.method(kind, settings), TUNED_ON, False)["validation"][-1], settings))

    for rate in RATES:
        attempt({"lr": rate})
    best = max(tried, key=lambda pair: pair[0])[1]
    for value in values:
        attempt({**best, setting: value})
    return max(tried, key=lambda pair: pair[0])[1], tried


def differences(rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, list[float]]]:
    """Return, for each SCooL row, its lead over every other row: mean over the seeds and half of the 95 % interval."""
    test = {name: np.array([run["test"] for run in runs]) for name, runs in rows.items() if len(runs) > 1}
    leads: dict[str, dict[str, list[float]]] = {}
    for mine in (name for name in test if name.startswith("scool")):
        for other in (name for name in test if name != mine):
            count = min(len(test[mine]), len(test[other]))
            gap = test[mine][:count] - test[other][:count]
            half = stats.t.ppf(0.975, count - 1) * gap.std(ddof=1) / np.sqrt(count)
            leads.setdefault(mine, {})[other] = [round(float(gap.mean()), 3), round(float(half), 3)]
    return leads


def main() -> None:
    """Tune every method, train it with every seed, and write a result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("mnist", "fashion-mnist"), default="fashion-mnist")
    parser.add_argument("--setting", choices=SETTINGS, default="classes")
    parser.add_argument("--methods", choices=METHODS, nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="with --settings: behind those of that file")
    parser.add_argument(
        "--settings", type=Path, help="a result file: keep its choices and runs, add further seeds or methods"
    )
    parser.add_argument("--falling", action="store_true", help="learning rates that fall to 4 % in the second half")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no seed after so many minutes")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script")
    asked = parser.parse_args()
    started, bench = time.perf_counter(), Bench(asked)
    chosen: dict[str, dict[str, Any]] = {}
    tried: dict[str, list[Any]] = {}
    earlier: dict[str, Any] = {"tried": {}, "chosen": {}, "runs": {}}
    if asked.settings:
        earlier = json.loads(asked.settings.read_text())
        chosen, tried = dict(earlier["chosen"]), dict(earlier["tried"])
    new = [name for name in asked.methods if name not in chosen]
    if new:
        bench.use(TUNED_ON)
    for name in new:
        chosen[name], tried[name] = tune(bench, name)
        print(f"{time.perf_counter() - started:.0f} s: {name}: {tried[name]}", flush=True)
    labels = {name: (name, chosen[name]) for name in asked.methods}
    for name in asked.methods:
        if name.startswith("scool"):
            labels[f"{name}, 2 %"] = (name, {**chosen[name], "fraction": 0.02})
    rows: dict[str, list[dict[str, Any]]] = earlier["runs"] | {each: earlier["runs"].get(each, []) for each in labels}
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        if time.perf_counter() - started > 60 * asked.minutes:
            break
        bench.use(seed)
        for label, (name, settings) in labels.items():
            method = bench.method(METHODS[name][0], settings)
            rows[label].append(bench.train(method, seed, name.startswith("scool")))
            print(f"{time.perf_counter() - started:.0f} s: seed {seed}: {label}: {rows[label][-1]}", flush=True)
    common.publish(
        f"scool-images-{asked.data}-{asked.setting}{'-falling' * asked.falling}",
        bench.device.label,
        {
            **({"earlier": str(asked.settings)} if asked.settings else {}),
            "tried": tried,
            "chosen": chosen,
            "mean": {label: round(float(np.mean([run["test"] for run in runs])), 3) for label, runs in rows.items()},
            "lead": differences(rows),
            "runs": rows,
            "seconds": round(time.perf_counter() - started),
        },
    )


if __name__ == "__main__":
    main()
