"""The experiment of SCooL (Li, Zhou, Tian, Tao 2024, section 5): clients with few classes each, and who helps whom.

`noniid`: every client has N of the classes; `sbm`: groups of clients share their classes. 100 rounds of 5 local epochs,
batches of 10, a complete graph that is reduced to a budget of neighbours after 10 rounds. The paper's figures are those
of its authors' published program on CIFAR-10.
"""

from typing import Annotated, Any, NamedTuple

from coterie.errors import CoterieError
from coterie.reproduce import Clients, Methods, Reproduction, Rounds, Seeds, check_choice

__all__ = ["DATASETS", "METHODS", "SETTINGS", "reproduction"]

METHODS = (
    "local",
    "fedavg",
    "ditto",
    "fomo",
    "gossip-sgd",
    "cga",
    "dada",
    "meta-l2c",
    "pfedgraph",
    "scool-sbm",
    "scool-attention",
    "scool-mmsbm",
)
SETTINGS = ("noniid", "sbm")


class Size(NamedTuple):
    """The size of the experiment on a data set."""

    clients: int
    classes: int  # of each client
    groups: int  # in the setting "sbm"
    samples: int | None  # training images of a client; None distributes all of them
    model: dict[str, Any]
    rounds: int = 100
    lr: float = 0.01
    augment: dict[str, Any] = {}  # noqa: RUF012


DATASETS = {
    "digits": Size(20, 2, 5, None, {"name": "mlp"}, rounds=30, lr=0.1),
    "mnist": Size(100, 2, 5, 50, {"name": "cnn"}),
    "fashion-mnist": Size(100, 2, 5, 50, {"name": "cnn"}),
    "cifar10": Size(100, 2, 5, 500, {"name": "cnn"}, augment={"crop": 4, "flip": True}),
    "cifar100": Size(100, 10, 10, 500, {"name": "cnn"}, augment={"crop": 4, "flip": True}),
}

# The published settings of SCooL; the methods' defaults are others (docs/methods/learned-graphs.md).
PUBLISHED = {"m_step": "first-order", "temperature": 2.0, "fraction": 0.1}

# Test accuracy of the authors' program on CIFAR-10 (its README), which agrees with their Table 2.
PAPER = {
    "noniid": {
        "local": 87.5,
        "fomo": 88.72,
        "ditto": 87.32,
        "gossip-sgd": 83.01,
        "dada": 85.65,
        "meta-l2c": 92.1,
        "scool-sbm": 91.74,
        "scool-attention": 92.47,
    },
    "sbm": {
        "local": 87.41,
        "fomo": 90.30,
        "ditto": 88.13,
        "gossip-sgd": 85.20,
        "dada": 88.89,
        "meta-l2c": 91.84,
        "scool-sbm": 94.47,
        "scool-attention": 94.33,
    },
}


def reproduction(
    dataset: Annotated[str, "digits, mnist, fashion-mnist, cifar10, cifar100."] = "digits",
    setting: Annotated[str, "noniid (N classes per client) or sbm (groups share classes)."] = "noniid",
    methods: Methods = METHODS,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    clients: Clients = None,
    budgets: Annotated[tuple[float, ...], "Also these percentages of neighbours, e.g. 2,5,8,10."] = (),
) -> Reproduction:
    """Learned cooperation graphs (Li, Zhou, Tian, Tao 2024): clients with few classes each, and who helps whom."""
    check_choice("dataset", dataset, DATASETS)
    if setting not in SETTINGS:
        raise CoterieError(f"setting must be noniid or sbm, not {setting!r}")
    for budget in budgets:
        if not 0 < budget <= 100:
            raise CoterieError(f"budgets: write percentages with commas between, such as 2,5,8,10, not {budget:g}")
    size = DATASETS[dataset]
    partition: dict[str, Any] = {"clients": clients or size.clients}
    partition |= (
        {"name": "classes", "classes": size.classes}
        if setting == "noniid"
        else {"name": "groups", "groups": size.groups}
    )
    partition |= {} if size.samples is None else {"samples": size.samples}
    labels, own = list(methods), {}
    for method in methods:
        if not method.startswith("scool"):
            continue
        own[method] = PUBLISHED
        for budget in budgets:
            label = f"{method}-{budget:g}pc"
            labels.append(label)
            own[label] = {"name": method, **PUBLISHED, "fraction": budget / 100}
    tables: dict[str, Any] = {
        "format": 1,
        "data": {"name": dataset},
        "partition": partition,
        "model": size.model,
        "method": {"lr": size.lr, "batch_size": 10, "epochs": 5},
        "run": {"rounds": rounds or size.rounds},
        "compare": {"methods": labels, "seeds": seeds, "splits": 1, "tune": False},
        "methods": own,
    }
    if size.augment:
        tables["augment"] = size.augment
    paper = PAPER[setting] if dataset == "cifar10" else {}
    note = "paper: test accuracy of the authors' program on CIFAR-10, logits of the client's own classes only"
    if not paper:
        note = f"the paper has no figures for {dataset}; its own are for CIFAR-10, CIFAR-100 and MiniImageNet"
    return Reproduction(f"SCooL on {dataset}, {setting}", tables, paper, note, f"scool-{dataset}-{setting}")
