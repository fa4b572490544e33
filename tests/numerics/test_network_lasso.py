"""The network lasso: against CVXPY, its own dual, limits known in closed form, and cases by hand."""

import itertools
import math
import os

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.numerics.inverse import inverse
from coterie.numerics.lasso import admm as module
from coterie.numerics.lasso.admm import Warm, admm, fista, network_lasso, prepare, start
from coterie.numerics.lasso.edges import edge_step, edge_value, momentum
from coterie.numerics.lasso.incidence import clusters, differences, sums
from coterie.numerics.prox import dual_ball, norm_prox
from support.lasso_cases import (
    CLIENTS,
    DUAL,
    EDGES,
    WIDTH,
    by_cvxpy,
    dual,
    incidence,
    penalty,
    primal,
    rows,
    solved,
    weights,
)

NORMS = [1, 2, "inf"]
ETA = 0.7
# Equal to the bit as users compile; the quicker programs of `make test` round by what else is in them.
ROUNDING = 1e-14 if "fusion_emitters" in os.environ.get("XLA_FLAGS", "") else 0.0
EVEN = np.ones(len(EDGES))
cases = pytest.mark.parametrize(("p", "weighted"), list(itertools.product(NORMS, [False, True])))


@cases
def test_both_solvers_against_cvxpy(p, weighted):
    U, weight = rows(), weights() if weighted else EVEN
    for lam in (0.05, 0.4):
        exact = by_cvxpy(U, lam, ETA, p, weight)
        server = network_lasso(U, EDGES, lam, ETA, p, weight, tolerance=0, iterations=3000)
        edges = network_lasso(U, EDGES, lam, ETA, p, weight, tolerance=0, iterations=5000, solver="fista")
        np.testing.assert_allclose(server.Z, exact, atol=2e-5)
        np.testing.assert_allclose(edges.Z, server.Z, atol=1e-10)
        np.testing.assert_array_equal(edges.labels, server.labels)
        # Ours is the better solution: CVXPY's value is an upper bound.
        assert primal(server.Z, U, lam, ETA, p, weight) <= primal(exact, U, lam, ETA, p, weight) + 1e-10


@pytest.mark.parametrize("p", NORMS)
def test_gap_is_that_of_primal_and_dual_and_bounds_the_error(p):
    U, weight, lam = rows(1), weights(1), 0.3
    best = network_lasso(U, EDGES, lam, ETA, p, weight, tolerance=0, iterations=3000)
    least = primal(best.Z, U, lam, ETA, p, weight)
    for solver, iterations in itertools.product(["admm", "fista"], [10, 20, 60]):
        solution = network_lasso(U, EDGES, lam, ETA, p, weight, tolerance=1e-12, iterations=iterations, solver=solver)
        Om = -dual_ball(solution.warm.pair, lam * weight[:, None], p)
        assert (np.linalg.norm(Om, DUAL[p], axis=1) <= lam * weight * (1 + 1e-12)).all()
        value = primal(solution.Z, U, lam, ETA, p, weight)
        np.testing.assert_allclose(solution.gap, value - dual(Om, U, ETA), atol=1e-12)
        np.testing.assert_allclose(solution.relative, solution.gap / value, rtol=1e-9)
        assert -1e-12 <= value - least <= solution.gap + 1e-12
        assert ((solution.Z - best.Z) ** 2).sum() <= 2 * ETA * solution.gap + 1e-12
        assert int(solution.iterations) <= iterations


def test_two_clients_by_hand():
    # (0, 0) and (3, 4) are 5 apart. Each moves lam eta towards the other, until they meet in the middle.
    U = np.array([[0.0, 0, 0, 0], [3, 4, 0, 0]])
    solution = network_lasso(U, [(0, 1)], 0.5, 2.0)
    np.testing.assert_allclose(solution.Z, [[0.6, 0.8, 0, 0], [2.4, 3.2, 0, 0]], atol=1e-8)
    assert solution.labels.tolist() == [0, 1]
    solution = network_lasso(U, [(0, 1)], 2.0, 2.0)  # 4 is more than half of 5
    np.testing.assert_allclose(solution.Z, [[1.5, 2, 0, 0], [1.5, 2, 0, 0]], atol=1e-8)
    assert solution.labels.tolist() == [0, 0]
    # p = 1 moves every parameter on its own: by 1.6, past the middle of 3 but not of 4.
    solution = network_lasso(U, [(0, 1)], 0.8, 2.0, 1)
    np.testing.assert_allclose(solution.Z, [[1.5, 1.6, 0, 0], [1.5, 2.4, 0, 0]], atol=1e-8)


def test_printed_proximal_operator_is_right_for_p_2_alone():
    # Zhao et al. print a (1 - t / |a|_q)_+ with the dual norm q for every p; Algorithm 5 needs the operator itself.
    a, t = np.array([3.0, -1.0, 0.5, 2.0]), 1.2
    printed = {p: a * max(0.0, 1 - t / np.linalg.norm(a, DUAL[p])) for p in NORMS}
    np.testing.assert_allclose(printed[1], [1.8, -0.6, 0.3, 1.2])
    np.testing.assert_allclose(printed["inf"], [2.446, -0.815, 0.408, 1.631], atol=1e-3)
    right = {p: norm_prox(a, t, p) for p in NORMS}
    np.testing.assert_allclose(right[1], [1.8, 0, 0, 0.8], atol=1e-12)
    np.testing.assert_allclose(right["inf"], [1.9, -1, 0.5, 1.9], atol=1e-12)
    np.testing.assert_allclose(right[2], printed[2], atol=1e-12)
    # Two clients show which is right: u and -u move by prox_{2 lam eta |.|}(2u) / 2 = z.
    U = np.stack([a, -a]) / 2
    for p in NORMS:
        Z = network_lasso(U, [(0, 1)], t / 2, 1.0, p).Z
        np.testing.assert_allclose(Z[0] - Z[1], right[p], atol=1e-7)


@pytest.mark.parametrize("p", NORMS)
def test_no_pull_and_an_infinite_one(p):
    U = rows(2)
    alone = network_lasso(U, EDGES, 0.0, ETA, p)
    np.testing.assert_array_equal(alone.Z, U)
    np.testing.assert_array_equal(alone.labels, np.arange(CLIENTS))
    for lam in (1e3, math.inf):
        solution = network_lasso(U, EDGES, lam, ETA, p)
        np.testing.assert_allclose(solution.Z, np.tile(U.mean(0), (CLIENTS, 1)), atol=1e-7)
        assert (solution.Z[0] == solution.Z).all()
        assert not solution.labels.any()


def test_every_component_is_solved_on_its_own():
    apart = EDGES[:18]  # without the bridges: three groups; and a client without neighbours
    U = np.vstack([rows(3), np.ones(WIDTH)])
    solution = network_lasso(U, apart, 0.2, ETA)
    np.testing.assert_array_equal(solution.Z[12], U[12])
    for members in np.arange(12).reshape(3, 4):
        Z = cp.Variable((4, WIDTH))
        own = cp.sum_squares(Z - U[members]) / (2 * ETA) + penalty(Z, 0.2, 2, np.ones(6), EDGES[:6], 4)
        solved(cp.Problem(cp.Minimize(own)))
        np.testing.assert_allclose(solution.Z[members], Z.value, atol=1e-4)
    means = network_lasso(U, apart, math.inf)
    assert means.labels.tolist() == [0] * 4 + [4] * 4 + [8] * 4 + [12]
    np.testing.assert_allclose(means.Z[:4], np.tile(U[:4].mean(0), (4, 1)))
    np.testing.assert_array_equal(network_lasso(U, [], 1.0).Z, U)


@pytest.mark.parametrize("p", NORMS)
def test_one_cluster_has_exactly_equal_rows_and_no_two_clusters_do(p):
    U, lam = rows(4), {1: 0.35, 2: 0.6, "inf": 1.0}[p]
    solution = network_lasso(U, EDGES, lam, ETA, p, tolerance=1e-12)
    labels = solution.labels
    assert 1 < len(np.unique(labels)) < CLIENTS
    for i, j in itertools.combinations(range(CLIENTS), 2):
        assert (labels[i] == labels[j]) == np.array_equal(solution.Z[i], solution.Z[j])
    # At the optimum a cluster's mean is moved by its outer edges only: inner ones cancel.
    Om = -dual_ball(solution.warm.pair, np.full((len(EDGES), 1), lam), p)
    pushed = U + ETA * incidence().T @ Om
    for label in np.unique(labels):
        np.testing.assert_allclose(solution.Z[label], pushed[labels == label].mean(0), atol=1e-5)


def test_clusters_are_not_made_equal_too_early():
    # After ten iterations of fista all edges are still inside their balls, though most are open at the optimum.
    solution = network_lasso(rows(4), EDGES, 0.6, ETA, tolerance=1e-12, iterations=10, solver="fista")
    equal = np.array([[np.array_equal(a, b) for b in solution.Z] for a in solution.Z])
    np.testing.assert_array_equal(equal, solution.labels[:, None] == solution.labels)
    assert solution.relative > 1e-12


def test_warm_start_continues():
    U = rows(5)
    cold = network_lasso(U, EDGES, 0.3, ETA, tolerance=1e-10)
    again = network_lasso(U + 1e-6, EDGES, 0.3, ETA, warm=cold.warm, tolerance=1e-10)
    assert int(again.iterations) == 10 < int(cold.iterations)
    np.testing.assert_allclose(again.Z, cold.Z + 1e-6, atol=1e-4)


def test_weights_scale_lam_and_edges_of_weight_zero_are_left_out():
    U = rows(6)
    weight = weights(6)
    weight[3] = 0
    kept = np.arange(len(EDGES)) != 3
    solution = network_lasso(U, EDGES, 0.2, ETA, 2, weight, tolerance=1e-12)
    other = network_lasso(U, EDGES[kept][:, ::-1], 0.1, ETA, 2, 2 * weight[kept], tolerance=1e-12)
    np.testing.assert_allclose(solution.Z, other.Z, atol=1e-6)


def test_inside_a_program_in_single_precision_with_few_iterations():
    problem, U = prepare(EDGES, clients=CLIENTS), rows(7).astype(np.float32)

    @jax.jit
    def rounds(problem, U, lam):
        def one(warm, _):
            solution = admm(problem, U, lam, ETA, warm=warm, iterations=5, tolerance=0.0)
            return solution.warm, (solution.Z, solution.gap, solution.iterations)

        return jax.lax.scan(one, start(problem, WIDTH), None, length=30)[1]

    Z, gap, iterations = rounds(problem, U, 0.3)
    assert Z.dtype == gap.dtype == jnp.float32
    assert (iterations == 5).all()
    assert gap[-1] < 1e-5 < gap[0]
    np.testing.assert_allclose(Z[-1], network_lasso(U, EDGES, 0.3, ETA).Z, atol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("solver", [admm, fista])
def test_unused_places_change_nothing(solver, x64):
    # A program that knows only the maximum number of edges has such places; client 12 has no other edges.
    U, weight = jnp.asarray(np.vstack([rows(8), np.ones(WIDTH)])), weights(8)
    real = prepare(EDGES, weight, 13)
    padded = real._replace(
        edges=np.vstack([EDGES, [[12, 12], [3, 3]]]).astype(np.int32), weight=np.append(weight, [0.0, 0.0])
    )
    solution, other = (jax.jit(lambda g: solver(g, U, 0.3, ETA, tolerance=1e-12))(graph) for graph in (real, padded))
    np.testing.assert_allclose(other.Z, solution.Z, atol=1e-6)
    np.testing.assert_array_equal(other.labels, solution.labels)


def test_rows_of_zeros_have_no_gap():
    solution = network_lasso(np.zeros((CLIENTS, WIDTH)), EDGES, 0.3, ETA)
    assert solution.relative == solution.gap == 0
    assert not solution.Z.any()


def test_conjugate_gradients_take_over_where_clients_are_many(monkeypatch):
    U = rows(8)
    monkeypatch.setattr(module, "DENSE_UP_TO", 0)
    with jax.enable_x64(True):
        solution = jax.jit(lambda U: admm(prepare(EDGES, weights(8), CLIENTS), U, 0.2, ETA, tolerance=1e-12))(U)
    np.testing.assert_allclose(solution.Z, network_lasso(U, EDGES, 0.2, ETA, weights=weights(8)).Z, atol=1e-4)
    assert float(solution.relative) <= 1e-12


def test_edge_steps_of_clients_are_the_dual_solver(x64):
    weight, lam, steps = weights(9), 0.3, 40
    problem, U = prepare(EDGES, weight, CLIENTS), jnp.asarray(rows(9))
    graph = Graph.from_edges(EDGES.T.ravel(), EDGES[:, ::-1].T.ravel(), CLIENTS)
    of_edge = {frozenset(e): w for e, w in zip(EDGES.tolist(), weight, strict=True)}
    radius = np.zeros(graph.present.shape)
    for i, k in np.argwhere(graph.present):
        radius[i, k] = lam * of_edge[frozenset((int(i), int(graph.neighbours[i, k])))]
    step = graph.present / (ETA * (graph.degree[:, None] + graph.degree[graph.neighbours]))
    dual = ahead = jnp.zeros((*graph.present.shape, WIDTH))

    @jax.jit
    def exchange(dual, ahead, count):
        own = edge_value(U, ahead, ETA)
        return edge_step(dual, ahead, own, own[graph.neighbours], step, radius, momentum(count))

    for count in range(steps):
        dual, ahead, closed = exchange(dual, ahead, count)
    run = jax.jit(lambda iterations: fista(problem, U, lam, ETA, 2, None, iterations, 0.0, restart=False))
    whole = run(steps)
    Om = -dual_ball(np.asarray(whole.warm.pair), lam * weight[:, None], 2)
    shut = np.linalg.norm(whole.warm.pair, axis=1) <= lam * weight
    slot = {(i, int(graph.neighbours[i, k])): k for i, k in np.argwhere(graph.present)}
    for m, (i, j) in enumerate(EDGES.tolist()):
        lower, higher = slot[i, j], slot[j, i]
        np.testing.assert_allclose(dual[i, lower], Om[m], atol=1e-14)
        np.testing.assert_allclose(dual[i, lower], -dual[j, higher], rtol=0, atol=ROUNDING)  # both ends, bit for bit
        assert closed[i, lower] == closed[j, higher] == shut[m]
    assert 0 < shut.sum() < len(EDGES)
    assert not np.asarray(dual)[~graph.present].any()
    # And it converges, although no client knows all edges.
    exact = network_lasso(rows(9), EDGES, lam, ETA, weights=weight, tolerance=0, iterations=3000)
    np.testing.assert_allclose(run(5000).Z, exact.Z, atol=1e-8)


def test_sums_are_the_transpose_of_differences_also_for_a_hub():
    # A star of 41 clients has three rows in the table of slots; a path of two more hangs on it.
    edges = np.array([(0, i) for i in range(1, 41)] + [(40, 41), (41, 42)])
    problem, D = prepare(edges), incidence(edges, 43)
    random = np.random.default_rng(0)
    Z, X = random.integers(-9, 9, (43, 2)).astype(float), random.integers(-9, 9, (len(edges), 2)).astype(float)
    np.testing.assert_array_equal(differences(problem, jnp.asarray(Z)), D @ Z)
    np.testing.assert_array_equal(sums(problem, jnp.asarray(X)), D.T @ X)


def test_clusters_are_components_of_closed_edges():
    edges = np.array([(5, 6), (0, 6), (1, 5), (2, 3)])
    problem = prepare(edges, clients=8)
    assert clusters(problem, jnp.array([True, True, True, False])).tolist() == [0, 0, 2, 3, 4, 0, 0, 7]
    long = prepare(np.array([(i, i + 1) for i in range(99)])[::-1])
    assert not clusters(long, jnp.ones(99, bool)).any()


@pytest.mark.parametrize("size", [1, 30, 150])
def test_inverse_without_lapack(size, x64):
    A = np.random.default_rng(size).normal(size=(size, size))
    A = A @ A.T + 0.1 * np.eye(size)
    np.testing.assert_allclose(jax.jit(inverse)(A) @ A, np.eye(size), atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": -1.0}, "lam must be at least 0, not -1.0"),
        ({"lam": math.nan}, "lam must be at least 0, not nan"),
        ({"eta": 0.0}, "eta must be a number greater than 0"),
        ({"p": 3}, 'p must be 1, 2 or "inf", not 3'),
        ({"solver": "simplex"}, "solver must be admm or fista"),
        ({"edges": [(0, 1), (2, 2)]}, "edges join client 2 to itself"),
        ({"edges": [(0, 1), (1, 2), (1, 0)]}, "edges join clients 0 and 1 more than once"),
        ({"edges": [(0, 12)]}, r"edges must name clients 0..11, not 0..12"),
        ({"edges": [(0, 1, 2)]}, r"edges must be integers \[m, 2\]"),
        ({"edges": [(0.0, 1.0)]}, r"edges must be integers \[m, 2\]"),
        ({"weights": [1.0]}, r"weights must have one number per edge, \[22\], not \[1\]"),
        ({"weights": -EVEN}, "weights must be finite and at least 0"),
        ({"U": np.zeros((2, 3, 4))}, "U must be finite numbers"),
        ({"U": np.full((CLIENTS, 2), np.nan)}, "U must be finite numbers"),
        ({"warm": Warm(np.zeros((3, WIDTH)), np.zeros(3))}, "warm must come from a solution"),
    ],
)
def test_what_cannot_be_solved_is_refused(change, message):
    with pytest.raises(CoterieError, match=message):
        network_lasso(**{"U": rows(), "edges": EDGES, "lam": 0.1, **change})


def test_graphs_that_do_not_fit_are_refused():
    with pytest.raises(CoterieError, match="clients must be at least 1"):
        prepare([])
    with pytest.raises(CoterieError, match="U has 12 rows, but the graph has 13 clients"):
        network_lasso(rows(), prepare(EDGES, clients=13), 0.1)
