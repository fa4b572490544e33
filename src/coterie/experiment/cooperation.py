"""The cooperation graph of a result in other forms: a matrix, a NetworkX graph, a file.

A table is what a run records at an evaluation: `neighbours`, `present` and `weights`, `[K, D]` each.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.export import graphml
from coterie.storage.durable import durable_write, storage_errors

__all__ = ["save_weights", "weight_graph", "weight_matrix"]

Table = Mapping[str, np.ndarray]


def weight_matrix(table: Table) -> np.ndarray:
    """Return the weights as a matrix: row i is how client i weighs the others, and itself."""
    clients = len(table["neighbours"])
    matrix = np.zeros((clients, clients))
    rows = np.repeat(np.arange(clients), table["neighbours"].shape[1])
    np.add.at(matrix, (rows, table["neighbours"].ravel()), (table["weights"] * table["present"]).ravel())
    matrix[np.diag_indices_from(matrix)] = 1 - (matrix.sum(1) - np.diag(matrix))
    return matrix


def weight_graph(table: Table, names: Sequence[str]) -> Any:
    """Return the weights as a NetworkX graph: an edge u -> v is the weight that v gives to u."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    for i, k in zip(*np.nonzero(table["present"]), strict=True):
        graph.add_edge(names[table["neighbours"][i, k]], names[i], weight=float(table["weights"][i, k]))
    return graph


def save_weights(path: Path, table: Table, names: Sequence[str]) -> Path:
    """Write the weights as GraphML, or as a matrix to a .npy file."""
    if path.suffix == ".graphml":
        durable_write(path, graphml(weight_graph(table, names)))
    elif path.suffix == ".npy":
        with storage_errors(path.parent), open(path, "wb") as stream:
            np.save(stream, weight_matrix(table))
    else:
        raise CoterieError(f"{path}: the graph is written as .graphml or .npy; choose one of these endings")
    return path
