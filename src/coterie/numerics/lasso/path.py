"""The network lasso's path: which clients become equal, as lam goes from "all of them" to "none".

`path` follows the proximal problem of `network_lasso.py`, whose U are models that were fitted apart; `path_of_losses`
follows personal models with losses of their own,

    min (1/N) sum_n f_n(z_n) + lam sum_m w_m |z_i - z_j|_p,

by accelerated proximal gradient (`fit`). Both begin at `largest_lambda`, above which every component of the graph is
one cluster. There the pulls on the clients, g_n = u_n / eta or -grad f_n / N at the common optimum, must be carried
along the edges without any of them giving way: lam_max is the least lam for which a flow |Om_m|_q <= lam w_m with
D^T Om = mean(g) - g exists, or, the other way round, the largest <g - mean(g), Z> / sum_m w_m |z_i - z_j|_p. Every flow
is an upper bound and every Z a lower one. The solution at a lam below it has a ratio that lies between: taking that for
the next lam is Newton's method, which ends after a few solves.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.lasso.admm import network_lasso
from coterie.numerics.lasso.edges import momentum
from coterie.numerics.lasso.incidence import Problem
from coterie.numerics.lasso.terms import Norm, Solution, Warm, dual_norm
from coterie.numerics.prox import dual_ball

__all__ = ["Fit", "Path", "fit", "largest_lambda", "path", "path_of_losses"]

Array = Any
NEWTON = 30  # solves at most; five to ten are usual
INNER, INNER_ROUNDS = 1e-10, 100  # of a proximal step of `fit`; what it misses, the next one makes up for


class Fit(NamedTuple):
    """Personal models with losses of their own."""

    Z: np.ndarray  # [N, d]
    labels: np.ndarray  # [N] the lowest client of one's cluster
    residual: float  # the last step's length as a share of Z's
    rounds: int
    warm: Warm | None


@dataclasses.dataclass(frozen=True, eq=False)
class Path:
    """The solutions along decreasing lam, the last at lam = 0.

    Attributes:
        lam: `[T]`.
        Z: `[T, N, d]`.
        labels: `[T, N]` the lowest client of one's cluster.
        error: `[T]` relative gap (`path`) or relative length of the last step (`path_of_losses`).
    """

    lam: np.ndarray
    Z: np.ndarray
    labels: np.ndarray
    error: np.ndarray

    @property
    def clusters(self) -> np.ndarray:
        """`[T]` how many different clients there are."""
        return (self.labels == np.arange(self.labels.shape[1])).sum(1)

    def frame(self) -> Any:
        """Return a pandas DataFrame: one row a lam, with the number of clusters, the largest one and the error."""
        import pandas as pd

        largest = [int(np.bincount(labels).max()) for labels in self.labels]
        columns = {"lam": self.lam, "clusters": self.clusters, "largest_cluster": largest, "error": self.error}
        return pd.DataFrame(columns)

    def drawing(self) -> dict[str, Any]:
        """Return what a figure of merging clusters needs, in plain lists.

        `order` lists the clients so that clusters lie side by side. A node is a cluster at step t of the path, at the
        mean `position` of its members in that order; a link joins it to a cluster of step t + 1 with members in common.
        """
        order = np.lexsort(self.labels[::-1])  # by the labels of the largest lam first
        position = np.argsort(order)
        nodes: list[dict[str, Any]] = []
        links: list[dict[str, int]] = []
        before: dict[int, int] = {}
        for t, labels in enumerate(self.labels):
            here = {int(label): len(nodes) + k for k, label in enumerate(np.unique(labels))}
            for label in here:
                members = labels == label
                place, size = float(position[members].mean()), int(members.sum())
                nodes.append({"step": t, "label": label, "size": size, "position": place})
            if t:
                pairs, sizes = np.unique(np.stack([self.labels[t - 1], labels]), axis=1, return_counts=True)
                for (old, new), size in zip(pairs.T.tolist(), sizes.tolist(), strict=True):
                    links.append({"from": before[old], "to": here[new], "size": size})
            before = here
        return {"lam": self.lam.tolist(), "order": order.tolist(), "nodes": nodes, "links": links}


def largest_lambda(problem: Problem, pull: Any, p: Norm = 2, tolerance: float = 1e-6) -> float:
    """Return lam_max, at and above which every component of the graph is one cluster; right to `tolerance`, from above.

    Args:
        problem: from `prepare`.
        pull: `[N, d]` U / eta of the proximal problem, or -(1/N) grad f_n where each component's clients agree best.
        p: norm of the differences.
        tolerance: relative.
    """
    g, weight = np.asarray(pull, float), np.asarray(problem.weight)
    together = network_lasso(g, problem, math.inf)
    g = g - together.Z
    if len(weight) == 0 or not np.abs(g).max() > 1e-14 * np.abs(pull).max():
        return 0.0
    D, flow = _incidence(problem, together.labels)
    p_norm, q_norm = ({1: 1, 2: 2, "inf": np.inf}[order] for order in (p, dual_norm(p)))

    def below(Z: np.ndarray) -> float:
        return (g * Z).sum() / (weight * np.linalg.norm(D @ Z, p_norm, axis=1)).sum()

    def above(Om: np.ndarray) -> float:
        # What the edges do not carry yet takes the way of least resistance.
        return (np.linalg.norm(Om - flow(g + D.T @ Om), q_norm, axis=1) / weight).max()

    lower, upper, warm = below(g), above(np.zeros((len(weight), g.shape[1]))), None
    for _ in range(NEWTON):
        if upper <= (1 + tolerance) * lower:
            break
        found = network_lasso(g, problem, lower, p=p, warm=warm, tolerance=tolerance**2)
        warm = found.warm
        upper = min(upper, above(-dual_ball(warm.pair, lower * weight[:, None], p)))
        if (found.labels != together.labels).any():
            lower = max(lower, below(found.Z))
    return float(upper)


def _incidence(problem: Problem, component: np.ndarray) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    """Return D as a sparse matrix, and the least flow Om with D^T Om = x for an x that sums to 0 in every component."""
    import scipy.sparse
    import scipy.sparse.linalg

    edges, clients = np.asarray(problem.edges), len(problem.degree)
    values, rows = np.repeat([1.0, -1.0], len(edges)), np.tile(np.arange(len(edges)), 2)
    D = scipy.sparse.csr_array((values, (rows, edges.T.ravel())), shape=(len(edges), clients))
    grounded = scipy.sparse.diags_array((component == np.arange(clients)).astype(float))  # the lowest client's is 0
    solve = scipy.sparse.linalg.splu(scipy.sparse.csc_array(D.T @ D + grounded)).solve
    return D, lambda x: D @ solve(x)


def fit(
    problem: Problem,
    gradient: Callable[[Array], Array],
    curvature: float,
    lam: float,
    p: Norm = 2,
    start: Any = None,
    warm: Warm | None = None,
    tolerance: float = 1e-8,
    rounds: int = 5000,
) -> Fit:
    """Fit personal models with smooth convex losses, in double precision.

    Args:
        problem: from `prepare`.
        gradient: `[N, d]` models to `[N, d]` gradients, row n that of f_n at z_n; a JAX function.
        curvature: L, at least the largest curvature of any f_n.
        lam: at least 0; infinity makes every component one cluster.
        p: norm of the differences.
        start: `[N, d]` models to begin with.
        warm: of a fit at a lam nearby.
        tolerance: stop when a step is at most this share of the models' size.
        rounds: at most so many.
    """
    Z = np.asarray(start, float)
    if Z.ndim != 2 or len(Z) != len(problem.degree):
        raise CoterieError(f"start must be one row a client, [{len(problem.degree)}, parameters], not {list(Z.shape)}")
    if not lam >= 0:
        raise CoterieError(f"lam must be at least 0, not {lam}")
    if not 0 < curvature < math.inf:
        raise CoterieError(f"curvature must be a number greater than 0, not {curvature}")
    eta = len(Z) / curvature  # the objective's curvature in z_n is L / N
    with jax.enable_x64(True):
        Y, count, length = Z, 0, math.inf
        labels = np.arange(len(Z))
        for done in range(1, rounds + 1):  # noqa: B007
            U = _descend(gradient, Y, curvature)
            found = network_lasso(U, problem, lam, eta, p, warm=warm, tolerance=INNER, iterations=INNER_ROUNDS)
            new, labels, warm = found.Z, found.labels, found.warm
            length = float(np.linalg.norm(new - Y) / (np.linalg.norm(new) + 1e-300))
            count = 0 if ((Y - new) * (new - Z)).sum() > 0 else count + 1
            Y, Z = new + momentum(count) * (new - Z), new
            if length <= tolerance:
                break
    return Fit(Z, labels, length, done, warm)


@partial(jax.jit, static_argnums=0)
def _descend(gradient: Callable[[Array], Array], Y: Array, curvature: Any) -> Array:
    return Y - gradient(Y) / curvature


def path(
    problem: Problem,
    U: Any,
    eta: float = 1.0,
    p: Norm = 2,
    lams: Any = None,
    points: int = 20,
    smallest: float = 1e-3,
    tolerance: float = 1e-9,
) -> Path:
    """Follow the proximal problem from lam_max down to 0.

    Args:
        problem: from `prepare`.
        U: `[N, d]`, one row a client.
        eta: step size.
        p: norm of the differences.
        lams: the values of lam; by default lam_max, `points` in all in equal ratios down to `smallest` lam_max, and 0.
        points: how many of them.
        smallest: as a share of lam_max.
        tolerance: relative gap.
    """
    U = np.asarray(U, float)

    def solve(lam: float, before: Solution | None) -> Solution:
        return network_lasso(U, problem, lam, eta, p, warm=before and before.warm, tolerance=tolerance)

    if lams is not None:
        return _walk(_checked(lams), solve, lambda found: found.relative)
    grid = _grid(largest_lambda(problem, U / eta, p), points, smallest)
    return _walk(grid, solve, lambda found: found.relative, network_lasso(U, problem, math.inf, eta, p))


def path_of_losses(
    problem: Problem,
    gradient: Callable[[Array], Array],
    curvature: float,
    start: Any,
    p: Norm = 2,
    lams: Any = None,
    points: int = 20,
    smallest: float = 1e-3,
    tolerance: float = 1e-8,
    rounds: int = 5000,
) -> Path:
    """Follow personal models with losses of their own from lam_max down to 0; arguments as in `fit` and `path`."""

    def solve(lam: float, before: Fit | None) -> Fit:
        at, warm = (start, None) if before is None else (before.Z, before.warm)
        return fit(problem, gradient, curvature, lam, p, at, warm, tolerance, rounds)

    if lams is not None:
        return _walk(_checked(lams), solve, lambda found: found.residual)
    common = solve(math.inf, None)
    with jax.enable_x64(True):
        pull = -np.asarray(gradient(jnp.asarray(common.Z))) / len(common.Z)
    grid = _grid(largest_lambda(problem, pull, p), points, smallest)
    return _walk(grid, solve, lambda found: found.residual, common)


def _grid(largest: float, points: int, smallest: float) -> np.ndarray:
    if points < 2 or not 0 < smallest < 1:
        raise CoterieError(f"points must be at least 2 and smallest between 0 and 1, not {points} and {smallest}")
    return np.append(largest * np.geomspace(1, smallest, points - 1), 0.0)


def _checked(lams: Any) -> np.ndarray:
    grid = np.sort(np.asarray(lams, float).ravel())[::-1]
    if grid.size == 0 or not grid[-1] >= 0:
        raise CoterieError("lams must be numbers that are at least 0, one or more")
    return grid


def _walk(grid: np.ndarray, solve: Callable[[float, Any], Any], error: Callable[[Any], Any], first: Any = None) -> Path:
    """Solve along the grid, each from the one before; the solution at lam_max is known and given as `first`."""
    found: list[Any] = [] if first is None else [first]
    for lam in grid[len(found) :]:
        found.append(solve(float(lam), found[-1] if found else None))
    errors = np.array([float(error(f)) for f in found])
    return Path(grid, np.stack([f.Z for f in found]), np.stack([f.labels for f in found]), errors)
