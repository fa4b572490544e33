"""How good a learned cooperation graph is, where the partition has a ground truth.

Ground truth: clients of the same known group, or with the same label set, should cooperate (Li et al. 2024, Fig. 6).
Three figures: mean L1 distance between normalised rows of weights, area under the ROC curve of the edges, and adjusted
Rand index of the groups that the weights imply.
"""

from typing import Any

import numpy as np

from coterie.numerics.agreement import adjusted_rand, area_under_roc

__all__ = ["graph_quality", "true_groups"]

LARGEST = 2000  # clients up to which groups are computed from the K x K weights


def true_groups(groups: Any, label_counts: Any) -> np.ndarray | None:
    """Return the group of each client: the known ones, or clients with equal label sets; None without a ground
    truth."""
    if groups is not None:
        group = np.unique(np.asarray(groups), return_inverse=True)[1]
    else:
        counts = np.asarray(label_counts)
        if counts.ndim != 2 or counts.size == 0:
            return None
        group = np.unique(counts > 0, axis=0, return_inverse=True)[1]
    group = group.reshape(-1)
    return group if 1 < len(np.unique(group)) < len(group) else None


def graph_quality(table: dict[str, np.ndarray], groups: np.ndarray) -> dict[str, float]:
    """Compare weights by slot (`neighbours`, `present`, `weights`) with the true groups."""
    present, neighbours = table["present"], table["neighbours"]
    weights = np.where(present, table["weights"], 0.0)
    clients = len(groups)
    same = (groups[neighbours] == groups[:, None]) & present
    figures = {"graph_l1": _distance(weights, same, groups)}
    if clients > LARGEST:
        return figures
    matrix = np.zeros((clients, clients))
    np.add.at(matrix, (np.arange(clients)[:, None], neighbours), weights)
    truth = groups[:, None] == groups[None, :]
    pairs = ~np.eye(clients, dtype=bool)
    # Rows are comparable only after scaling: clients differ in how much weight they keep for themselves.
    scaled = matrix / np.maximum(matrix.sum(1, keepdims=True), 1e-12)
    figures["graph_auroc"] = area_under_roc(truth[pairs], scaled[pairs])
    figures["graph_ari"] = adjusted_rand(groups, _read_groups(scaled, len(np.unique(groups))))
    return figures


def _distance(weights: np.ndarray, same: np.ndarray, groups: np.ndarray) -> float:
    """Return the mean over clients of |w_i - truth_i|_1, rows scaled to one; dropped true neighbours are missed."""
    sizes = np.bincount(groups)[groups] - 1
    alone = sizes == 0
    scaled = weights / np.maximum(weights.sum(1, keepdims=True), 1e-12)
    share = 1.0 / np.maximum(sizes, 1)
    inside = np.abs(scaled - same * share[:, None]).sum(1)
    missed = (sizes - same.sum(1)) * share
    return float((inside + missed)[~alone].mean())


def _read_groups(weights: np.ndarray, count: int) -> np.ndarray:
    """Cluster the clients by average linkage on how strongly two clients weight each other."""
    from scipy.cluster.hierarchy import cut_tree, linkage

    affinity = (weights + weights.T) / 2
    distance = affinity.max() - affinity
    tree = linkage(distance[np.triu_indices(len(distance), 1)], "average")
    return cut_tree(tree, n_clusters=count)[:, 0]
