"""The network lasso: pull alike clients together along a graph until some are exactly equal.

    Z = argmin  lam sum_m w_m |z_i - z_j|_p  +  |Z - U|_F^2 / (2 eta),     one row a client, m = (i, j) an edge

is what a server solves in a round of the methods `component` and `network-lasso` (P2, Algorithm 5; on its own it is
known as convex clustering). `admm` does it inside a compiled round, `network_lasso` on NumPy arrays; `lasso_edges.py`
has the form without a server and `lasso_path.py` the path over lam. See `lasso_terms.py` for the dual, the gap that is
the rule to stop by, and how clients become exactly equal.

What we changed in the paper's Algorithm 5: its proximal operator is right for p = 2 only (see `prox.norm_prox`), every
edge counts once, edges have weights, and rho adapts itself. With p = 2 and "inf" every edge has its own: one that has
closed wants a stiff one, one that is open the curvature of its term, lam w / |z_i - z_j|. That takes a third of the
iterations of the best common rho.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.errors import CoterieError
from coterie.numerics.inverse import inverse, product
from coterie.numerics.lasso.edges import fista
from coterie.numerics.lasso.incidence import Problem, components, differences, prepare, sums
from coterie.numerics.lasso.terms import Norm, Solution, Terms, Warm, finish, norms, start, until

__all__ = ["Norm", "Problem", "Solution", "Warm", "admm", "fista", "network_lasso", "prepare", "start"]

Array = Any

DENSE_UP_TO = 2000  # clients; above it systems are solved by conjugate gradients
RELAXATION = 1.6  # saves about a quarter of the iterations (Eckstein and Bertsekas 1992)
LONGEST, WORTHWHILE = 10.0, 1.5  # rho changes at most by the first factor at once, and not by less than the second
SPREAD = 10.0  # an edge's rho is within this factor of the usual one,
SOFTEST, STIFFEST = 1e-3, 100.0  # and times eta between these, so that systems are well conditioned


def admm(
    problem: Problem,
    U: Array,
    lam: Any,
    eta: Any,
    p: Norm = 2,
    warm: Warm | None = None,
    iterations: Any = 1000,
    tolerance: Any = 1e-6,
) -> Solution:
    """Solve by the alternating direction method of multipliers (P2, Algorithm 5 corrected); for use inside programs.

    Args:
        problem: from `prepare`.
        U: `[N, d]` rows to be pulled together; their type is that of the whole computation.
        lam: strength of the pull, at least 0 and finite; a number or a scalar of the program.
        eta: step size, above 0; likewise.
        p: norm of the differences: 1 equalises single parameters, 2 and "inf" whole rows.
        warm: a solution's `warm`, or None.
        iterations: about so many at most: the gap is looked at after every ten, or after all of fewer.
        tolerance: stop when the gap is at most this share of P(Z); 0 does all iterations.
    """
    terms = Terms.of(problem, U, lam, eta, p)
    graph, eta, tiny = terms.graph, terms.eta, jnp.finfo(U.dtype).tiny

    def natural(length: Array) -> Array:
        """Return a rho `[m, 1]` that makes rho W as large as Om, which is as large as its ball where edges are open."""
        usual = terms.radius.mean() / (length.mean() + tiny)
        each = jnp.clip(terms.radius / (length[:, None] + tiny), usual / SPREAD, usual * SPREAD)
        return within(each if p != 1 else jnp.full_like(each, usual))

    def within(rho: Array) -> Array:
        return jnp.clip(rho, SOFTEST / eta, STIFFEST / eta)

    def solved(rho: Array, factor: Array, right: Array, Z: Array) -> Array:
        """Return (I + eta D^T rho D)^-1 right."""
        if factor.size:
            return product(factor, right)
        apply = lambda x: x + eta * sums(graph, rho * differences(graph, x))  # noqa: E731
        return jax.scipy.sparse.linalg.cg(apply, right, x0=Z, tol=1e-8, maxiter=100)[0]

    def iterate(pair: Array, rho: Array, factor: Array, Z: Array) -> tuple[Array, Array, Array]:
        # In the paper's letters: Z from W and Om, then W = prox(D Z - Om / rho) and Om += rho (W - D Z), all in `pair`.
        inside = terms.project(pair)
        Z = solved(rho, factor, terms.U + eta * sums(graph, pair - 2 * inside), Z)
        apart = differences(graph, Z)
        return pair + RELAXATION * (rho * apart + inside - pair), Z, apart

    def look(state: tuple, count: Array, every: int) -> tuple[tuple, Solution]:
        (pair, rho, Z), (factor, stale), longest = state
        if factor.size:
            factor = lax.cond(stale, lambda: inverse(_system(graph, eta * rho)), lambda: factor)
        few = lambda _, at: iterate(at[0], rho, factor, at[1])[:2]  # noqa: E731
        pair, Z = lax.fori_loop(0, every - 1, few, (pair, Z))
        before = (pair - terms.project(pair)) / rho
        pair, Z, apart = iterate(pair, rho, factor, Z)
        Om = -terms.project(pair)
        W = (pair + Om) / rho
        # After 1, 2, 4, ... looks every edge chooses anew. In between rho balances how far Z and W disagree with how
        # much W still moves, both as shares (Wohlberg 2017), in changes that shrink until none is worthwhile: with a
        # rho that rests the method converges.
        disagree = _size(apart - W) / (jnp.maximum(_size(apart), _size(W)) + tiny)
        moving = _size(sums(graph, rho * (W - before))) / (_size(sums(graph, Om)) + tiny)
        change = jnp.clip(jnp.sqrt((disagree + tiny) / (moving + tiny)), 1 / longest, longest)
        change = jnp.where((change > WORTHWHILE) | (change < 1 / WORTHWHILE), change, 1)
        anew = ((count & (count + 1)) == 0) & (count < 32) & (p != 1)
        new = jnp.where(anew, natural(jnp.maximum(norms(W, p), norms(apart, p))), within(rho * change))
        state = (new * W - Om, new, Z), (factor, jnp.any(new != rho)), jnp.maximum(0.9 * longest, 1)
        return state, finish(terms, Z, Warm(state[0][0], new[:, 0]), every * (count + 1), tolerance)

    warm = start(problem, U.shape[1], U.dtype) if warm is None else warm
    apart, known = differences(graph, U), warm.rho[:, None] > 0
    rho = jnp.where(known, warm.rho[:, None], jnp.minimum(natural(norms(apart, p)), 10 / eta))
    size = len(U) if len(U) <= DENSE_UP_TO else 0
    factor = jnp.zeros((size, size), U.dtype), jnp.ones((), bool)
    begin = (jnp.where(known, warm.pair, rho * apart), rho, U), factor, jnp.full((), LONGEST, U.dtype)
    return until(look, begin, iterations, tolerance)


def _system(graph: Problem, stiffness: Array) -> Array:
    """Return I + D^T stiffness D, dense."""
    clients, (i, j) = graph.degree.shape[0], graph.edges.T
    s = jnp.where(i == j, 0, stiffness[:, 0])  # a place without an edge joins a client to itself
    matrix = jnp.eye(clients, dtype=s.dtype).at[i, j].add(-s).at[j, i].add(-s)
    return matrix.at[i, i].add(s).at[j, j].add(s)


def _size(x: Array) -> Array:
    return jnp.sqrt((x * x).sum())


@partial(jax.jit, static_argnames=("p", "solver"))
def _solve(problem: Problem, U: Array, lam: Any, eta: Any, p: Norm, warm: Warm, solver: str, **stop: Any) -> Solution:
    return (admm if solver == "admm" else fista)(problem, U, lam, eta, p, warm, **stop)


def network_lasso(
    U: Any,
    edges: Any,
    lam: float,
    eta: float = 1.0,
    p: Norm = 2,
    weights: Any = None,
    warm: Warm | None = None,
    tolerance: float = 1e-9,
    iterations: int = 5000,
    solver: str = "admm",
) -> Solution:
    """Solve on NumPy arrays, in double precision.

    Args:
        U: `[N, d]` or `[N]`, one row a client.
        edges: `[m, 2]` client ids, or a `Problem`; the graph need not be connected.
        lam: strength of the pull, at least 0; infinity gives the means of the graph's components.
        eta: step size, above 0.
        p: 1, 2 or "inf", norm of the differences.
        weights: `[m]`, at least 0; 1 each by default.
        warm: `warm` of a solution with the same edges.
        tolerance: stop when the gap is at most this share of the objective.
        iterations: at most so many.
        solver: "admm", or "fista": slower on one machine, but what clients without a server do.
    """
    rows = np.asarray(U, float)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise CoterieError(f"U must be finite numbers [clients, parameters], not {list(np.shape(U))}")
    problem = edges if isinstance(edges, Problem) else prepare(edges, weights, len(rows))
    if len(problem.degree) != len(rows):
        raise CoterieError(
            f"U has {len(rows)} rows, but the graph has {len(problem.degree)} clients; give one row each"
        )
    if not lam >= 0:
        raise CoterieError(f"lam must be at least 0, not {lam}")
    if not 0 < eta < math.inf:
        raise CoterieError(f"eta must be a number greater than 0, not {eta}")
    if p not in (1, 2, "inf"):
        raise CoterieError(f'p must be 1, 2 or "inf", not {p!r}')
    if solver not in ("admm", "fista"):
        raise CoterieError(f"solver must be admm or fista, not {solver}")
    if lam == math.inf:
        return _means(problem, rows)
    if warm is None:
        warm = Warm(np.zeros((len(problem.edges), rows.shape[1])), np.zeros(len(problem.edges)))
    elif np.shape(warm.pair) != (len(problem.edges), rows.shape[1]):
        raise CoterieError("warm must come from a solution with as many edges and parameters; leave it out")
    with jax.enable_x64(True):
        stop = {"iterations": int(iterations), "tolerance": float(tolerance)}
        found = _solve(problem, rows, float(lam), float(eta), p, warm, solver, **stop)
        return jax.tree.map(np.asarray, found)


def _means(problem: Problem, rows: np.ndarray) -> Solution:
    """Return the limit of an infinite pull."""
    labels = components(problem)
    total = np.zeros_like(rows)
    np.add.at(total, labels, rows)
    means = (total / np.maximum(np.bincount(labels, minlength=len(rows)), 1)[:, None])[labels]
    none = np.zeros(())
    cold = Warm(np.zeros((len(problem.edges), rows.shape[1])), np.zeros(len(problem.edges)))
    return Solution(means, labels, none, none, np.zeros((), np.int32), cold)
