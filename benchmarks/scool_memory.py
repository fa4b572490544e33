"""How should SCooL infer weights from little evidence? Its `memory`, and attention's `evidence`, on validation samples.

    python benchmarks/scool_memory.py                                # embedded data, two minutes on two cores
    COTERIE_DATA=... python benchmarks/scool_memory.py --data spoken-speakers spoken-classes --epochs 1

Accuracy as in scool_serve.py: half of each client's validation samples judge, the test set is dropped. Beside it the
area under the ROC curve of the weights in the round after which they are held: how well they tell the clients of a
group (or with the same classes) from others. Always with `serve = "mixture"`; an mlp, 40 rounds, five seeds. `plain` is
attention with the default memory and `evidence = "plain"`.
"""

import argparse
from typing import Any

import numpy as np
from common import publish, trained
from scool_m_steps import DATA, same_shapes
from scool_serve import KNOWN, without_test

from coterie.data.clients import Federation
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.quality import graph_quality, true_groups
from coterie.learning.task import Task
from coterie.methods.local import Local
from coterie.methods.pfedgraph import PFedGraph
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_sbm import ScoolSBM
from coterie.models.mlp import Mlp


def scores(engine: Engine, federation: Federation, method: Any, rounds: int, seed: int) -> tuple[float, float]:
    """Train; return accuracy in per cent on the samples that judge, and the area under the curve (or NaN)."""
    groups, everyone = true_groups(federation.groups, federation.label_counts()), Graph.complete(engine.size)
    areas = []

    def judge(training: Training, state: Any, done: int, block: Any) -> None:
        if groups is not None and done in method.stages():
            table = {"neighbours": everyone.neighbours, "present": everyone.present}
            areas.append(graph_quality(table | {"weights": np.asarray(block.weights)}, groups)["graph_auroc"])

    training, state = trained(engine, method, rounds, seed, after=judge)
    return 100 * float(training.evaluate(state, rounds)["test_score"].mean()), float(areas[0] if areas else np.nan)


def main() -> None:
    """Print a line for each data set, method and memory, and write all of them to a dated file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=KNOWN, nargs="*", default=list(DATA))
    parser.add_argument("--memory", type=float, nargs="*", default=[0.0, 0.7, 0.9])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    asked = parser.parse_args()
    device, usual = choose_device("cpu"), {"lr": asked.lr, "epochs": asked.epochs}
    methods: dict[str, Any] = {"local": Local(**usual), "pfedgraph": PFedGraph(**usual)}
    for name, kind in (("scool-sbm", ScoolSBM), ("scool-attention", ScoolAttention)):
        for memory in asked.memory:
            methods[f"{name}, memory {memory:g}"] = kind(**usual, memory=memory, serve="mixture")
    plain = {"evidence": "plain", "serve": "mixture"}
    methods["scool-attention, plain"] = ScoolAttention(**usual, **plain)
    found: dict[str, Any] = {}
    for data in asked.data:
        federations = same_shapes([without_test(KNOWN[data](seed)) for seed in range(asked.seeds)])
        task, engines = Task.of(federations[0], Mlp(hidden=(32,))), []
        for federation in federations:
            engines.append(Engine(task, federation, device, like=engines[0] if engines else None))
        found[data] = {}
        for label, method in methods.items():
            pairs = [
                scores(*both, method, asked.rounds, seed)
                for seed, both in enumerate(zip(engines, federations, strict=True))
            ]
            accuracy, area = np.mean(pairs, 0)
            found[data][label] = {
                "accuracy": round(float(accuracy), 2),
                "area": None if np.isnan(area) else round(float(area), 4),
            }
            print(f"{data}: {label}: {found[data][label]}", flush=True)
    publish("scool-memory", device.label, {"rounds": asked.rounds, "seeds": asked.seeds, **usual, "data": found})


if __name__ == "__main__":
    main()
