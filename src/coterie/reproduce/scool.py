"""The experiment of SCooL (Li, Zhou, Tian, Tao 2024, section 5): clients with few classes each, and who helps whom.

`noniid`: every client has N of the classes; `sbm`: groups of clients share their classes. 100 rounds of 5 local epochs,
batches of 10, weight decay 5e-4. SCooL: learning rate 0.01, everyone hears everyone for 10 rounds and a tenth of the
clients after that. The others: a learning rate of 0.01, 0.05 or 0.1, and in each round a tenth of the clients, who take
part at a hub or are a client's neighbours. What the paper does not state is ours; `DIFFERENCES` says what.
"""

import itertools
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from coterie.errors import CoterieError
from coterie.reproduce import Clients, Difference, Methods, Reproduction, Rounds, Seeds, check_choice
from coterie.reproduce.scool_paper import (
    BALANCED,
    CALLED,
    DIFFERENCES,
    GOSSIP,
    GRAPH,
    HEARD,
    HUB,
    METHODS,
    MIXED,
    NAMES,
    PAPER,
    PAPER_COLUMNS,
    SCOOL,
    SETTINGS,
)

__all__ = ["DATASETS", "METHODS", "PAPER", "SETTINGS", "TUNED", "expected", "reproduction"]

SHARE = 0.1  # of the clients: who takes part at a hub, and how many a client hears
EPOCHS, BATCH, WEIGHT_DECAY = 5, 10, 5e-4
GRID = [0.01, 0.05, 0.1]  # learning rates of the baselines; SCooL's is given
FEDAVG_ROUNDS = 2.2  # times those of the others: 1,100 epochs, where the paper says "more than 1000"

# As printed: the published M-step, own data with weight 1, the strongest tenth as neighbours; the temperature is ours.
PUBLISHED: dict[str, Any] = {
    "m_step": "first-order",
    "own": "apart",
    "temperature": 2.0,
    "fraction": SHARE,
    "sparsify_after": 10,
}
# The baselines have the settings of their own papers, which are the product's defaults; given, they are not tuned.
OWN_PAPERS: dict[str, dict[str, Any]] = {"ditto": {"tie": 0.1}, "dada": {"tie": 0.3}, "pfedgraph": {"alpha": 0.8}}
D_PSGD = {"order": "mix-and-step"}

# Ours, tuned, for the same rounds and messages: every row alike with one of these learning rates, which falls to
# `LAST_LR` of itself over the second half of the rounds, and a choice for its own setting. SCooL does what it does by
# default (it mixes models).
TUNED_GRID = [*GRID, 0.2]
LAST_LR = 0.04
TUNED: dict[str, dict[str, Any]] = {label: {"fraction": SHARE, "temperature": [0.5, 1.0]} for label in SCOOL}


class Size(NamedTuple):
    """The size of the experiment on a data set."""

    clients: int
    classes: int  # of each client
    groups: int  # in the setting "sbm"
    samples: int | None  # training images of a client, a tenth of them for validation; None distributes all of them
    model: dict[str, Any]
    last_layer: str  # what is personal for SPDB
    rounds: int = 100
    lr: float = 0.01  # of SCooL
    augment: dict[str, Any] = {}  # noqa: RUF012
    pool: int = 0  # images that all clients together train on, where all are distributed

    def trained_on(self, clients: int) -> int:
        """Return how many images each of so many clients trains on."""
        return self.pool // clients if self.samples is None else round(0.9 * self.samples)


CNN: dict[str, Any] = {"name": "cnn"}
MOVED = {"crop": 4, "flip": True}
DATASETS = {
    "digits": Size(20, 2, 5, None, {"name": "mlp"}, "layers.1", rounds=30, lr=0.1, pool=1257),
    "mnist": Size(100, 2, 5, 50, CNN, "fc2"),
    "fashion-mnist": Size(100, 2, 5, 50, CNN, "fc2"),
    "cifar10": Size(100, 2, 5, 500, CNN, "fc2", augment=MOVED),
    "cifar100": Size(100, 10, 10, 500, CNN, "fc2", augment=MOVED),
    "miniimagenet": Size(100, 10, 10, 500, {"name": "cnn4"}, "fc", augment=MOVED),
}
STAND_INS = ("digits", "fashion-mnist")  # on which the table is run here


def reproduction(
    dataset: Annotated[str, "digits, mnist, fashion-mnist, cifar10, cifar100, miniimagenet."] = "digits",
    setting: Annotated[str, "noniid (N classes per client) or sbm (groups share classes)."] = "noniid",
    methods: Methods = METHODS,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    clients: Clients = None,
    neighbours: Annotated[str, "Whom fomo, dada, ... hear: 10 (per cent of the clients) or all."] = "10",
    budgets: Annotated[tuple[float, ...], "SCooL also with these percentages of neighbours, e.g. 2,5,8."] = (),
    file: Annotated[Path | None, "The images of miniimagenet: an .npz file with x and y."] = None,
) -> Reproduction:
    """Learned cooperation graphs (Li, Zhou, Tian, Tao 2024): clients with few classes each, and who helps whom."""
    check_choice("dataset", dataset, DATASETS)
    if setting not in SETTINGS:
        raise CoterieError(f"setting must be noniid or sbm, not {setting!r}")
    check_choice("neighbours", neighbours, HEARD)
    for budget in budgets:
        if not 0 < budget <= 100:
            raise CoterieError(f"budgets: write percentages with commas between, such as 2,5,8,10, not {budget:g}")
    if (file is None) == (dataset == "miniimagenet"):
        needed = "needs --file, an .npz file with its images" if file is None else "takes no --file"
        raise CoterieError(f"dataset {dataset} {needed}")
    size = DATASETS[dataset]
    count, length = clients or size.clients, rounds or size.rounds
    partition: dict[str, Any] = {"clients": count}
    partition |= (
        {"name": "classes", "classes": size.classes}
        if setting == "noniid"
        else {"name": "groups", "groups": size.groups}
    )
    partition |= {} if size.samples is None else {"samples": size.samples}
    labels = _labels(methods, budgets)
    limits = {label: _limits(label, size, count, length, neighbours) for label in labels}
    common: dict[str, Any] = {
        "format": 1,
        "data": {"name": dataset} if file is None else {"name": "npz", "path": str(file), "kind": "classification"},
        "partition": partition,
        "model": size.model,
        "method": {"batch_size": BATCH, "epochs": EPOCHS, "weight_decay": WEIGHT_DECAY},
        "run": {"rounds": length, "keep": "last"},
        "compare": {"methods": list(labels), "seeds": seeds, "splits": 1, "tune": "score"},
    }
    common |= {"augment": size.augment} if size.augment else {}
    printed = {label: limits[label] | _printed(label, size) for label in labels}
    tuned = {
        label: limits[label] | _tuned(label, labels[label], limits[label].get("rounds", length)) for label in labels
    }
    place = PAPER_COLUMNS.index((setting, dataset)) if dataset in CALLED else None
    figures = {} if place is None else {label: row.split(" | ")[place] for label, row in PAPER.items()}
    kind = "non-IID" if setting == "noniid" else "non-IID SBM"
    mixed = [MIXED, BALANCED] if length > PUBLISHED["sparsify_after"] else []
    return Reproduction(
        f"SCooL on {dataset}, {setting}",
        f"Li, Zhou, Tian, Tao 2024, Table 2, {kind} {CALLED.get(dataset, '')}".strip(),
        common | {"methods": printed},
        {label: figures[label] for label in labels if label in figures},
        f"scool-{dataset}-{setting}",
        (*_smaller(size, count, length), *_stand_in(dataset), *DIFFERENCES, *mixed, _longer(length), HEARD[neighbours]),
        common | {"methods": tuned},
        names=NAMES,
    )


def _labels(methods: tuple[str, ...], budgets: tuple[float, ...]) -> dict[str, str]:
    """Return the rows with the name of their method; `gossip-sgd` stands for both of its rows."""
    labels: dict[str, str] = {}
    for name in methods:
        if name in GOSSIP:
            labels |= {f"{name}-1-step": name, f"{name}-5-epochs": name}
        else:
            labels[name] = next((method for method in GOSSIP if name.startswith(f"{method}-")), name)
    for name in [label for label in labels if label in SCOOL]:
        labels |= {f"{name}-{budget:g}pc": name for budget in budgets}
    return labels


def _limits(label: str, size: Size, clients: int, rounds: int, neighbours: str) -> dict[str, Any]:
    """Return what bounds the messages and the local steps of a row, in both columns."""
    heard = max(2, round(SHARE * clients))
    heard += heard * clients % 2  # a regular graph needs an even number of ends
    if label in HUB:
        return {"participation": SHARE} | ({"rounds": round(FEDAVG_ROUNDS * rounds)} if label == "fedavg" else {})
    if label in GRAPH:
        return {} if neighbours == "all" else {"graph": {"name": "k-regular", "k": heard}}
    method = next((method for method in GOSSIP if label in (f"{method}-1-step", f"{method}-5-epochs")), None)
    if method is None:
        return {}
    own: dict[str, Any] = {"name": method, "graph": {"name": "bipartite", "neighbours": heard}}
    own |= D_PSGD if method == "gossip-sgd" else {"personal": [size.last_layer]} if method == "spdb" else {}
    steps = EPOCHS * -(-size.trained_on(clients) // BATCH)  # of a round with five epochs
    return own | ({"steps": 1, "rounds": rounds * steps} if label.endswith("-1-step") else {})


def _printed(label: str, size: Size) -> dict[str, Any]:
    """Return the settings of a row as the paper has them."""
    if not label.startswith(SCOOL):
        return {"lr": GRID} | OWN_PAPERS.get(label, {})
    return PUBLISHED | {"lr": size.lr} | _budget(label)


def _tuned(label: str, method: str, rounds: int) -> dict[str, Any]:
    """Return our settings of a row that runs for so many rounds."""
    half = rounds // 2
    falling = {"decay": LAST_LR ** (1 / (rounds - half)), "decay_after": half}
    return {"lr": TUNED_GRID} | falling | TUNED.get(method, {}) | _budget(label)


def _budget(label: str) -> dict[str, Any]:
    """Return what a row with a percentage of neighbours has for itself."""
    method, _, percent = label.rpartition("-")
    return {"name": method, "fraction": float(percent[:-2]) / 100} if percent.endswith("pc") else {}


def _smaller(size: Size, clients: int, rounds: int) -> tuple[Difference, ...]:
    """Say what was asked for instead of the usual size."""
    asked = {"rounds": (rounds, size.rounds), "clients": (clients, size.clients)}
    return tuple(Difference(f"{n} {what} instead of {usual}") for what, (n, usual) in asked.items() if n != usual)


def _longer(rounds: int) -> Difference:
    """Say how long `fedavg` runs where the others have so many rounds."""
    epochs = EPOCHS * round(FEDAVG_ROUNDS * rounds)
    return Difference(
        f"fedavg: {epochs:,} epochs in 2.2 times the rounds of the others (the paper: more than 1000, beside 500)",
        ("fedavg",),
    )


def _stand_in(dataset: str) -> tuple[Difference, ...]:
    """Say what a data set stands for that is not in the paper, and what of the paper's is not stated."""
    if dataset in CALLED:
        return (Difference("sizes of the CNN, crops and flips of the images are ours (not stated)"),)
    smaller = "20 clients, an MLP, 30 rounds, SCooL's learning rate 0.1" if dataset == "digits" else "50 images each"
    return (Difference(f"the paper has no figures for {dataset}, which stands in for its photographs: {smaller}"),)


def expected() -> list[dict[str, Any]]:
    """Return the records of the paper's table, one for each column and stand-in, as they are before anything is run."""
    from coterie.reproduce import record

    records = []
    for setting, dataset in [*itertools.product(SETTINGS, STAND_INS), *PAPER_COLUMNS]:
        options: dict[str, Any] = {"dataset": dataset, "setting": setting}
        options |= {"file": Path("images.npz")} if dataset == "miniimagenet" else {}
        command = record.repeat("scool", {key: value for key, value in options.items() if value != "noniid"})
        records.append(record.expected(reproduction(**options), command, CALLED.get(dataset, "")))
    return records
