"""The methods, one file each; names are in `coterie.registry`, so that nothing is imported before it is used."""

from typing import Any

__all__ = ["Ditto", "FedAvg", "FedAvgFinetuned", "FedProx", "GossipSGD", "Local", "Pooled"]


def __getattr__(name: str) -> Any:
    from coterie import registry

    for row in registry.KINDS["methods"]:
        if row.target.endswith(f":{name}"):
            return registry.load("methods", row.name)
    raise AttributeError(f"coterie.methods has no {name!r}")
