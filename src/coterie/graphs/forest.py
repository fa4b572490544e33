"""The nearest neighbours of very many points, nearly exact, in O(K log K): a forest of random trees.

A tree divides the points in two at the median along the line between two random ones of them, again and again, until
groups are small; within a group all pairs are compared. A near neighbour is missed where all trees part it from the
point, so what several trees have found is put together, and then the neighbours' neighbours are compared, too. Every
step is drawn from a fixed seed: the same points give the same neighbours. No JAX here.
"""

import numpy as np

from coterie.numerics.components import connected_components

__all__ = ["forest_bridges", "forest_neighbours"]

TREES = 4
GROUP = 256  # points in a group at most; twice as many as neighbours at least
BLOCK = 2**23  # numbers in memory at a time
HOPS = 2  # passes over the neighbours' neighbours


def forest_neighbours(vectors: np.ndarray, k: int) -> np.ndarray:
    """Return the k nearest others of each point `[K, m]`, nearest first, `[K, k]`; few of them are not the nearest."""
    points, random = np.ascontiguousarray(vectors, np.float32), np.random.default_rng(0)
    ids = np.zeros((len(points), 0), np.int32)
    squares = np.zeros((len(points), 0), np.float32)
    for _ in range(TREES):
        ids, squares = _nearest_of(points, k, (ids, squares), *_in_groups(points, _tree(points, k, random), k))
    for _ in range(HOPS):
        for rows in _blocks(len(points), (k * k + k) * points.shape[1]):
            others = ids[ids[rows]].reshape(len(rows), -1)
            apart = points[others] - points[rows, None]
            found = np.einsum("rcm,rcm->rc", apart, apart)
            new = _nearest_of(points, k, (ids[rows], squares[rows]), others, found, rows)
            ids[rows], squares[rows] = new
    return ids


def forest_bridges(vectors: np.ndarray, component: np.ndarray) -> np.ndarray:
    """Return edges `[components - 1, 2]` that join components `[K]`, short ones, without comparing all their pairs.

    Every component is joined to the one with the nearest centre, by those of their members that are nearest to the
    other's centre; again with what has been joined, until all is one.
    """
    points, bridges = np.asarray(vectors, np.float64), np.zeros((0, 2), np.int32)
    while (count := int(component.max()) + 1) > 1:
        order = np.argsort(component, kind="stable")
        starts = np.searchsorted(component[order], np.arange(count))
        sizes = np.diff(np.append(starts, len(points)))
        centres = np.add.reduceat(points[order], starts, axis=0) / sizes[:, None]
        partner = _nearest_centre(centres)
        pairs = np.unique(np.sort(np.stack([np.arange(count), partner], 1), axis=1), axis=0)
        pairs = pairs[_forest(pairs, count)]
        ends = [
            [
                _nearest_member(points, order[starts[a] : starts[a] + sizes[a]], centres[b])
                for a, b in ((one, two), (two, one))
            ]
            for one, two in pairs
        ]
        bridges = np.concatenate([bridges, np.sort(np.array(ends, np.int32), axis=1)])
        component = connected_components(pairs[:, 0], pairs[:, 1], count)[component]
    return bridges


def _nearest_centre(centres: np.ndarray) -> np.ndarray:
    """Return for each centre the one nearest to it."""
    if len(centres) > 2 * GROUP:
        return forest_neighbours(centres, 1)[:, 0]
    squares = ((centres[:, None] - centres) ** 2).sum(2)
    np.fill_diagonal(squares, np.inf)
    return squares.argmin(1)


def _nearest_member(points: np.ndarray, members: np.ndarray, centre: np.ndarray) -> int:
    return int(members[((points[members] - centre) ** 2).sum(1).argmin()])


def _forest(pairs: np.ndarray, count: int) -> list[int]:
    """Return which pairs join something that those before them have not joined: ties can close a circle."""
    above = np.arange(count)

    def root(node: int) -> int:
        while above[node] != node:
            above[node] = node = above[above[node]]
        return node

    kept = []
    for number, (one, two) in enumerate(pairs):
        a, b = root(one), root(two)
        if a != b:
            above[a] = b
            kept.append(number)
    return kept


def _tree(points: np.ndarray, k: int, random: np.random.Generator) -> list[np.ndarray]:
    """Return the groups of one tree: ids, in groups whose sizes differ by one at most."""
    count, group = len(points), max(GROUP, 2 * (k + 1))
    order, ends = np.arange(count), np.array([0, count])
    while np.diff(ends).max() > group:
        sizes = np.diff(ends)
        one, other = (order[ends[:-1] + random.integers(0, sizes)] for _ in range(2))
        segment = np.repeat(np.arange(len(sizes)), sizes)
        along = np.empty(count, np.float32)
        for rows in _blocks(count, points.shape[1]):
            line = points[one[segment[rows]]] - points[other[segment[rows]]]
            along[rows] = np.einsum("rm,rm->r", points[order[rows]], line)
        order = order[np.lexsort((along, segment))]
        ends = np.union1d(ends, ends[:-1] + sizes // 2)
    return np.split(order, ends[1:-1])


def _in_groups(points: np.ndarray, groups: list[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Compare all pairs within groups; returns for each point the k nearest ids of its group, and squared distances."""
    ids = np.empty((len(points), k), np.int32)
    squares = np.empty((len(points), k), np.float32)
    for size in {len(group) for group in groups}:
        equal = np.array([group for group in groups if len(group) == size])
        for some in _blocks(len(equal), size * (size + points.shape[1])):
            member = equal[some]
            inside = points[member] - points[member].mean(1, keepdims=True)  # small numbers: products lose less
            lengths = np.einsum("gnm,gnm->gn", inside, inside)
            found = lengths[:, :, None] + lengths[:, None] - 2 * inside @ inside.transpose(0, 2, 1)
            found[:, np.arange(size), np.arange(size)] = np.inf  # no point is its own neighbour
            chosen = np.argpartition(found, k - 1, axis=2)[:, :, :k]
            ids[member] = np.take_along_axis(np.broadcast_to(member[:, None], found.shape), chosen, 2)
            squares[member] = np.take_along_axis(found, chosen, 2)
    return ids, squares


def _nearest_of(
    points: np.ndarray,
    k: int,
    known: tuple[np.ndarray, np.ndarray],
    ids: np.ndarray,
    squares: np.ndarray,
    rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest of those known and found, nearest first; of two at the same distance, the smaller id."""
    me = np.arange(len(points)) if rows is None else rows
    ids, squares = np.concatenate([known[0], ids], 1), np.concatenate([known[1], squares], 1)
    order = np.argsort(ids, axis=1, kind="stable")
    ids, squares = np.take_along_axis(ids, order, 1), np.take_along_axis(squares, order, 1)
    twice = np.zeros(ids.shape, bool)
    twice[:, 1:] = ids[:, 1:] == ids[:, :-1]
    squares = np.where(twice | (ids == me[:, None]), np.inf, squares)
    order = np.argsort(squares, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(squares, order, 1)


def _blocks(count: int, each: int) -> list[np.ndarray]:
    """Return the numbers 0, 1, ... in blocks of which each takes `each` numbers of memory for every entry."""
    size = max(1, BLOCK // max(1, each))
    return np.split(np.arange(count), range(size, count, size))
