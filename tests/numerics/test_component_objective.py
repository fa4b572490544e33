"""The whole objective of Zhao et al., with a shared and a personal component, against CVXPY; and fused gradients."""

import cvxpy as cp
import numpy as np
import pytest

from coterie.numerics.lasso.admm import network_lasso, prepare
from coterie.numerics.prox import fused
from support.lasso_cases import CLIENTS, EDGES, WIDTH, penalty, rows, solved

NORMS = [1, 2, "inf"]
EVEN = np.ones(len(EDGES))


@pytest.fixture(scope="module")
def whole():
    """Problem (1) of the paper: a shared part x and personal parts z_n, every client a small least-squares problem."""
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
    """Algorithm 6, corrected: both blocks step along the (fused) gradient at (x, Z); returns the objective."""
    A, B, y, L = whole
    x, Z, warm, graph = np.zeros(2), np.zeros((CLIENTS, WIDTH)), None, prepare(EDGES, clients=CLIENTS)
    eta = CLIENTS / L  # of the personal block, whose curvature is L / N
    for t in range(rounds):
        error = (np.einsum("nrd,d->nr", A, x) + np.einsum("nrd,nd->nr", B, Z) - y) / 8
        g = np.hstack([np.einsum("nrd,nr->nd", A, error), np.einsum("nrd,nr->nd", B, error)])
        q = fused(g, gamma(t)) if gamma(t) else g
        x = x - q[:, :2].mean(0) / L
        U = Z - eta / CLIENTS * q[:, 2:]
        solution = network_lasso(U, graph, lam, eta, p, warm=warm, tolerance=1e-12, iterations=100)
        Z, warm = solution.Z, solution.warm
    return objective_of(whole, x, Z, penalty(Z, lam, p, EVEN).value, lambda r: r @ r)


@pytest.mark.parametrize("p", NORMS)
def test_the_whole_problem_against_cvxpy(p, whole):
    assert algorithm_6(whole, 0.01, p, lambda t: 0.0, 500) == pytest.approx(least_of(whole, 0.01, p), abs=1e-8)


def test_a_constant_fused_term_does_impair_convergence_and_a_vanishing_one_does_not(whole):
    # The paper says it never does; the more gradients are fused, the farther from the optimum they converge.
    least = least_of(whole, 0.01, 2)
    schedules = [lambda t: 0.0, lambda t: 0.5 / (1 + t / 20), lambda t: 0.1, lambda t: 0.5]
    gaps = [algorithm_6(whole, 0.01, 2, gamma, 500) - least for gamma in schedules]
    assert gaps == sorted(gaps)
    assert abs(gaps[0]) < 1e-8 < gaps[1] < 0.1 * gaps[2]
