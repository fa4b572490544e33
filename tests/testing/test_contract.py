"""Every method keeps the contract: one row per method, one column per check."""

import pytest

from coterie.testing.contract import CHECKS, Case

# A row compiles a dozen programs, so `make test` has two, and `make soak` all of them. Every verb keeps the contract in
# tests/peers/test_remote.py, pushes and links that come and go among them, and a method with a hub in test_coding.py.
METHODS = [
    ("gossip-sgd", {"order": "mix-and-step", "momentum": 0.5}),  # neighbours
    ("ifca", {"clusters": 3}),  # a hub with a memory of its own
]
VARIANTS = [
    ("sgp", {"order": "after", "pushes": 2, "momentum": 0.5}),  # pushes, links that come and go
    ("async-l2gd", {"iterations": 3}),  # clusters, branches
    ("local", {"momentum": 0.9, "epochs": 2}),  # nobody to talk to
    # Questions, a learned graph, stages; the same bits in one process and in two only with optimised programs.
    ("scool-attention", {"sparsify_after": 2, "fraction": 0.3}),
    ("component", {"personal": ("bias",), "steps": 2}),  # a solver at the hub
    ("fedavg-finetuned", {"finetune_epochs": 2, "steps": 3, "weight_decay": 0.01}),  # a mean; another model to evaluate
    ("network-lasso", {"form": "peers", "iterations": 3}),  # values per neighbour
    ("fedrep", {"personal": ("bias",), "participation": 0.5}),  # some clients at a time
    ("spdb", {"personal": ("bias",), "upper": "validation", "terms": 3, "personal_lr": 0.2}),  # personal layers, duals
    ("fedavg", {"steps": 3, "weight_decay": 0.01}),
    ("ditto", {"tie": 0.5}),
    ("l2gd", {"p": 0.4, "iterations": 2}),
    ("spd", {"decay": 0.5, "decay_after": 1}),
    ("fomo", {}),
    ("cga", {"momentum": 0.5, "steps": 2}),
    ("meta-l2c", {}),
    ("pooled", {}),
    ("fedprox", {"mu": 0.5}),
    ("pfedme", {}),
    ("async-al2sgd+", {"p_between": 0.3, "p_within": 0.4, "refresh": 0.5, "iterations": 2}),
    (
        "pdbo-mtl",
        {"predictors": 2, "pushes": 2, "estimator": "neumann", "depth": 2, "gossip": 2, "upper": "held-out"},
    ),
    ("d2", {"momentum": 0.5}),
    ("gnsd", {"steps": 2}),
    ("fedper", {"personal": ("bias",)}),
    ("scool-sbm", {"sparsify_after": 2, "fraction": 0.3}),
    ("scool-mmsbm", {"sparsify_after": 2, "fraction": 0.3}),
    ("dada", {}),
    ("pfedgraph", {}),
    ("local", {}),
    ("fedavg", {}),
    ("gossip-sgd", {}),
    ("sgp", {"order": "authors"}),
    ("pdbo-mtl", {"predictors": 2, "pushes": 2, "depth": 2, "estimator": "hgp", "settle": 2}),
    ("spdb", {"personal": ("bias",)}),
    ("component", {"personal": ("bias",), "form": "peers"}),
    ("network-lasso", {"path_factor": 0.5, "path_every": 2}),
    ("scool-attention", {"own": "apart", "m_step_prior": 0.5, "sparsify_after": 0}),
    ("scool-sbm", {"m_step": "exact", "exact_steps": 2, "sparsify_after": 0}),
    ("cga", {}),
    ("scaffold", {"steps": 2}),  # a mean of two trees
    ("scaffold", {"renew": "gradient", "participation": 0.5}),
    ("feddyn", {}),
    ("apfl", {}),
    ("per-fedavg", {"order": "exact"}),
    ("per-fedavg", {}),
    ("fedala", {}),
    ("fedamp", {}),
    ("fedem", {}),
    ("fedbn", {"personal": ("bias",)}),
    ("fedbabu", {}),  # two layers, as the next
    ("lg-fedavg", {}),
    ("moon", {}),
    ("fedproto", {}),
    ("fedrod", {}),
    ("fedadam", {}),  # the hub's optimiser
    ("fedyogi", {"participation": 0.5}),
    ("fedavgm", {"hub_momentum": 0.5}),
    ("gossip-sgd", {"local_optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1}),  # a client's optimiser, kept
    ("local", {"local_optimiser": "yogi", "schedule": "cosine", "schedule_rounds": 3, "lr": 0.01}),
]
ROWS = METHODS + [pytest.param(row, marks=pytest.mark.soak) for row in VARIANTS]


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: "-".join([row[0], *row[1]]))
def case(request, partner):
    name, settings = request.param
    return Case(name, partner, **settings)


@pytest.mark.parametrize("check", CHECKS)
def test_contract(case, check):
    CHECKS[check](case)
