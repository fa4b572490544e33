"""Nearest neighbours by a forest of trees: nearly those of all pairs, and every part joined."""

import numpy as np
import pytest

from coterie.graphs import forest
from coterie.graphs.forest import forest_bridges, forest_neighbours
from coterie.graphs.proximity import Points, at_most, both_ways, nearest, shortest_bridges
from coterie.numerics.components import connected_components


@pytest.fixture(scope="module")
def clustered():
    random = np.random.default_rng(0)
    label = np.repeat(np.arange(60), 50)
    return label, random.normal(size=(60, 10))[label] * 3 + random.normal(size=(3000, 10))


def test_nearly_all_nearest_are_found(clustered):
    _, points = clustered
    exact, found = nearest(Points(points), 8), forest_neighbours(points, 8)
    shared = np.mean([len(np.intersect1d(a, b)) / 8 for a, b in zip(exact, found, strict=True)])
    assert shared > 0.95
    assert (found != np.arange(3000)[:, None]).all()  # nobody is its own neighbour
    assert all(len(set(row)) == 8 for row in found[::50].tolist())  # nobody twice
    lengths = np.linalg.norm(points[found] - points[:, None], axis=2)
    assert (np.diff(lengths, axis=1) > -1e-5).all()  # nearest first


def test_a_group_of_all_points_is_exact(monkeypatch):
    monkeypatch.setattr(forest, "GROUP", 1000)
    points = np.random.default_rng(1).normal(size=(500, 4))
    np.testing.assert_array_equal(forest_neighbours(points, 5), nearest(Points(points), 5))


def test_bridges_join_all_parts_and_are_short(clustered):
    label, points = clustered
    bridges = forest_bridges(points, label)
    assert bridges.shape == (59, 2)
    assert connected_components(label[bridges[:, 0]], label[bridges[:, 1]], 60).max() == 0
    lengths = Points(points).distances(bridges).sum()
    assert lengths < 1.5 * Points(points).distances(shortest_bridges(Points(points), label)).sum()


def test_nobody_keeps_more_neighbours_than_the_limit(clustered):
    _, points = clustered
    edges = both_ways(forest_neighbours(points, 8))
    lengths = Points(points).distances(edges)
    kept = at_most(edges, lengths, 10)
    assert np.bincount(edges.ravel()).max() > np.bincount(kept.ravel()).max() == 10
    popular = int(np.bincount(edges.ravel()).argmax())
    of_popular = (edges == popular).any(1)
    longest = np.sort(lengths[of_popular])[9]  # its tenth shortest: whatever is longer went
    assert Points(points).distances(kept[(kept == popular).any(1)]).max() <= longest
