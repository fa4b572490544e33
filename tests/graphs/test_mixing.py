"""Mixing weights and their stability, against weights by hand, closed-form spectra and the roots of the recursion."""

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import (
    check_stable,
    laplacian,
    lazy_metropolis,
    metropolis,
    spectrum,
    weight_matrix,
)
from coterie.graphs.topologies import ErdosRenyi, GroupRing, Ring, Star
from support.graph_cases import row_weights, step_size_bound


@st.composite
def undirected(draw):
    """A random symmetric 0/1 matrix without self loops."""
    clients = draw(st.integers(1, 12))
    bits = draw(st.lists(st.booleans(), min_size=clients**2, max_size=clients**2))
    matrix = np.triu(np.array(bits).reshape(clients, clients), 1)
    return matrix | matrix.T


def dense(weights, graph):
    return weight_matrix(*weights, graph).toarray()


def test_ring_and_star_weights_by_hand():
    ring, star = Ring().build(5, 0), Star().build(4, 0)
    third = np.array([1, 1, 0, 0, 1]) / 3
    np.testing.assert_allclose(dense(metropolis(ring), ring), [np.roll(third, i) for i in range(5)])
    np.testing.assert_allclose(dense(lazy_metropolis(ring), ring)[0], [2 / 3, 1 / 6, 0, 0, 1 / 6])
    np.testing.assert_allclose(dense(laplacian(ring), ring)[0], [0.6, 0.2, 0, 0, 0.2])  # largest eigenvalue 3.6 < 5
    quarter, rest = 1 / 4, 3 / 4
    np.testing.assert_allclose(
        dense(metropolis(star), star),
        [[quarter] * 4, [quarter, rest, 0, 0], [quarter, 0, rest, 0], [quarter, 0, 0, rest]],
    )
    # A star of K clients has Laplacian eigenvalues 0, 1 and K: the default step is 1/K from K = 5 on.
    big = Star().build(8, 0)
    slots, own = laplacian(big)
    np.testing.assert_allclose(slots[big.present], 1 / 8)
    np.testing.assert_allclose(own, [1 / 8] + [7 / 8] * 7, atol=1e-12)
    np.testing.assert_allclose(laplacian(ring, step=0.5)[1], 0.0)
    np.testing.assert_array_equal(metropolis(Graph.empty(3))[1], [1, 1, 1])
    np.testing.assert_array_equal(laplacian(Graph.empty(3))[1], [1, 1, 1])


@settings(deadline=None)
@given(undirected())
def test_weights_are_symmetric_and_doubly_stochastic(matrix):
    graph = Graph.from_adjacency(matrix)
    for rule in (metropolis, lazy_metropolis, laplacian):
        slots, own = rule(graph)
        assert slots.dtype == own.dtype == np.float64
        assert (slots[~graph.present] == 0).all()
        W = dense((slots, own), graph)
        np.testing.assert_allclose(W, W.T, atol=1e-15)
        np.testing.assert_allclose(W.sum(0), 1, atol=1e-12)
        assert (W >= -1e-12).all()
        np.testing.assert_array_equal((W != 0) & ~np.eye(len(W), dtype=bool), matrix)
        smallest, second = spectrum(slots, own, graph)
        values = np.sort(np.abs(np.linalg.eigvals(W)))[::-1]
        assert smallest == pytest.approx(np.linalg.eigvals(W).real.min(), abs=1e-9)
        assert second == pytest.approx(values[1] if len(W) > 1 else 0.0, abs=1e-9)
        assert (second < 1 - 1e-9) == graph.connected
    assert spectrum(*lazy_metropolis(graph), graph)[0] > -1e-12
    assert spectrum(*laplacian(graph), graph)[0] > -1e-12
    assert check_stable(*metropolis(graph), graph, "gossip") > -1


def test_spectrum_of_large_graphs_in_closed_form():
    ring = Ring().build(4000, 0)  # eigenvalues 1/3 + 2/3 cos(2 pi k / K)
    smallest, second = spectrum(*metropolis(ring), ring)
    assert smallest == pytest.approx(-1 / 3, abs=2e-5)
    assert second == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / 4000), abs=5e-5)
    with pytest.raises(CoterieError, match="diverge"):
        check_stable(*metropolis(ring), ring)
    assert check_stable(*lazy_metropolis(ring), ring) == pytest.approx(1 / 3, abs=2e-5)
    np.testing.assert_allclose(
        laplacian(GroupRing().build(4000, 0))[0][0, 0], 1 / _largest_of_circulant(4000), rtol=1e-4
    )


def _largest_of_circulant(clients, reach=5):
    angles = 2 * np.pi * np.outer(np.arange(clients), np.arange(1, reach + 1)) / clients
    return (2 * reach - 2 * np.cos(angles).sum(1)).max()


def test_weights_that_cannot_be_used_are_refused():
    one_way = Graph.from_networkx(networkx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    for rule in (metropolis, lazy_metropolis, laplacian):
        with pytest.raises(CoterieError, match="need an undirected graph"):
            rule(one_way)
    with pytest.raises(CoterieError, match="must be symmetric"):
        spectrum(row_weights(one_way), np.full(3, 0.5), one_way)
    ring = Ring().build(4, 0)
    with pytest.raises(CoterieError, match="must sum to one"):
        spectrum(metropolis(ring)[0], np.full(4, 0.5), ring)
    with pytest.raises(CoterieError, match="step must be a number greater than 0"):
        laplacian(ring, step=0)


def radius(w, a):
    """The largest root of a primal-dual mode: t^2 - (2w - a) t + (w - a) = 0."""
    return np.abs(np.roots([1, -(2 * w - a), w - a])).max()


def test_step_size_bound_is_where_the_roots_leave_the_unit_circle():
    for w, largest in [(0.9, 1.85), (0.3, 0.95), (0.0, 0.5), (-0.2, 0.2)]:  # solved by hand
        assert step_size_bound(w) == pytest.approx(largest)
        assert step_size_bound(w, smoothness=4.0) == pytest.approx(largest / 4)
        assert radius(w, largest - 1e-3) < 1 < radius(w, largest + 1e-3)
    assert step_size_bound(-0.5) == 0.0


@pytest.mark.parametrize("w", [-0.9, -0.4, -0.34, -0.33, -0.2, 0.0, 0.4])
def test_check_stable_agrees_with_the_roots(w):
    # Two clients with Laplacian weights: the eigenvalues of W are 1 and 1 - 2 step.
    pair = Ring().build(2, 0)
    weights = laplacian(pair, step=(1 - w) / 2)
    assert check_stable(*weights, pair, "gossip") == pytest.approx(w)
    if radius(w, 1e-6) < 1:
        assert check_stable(*weights, pair, "primal-dual") == pytest.approx(w)
    else:
        with pytest.raises(CoterieError, match=r"primal-dual method diverge.*above -1/3; use lazy Metropolis"):
            check_stable(*weights, pair, "primal-dual")


def test_the_borders_are_unstable():
    pair, ring = Ring().build(2, 0), Ring().build(6, 0)
    with pytest.raises(CoterieError, match=r"gossip method diverge: .* must be above -1;"):
        check_stable(*laplacian(pair, step=1.0), pair, "gossip")
    with pytest.raises(CoterieError, match="diverge"):  # an even ring's Metropolis weights: exactly -1/3
        check_stable(*metropolis(ring), ring)
    check_stable(*metropolis(ring), ring, "gossip")


def test_a_fixed_step_is_unstable_on_denser_random_graphs():
    """The share of connected 10-client Erdos-Renyi graphs on which step = 0.2 is stable, as counted independently."""

    def stable(probability, seed):
        graph = ErdosRenyi(probability=probability).build(10, seed)
        try:
            check_stable(*laplacian(graph, step=0.2), graph)
        except CoterieError:
            return False
        return True

    shares = {p: np.mean([stable(p, seed) for seed in range(200)]) for p in (0.2, 0.3, 0.4, 0.7)}
    assert shares[0.2] > shares[0.3] > shares[0.4] > shares[0.7]
    for p, published in {0.2: 0.86, 0.3: 0.56, 0.4: 0.16, 0.7: 0.0}.items():
        assert abs(shares[p] - published) <= 4 * np.sqrt(published * (1 - published) / 200 + 1e-4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.floats(0.3, 0.8))
def test_the_default_step_is_always_stable(seed, probability):
    graph = ErdosRenyi(probability=probability).build(10, seed)
    assert check_stable(*laplacian(graph), graph) > -1e-9
