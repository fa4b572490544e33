"""The experiments of P4 (Lu, Cui, Squillante, Kingsbury, Horesh 2022): ten learners with one label each, and speech.

Figure 1: ten learners on an Erdos-Renyi graph, 95 % of a learner's samples have its own label; one hidden layer of 32
sigmoid units; the last layer is personal for the methods that split the model, everything is shared for the others.
Every round is one minibatch of 16 and one exchange, so that methods are compared after the same number of iterations.
W = I - min(0.2, 1 / lmax) L: the paper's fixed ratio 0.2 diverges on most such graphs.

Speech: a ring; each client (a speaker) has an affine layer of its own on the features of a frame, begun as identity,
and shares the network behind it; the learning rate shrinks by 1 / sqrt(2) in every epoch after the 20th of 30.
Sequences of yours and a small network take the place of the paper's recordings and of its five BLSTM layers.
"""

from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.reproduce import Reproduction
from coterie.spec import nearest

__all__ = ["DATASETS", "METHODS", "SETTINGS", "TESTS", "reproduction", "speech"]

METHODS = ("spdb", "spd", "d2", "gnsd", "gossip-sgd", "local", "fedper", "fedrep")
SPLITTING = ("spdb", "fedper", "fedrep")  # methods with a part of the model for each client
DATASETS = ("mnist", "fashion-mnist", "digits")
SETTINGS = ("limited", "all")  # 128 samples a learner, or all there are
TESTS = ("own", "all")  # labels of a learner's test set: as in its training data, or all equally
LIMIT, EPOCHS = 128, 30


def reproduction(
    dataset: str = "mnist",
    setting: str = "limited",
    methods: tuple[str, ...] = METHODS,
    seeds: int = 5,
    rounds: int | None = None,
    clients: int | None = None,
    test: str = "own",
) -> Reproduction:
    """Lay the experiment of Figure 1 out as a comparison.

    Args:
        dataset: one of `DATASETS`.
        setting: "limited", 128 samples a learner, or "all".
        methods: which methods, by name.
        seeds: runs of each method.
        rounds: iterations, 10,000 unless said otherwise (the paper does not say).
        clients: another number of learners than 10.
        test: labels of a learner's test set, "own" or "all" (the paper does not say which; its goal is the first).
    """
    for name, value, known in (("dataset", dataset, DATASETS), ("setting", setting, SETTINGS), ("test", test, TESTS)):
        if value not in known:
            raise CoterieError(f"{name} must be one of {', '.join(known)}, not {value!r}{nearest(value, known)}")
    learners = 10 if clients is None else clients
    partition: dict[str, Any] = {"name": "dominant", "clients": learners, "share": 0.95, "validation": 0.0}
    partition |= {"samples": LIMIT} if setting == "limited" else {}
    partition |= {"test_labels": test} if test != "own" else {}
    count = 10_000 if rounds is None else rounds
    tables: dict[str, Any] = {
        "format": 1,
        "data": {"name": dataset},
        "partition": partition,
        "model": {"name": "mlp", "hidden": [32], "activation": "sigmoid"},
        "method": {"lr": 0.02, "batch_size": 16, "steps": 1},
        "graph": {"name": "erdos-renyi", "probability": 0.3, "weights": "laplacian"},
        "run": {"rounds": count, "evaluate_every": max(1, count // 10)},
        "compare": {"methods": list(methods), "seeds": seeds},
        "methods": {name: {"personal": ["layers.1"]} for name in methods if name in SPLITTING},
    }
    labels = "its own label distribution" if test == "own" else "all labels equally"
    note = f"Figure 1 of the paper has curves, no table; here: {count} iterations, test sets with {labels}"
    return Reproduction(f"SPDB on {dataset}, {setting} data", tables, {}, note)


def speech(
    path: str | Path,
    methods: tuple[str, ...] = METHODS,
    seeds: int = 5,
    rounds: int | None = None,
    clients: int | None = None,
) -> Reproduction:
    """Lay the speech experiment out for sequences of the user's own.

    Args:
        path: an .npz file with `x [N, frames, features]`, `y [N]`, `client [N]`, and `split` if it is known.
        methods: which methods, by name.
        seeds: runs of each method.
        rounds: iterations, 1,500 unless said otherwise.
        clients: at most this many owners of samples, drawn at random (the paper has 5); all of them by default.
    """
    count = 1_500 if rounds is None else rounds
    partition: dict[str, Any] = {"name": "natural"} | ({} if clients is None else {"clients": clients})
    tables: dict[str, Any] = {
        "format": 1,
        "data": {"name": "npz", "path": str(path), "kind": "classification"},
        "partition": partition,
        "model": {"name": "mlp", "hidden": [64], "input_affine": True},
        "method": {
            "lr": 0.1,
            "batch_size": 16,
            "steps": 1,
            "decay": 2**-0.5,
            "decay_after": count * 20 // EPOCHS,
            "decay_every": max(1, count // EPOCHS),
        },
        "graph": {"name": "ring", "weights": "laplacian"},
        "run": {"rounds": count, "evaluate_every": max(1, count // 10)},
        "compare": {"methods": list(methods), "seeds": seeds},
        "methods": {name: {"personal": ["input"]} for name in methods if name in SPLITTING},
    }
    note = "other data than the paper's, so that there is no figure to lay beside: accuracy on the sequences given"
    return Reproduction(f"SPDB on {Path(path).name}, personal input layers on a ring", tables, {}, note)
