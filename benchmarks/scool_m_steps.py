"""SCooL's M-step and temperature on validation samples: the table in docs/methods/learned-graphs.md.

    python benchmarks/scool_m_steps.py                 # a quarter of an hour on two cores
    python benchmarks/scool_m_steps.py --data planted --lr 0.05 --epochs 1

Three federations of embedded data, drawn anew with every seed, with many validation samples: nothing of a test set is
looked at. All methods have the same learning rate, epochs and rounds.

"pull p" is the paper's step with p times the pull of a Gaussian prior towards the neighbours (its eq. 11 to 14), with
the weights of the step: theta_i - sum_j w_ij (theta_j - theta_j') + p sum_j w_ij (theta_j - theta_i). With p = 1 that
is sum_j w_ij theta_j', a mixture of the models, here with weights that are inferred anew in every round.
"""

import argparse
import dataclasses
from typing import Any

import numpy as np
from common import publish, trained

from coterie.data import load
from coterie.data.clients import Federation
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.learning.task import Task
from coterie.methods.local import Local
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_mmsbm import ScoolMMSBM
from coterie.methods.scool_sbm import ScoolSBM
from coterie.methods.shared.m_steps import move
from coterie.models.mlp import Mlp
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import traced

DATA = {
    "planted": lambda seed: load("planted-groups", seed=seed, validation_size=50),
    "scanners": lambda seed: load("digit-scanners", sites=25, scanners=5, seed=seed, validation=0.3, test=0.2),
    "classes": lambda seed: load("digits", "classes", clients=20, seed=seed, validation=0.3, test=0.2),
}


def pulled(method: Any) -> Any:
    """Return a SCooL method whose first-order step also pulls towards the neighbours' models."""

    @traced
    class Pulled(method):
        pull: float = param(1.0, "strength of the pull, relative to the weights of the step")

        def _move(self, before: Any, after: Any, weights: Any, own_weight: Any, peers: Peers) -> Any:
            slots, own = self._scaled(peers, weights, own_weight)
            return move(peers, before, tree.minus(before, after), slots, own, self.pull * slots)

    return Pulled


METHODS = {"sbm": ScoolSBM, "attention": ScoolAttention, "mmsbm": ScoolMMSBM}
PULLS = (0.1, 0.3, 1.0)
TEMPERATURES = (2.0, 1.0, 0.5, 0.25, 0.2, 0.1)


def same_shapes(federations: list[Federation]) -> list[Federation]:
    """Pad the samples, so that the programs of one federation serve all."""
    for part in ("train", "validation", "test"):
        most = max(getattr(each, part).x.shape[1] for each in federations)
        for i, each in enumerate(federations):
            split = getattr(each, part)
            more = [(0, 0), (0, most - split.x.shape[1])]
            x = np.pad(split.x, more + [(0, 0)] * (split.x.ndim - 2))
            padded = split._replace(x=x, y=np.pad(split.y, more + [(0, 0)] * (split.y.ndim - 2)))
            federations[i] = dataclasses.replace(each, **{part: padded})
    return federations


def validated(engine: Engine, method: Any, rounds: int, seed: int) -> float:
    """Train, and return the clients' mean accuracy on their validation samples after the last round."""
    training, state = trained(engine, method, rounds, seed)
    return float(training.evaluate(state, rounds)["validation_score"].mean())


def main() -> None:
    """Print one line for each data set, method, M-step and temperature, and write all of them to a dated file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, nargs="*", default=list(DATA))
    parser.add_argument("--methods", choices=METHODS, nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    asked = parser.parse_args()
    device, usual = choose_device("cpu"), {"lr": asked.lr, "epochs": asked.epochs}
    accuracy: dict[str, dict[str, Any]] = {data: {} for data in asked.data}
    for data in asked.data:
        federations = same_shapes([DATA[data](seed) for seed in range(asked.seeds)])
        task = Task.of(federations[0], Mlp(hidden=(32,)))
        engines: list[Engine] = []
        for federation in federations:
            engines.append(Engine(task, federation, device, like=engines[0] if engines else None))
        tried: list[tuple[str, Any]] = [("local", Local(**usual))]
        for name in asked.methods:
            for m_step in ("first-order", "mix"):
                for temperature in TEMPERATURES:
                    # Always the mixture: validation samples that choose a model would judge it too well.
                    method = METHODS[name](**usual, m_step=m_step, temperature=temperature, serve="mixture")
                    tried.append((f"scool-{name} {m_step} temperature {temperature:g}", method))
            kind = pulled(METHODS[name])
            for strength in PULLS:
                for temperature in (1.0, 0.5):
                    method = kind(**usual, m_step="first-order", temperature=temperature, pull=strength)
                    tried.append((f"scool-{name} pull {strength:g} temperature {temperature:g}", method))
        for label, method in tried:
            scores = [100 * validated(engine, method, asked.rounds, seed) for seed, engine in enumerate(engines)]
            accuracy[data][label] = {"mean": round(float(np.mean(scores)), 2), "seeds": [round(s, 2) for s in scores]}
            print(f"{data}: {label}: {accuracy[data][label]}", flush=True)
    name = "scool-m-steps" if asked.lr == 0.1 else f"scool-m-steps-lr-{asked.lr:g}".replace(".", "-")
    publish(name, device.label, {"rounds": asked.rounds, **usual, "validation_accuracy": accuracy})


if __name__ == "__main__":
    main()
