"""Clusters of a run, and the path along which they split: which clients have exactly the same personal part.

`component` and `network-lasso` give weights above 0 to the neighbours that a client shares its personal part with, so
the clusters of an evaluation are the connected components of these weights. Along a path lam shrinks, and one cluster
of all clients becomes many. No JAX here.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.components import connected_components, lowest_members

if TYPE_CHECKING:
    from coterie.experiment.result import Result

__all__ = ["clusters_of", "has_path", "path_of", "path_words"]


def clusters_of(table: dict[str, np.ndarray]) -> np.ndarray:
    """Return each client's cluster `[K]`, named by its first client, from the weights by slot."""
    neighbours = np.asarray(table["neighbours"])
    client, slot = np.nonzero((np.asarray(table["weights"]) > 0) & np.asarray(table["present"], bool))
    return lowest_members(connected_components(client, neighbours[client, slot], len(neighbours)))


def has_path(result: "Result") -> bool:
    """Whether lam went along a path in this run."""
    return bool(result.config["method"].get("path_factor")) and bool(result.graphs) and "lam" in result.rows[-1]


def path_of(result: "Result") -> Any:
    """Return the path as a DataFrame: one row for each lam, at its last evaluation.

    Columns: `round`, `lam`, `clusters` (how many), `validation_score` and `test_score` (means over clients; the first
    over those with validation samples), `kept` (whether the run kept its models) and `labels [K]`.
    """
    import pandas as pd

    if not has_path(result):
        raise CoterieError(
            "this run has no path of lam: set method.path_factor, for example to 0.75, for network-lasso or component"
        )
    last = {row["lam"][0]: row for row in result.rows}  # the last row of each lam
    kept = next(row["lam"][0] for row in result.rows if row["round"] == result.best_round)
    # A client without validation samples has zeros there.
    validated = np.any([np.asarray(row["validation_loss"]) > 0 for row in result.rows], axis=0)
    rows = []
    for lam, row in last.items():
        labels = clusters_of(result.graphs[row["round"]])
        validation = np.asarray(row["validation_score"])[validated]
        rows.append(
            {
                "round": row["round"],
                "lam": lam,
                "clusters": len(np.unique(labels)),
                "validation_score": float(validation.mean()) if validated.any() else float("nan"),
                "test_score": float(np.mean(row["test_score"])),
                "kept": lam == kept,
                "labels": labels,
            }
        )
    return pd.DataFrame(rows)


def path_words(result: "Result") -> str:
    """Say in one line where the path went and what was kept."""
    path = result.path()
    kept = path[path["kept"]].iloc[0]
    clusters = f"{kept['clusters']} clusters" if kept["clusters"] > 1 else "one cluster of all"
    ends = f"{path['lam'].iloc[0]:.3g} to {path['lam'].iloc[-1]:.3g}"
    return f"path: lam from {ends}; kept lam {kept['lam']:.3g} with {clusters}"
