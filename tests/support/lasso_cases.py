"""A small network lasso, its solution by CVXPY, and its primal and dual objective."""

import cvxpy as cp
import numpy as np

ORDER = {1: 1, 2: 2, "inf": np.inf}
DUAL = {1: np.inf, 2: 2, "inf": 1}

# Three groups of four in a row: edges within a group, and two from each group to the next.
EDGES = np.array(
    [(4 * g + i, 4 * g + j) for g in range(3) for i in range(4) for j in range(i + 1, 4)]
    + [(3, 4), (2, 5), (7, 8), (6, 9)]
)
CLIENTS, WIDTH = 12, 3


def rows(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(3, WIDTH))[np.arange(CLIENTS) // 4] + 0.5 * random.normal(size=(CLIENTS, WIDTH))


def weights(seed=0):
    return np.random.default_rng(seed + 100).uniform(0.3, 2, len(EDGES))


def incidence(edges=EDGES, clients=CLIENTS):
    D = np.zeros((len(edges), clients))
    D[np.arange(len(edges)), edges[:, 0]], D[np.arange(len(edges)), edges[:, 1]] = 1, -1
    return D


def primal(Z, U, lam, eta, p, weight):
    lengths = np.linalg.norm(incidence() @ Z, ORDER[p], axis=1)
    return lam * (weight * lengths).sum() + ((Z - U) ** 2).sum() / (2 * eta)


def dual(Om, U, eta):
    D = incidence()
    return -(Om * (D @ U)).sum() - eta / 2 * ((D.T @ Om) ** 2).sum()


def penalty(Z, lam, p, weight, edges=EDGES, clients=CLIENTS):
    """Return the penalty on differences as a CVXPY expression."""
    return lam * (weight @ cp.norm(incidence(edges, clients) @ Z, "inf" if p == "inf" else p, axis=1))


def solved(problem):
    """Solve as accurately as CVXPY's solver can."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": it is asked for more than it can reach
        return problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)


def by_cvxpy(U, lam, eta, p, weight):
    Z = cp.Variable(U.shape)
    solved(cp.Problem(cp.Minimize(penalty(Z, lam, p, weight) + cp.sum_squares(Z - U) / (2 * eta))))
    return Z.value
