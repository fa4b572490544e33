"""The path of the network lasso, personal models with losses of their own, and the whole problem of P2, by CVXPY."""

import math

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.errors import CoterieError
from coterie.numerics.lasso.admm import network_lasso, prepare
from coterie.numerics.lasso.path import Path, fit, largest_lambda, path, path_of_losses
from coterie.numerics.prox import fused
from support.lasso_cases import CLIENTS, EDGES, WIDTH, incidence, penalty, rows, solved, weights

NORMS = [1, 2, "inf"]
ETA = 0.7
EVEN = np.ones(len(EDGES))


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("weight", [EVEN, weights()], ids=["even", "weighted"])
def test_largest_lambda_is_the_least_congested_flow(p, weight):
    pull = rows() / ETA
    Om, most = cp.Variable((len(EDGES), WIDTH)), cp.Variable()
    carried = incidence().T @ Om == pull.mean(0) - pull
    within = cp.norm(Om, {1: "inf", 2: 2, "inf": 1}[p], axis=1) <= most * weight
    solved(cp.Problem(cp.Minimize(most), [carried, within]))
    found = largest_lambda(prepare(EDGES, weight, CLIENTS), pull, p)
    np.testing.assert_allclose(found, most.value, rtol=2e-6)


def test_largest_lambda_by_hand():
    # A tree has one flow: what lies beyond an edge, minus its mean, goes over it. Edges 0 - 1 - 2 and 3 - 4.
    forest = prepare([(0, 1), (1, 2), (3, 4)], [1.0, 4.0, 1.0])
    pull = np.array([[-1.0], [1.0], [3.0], [5.0], [5.0]])
    assert largest_lambda(forest, pull) == pytest.approx(2.0)  # the largest of 2 / 1, 2 / 4 and 0 / 1
    pull[:, 0] = [0.0, 0.0, 9.0, 5.0, 5.0]
    assert largest_lambda(forest, pull) == pytest.approx(3.0)  # 3 / 1, 6 / 4, 0 / 1
    pull[:, 0] = [0.0, 0.0, 9.0, 10.0, 18.0]
    assert largest_lambda(forest, pull) == pytest.approx(4.0)  # 3 / 1, 6 / 4, 4 / 1: each component has its own mean
    assert largest_lambda(forest, np.ones((5, 1))) == 0
    assert largest_lambda(prepare([], clients=3), rows()[:3]) == 0


@pytest.mark.parametrize("p", NORMS)
def test_path_goes_from_one_cluster_to_none(p):
    U, problem = rows(1), prepare(EDGES, clients=CLIENTS)
    found = path(problem, U, ETA, p, points=12)
    assert found.clusters[0] == 1
    assert found.clusters[1] > 1  # lam_max is no larger than it must be
    assert found.clusters[-1] == CLIENTS
    assert found.lam[-1] == 0
    np.testing.assert_allclose(found.lam[0], largest_lambda(problem, U / ETA, p))
    np.testing.assert_allclose(found.lam[-2], 1e-3 * found.lam[0])
    np.testing.assert_allclose(found.Z[0], np.tile(U.mean(0), (CLIENTS, 1)), atol=1e-12)
    np.testing.assert_array_equal(found.Z[-1], U)
    assert (found.error <= 1e-9).all()
    alone = network_lasso(U, problem, found.lam[3], ETA, p)
    np.testing.assert_allclose(found.Z[3], alone.Z, atol=1e-3)
    frame = found.frame()
    assert list(frame.columns) == ["lam", "clusters", "largest_cluster", "error"]
    assert frame.largest_cluster.iloc[[0, -1]].tolist() == [CLIENTS, 1]
    chosen = path(problem, U, ETA, p, lams=[0.1, 0.3])
    np.testing.assert_array_equal(chosen.lam, [0.3, 0.1])


def test_drawing_by_hand():
    # Four clients: one cluster, then {0, 2} and {1, 3}, then 1 and 3 apart.
    labels = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 3]])
    drawn = Path(np.array([2.0, 1.0, 0.0]), np.zeros((3, 4, 1)), labels, np.zeros(3)).drawing()
    assert drawn["order"] == [0, 2, 1, 3]
    assert [(n["step"], n["label"], n["size"], n["position"]) for n in drawn["nodes"]] == [
        (0, 0, 4, 1.5),
        (1, 0, 2, 0.5),
        (1, 1, 2, 2.5),
        (2, 0, 2, 0.5),
        (2, 1, 1, 2.0),
        (2, 3, 1, 3.0),
    ]
    assert [(k["from"], k["to"], k["size"]) for k in drawn["links"]] == [
        (0, 1, 2),
        (0, 2, 2),
        (1, 3, 2),
        (2, 4, 1),
        (2, 5, 1),
    ]


@pytest.fixture(scope="module")
def regression():
    random = np.random.default_rng(0)
    X = random.normal(size=(CLIENTS, 8, WIDTH))
    y = np.einsum("nrd,nd->nr", X, rows(2)) + 0.1 * random.normal(size=(CLIENTS, 8))

    def gradient(Z):
        return jnp.einsum("nrd,nr->nd", X, jnp.einsum("nrd,nd->nr", X, Z) - y) / 8

    return X, y, gradient, max(np.linalg.eigvalsh(x.T @ x / 8)[-1] for x in X)


@pytest.mark.parametrize("p", NORMS)
def test_personal_regressions_against_cvxpy(p, regression):
    X, y, gradient, curvature = regression
    weight, lam = weights(3), 0.02

    def objective(Z, squares, term):
        return sum(squares(X[n] @ Z[n] - y[n]) for n in range(CLIENTS)) / (16 * CLIENTS) + term

    Z = cp.Variable((CLIENTS, WIDTH))
    least = solved(cp.Problem(cp.Minimize(objective(Z, cp.sum_squares, penalty(Z, lam, p, weight)))))
    start = np.zeros((CLIENTS, WIDTH))
    found = fit(prepare(EDGES, weight, CLIENTS), gradient, curvature, lam, p, start)
    value = objective(found.Z, lambda r: r @ r, penalty(found.Z, lam, p, weight).value)
    assert value == pytest.approx(least, abs=1e-8)
    np.testing.assert_allclose(found.Z, Z.value, atol=1e-4)
    assert found.residual <= 1e-8


def planted(kind, seed):
    """Fifteen clients in three groups, and a network of all pairs, the stronger the more alike local models are."""
    random = np.random.default_rng(seed)
    truth = np.arange(15) % 3
    centres = 3 * np.linalg.qr(random.normal(size=(3, 3)))[0]
    X = random.normal(size=(15, 150, 3))
    scores = np.einsum("nrd,nd->nr", X, centres[truth])
    if kind == "least squares":
        y, slope, bend = scores + random.normal(size=scores.shape), lambda s: s, 1.0
    else:
        y, slope, bend = (random.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(float), jax.nn.sigmoid, 0.25

    def gradient(Z):
        return jnp.einsum("nrd,nr->nd", X, slope(jnp.einsum("nrd,nd->nr", X, Z)) - y) / 150

    curvature = bend * max(np.linalg.eigvalsh(x.T @ x / 150)[-1] for x in X)
    edges = np.array([(i, j) for i in range(15) for j in range(i + 1, 15)])
    local = fit(prepare(edges), gradient, curvature, 0.0, 2, np.zeros((15, 3)), tolerance=1e-4).Z
    distance = np.linalg.norm(local[edges[:, 0]] - local[edges[:, 1]], axis=1)
    return truth, gradient, curvature, prepare(edges, (np.median(distance) / distance) ** 2)


@pytest.mark.parametrize("kind", ["least squares", "logistic"])
def test_planted_groups_are_recovered_exactly_on_the_path(kind):
    for seed in range(5):
        truth, gradient, curvature, problem = planted(kind, seed)
        found = path_of_losses(problem, gradient, curvature, np.zeros((15, 3)), points=8, tolerance=1e-5)
        assert max(adjusted_rand_score(truth, labels) for labels in found.labels) == 1.0
        assert found.clusters[0] == 1
        best = next(t for t, labels in enumerate(found.labels) if adjusted_rand_score(truth, labels) == 1.0)
        for group in range(3):
            members = found.Z[best][truth == group]
            assert (members == members[:1]).all()


@pytest.fixture(scope="module")
def whole():
    """P2's problem (1): a shared part x and personal parts z_n, every client a small least-squares problem."""
    random = np.random.default_rng(5)
    A, B = random.normal(size=(CLIENTS, 8, 2)), random.normal(size=(CLIENTS, 8, WIDTH))
    y = A @ np.array([1.0, -2.0]) + np.einsum("nrd,nd->nr", B, rows(6)) + 0.3 * random.normal(size=(CLIENTS, 8))
    return A, B, y, max(np.linalg.norm(np.hstack(both), 2) ** 2 / 8 for both in zip(A, B, strict=True))


def objective_of(whole, x, Z, term, squares):
    A, B, y, _ = whole
    return sum(squares(A[n] @ x + B[n] @ Z[n] - y[n]) for n in range(CLIENTS)) / (16 * CLIENTS) + term


def least_of(whole, lam, p):
    x, Z = cp.Variable(2), cp.Variable((CLIENTS, WIDTH))
    return solved(cp.Problem(cp.Minimize(objective_of(whole, x, Z, penalty(Z, lam, p, EVEN), cp.sum_squares))))


def algorithm_6(whole, lam, p, gamma, rounds):
    """P2's Algorithm 6, corrected: both blocks step along the (fused) gradient at (x, Z); returns its objective."""
    A, B, y, L = whole
    x, Z, warm, problem = np.zeros(2), np.zeros((CLIENTS, WIDTH)), None, prepare(EDGES, clients=CLIENTS)
    eta = CLIENTS / L  # of the personal block, whose curvature is L / N
    for t in range(rounds):
        error = (np.einsum("nrd,d->nr", A, x) + np.einsum("nrd,nd->nr", B, Z) - y) / 8
        g = np.hstack([np.einsum("nrd,nr->nd", A, error), np.einsum("nrd,nr->nd", B, error)])
        q = fused(g, gamma(t)) if gamma(t) else g
        x = x - q[:, :2].mean(0) / L
        U = Z - eta / CLIENTS * q[:, 2:]
        found = network_lasso(U, problem, lam, eta, p, warm=warm, tolerance=1e-12, iterations=100)
        Z, warm = found.Z, found.warm
    return objective_of(whole, x, Z, penalty(Z, lam, p, EVEN).value, lambda r: r @ r)


@pytest.mark.parametrize("p", NORMS)
def test_the_whole_problem_against_cvxpy(p, whole):
    assert algorithm_6(whole, 0.01, p, lambda t: 0.0, 500) == pytest.approx(least_of(whole, 0.01, p), abs=1e-8)


def test_a_constant_fused_term_does_impair_convergence_and_a_vanishing_one_does_not(whole):
    # P2 says it never does; the more the gradients are fused, the farther from the optimum they come to rest.
    least = least_of(whole, 0.01, 2)
    schedules = [lambda t: 0.0, lambda t: 0.5 / (1 + t / 20), lambda t: 0.1, lambda t: 0.5]
    gaps = [algorithm_6(whole, 0.01, 2, gamma, 500) - least for gamma in schedules]
    assert gaps == sorted(gaps)
    assert abs(gaps[0]) < 1e-8 < gaps[1] < 0.1 * gaps[2]


def test_what_cannot_be_followed_is_refused(regression):
    _, _, gradient, curvature = regression
    problem, start = prepare(EDGES, clients=CLIENTS), np.zeros((CLIENTS, WIDTH))
    with pytest.raises(CoterieError, match="lams must be numbers that are at least 0"):
        path(problem, rows(), lams=[0.1, -0.1])
    with pytest.raises(CoterieError, match="points must be at least 2 and smallest between 0 and 1"):
        path(problem, rows(), points=1)
    with pytest.raises(CoterieError, match="lam must be at least 0, not nan"):
        fit(problem, gradient, curvature, math.nan, 2, start)
    with pytest.raises(CoterieError, match="curvature must be a number greater than 0, not 0"):
        fit(problem, gradient, 0.0, 0.1, 2, start)
    with pytest.raises(CoterieError, match=r"start must be one row a client, \[12, parameters\], not \[3\]"):
        fit(problem, gradient, curvature, 0.1, 2, start[0])
