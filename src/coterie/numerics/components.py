"""Connected components of a graph, given as two arrays with the ends of its edges. No JAX here."""

import numpy as np

__all__ = ["connected_components", "lowest_members"]


def connected_components(one: np.ndarray, other: np.ndarray, nodes: int, strong: bool = False) -> np.ndarray:
    """Return the component of every node `[nodes]`, numbered from 0.

    With `strong`, edges lead from `one` to `other` only, and components are strongly connected.
    """
    from scipy.sparse import coo_array, csgraph

    edges = coo_array((np.ones(len(one), bool), (one, other)), shape=(nodes, nodes))
    return csgraph.connected_components(edges, directed=strong, connection="strong")[1]


def lowest_members(component: np.ndarray) -> np.ndarray:
    """Return the lowest node in each node's component `[nodes]`."""
    _, lowest, number = np.unique(component, return_index=True, return_inverse=True)
    return lowest[number]
