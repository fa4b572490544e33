"""The experiments of SPDB (Lu, Cui, Squillante, Kingsbury, Horesh 2022): learners with one label each, and speech.

Figure 1: ten learners on an Erdos-Renyi graph, 95 % of a learner's samples have its own label; one hidden layer of 32
sigmoid units; the last layer is personal for the methods that split the model, everything is shared for the others.
Every round is one minibatch of 16 and one exchange: methods are compared after the same number of iterations.
W = I - min(0.2, 1 / lmax) L: the paper's fixed ratio 0.2 diverges on most such graphs.

Speech: a ring; each client (a speaker) has its own affine layer on the features of a frame, initialised as identity,
and shares the network after it; the learning rate shrinks by 1 / sqrt(2) in every epoch after the 20th of 30.
Your own sequences and a small network replace the paper's recordings and its five BLSTM layers.
"""

from pathlib import Path
from typing import Annotated, Any

from coterie.reproduce import Clients, Difference, Methods, Reproduction, Rounds, Seeds, check_choice

__all__ = ["DATASETS", "METHODS", "SETTINGS", "TESTS", "reproduction"]

METHODS = ("spdb", "spd", "d2", "gnsd", "gossip-sgd", "local", "fedper", "fedrep")
SPLITTING = ("spdb", "fedper", "fedrep")  # methods with a personal part of the model
DATASETS = ("mnist", "fashion-mnist", "digits")
SETTINGS = ("limited", "all")  # 128 samples per learner, or all
TESTS = ("own", "all")  # labels of a learner's test set: as in its training data, or all equally
LIMIT, EPOCHS = 128, 30


def reproduction(
    dataset: Annotated[str, "mnist, fashion-mnist, digits."] = "mnist",
    setting: Annotated[str, "limited (128 samples per learner) or all."] = "limited",
    test: Annotated[str, "Labels of the test sets: own (as in training) or all."] = "own",
    speech: Annotated[Path | None, "The speech experiment instead, on an .npz file with x, y and client."] = None,
    methods: Methods = METHODS,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    clients: Clients = None,
) -> Reproduction:
    """Personal layers without a hub (Lu, Cui, Squillante, Kingsbury, Horesh 2022): one label each, or one speaker.

    The paper does not say how many iterations it runs (here 10,000), nor which labels its test sets have.
    """
    if speech is not None:
        return _speech(Path(speech), methods, seeds, rounds, clients)
    for name, value, known in (("dataset", dataset, DATASETS), ("setting", setting, SETTINGS), ("test", test, TESTS)):
        check_choice(name, value, known)
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
        "compare": {"methods": list(methods), "seeds": seeds, "splits": 1, "tune": False},
        "methods": {name: {"personal": ["layers.1"]} for name in methods if name in SPLITTING},
    }
    labels = "the learner's own label distribution" if test == "own" else "all labels equally"
    note = f"Figure 1 of the paper has curves, no table; here: {count} iterations, test sets with {labels}"
    folder = f"spdb-{dataset}-{setting}" + ("" if test == "own" else "-all-labels")
    title = f"SPDB on {dataset}, {setting} data"
    return Reproduction(title, "Lu et al. 2022, Figure 1", tables, {}, folder, (Difference(note),))


def _speech(path: Path, methods: tuple[str, ...], seeds: int, rounds: int | None, clients: int | None) -> Reproduction:
    """Lay out the speech experiment: `x [N, frames, features]`, `y [N]`, `client [N]`, and `split` if it is known.

    There are 1,500 rounds unless given, and at most `clients` speakers, drawn at random (the paper has 5).
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
        "compare": {"methods": list(methods), "seeds": seeds, "splits": 1, "tune": False},
        "methods": {name: {"personal": ["input"]} for name in methods if name in SPLITTING},
    }
    note = "other data than the paper's, whose figures cannot be compared: accuracy on the given sequences"
    title = f"SPDB on {path.name}, personal input layers on a ring"
    return Reproduction(title, "Lu et al. 2022, Table 1", tables, {}, "spdb-speech", (Difference(note),))
