"""Should a client use the mixture of models, or the one it has just trained? SCooL's `serve`, on validation samples.

    python benchmarks/scool_serve.py                                # embedded data, three minutes on two cores
    COTERIE_DATA=... python benchmarks/scool_serve.py --data human-activity a9a fashion-mnist-classes mnist-groups

Of each client's validation samples every second one is the method's, and the others judge it; the test set is dropped
before anything is trained. An mlp of 32 units, 40 rounds of 2 epochs, one learning rate for all; three seeds, each with
other data or another division of them.
"""

import argparse
import dataclasses
from typing import Any

import numpy as np
import scool_unseen
from common import publish, trained
from scool_m_steps import DATA, same_shapes

from coterie.data import load
from coterie.data.clients import Federation, stack
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.learning.task import Task
from coterie.methods.fedavg_finetuned import FedAvgFinetuned
from coterie.methods.fomo import Fomo
from coterie.methods.local import Local
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_sbm import ScoolSBM
from coterie.models.mlp import Mlp

IMAGES: dict[str, Any] = {"clients": 60, "samples": 80, "test_samples": 40, "validation": 0.5}
OTHERS = {
    "human-activity": lambda seed: load("human-activity", "natural", seed=seed, validation=0.3, test=0.2),
    "a9a": lambda seed: load("a9a", "natural", seed=seed, validation=0.3, test=0.2),
    "fashion-mnist-classes": lambda seed: load("fashion-mnist", "classes", classes=2, seed=seed, **IMAGES),
    "fashion-mnist-groups": lambda seed: load("fashion-mnist", "groups", groups=5, seed=seed, **IMAGES),
    "mnist-classes": lambda seed: load("mnist", "classes", classes=2, seed=seed, **IMAGES),
    "mnist-groups": lambda seed: load("mnist", "groups", groups=5, seed=seed, **IMAGES),
}
MORE = {name: lambda seed, make=make: make(seed, validation=0.3, test=0.1) for name, make in scool_unseen.DATA.items()}
DIVIDED = {
    "iid": lambda seed: load("digits", "iid", clients=20, seed=seed, samples=80, validation=0.3),
    "dirichlet-0.3": lambda seed: load(
        "digits", "dirichlet", alpha=0.3, clients=20, seed=seed, samples=80, validation=0.3
    ),
    "dirichlet-1": lambda seed: load(
        "digits", "dirichlet", alpha=1.0, clients=20, seed=seed, samples=80, validation=0.3
    ),
}
KNOWN = {**DATA, **OTHERS, **MORE, **DIVIDED}


def without_test(federation: Federation) -> Federation:
    """Return a federation whose test samples are every second one of its validation samples."""
    rows = [federation.validation.rows(client) for client in range(len(federation))]
    ours, judges = (stack([(x[first::2], y[first::2]) for x, y in rows]) for first in (0, 1))
    return dataclasses.replace(federation, validation=ours, test=judges)


def score(engine: Engine, method: Any, rounds: int, seed: int) -> float:
    """Train, and return the clients' mean accuracy in per cent on the samples that judge."""
    training, state = trained(engine, method, rounds, seed)
    return 100 * float(training.evaluate(state, rounds)["test_score"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=KNOWN, nargs="*", default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    asked = parser.parse_args()
    device, usual = choose_device("cpu"), {"lr": asked.lr, "epochs": asked.epochs}
    methods: dict[str, Any] = {
        "local": Local(**usual),
        "fedavg-finetuned": FedAvgFinetuned(**usual),
        "fomo": Fomo(**usual),
    }
    for name, kind in (("scool-sbm", ScoolSBM), ("scool-attention", ScoolAttention)):
        for serve in ("mixture", "validated"):
            methods[f"{name}, {serve}"] = kind(**usual, serve=serve)
    found: dict[str, Any] = {}
    for data in asked.data:
        federations = same_shapes([without_test(KNOWN[data](seed)) for seed in range(asked.seeds)])
        task, engines = Task.of(federations[0], Mlp(hidden=(32,))), []
        for federation in federations:
            engines.append(Engine(task, federation, device, like=engines[0] if engines else None))
        found[data] = {"validation_samples": int(np.median(federations[0].validation.count))}
        for label, method in methods.items():
            scores = [score(engine, method, asked.rounds, seed) for seed, engine in enumerate(engines)]
            found[data][label] = {"mean": round(float(np.mean(scores)), 2), "seeds": [round(s, 2) for s in scores]}
            print(f"{data}: {label}: {found[data][label]}", flush=True)
    publish("scool-serve", device.label, {"rounds": asked.rounds, **usual, "data": found})


if __name__ == "__main__":
    main()
