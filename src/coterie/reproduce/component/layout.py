"""Experiments on what the draft of Zhao, Liu, Jiang and He claims; it has one figure and no table.

It announces lung nodule detection and segmentation on medical images and prediction on tables against "pFed", and ends
before them. Only its Fig. 6 can be repeated, one gradient of a logistic regression on covtype; the others are ours.

- "codecs" (Fig. 6 and what follows from it): one model for all by `fedavg`, and the bytes of its updates. In a round
  every client sends one gradient of all its samples (`local` = "gradient"; the draft draws one sample) or the change of
  an epoch of minibatches ("epoch"), through every codec in several settings: accuracy against bytes of the uplink.
- "groups": clients in planted groups, the network lasso along its path: where are the groups found exactly?
- "personal": few samples per client, and methods with personal models: `component` and `network-lasso` on the
  similarity network against `local`, `fedavg`, `ditto` and `fedper`.

A draw is another division of the data and another initial model. Settings (of a codec, the learning rate, the strength
of a tie, the last round) are chosen on validation samples, over all draws (`frontier.py`).
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from coterie.errors import CoterieError
from coterie.reproduce import check_choice

__all__ = [
    "CODECS",
    "CODED",
    "LOCAL",
    "METHODS",
    "MODELS",
    "NETWORKS",
    "PARTS",
    "PERSONAL",
    "codecs",
    "label_of",
    "path",
    "personal",
]

PARTS = ("codecs", "groups", "personal")
LOCAL = ("gradient", "epoch")
MODELS = ("mlp", "linear")

# Learning rates were chosen without a codec, on validation samples of the first draw, among 0.03, 0.1, 0.3, 1 and 3.
CODED: dict[str, dict[str, Any]] = {
    "digits": {
        "data": {"name": "digits"},
        "partition": {"name": "iid", "clients": 20},
        "model": {"name": "mlp", "hidden": [64]},
        "lr": {"gradient": 1.0, "epoch": 0.3},
    },
    "covtype": {
        "data": {"name": "covtype", "rows": 20_000},
        "partition": {"name": "iid", "clients": 20},
        "model": {"name": "linear"},
        "lr": {"gradient": 1.0, "epoch": 1.0},
    },
    "covtype-binary": {
        "data": {"name": "covtype", "rows": 20_000, "binary": True},
        "partition": {"name": "iid", "clients": 20},
        "model": {"name": "logistic"},  # 55 numbers, as in Fig. 6
        "lr": {"gradient": 3.0, "epoch": 1.0},
    },
    "covtype-soil": {
        "data": {"name": "covtype", "rows": 100_000},
        "partition": {"name": "natural", "at_least": 1_000, "samples": 1_000},
        "model": {"name": "linear"},
        "lr": {"gradient": 3.0, "epoch": 0.3},
    },
    "human-activity": {
        "data": {"name": "human-activity"},
        "partition": {"name": "natural"},
        "model": {"name": "linear"},
        "lr": {"gradient": 1.0, "epoch": 1.0},
    },
    "human-activity-mlp": {
        "data": {"name": "human-activity"},
        "partition": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [256]},
        "lr": {"gradient": 0.3, "epoch": 0.3},
    },
}
ROUNDS = {"gradient": 300, "epoch": 60}
EVALUATIONS = 60

# The settings of each family. "draft": the draft's operator with constant gamma, alone and with its k-means step, 4 and
# 3 centres. "fused" is the operator with a gamma that decreases, sent as runs; "fused-k" with k centres; "fused-k-ef"
# with error feedback, which we added: without it training does not reach its optimum.
CODECS: dict[str, tuple[dict[str, Any], ...]] = {
    "none": ({"name": "none"},),
    "float16": ({"name": "float16"},),
    "qsgd": (
        *({"name": "qsgd", "bits": bits} for bits in (2, 3, 4)),
        {"name": "qsgd", "bits": 2, "feedback": True},
    ),
    "top-k": tuple({"name": "top-k", "fraction": share} for share in (0.003, 0.01, 0.03, 0.1)),
    "draft": tuple({"name": "fused", "gamma": 0.3, "centres": centres, "settle": 0.0} for centres in (0, 4, 3)),
    "fused": tuple({"name": "fused", "gamma": gamma, "centres": 0} for gamma in (0.3, 1.0, 3.0, 10.0)),
    "fused-k": tuple(
        {"name": "fused", "gamma": gamma, "centres": centres} for gamma, centres in product((0.3, 1.0), (4, 16))
    ),
    "fused-k-ef": tuple(
        {"name": "fused", "gamma": gamma, "centres": centres, "settle": 0.0, "feedback": True}
        for gamma, centres in ((0.3, 2), (0.3, 3), (0.3, 4), (0.3, 16), (1.0, 2), (1.0, 4))
    ),
}

METHODS = ("local", "fedavg", "ditto", "fedper", "component", "network-lasso")
PERSONAL: dict[str, dict[str, Any]] = {
    "digits": {
        "data": {"name": "digits"},
        "partition": {"name": "groups", "groups": 2, "clients": 20, "samples": 40, "validation": 0.25},
        "hidden": [64],
    },
    "human-activity": {
        "data": {"name": "human-activity"},
        "partition": {"name": "natural", "samples": 60},
        "hidden": [64],
    },
    "a9a": {
        "data": {"name": "a9a", "client": "native-country"},
        "partition": {"name": "natural", "at_least": 60, "samples": 300, "validation": 0.25},
        "hidden": [16],
    },
    "covtype": {
        "data": {"name": "covtype", "rows": 100_000},
        "partition": {"name": "natural", "at_least": 1_000, "samples": 100, "validation": 0.25, "test_samples": 500},
        "hidden": [32],
    },
}
# The settings of each method, of which validation samples choose one.
RATES = {"linear": (0.1, 0.3, 1.0), "mlp": (0.03, 0.1, 0.3)}  # with 1 the perceptron diverges
TIES: dict[str, dict[str, tuple[float, ...]]] = {
    "ditto": {"tie": (0.1, 1.0)},
    "component": {"lam": (0.003, 0.01, 0.03, 0.1)},
    "network-lasso": {"lam": (0.003, 0.01, 0.03, 0.1)},
}
OWN_PART = {"linear": ["bias"], "mlp": ["layers.1"]}  # of the model, for methods that divide it

# The networks of the planted groups: neighbours per client, in groups of ten. 12 must include clients of other groups,
# and 39 are all clients.
NETWORKS = (5, 12, 39)
PATH = {"lam": 20.0, "factor": 0.7, "values": 24, "rounds": 20}


def codecs(
    dataset: str = "digits",
    local: str = "gradient",
    families: tuple[str, ...] = tuple(CODECS),
    rounds: int | None = None,
    draw: int = 0,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay out one draw of the comparison of codecs; returns its tables and the family of each label.

    Args:
        dataset: one of `CODED`.
        local: what is sent, "gradient" or the change of an "epoch".
        families: which codecs, of `CODECS`.
        rounds: default: 300 with one gradient per round, 60 with an epoch.
        draw: number of the draw.
    """
    check_choice("data", dataset, CODED)
    check_choice("local", local, LOCAL)
    for family in families:
        check_choice("codecs", family, CODECS)
    if "none" not in families:
        raise CoterieError("codecs must have none among them: the others are compared with it")
    scene, count = CODED[dataset], ROUNDS[local] if rounds is None else rounds
    chosen = {label_of(codec): (family, codec) for family in families for codec in CODECS[family]}
    tables = {
        "format": 1,
        "data": scene["data"],
        "partition": scene["partition"],
        "model": scene["model"],
        "method": {"lr": scene["lr"][local]}
        | ({"batch_size": 0, "steps": 1} if local == "gradient" else {"batch_size": 20, "epochs": 1}),
        "run": {"rounds": count, "evaluate_every": max(1, count // EVALUATIONS)},
        "compare": {"methods": list(chosen), "seeds": 1},
        "methods": {label: {"name": "fedavg", "codec": codec} for label, (_, codec) in chosen.items()},
    }
    return _drawn(tables, draw), {label: family for label, (family, _) in chosen.items()}


def personal(
    dataset: str = "digits",
    model: str = "mlp",
    methods: tuple[str, ...] = METHODS,
    rounds: int | None = None,
    draw: int = 0,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay out one draw of the comparison of personal models; returns its tables and the method of each label.

    Args:
        dataset: one of `PERSONAL`.
        model: "mlp", one hidden layer, whose last layer is the personal component; or "linear", whose bias is.
        methods: which, of `METHODS`.
        rounds: of five local steps each; default: 100.
        draw: number of the draw.
    """
    check_choice("data", dataset, PERSONAL)
    check_choice("model", model, MODELS)
    for method in methods:
        check_choice("methods", method, METHODS)
    scene, count = PERSONAL[dataset], 100 if rounds is None else rounds
    grid = {label: (method, own) for method in methods for label, own in _grid(method, model)}
    tables = {
        "format": 1,
        "data": scene["data"],
        "partition": scene["partition"],
        "model": {"name": "linear"} if model == "linear" else {"name": "mlp", "hidden": scene["hidden"]},
        "method": {"batch_size": 20, "steps": 5},
        "graph": {"name": "similarity", "connect": True},
        "run": {"rounds": count, "evaluate_every": max(1, count // 10)},
        "compare": {"methods": list(grid), "seeds": 1},
        "methods": {label: {"name": method, **own} for label, (method, own) in grid.items()},
    }
    return _drawn(tables, draw), {label: method for label, (method, _) in grid.items()}


def _grid(method: str, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield label and settings of all combinations of a method."""
    ties = TIES.get(method, {})
    for lr, *strength in product(RATES[model], *ties.values()):
        own: dict[str, Any] = {"lr": lr} | dict(zip(ties, strength, strict=True))
        label = "-".join([method, *(f"{key}={value:g}" for key, value in own.items())])
        if method in ("fedper", "component"):
            own["personal"] = OWN_PART[model]
        if method in ("component", "network-lasso"):
            own["iterations"] = 30  # warm-started in every round
        yield label, own


def path(neighbours: int = 5, values: int | None = None, draw: int = 0) -> dict[str, Any]:
    """Lay out the network lasso's path over planted groups: 40 clients in four groups, a linear model.

    Args:
        neighbours: k of the similarity network; with 39 it is complete.
        values: of lam, default 24; each is 0.7 of the one before and has 20 rounds of full gradients.
        draw: number of the draw.
    """
    steps, rounds = PATH["values"] if values is None else values, int(PATH["rounds"])
    tables = {
        "format": 1,
        "data": {"name": "planted-groups", "clients": 40},
        "partition": {"name": "natural"},
        "model": {"name": "linear"},
        "method": {
            "name": "network-lasso",
            "lr": 0.5,
            "batch_size": 0,
            "steps": 1,
            "lam": PATH["lam"],
            "path_factor": PATH["factor"],
            "path_every": rounds,
        },
        "graph": {"name": "similarity", "k": neighbours, "connect": True},
        "run": {"rounds": int(steps) * rounds, "evaluate_every": rounds},
    }
    return _drawn(tables, draw)


def label_of(codec: Mapping[str, Any]) -> str:
    """Return a short label of a codec and its settings that can name a folder: "fused-0.3-k4-ef"."""
    words = [f"{codec[key]:g}" for key in ("bits", "fraction", "gamma") if key in codec]
    words += [f"k{codec['centres']}"] if codec.get("centres") else []
    words += ["ef"] if codec.get("feedback") else ["constant"] if codec.get("settle") == 0 else []
    return "-".join([codec["name"], *words])


def _drawn(tables: dict[str, Any], draw: int) -> dict[str, Any]:
    """Seed everything random with the number of the draw."""
    seeded = {section: {**tables[section], "seed": draw} for section in ("partition", "run")}
    if tables["data"]["name"] in ("covtype", "planted-groups"):
        seeded["data"] = {**tables["data"], "seed": draw}
    return tables | seeded
