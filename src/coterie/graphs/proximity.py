"""From summaries to a network: points, their k nearest neighbours in both directions, edges that join its components.

Every distance between clients is a Euclidean distance of points. All pairs are compared in blocks of rows, so that
memory grows with clients x neighbours. Ties go to the smaller id. No JAX here.
"""

from typing import Literal

import numpy as np

__all__ = [
    "Points",
    "at_most",
    "both_ways",
    "covariance_points",
    "direction_points",
    "edge_weights",
    "log_covariance_points",
    "nearest",
    "shortest_bridges",
]

BLOCK = 2**24  # distances in memory at a time: 128 MiB
RESOLUTION = 2.0**40  # of squared distances, relative to the largest: coarser than rounding, so that ties are exact
RIDGE = 1e-3  # added to every covariance before its logarithm, relative to the mean variance: bounds the logarithm
EIGEN = 2**22  # entries of the covariances that are diagonalised at a time


# -- points whose Euclidean distance is the chosen metric ------------------------------------------------------------


def covariance_points(packed: np.ndarray) -> np.ndarray:
    """Turn upper triangles `[K, p (p + 1) / 2]` into points whose distance is the Frobenius norm of the difference."""
    size = _side(packed.shape[1])
    rows, columns = np.triu_indices(size)
    return np.asarray(packed, np.float64) * np.where(rows == columns, 1.0, np.sqrt(2))


def log_covariance_points(packed: np.ndarray, counts: np.ndarray, shrinkage: float) -> np.ndarray:
    """Turn covariances into points whose distance is |log S_i - log S_j|, the log-Euclidean one; `counts` are samples.

    A client with few samples has a singular covariance, without a logarithm. So S_i is shrunk towards the pooled S,
    which counts for `shrinkage` samples, (n_i S_i + shrinkage S) / (n_i + shrinkage), plus a thousandth of its mean
    variance.
    """
    packed, counts = np.asarray(packed, np.float64), np.asarray(counts, np.float64)
    size = _side(packed.shape[1])
    rows, columns = np.triu_indices(size)
    pooled = counts @ packed / counts.sum()
    ridge = RIDGE * pooled[rows == columns].mean() * (rows == columns)
    if not ridge.any():
        return np.zeros_like(packed)  # no client's samples vary: all are equal
    shrunk = (counts[:, None] * packed + shrinkage * pooled) / (counts + shrinkage)[:, None] + ridge
    triangles = []
    for part in np.array_split(shrunk, min(len(shrunk), -(-len(shrunk) * size**2 // EIGEN))):
        matrices = np.zeros((len(part), size, size))
        matrices[:, columns, rows] = part  # eigh reads the lower triangle
        values, vectors = np.linalg.eigh(matrices)
        logs = (vectors * np.log(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
        triangles.append(logs[:, rows, columns])
    return covariance_points(np.concatenate(triangles))


def direction_points(displacements: np.ndarray) -> np.ndarray:
    """Scale displacements to length one: half the squared distance of two is then 1 - cosine; zero stays zero."""
    vectors = np.asarray(displacements, np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _side(entries: int) -> int:
    return int((np.sqrt(8 * entries + 1) - 1) // 2)


# -- neighbours ------------------------------------------------------------------------------------------------------


class Points:
    """Summaries as points: `vectors [K, m]`, centred and in double precision, so that products give distances."""

    def __init__(self, vectors: np.ndarray):
        vectors = np.asarray(vectors, np.float64)
        self.vectors = vectors - vectors.mean(0)
        self.squares = np.einsum("kd,kd->k", self.vectors, self.vectors)
        self.largest = float(self.squares.max())  # 0: all clients are equal

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self) -> list[np.ndarray]:
        """Return the ids in blocks whose distances to all clients fit into memory."""
        size = max(1, BLOCK // len(self))
        return np.split(np.arange(len(self)), range(size, len(self), size))

    def ranks(self, rows: np.ndarray, columns: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return squared distances as whole numbers, `[rows, columns]`, so that rounding cannot break ties."""
        squares = self.squares[rows, None] + self.squares[columns] - 2 * self.vectors[rows] @ self.vectors[columns].T
        return np.rint(squares / (self.largest or 1.0) * RESOLUTION).astype(np.int64)

    def distances(self, edges: np.ndarray) -> np.ndarray:
        """Return the distance between the ends of each edge `[m, 2]`, from differences: exact where it is small."""
        lengths = [
            np.linalg.norm(self.vectors[part[:, 0]] - self.vectors[part[:, 1]], axis=1)
            for part in np.array_split(edges, max(1, edges.size * self.vectors.shape[1] // BLOCK))
        ]
        return np.concatenate(lengths)


def nearest(points: Points, k: int) -> np.ndarray:
    """Return each client's k nearest others, nearest first, `[K, k]`; of two at the same distance, the smaller id."""
    clients, neighbours = len(points), []
    for rows in points.blocks():
        keys = points.ranks(rows) * clients + np.arange(clients)  # no two keys of a row are equal: no ties
        keys[np.arange(len(rows)), rows] = np.iinfo(np.int64).max  # no client is its own neighbour
        chosen = np.partition(keys, k - 1, axis=1)[:, :k]
        neighbours.append(np.sort(chosen, axis=1) % clients)
    return np.concatenate(neighbours).astype(np.int32)


def both_ways(neighbours: np.ndarray) -> np.ndarray:
    """Return the union of neighbour lists `[K, k]` as undirected edges `[m, 2]`, i < j, sorted, a mutual pair once."""
    me = np.repeat(np.arange(len(neighbours)), neighbours.shape[1])
    pairs = np.sort(np.stack([me, neighbours.ravel()], 1), axis=1)
    keys = np.sort(pairs[:, 0] * np.int64(len(neighbours)) + pairs[:, 1])  # rows of pairs sort ten times more slowly
    edges = np.divmod(keys[np.diff(keys, prepend=-1) > 0], len(neighbours))
    return np.stack(edges, 1).astype(np.int32)


def at_most(edges: np.ndarray, lengths: np.ndarray, most: int) -> np.ndarray:
    """Return the edges `[m, 2]` that are among the `most` shortest of both their ends: nobody has more neighbours."""
    ends, number = edges.T.ravel(), np.tile(np.arange(len(edges)), 2)
    order = np.lexsort((number, np.tile(lengths, 2), ends))
    count = np.bincount(ends)
    rank = np.empty(len(ends), np.int64)
    rank[order] = np.arange(len(ends)) - np.repeat(np.cumsum(count) - count, count)  # among the edges of one end
    return edges[(rank.reshape(2, -1) < most).all(0)]


def shortest_bridges(points: Points, component: np.ndarray) -> np.ndarray:
    """Return the edges `[components - 1, 2]` of the minimum spanning tree between components `[K]`."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    count, order = int(component.max()) + 1, np.argsort(component, kind="stable")
    starts = np.searchsorted(component[order], np.arange(count))
    gap = np.full((count, count), np.iinfo(np.int64).max)
    for rows in points.blocks():
        np.minimum.at(gap, component[rows], np.minimum.reduceat(points.ranks(rows, order), starts, axis=1))
    # SciPy reads 0 as "no edge", so it gets each gap's rank among all of them, counted from 1.
    first, second = np.triu_indices(count, 1)
    rank = np.zeros((count, count))
    rank[first, second] = np.argsort(np.argsort(gap[first, second], kind="stable"), kind="stable") + 1
    bridges = []
    for one, other in zip(*minimum_spanning_tree(rank).nonzero(), strict=True):
        here, there = np.flatnonzero(component == one), np.flatnonzero(component == other)
        row, column = np.divmod(points.ranks(here, there).argmin(), len(there))
        bridges.append(sorted((here[row], there[column])))
    return np.array(bridges, np.int32).reshape(-1, 2)


def edge_weights(lengths: np.ndarray, kind: Literal["equal", "gaussian"]) -> np.ndarray:
    """Return the weight of each edge: 1, or exp(-(length / s)^2 / 2) with s the median length."""
    median = float(np.median(lengths)) if len(lengths) else 0.0
    if kind == "equal" or median == 0:
        return np.ones(len(lengths))
    return np.exp(-0.5 * (lengths / median) ** 2)
