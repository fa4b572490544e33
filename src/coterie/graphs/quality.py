"""How good a learned cooperation graph is, where the partition has a truth to compare it with.

Truth: clients of one known group, or with one and the same label set, should cooperate (P0, Fig. 6). Three figures:
mean L1 distance between normalised rows of weights, area under the ROC curve of the edges, and adjusted Rand index of
the groups one reads from the weights.
"""

from typing import Any

import numpy as np

__all__ = ["graph_quality", "true_groups"]

LARGEST = 2000  # clients up to which groups are read from the K x K weights


def true_groups(groups: Any, label_counts: Any) -> np.ndarray | None:
    """Return the group of each client: the known ones, or clients with equal label sets; None without a truth."""
    if groups is not None:
        found = np.unique(np.asarray(groups), return_inverse=True)[1]
    else:
        counts = np.asarray(label_counts)
        if counts.ndim != 2 or counts.size == 0:
            return None
        found = np.unique(counts > 0, axis=0, return_inverse=True)[1]
    found = found.reshape(-1)
    count = len(np.unique(found))
    return found if 1 < count < len(found) else None


def graph_quality(table: dict[str, np.ndarray], groups: np.ndarray) -> dict[str, float]:
    """Compare weights by slot (`neighbours`, `present`, `weights`) with the true groups."""
    present, neighbours = table["present"], table["neighbours"]
    weights = np.where(present, table["weights"], 0.0)
    clients = len(groups)
    same = (groups[neighbours] == groups[:, None]) & present
    found = {"graph_l1": _distance(weights, same, groups)}
    if clients > LARGEST:
        return found
    matrix = np.zeros((clients, clients))
    np.add.at(matrix, (np.arange(clients)[:, None], neighbours), weights)
    truth = groups[:, None] == groups[None, :]
    pairs = ~np.eye(clients, dtype=bool)
    from sklearn.metrics import adjusted_rand_score, roc_auc_score

    # Rows are comparable only after scaling: a cautious client that keeps much for itself ranks its neighbours alike.
    scaled = matrix / np.maximum(matrix.sum(1, keepdims=True), 1e-12)
    found["graph_auroc"] = float(roc_auc_score(truth[pairs], scaled[pairs]))
    found["graph_ari"] = float(adjusted_rand_score(groups, _read_groups(scaled, len(np.unique(groups)))))
    return found


def _distance(weights: np.ndarray, same: np.ndarray, groups: np.ndarray) -> float:
    """Mean over clients of |w_i - truth_i|_1, rows scaled to one; true neighbours that were dropped count as missed."""
    sizes = np.bincount(groups)[groups] - 1
    lonely = sizes == 0
    scaled = weights / np.maximum(weights.sum(1, keepdims=True), 1e-12)
    share = 1.0 / np.maximum(sizes, 1)
    inside = np.abs(scaled - same * share[:, None]).sum(1)
    missed = (sizes - same.sum(1)) * share
    return float((inside + missed)[~lonely].mean())


def _read_groups(weights: np.ndarray, count: int) -> np.ndarray:
    """Read groups from the weights: average linkage on how strongly two clients weigh each other."""
    from sklearn.cluster import AgglomerativeClustering

    bond = (weights + weights.T) / 2
    distance = bond.max() - bond
    np.fill_diagonal(distance, 0)
    return AgglomerativeClustering(n_clusters=count, metric="precomputed", linkage="average").fit_predict(distance)
