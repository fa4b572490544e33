"""Points and their neighbours: against SciPy, NetworkX and brute force."""

import itertools

import networkx
import numpy as np
import pytest
import scipy.linalg
import scipy.spatial.distance
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.graphs import proximity
from coterie.graphs.proximity import (
    Points,
    both_ways,
    covariance_points,
    direction_points,
    edge_weights,
    log_covariance_points,
    nearest,
    shortest_bridges,
)
from coterie.numerics.components import connected_components


def packed(matrices):
    return np.stack([m[np.triu_indices(len(m))] for m in matrices])


def covariances(count, size, seed=0):
    """Random covariances; each client has more samples than coordinates."""
    random = np.random.default_rng(seed)
    return np.stack([np.cov(random.normal(size=(size, 3 * size)) * random.uniform(0.5, 2)) for _ in range(count)])


@st.composite
def grids(draw):
    """Points with whole coordinates, whose distances are often equal, and a number of neighbours."""
    clients = draw(st.integers(2, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random.integers(-2, 3, (clients, draw(st.integers(1, 3)))), draw(st.integers(1, clients - 1))


def brute_neighbours(points, k):
    """Sort all others by squared distance in whole numbers, then by id."""
    square = ((points[:, None] - points[None]) ** 2).sum(-1)
    others = [[j for j in range(len(points)) if j != i] for i in range(len(points))]
    return np.array([sorted(row, key=lambda j: (square[i, j], j))[:k] for i, row in enumerate(others)])


# -- points ------------------------------------------------------------------------------------------------------------


def test_frobenius_and_log_euclidean_distances_equal_those_of_scipy():
    matrices = covariances(4, 5)
    pairs = np.array(list(itertools.combinations(range(4), 2)))
    distances = Points(covariance_points(packed(matrices))).distances(pairs)
    np.testing.assert_allclose(distances, [np.linalg.norm(matrices[i] - matrices[j]) for i, j in pairs], rtol=1e-12)

    counts, shrinkage = np.array([3, 10, 50, 7]), 4.0
    pooled = np.tensordot(counts, matrices, 1) / counts.sum()
    shrunk = [(n * S + shrinkage * pooled) / (n + shrinkage) for n, S in zip(counts, matrices, strict=True)]
    logs = [scipy.linalg.logm(S + 1e-3 * np.trace(pooled) / 5 * np.eye(5)) for S in shrunk]
    distances = Points(log_covariance_points(packed(matrices), counts, shrinkage)).distances(pairs)
    np.testing.assert_allclose(distances, [np.linalg.norm(logs[i] - logs[j]) for i, j in pairs], rtol=1e-10)


def test_a_client_with_one_sample_has_a_logarithm(monkeypatch):
    matrices = covariances(7, 3)
    matrices[2] = 0  # of one sample
    counts = np.array([9, 9, 1, 9, 9, 9, 9])
    points = log_covariance_points(packed(matrices), counts, 5.0)
    assert np.isfinite(points).all()
    monkeypatch.setattr(proximity, "EIGEN", 18)  # two clients at a time
    np.testing.assert_allclose(log_covariance_points(packed(matrices), counts, 5.0), points, rtol=1e-13)
    assert not log_covariance_points(np.zeros((3, 6)), np.ones(3), 5.0).any()  # nothing varies: all are equal


def test_directions_give_the_cosine_distance():
    moved = np.random.default_rng(0).normal(size=(4, 6)) * [[1], [100], [1e-3], [5]]
    pairs = np.array(list(itertools.combinations(range(4), 2)))
    distances = Points(direction_points(moved)).distances(pairs) ** 2 / 2
    expected = [scipy.spatial.distance.cosine(moved[i], moved[j]) for i, j in pairs]
    np.testing.assert_allclose(distances, expected, rtol=1e-10)
    assert not direction_points(np.zeros((2, 3))).any()  # zero has no direction


# -- neighbours --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(grids(), st.sampled_from([1, 5, 2**24]))
def test_neighbours_equal_brute_force_with_all_its_ties(case, block):
    points, k = case
    before, proximity.BLOCK = proximity.BLOCK, block
    try:
        neighbours = nearest(Points(points), k)
        edges = both_ways(neighbours)
        lengths = Points(points).distances(edges)
    finally:
        proximity.BLOCK = before
    expected = brute_neighbours(points, k)
    np.testing.assert_array_equal(neighbours, expected)
    pairs = {frozenset((i, j)) for i, row in enumerate(expected.tolist()) for j in row}
    assert [tuple(edge) for edge in edges.tolist()] == sorted(tuple(sorted(pair)) for pair in pairs)
    np.testing.assert_allclose(lengths, np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1), atol=1e-12)


def test_a_mutual_pair_is_one_edge():
    # 0 and 1 ask for each other; 2 asks for 1, and no one for 2.
    np.testing.assert_array_equal(both_ways(nearest(Points(np.array([[0.0], [1.0], [3.0]])), 1)), [[0, 1], [1, 2]])


def test_ties_go_to_the_smaller_id_whatever_the_rounding():
    random = np.random.default_rng(0)
    centre, spread = random.normal(size=300), random.normal(size=(3, 300))
    twins = np.repeat(centre + spread, 20, axis=0) + 1e3  # three sets of twenty equal clients, far from zero
    expected = [[j for j in range(i // 20 * 20, 60) if j != i][:4] for i in range(60)]
    np.testing.assert_array_equal(nearest(Points(twins), 4), expected)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 2**24]))
def test_bridges_are_a_minimum_spanning_tree_of_the_components(seed, block):
    random = np.random.default_rng(seed)
    points = random.integers(-3, 4, (12, 2)).astype(float)
    edges = both_ways(random.permuted(np.tile(np.arange(12), (12, 1)), axis=1)[:, :1])
    edges = edges[edges[:, 0] != edges[:, 1]]
    part = connected_components(*edges.T, 12)
    network = networkx.Graph(edges.tolist())
    network.add_nodes_from(range(12))
    assert part.max() + 1 == networkx.number_connected_components(network)
    before, proximity.BLOCK = proximity.BLOCK, block
    try:
        bridges = shortest_bridges(Points(points), part)
    finally:
        proximity.BLOCK = before
    assert len(bridges) == part.max()
    network.add_edges_from(bridges.tolist())
    assert networkx.is_connected(network)
    full = networkx.Graph()
    for i, j in itertools.combinations(range(12), 2):
        full.add_edge(i, j, weight=0.0 if part[i] == part[j] else np.linalg.norm(points[i] - points[j]))
    least = networkx.minimum_spanning_tree(full).size(weight="weight")
    assert Points(points).distances(bridges).sum() == pytest.approx(least, abs=1e-9)


def test_weights_of_edges():
    lengths = np.array([1.0, 2.0, 4.0])
    np.testing.assert_array_equal(edge_weights(lengths, "equal"), np.ones(3))
    np.testing.assert_allclose(edge_weights(lengths, "gaussian"), np.exp([-1 / 8, -1 / 2, -2]))
    np.testing.assert_array_equal(edge_weights(np.zeros(3), "gaussian"), np.ones(3))
