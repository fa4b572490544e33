"""The methods that are tried on a network: all that learn in rounds, with the settings that make them talk most."""

from coterie import registry
from coterie.methods.base import Solved
from coterie.names import METHODS

BIAS = {"personal": ("bias",)}
PRUNED = {"sparsify_after": 2, "fraction": 0.3}
SETTINGS = {
    "fedavg": {"participation": 0.6},
    "sgp": {"pushes": 2},
    "async-l2gd": {"iterations": 3},
    "async-al2sgd+": {"p_between": 0.3, "p_within": 0.4, "refresh": 0.5, "iterations": 2},
    "l2gd": {"p": 0.4, "iterations": 2},
    "network-lasso": {"form": "peers", "iterations": 3},
    "pdbo-mtl": {"predictors": 2, "pushes": 2, "depth": 2, "gossip": 2, "upper": "held-out"},
    **dict.fromkeys(("component", "fedbn", "fedper", "fedrep", "spdb"), BIAS),
    **dict.fromkeys(("scool-attention", "scool-sbm", "scool-mmsbm"), PRUNED),
}


def methods():
    """Return the names of all methods that send messages, not samples, in rounds."""
    found = {row.name: registry.load("methods", row.name) for row in METHODS}
    alone = {name for name, kind in found.items() if kind.topology == "none" or kind.role == "pooled"}
    return [name for name, kind in found.items() if name not in alone and not issubclass(kind, Solved)]
