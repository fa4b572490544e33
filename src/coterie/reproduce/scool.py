"""The experiment of SCooL (Li, Zhou, Tian, Tao 2024, section 5): clients with few classes each, and who helps whom.

`noniid`: every client has N of the classes; `sbm`: groups of clients share their classes. 100 rounds of 5 local epochs,
batches of 10, weight decay 5e-4. SCooL: learning rate 0.01, everyone hears everyone for 10 rounds and a tenth of the
clients after that. The others: a learning rate of 0.01, 0.05 or 0.1, and in each round a tenth of the clients, who take
part at a hub or are a client's neighbours. What the paper does not state is ours; `DIFFERENCES` says what.
"""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

from coterie.errors import CoterieError
from coterie.reproduce import Clients, Difference, Methods, Reproduction, Rounds, Seeds, check_choice

__all__ = ["DATASETS", "METHODS", "PAPER", "SETTINGS", "TUNED", "expected", "reproduction"]

SETTINGS = ("noniid", "sbm")

# Table 2 of the paper, letter for letter: test accuracy in per cent, mean ± standard deviation over the 100 clients.
PAPER_COLUMNS = [(setting, data) for setting in SETTINGS for data in ("cifar10", "cifar100", "miniimagenet")]
PAPER = {
    "local": "87.5 ± 7.02 | 55.47 ± 5.20 | 41.59 ± 7.71 | 87.41 ± 4.21 | 55.37 ± 3.48 | 38.54 ± 7.94",
    "fedavg": "70.65 ± 10.64 | 40.15 ± 7.25 | 34.26 ± 6.01 | 71.59 ± 12.85 | 39.89 ± 11.42 | 38.87 ± 9.72",
    "fomo": "88.72 ± 5.41 | 52.44 ± 5.09 | 44.56 ± 4.31 | 90.30 ± 2.67 | 67.31 ± 4.81 | 42.72 ± 2.23",
    "ditto": "87.32 ± 6.42 | 54.28 ± 5.31 | 42.73 ± 5.19 | 88.13 ± 7.43 | 54.34 ± 5.42 | 42.16 ± 5.46",
    "gossip-sgd-1-step": "83.01 ± 7.34 | 40.56 ± 6.94 | 30.26 ± 5.75 | 85.20 ± 4.05 | 48.15 ± 4.77 | 37.43 ± 3.59",
    "gossip-sgd-5-epochs": "75.89 ± 6.65 | 35.03 ± 4.83 | 28.41 ± 5.18 | 77.33 ± 5.79 | 32.17 ± 5.07 | 37.69 ± 3.02",
    "cga-1-step": "65.65 ± 12.66 | 30.81 ± 10.79 | 27.65 ± 11.78 | 69.93 ± 5.34 | 36.91 ± 7.58 | 25.54 ± 1.95",
    "cga-5-epochs": "diverge | diverge | diverge | diverge | diverge | diverge",
    "spdb-1-step": "82.36 ± 7.14 | 54.29 ± 6.15 | 39.17 ± 3.93 | 81.75 ± 7.07 | 55.71 ± 6.02 | 38.49 ± 5.12",
    "spdb-5-epochs": "81.15 ± 7.06 | 53.23 ± 7.48 | 35.93 ± 5.05 | 81.25 ± 6.07 | 53.08 ± 4.01 | 35.86 ± 4.03",
    "dada": "85.65 ± 6.36 | 57.61 ± 5.45 | 37.81 ± 7.15 | 88.89 ± 3.47 | 64.62 ± 4.77 | 41.68 ± 3.91",
    "meta-l2c": "92.10 ± 4.71 | 58.28 ± 3.09 | 48.80 ± 4.17 | 91.84 ± 2.40 | 71.64 ± 2.89 | 49.95 ± 1.97",
    "scool-sbm": "91.37 ± 5.03 | 58.76 ± 4.30 | 48.69 ± 5.21 | 94.14 ± 2.28 | 72.27 ± 2.59 | 51.86 ± 1.64",
    "scool-attention": "92.21 ± 5.15 | 59.47 ± 4.95 | 49.53 ± 3.29 | 93.98 ± 3.85 | 72.03 ± 2.71 | 51.69 ± 2.80",
}
NAMES = {
    "local": "Local SGD only",
    "fedavg": "FedAvg",
    "fomo": "FOMO",
    "ditto": "Ditto",
    "gossip-sgd-1-step": "D-PSGD (s = 1 step)",
    "gossip-sgd-5-epochs": "D-PSGD (s = 5 epochs)",
    "cga-1-step": "CGA (s = 1 step)",
    "cga-5-epochs": "CGA (s = 5 epochs)",
    "spdb-1-step": "SPDB (s = 1 step)",
    "spdb-5-epochs": "SPDB (s = 5 epochs)",
    "dada": "Dada",
    "meta-l2c": "meta-L2C",
    "scool-sbm": "SCooL-SBM",
    "scool-attention": "SCooL-attention",
}
METHODS = (*PAPER, "pfedgraph", "scool-mmsbm")  # the last two have no figures in the paper

HUB = ("fedavg", "ditto")  # a tenth of the clients takes part in a round
GRAPH = ("fomo", "dada", "meta-l2c", "pfedgraph")  # learn whom to hear among a tenth of the clients
GOSSIP = ("gossip-sgd", "cga", "spdb")  # on the bipartite graph, with one local step or five epochs per exchange
ROWS_OF_GOSSIP = tuple(f"{method}-{work}" for method in GOSSIP for work in ("1-step", "5-epochs"))
SCOOL = ("scool-sbm", "scool-attention", "scool-mmsbm")
BASELINES = tuple(label for label in METHODS if label not in SCOOL)

SHARE = 0.1  # of the clients: who takes part at a hub, and how many a client hears
EPOCHS, BATCH, WEIGHT_DECAY = 5, 10, 5e-4
GRID = [0.01, 0.05, 0.1]  # learning rates of the baselines; SCooL's is given
FEDAVG_ROUNDS = 2.2  # times those of the others: 1,100 epochs, where the paper says "more than 1000"

# As printed: the published M-step, the strongest tenth of the neighbours; the temperature is ours.
PUBLISHED: dict[str, Any] = {"m_step": "first-order", "temperature": 2.0, "fraction": SHARE, "sparsify_after": 10}
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
CALLED = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "miniimagenet": "MiniImageNet"}

DIFFERENCES = (
    Difference("a tenth of a client's images is for validation (the paper does not say how many it has)"),
    Difference(
        "all classes compete in a prediction, and one partition serves all seeds (not stated); reproduce.json also has "
        "the accuracy when only a client's own classes compete, as in the authors' program (own)"
    ),
    Difference("± is the mean over seeds of the spread over clients (how the paper combines seeds is not stated)"),
    Difference("the last round is scored (not stated)"),
    Difference("as printed: no momentum, and SCooL's learning rate is constant (not stated)", block="printed"),
    Difference(
        "as printed: settings of the baselines other than the learning rate are our defaults", BASELINES, "printed"
    ),
    Difference("pfedgraph, scool-mmsbm: rows of ours, without figures in the paper", ("pfedgraph", "scool-mmsbm")),
    Difference(
        "tuned: same rounds, local steps, neighbours, batches and weight decay; learning rate (0.01, 0.05, 0.1, 0.2, "
        "falling to 4 % over the second half of the rounds) and a method's own setting by validation accuracy",
        block="tuned",
    ),
    Difference("local keeps each client's model of the best round on its validation samples", ("local",)),
    Difference(
        "fedavg, ditto: an epoch of a tenth of the clients counts as one, so that each client trains in a tenth of the "
        "rounds (how the paper counts is not stated)",
        HUB,
    ),
    Difference("meta-l2c is L2C: its weights are free parameters, not the outputs of a network", ("meta-l2c",)),
    Difference(
        "gossip-sgd, cga, spdb: always the generalised bipartite graph, Metropolis weights (the paper: the best of "
        "four graphs; weights not stated)",
        ROWS_OF_GOSSIP,
    ),
    Difference("spdb: the last layer is personal (not stated)", ("spdb-1-step", "spdb-5-epochs")),
    Difference(
        "SCooL, as printed: temperature 2, ten samples for a cross-loss, losses measured against guessing (not stated, "
        "or corrected: docs/reference/papers.md)",
        SCOOL,
        "printed",
    ),
    Difference(
        "scool-sbm, as printed: one block for four clients, at most 25; ten sweeps of the E-step in each round; alpha "
        "fixed (not stated, or corrected)",
        ("scool-sbm",),
        "printed",
    ),
    Difference(
        "scool-attention: one step of AdamW a round for the encoder (the paper: Adam; steps not stated)",
        ("scool-attention",),
    ),
)
MIXED = Difference(
    "SCooL, tuned: weights are inferred from the losses of ten rounds; from round 11 on models are mixed with these; a "
    "client judges its own model on validation samples, and uses the one it had just trained where the mixture is "
    "clearly worse there",
    SCOOL,
    "tuned",
)
HEARD = {
    "10": Difference("fomo, dada, meta-l2c, pfedgraph: the same random neighbours in every round", GRAPH),
    "all": Difference("fomo, dada, meta-l2c, pfedgraph hear everyone (the paper: about 10 % of the clients)", GRAPH),
}


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
    mixed = [MIXED] if length > PUBLISHED["sparsify_after"] else []
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
    """Return the records of the paper's table, one for each column, as they are before anything is run."""
    from coterie.reproduce import record

    records = []
    for setting, dataset in PAPER_COLUMNS:
        options: dict[str, Any] = {"dataset": dataset, "setting": setting}
        options |= {"file": Path("images.npz")} if dataset == "miniimagenet" else {}
        command = record.repeat("scool", {key: value for key, value in options.items() if value != "noniid"})
        records.append(record.expected(reproduction(**options), command, CALLED[dataset]))
    return records
