"""The experiments of SPDB (Lu, Cui, Squillante, Kingsbury, Horesh 2022): learners with one label each, and speech.

Figure 1: ten learners on an Erdos-Renyi graph; 95 % of a learner's samples have its own label, the rest is drawn from
all data; one hidden layer of 32 sigmoid units; the last layer is personal for the methods that split the model,
everything is shared for the others. Every round is one minibatch of 16 and one exchange: methods are compared after the
same number of iterations. The figure has curves and no numbers.

Table 1, speech: a ring; each client (a speaker) has its own affine layer on the features of a frame, initialised as
identity, and shares the network after it; the learning rates, 50 times smaller for the affine layer, shrink by
1 / sqrt(2) in every epoch after the 20th of 30. Your own sequences and a small network replace the paper's recordings
and its five BLSTM layers, so that only relative gains can be laid side by side.
"""

from pathlib import Path
from typing import Annotated, Any

from coterie.reproduce import Clients, Difference, Methods, Reproduction, Rounds, Seeds, check_choice

__all__ = ["DATASETS", "METHODS", "PAPER", "SETTINGS", "TESTS", "expected", "reproduction"]

# Table 1 of the paper, letter for letter: word error rates on the four test sets.
PAPER = {"gossip-sgd": "22.0 12.6 22.8 21.3", "d2": "21.9 12.5 22.3 20.5", "spdb": "21.4 12.4 19.9 18.7"}
NAMES = {"gossip-sgd": "DSGD", "spd": "SPD", "d2": "SPD/D2", "gnsd": "GNSD", "spdb": "SPDB"}
METHODS = ("spdb", "spd", "d2", "gnsd", "gossip-sgd", "local", "fedper", "fedrep")
SPLITTING = ("spdb", "fedper", "fedrep")  # methods with a personal part of the model
IN_TURNS = ("spdb", "fedrep")  # those of them that have a learning rate for it
DATASETS = ("mnist", "fashion-mnist", "digits")
SETTINGS = ("limited", "all")  # 128 samples per learner, or all
TESTS = ("own", "all")  # labels of a learner's test set: as in its training data, or all equally
LIMIT, EPOCHS, ITERATIONS = 128, 30, 10_000
SPEECH_LR, RATIO = 0.1, 50  # of the shared part, and how many times that of the personal layer

D_PSGD = {"order": "mix-and-step"}  # DSGD is Lian et al. 2017: W x - eta g(x), both from x
OURS = ("local", "fedper", "fedrep")
SHARING = ("gossip-sgd", "spd", "d2", "gnsd")

DIFFERENCES = (
    Difference(
        "W = I - min(0.2, 1 / its largest eigenvalue) L: the paper's fixed ratio 0.2 diverges on most such graphs"
    ),
    Difference("edge probability 0.3, one graph and one partition for all seeds (not stated)"),
    Difference("constant learning rate (the paper calls 0.02 the initial one), the same for the personal layer"),
    Difference("the last iteration is scored (not stated)"),
    Difference("gossip-sgd, spd, d2, gnsd share the whole model (not stated)", SHARING),
    Difference("spdb: each level draws its own minibatch (not stated)", ("spdb",)),
    Difference("local, fedper, fedrep: rows of ours, not in the paper", OURS),
)
SPEECH_DIFFERENCES = (
    Difference(
        "paper: word error rates on its four test sets (SPDB makes 2.7, 1.6, 12.7 and 12.2 % fewer errors than DSGD, "
        "SPD/D2 0.5, 0.8, 2.2 and 3.8 %); ours: accuracy on the given sequences, to be compared by such shares"
    ),
    Difference("an mlp of 64 instead of five BLSTM layers, and other recordings"),
    Difference("weights of the ring: I - L / its largest eigenvalue (not stated)"),
    Difference(
        "as printed: learning rates 0.1 and 0.002 (the paper: 1.0 and 0.02, with which this network diverges)",
        block="printed",
    ),
    Difference(
        "tuned: learning rate 0.1 for both parts and batches of 16, chosen on validation samples", block="tuned"
    ),
    Difference("local, fedper, fedrep, spd, gnsd: rows of ours, not in the paper", (*OURS, "spd", "gnsd")),
)


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
    for name in methods:
        check_choice("methods", name, METHODS)
    if speech is not None:
        return _speech(Path(speech), methods, seeds, rounds, clients)
    for name, value, known in (("dataset", dataset, DATASETS), ("setting", setting, SETTINGS), ("test", test, TESTS)):
        check_choice(name, value, known)
    learners = 10 if clients is None else clients
    partition: dict[str, Any] = {"name": "dominant", "clients": learners, "share": 0.95, "validation": 0.0}
    partition |= {"samples": LIMIT} if setting == "limited" else {}
    partition |= {"test_labels": test} if test != "own" else {}
    count = ITERATIONS if rounds is None else rounds
    own: dict[str, dict[str, Any]] = {name: {"personal": ["layers.1"]} for name in methods if name in SPLITTING}
    tables: dict[str, Any] = {
        "format": 1,
        "data": {"name": dataset},
        "partition": partition,
        "model": {"name": "mlp", "hidden": [32], "activation": "sigmoid"},
        "method": {"lr": 0.02, "batch_size": 16, "steps": 1},
        "graph": {"name": "erdos-renyi", "probability": 0.3, "weights": "laplacian"},
        "run": {"rounds": count, "evaluate_every": max(1, count // 10)},
        "compare": {"methods": list(methods), "seeds": seeds, "splits": 1, "tune": False},
        "methods": own | ({"gossip-sgd": D_PSGD} if "gossip-sgd" in methods else {}),
    }
    labels = "the learner's own shares of labels" if test == "own" else "all labels equally"
    about = [Difference(f"{count:,} iterations, and test sets with {labels} (neither is stated)")]
    about += [] if dataset == "mnist" else [Difference(f"{dataset} instead of MNIST")]
    folder = f"spdb-{dataset}-{setting}" + ("" if test == "own" else "-all-labels")
    title = f"SPDB on {dataset}, {setting} data, test sets with {'own' if test == 'own' else 'all'} labels"
    source = "Lu et al. 2022, Figure 1 (curves, no numbers)"
    columns = ("mean", "worst_tenth")
    return Reproduction(title, source, tables, {}, folder, (*about, *DIFFERENCES), None, columns, NAMES)


def _speech(path: Path, methods: tuple[str, ...], seeds: int, rounds: int | None, clients: int | None) -> Reproduction:
    """Lay out the speech experiment: `x [N, frames, features]`, `y [N]`, `client [N]`, and `split` if it is known.

    There are 1,500 rounds unless given, and at most `clients` speakers, drawn at random (the paper has 5).
    """
    count = 1_500 if rounds is None else rounds
    partition: dict[str, Any] = {"name": "natural"} | ({} if clients is None else {"clients": clients})
    anneal = {"decay": 2**-0.5, "decay_after": count * 20 // EPOCHS, "decay_every": max(1, count // EPOCHS)}
    common: dict[str, Any] = {
        "format": 1,
        "data": {"name": "npz", "path": str(path), "kind": "classification"},
        "partition": partition,
        "model": {"name": "mlp", "hidden": [64], "input_affine": True},
        "graph": {"name": "ring", "weights": "laplacian"},
        "run": {"rounds": count, "evaluate_every": max(1, count // 10)},
        "compare": {"methods": list(methods), "seeds": seeds, "splits": 1, "tune": False},
    }
    split: dict[str, dict[str, Any]] = {name: {"personal": ["input"]} for name in methods if name in SPLITTING}
    split |= {"gossip-sgd": D_PSGD} if "gossip-sgd" in methods else {}
    slower = {
        name: own | ({"personal_lr": SPEECH_LR / RATIO} if name in IN_TURNS else {}) for name, own in split.items()
    }
    return Reproduction(
        f"SPDB on {path.name}, personal input layers on a ring",
        "Lu et al. 2022, Table 1",
        common | {"method": {"lr": SPEECH_LR, "batch_size": 256, "steps": 1} | anneal, "methods": slower},
        {label: PAPER[label] for label in methods if label in PAPER},
        "spdb-speech",
        SPEECH_DIFFERENCES,
        common | {"method": {"lr": SPEECH_LR, "batch_size": 16, "steps": 1} | anneal, "methods": split},
        ("mean", "worst_tenth"),
        NAMES,
    )


def expected() -> list[dict[str, Any]]:
    """Return the record of the paper's table, as it is before anything is run."""
    from coterie.reproduce import record

    laid_out = reproduction(speech=Path("speech.npz"))
    needs = "the paper's recordings (50 hours, not published)"
    return [record.expected(laid_out, record.repeat("spdb", {"speech": "speech.npz"}), needs)]
