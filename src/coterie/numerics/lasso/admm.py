"""The network lasso: pulls similar clients together along a graph until some are exactly equal.

    Z = argmin  lam sum_m w_m |z_i - z_j|_p  +  |Z - U|_F^2 / (2 eta),     one row per client, m = (i, j) an edge

A server solves this in a round of the methods `component` and `network-lasso` (Zhao et al., Algorithm 5; on its own it
is known as convex clustering). `admm` works inside a compiled round, `network_lasso` on NumPy arrays; `edges.py` has
the form without a server. See `terms.py` for the dual, the gap by which solvers stop, and how clients become exactly
equal.

What we changed in the paper's Algorithm 5: its proximal operator is right for p = 2 only (see `prox.norm_prox`), every
edge counts once, edges have weights, and rho is adaptive. With p = 2 and "inf" every edge has its own rho: a closed
edge needs a large one, an open edge the curvature of its term, lam w / |z_i - z_j|. That takes a third of the
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
from coterie.numerics.inverse import inverse
from coterie.numerics.lasso.edges import fista
from coterie.numerics.lasso.incidence import Incidence, components, differences, prepare, sums
from coterie.numerics.lasso.terms import Norm, Solution, Terms, Warm, finish, norms, start, until
from coterie.numerics.tree import product

__all__ = ["Incidence", "Norm", "Solution", "Warm", "admm", "fista", "network_lasso", "prepare", "start"]

Array = Any

DENSE_UP_TO = 2000  # clients; larger systems are solved by conjugate gradients
RELAXATION = 1.6  # saves about a quarter of the iterations (Eckstein and Bertsekas 1992)
LONGEST, WORTHWHILE = 10.0, 1.5  # the largest and the smallest factor by which rho changes at once
SPREAD = 10.0  # an edge's rho is within this factor of the common one,
SOFTEST, STIFFEST = 1e-3, 100.0  # and rho eta between these, so that systems are well conditioned


def admm(
    graph: Incidence,
    U: Array,
    lam: Any,
    eta: Any,
    p: Norm = 2,
    warm: Warm | None = None,
    iterations: Any = 1000,
    tolerance: Any = 1e-6,
) -> Solution:
    """Solve by the alternating direction method of multipliers (Zhao et al., Algorithm 5 corrected); inside programs.

    Args:
        graph: from `prepare`.
        U: `[N, d]` rows to be pulled together; their type is that of the whole computation.
        lam: strength of the pull, at least 0 and finite; a number or a scalar of the program.
        eta: step size, above 0; likewise.
        p: norm of the differences: 1 equalises single parameters, 2 and "inf" whole rows.
        warm: the `warm` of a solution, or None.
        iterations: the maximum, rounded up to a multiple of ten (if at least ten), after which the gap is computed.
        tolerance: stop when the gap is at most this share of P(Z); 0 does all iterations.
    """
    terms = Terms.of(graph, U, lam, eta, p)
    graph, eta, tiny = terms.graph, terms.eta, jnp.finfo(U.dtype).tiny

    def natural(length: Array) -> Array:
        """Return a rho `[m, 1]` for which rho W is as long as Om, whose length is the ball's radius on open edges."""
        common = terms.radius.mean() / (length.mean() + tiny)
        each = jnp.clip(terms.radius / (length[:, None] + tiny), common / SPREAD, common * SPREAD)
        return within(each if p != 1 else jnp.full_like(each, common))

    def within(rho: Array) -> Array:
        return jnp.clip(rho, SOFTEST / eta, STIFFEST / eta)

    def solved(rho: Array, factor: Array, right: Array, Z: Array) -> Array:
        """Return (I + eta D^T rho D)^-1 right."""
        if factor.size:
            return product(factor, right)
        apply = lambda x: x + eta * sums(graph, rho * differences(graph, x))  # noqa: E731
        return jax.scipy.sparse.linalg.cg(apply, right, x0=Z, tol=1e-8, maxiter=100)[0]

    def iterate(pair: Array, rho: Array, factor: Array, Z: Array) -> tuple[Array, Array, Array]:
        # In the paper's symbols: Z from W and Om, then W = prox(D Z - Om / rho) and Om += rho (W - D Z), all in `pair`.
        inside = terms.project(pair)
        Z = solved(rho, factor, terms.U + eta * sums(graph, pair - 2 * inside), Z)
        apart = differences(graph, Z)
        return pair + RELAXATION * (rho * apart + inside - pair), Z, apart

    def advance(state: tuple, count: Array, every: int) -> tuple[tuple, Solution]:
        (pair, rho, Z), (factor, stale), longest = state
        if factor.size:
            factor = lax.cond(stale, lambda: inverse(_system(graph, eta * rho)), lambda: factor)
        few = lambda _, at: iterate(at[0], rho, factor, at[1])[:2]  # noqa: E731
        pair, Z = lax.fori_loop(0, every - 1, few, (pair, Z))
        soft = 1 / rho  # instead of two divisions by rho: see `tree.divide`
        before = (pair - terms.project(pair)) * soft
        pair, Z, apart = iterate(pair, rho, factor, Z)
        Om = -terms.project(pair)
        W = (pair + Om) * soft
        # After 1, 2, 4, ... calls every edge chooses its rho anew. In between rho balances the relative primal and dual
        # residuals (Wohlberg 2017), in changes that shrink until none is worthwhile: with a constant rho ADMM
        # converges.
        primal = _size(apart - W) / (jnp.maximum(_size(apart), _size(W)) + tiny)
        dual = _size(sums(graph, rho * (W - before))) / (_size(sums(graph, Om)) + tiny)
        change = jnp.clip(jnp.sqrt((primal + tiny) / (dual + tiny)), 1 / longest, longest)
        change = jnp.where((change > WORTHWHILE) | (change < 1 / WORTHWHILE), change, 1)
        anew = ((count & (count + 1)) == 0) & (count < 32) & (p != 1)
        new = jnp.where(anew, natural(jnp.maximum(norms(W, p), norms(apart, p))), within(rho * change))
        state = (new * W - Om, new, Z), (factor, jnp.any(new != rho)), jnp.maximum(0.9 * longest, 1)
        return state, finish(terms, Z, Warm(state[0][0], new[:, 0]), every * (count + 1), tolerance)

    warm = start(graph, U.shape[1], U.dtype) if warm is None else warm
    apart, known = differences(graph, U), warm.rho[:, None] > 0
    rho = jnp.where(known, warm.rho[:, None], jnp.minimum(natural(norms(apart, p)), 10 / eta))
    size = len(U) if len(U) <= DENSE_UP_TO else 0
    factor = jnp.zeros((size, size), U.dtype), jnp.ones((), bool)
    begin = (jnp.where(known, warm.pair, rho * apart), rho, U), factor, jnp.full((), LONGEST, U.dtype)
    return until(advance, begin, iterations, tolerance)


def _system(graph: Incidence, stiffness: Array) -> Array:
    """Return I + D^T stiffness D, dense."""
    clients, (i, j) = graph.degree.shape[0], graph.edges.T
    s = jnp.where(i == j, 0, stiffness[:, 0])  # an unused place joins a client to itself
    matrix = jnp.eye(clients, dtype=s.dtype).at[i, j].add(-s).at[j, i].add(-s)
    return matrix.at[i, i].add(s).at[j, j].add(s)


def _size(x: Array) -> Array:
    return jnp.sqrt((x * x).sum())


@partial(jax.jit, static_argnames=("p", "solver"))
def _solve(graph: Incidence, U: Array, lam: Any, eta: Any, p: Norm, warm: Warm, solver: str, **stop: Any) -> Solution:
    return (admm if solver == "admm" else fista)(graph, U, lam, eta, p, warm, **stop)


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
        U: `[N, d]` or `[N]`, one row per client.
        edges: `[m, 2]` client ids, or the result of `prepare`; the graph need not be connected.
        lam: strength of the pull, at least 0; infinity gives the means of the graph's components.
        eta: step size, above 0.
        p: 1, 2 or "inf", norm of the differences.
        weights: `[m]`, at least 0; 1 each by default.
        warm: the `warm` of a solution with the same edges.
        tolerance: stop when the gap is at most this share of the objective.
        iterations: the maximum.
        solver: "admm", or "fista": slower on one machine, but the algorithm of clients without a server.
    """
    rows = np.asarray(U, float)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise CoterieError(f"U must be finite numbers [clients, parameters], not {list(np.shape(U))}")
    graph = edges if isinstance(edges, Incidence) else prepare(edges, weights, len(rows))
    if len(graph.degree) != len(rows):
        raise CoterieError(f"U has {len(rows)} rows, but the graph has {len(graph.degree)} clients; give one row each")
    if not lam >= 0:
        raise CoterieError(f"lam must be at least 0, not {lam}")
    if not 0 < eta < math.inf:
        raise CoterieError(f"eta must be a number greater than 0, not {eta}")
    if p not in (1, 2, "inf"):
        raise CoterieError(f'p must be 1, 2 or "inf", not {p!r}')
    if solver not in ("admm", "fista"):
        raise CoterieError(f"solver must be admm or fista, not {solver}")
    if lam == math.inf:
        return _means(graph, rows)
    if warm is None:
        warm = Warm(np.zeros((len(graph.edges), rows.shape[1])), np.zeros(len(graph.edges)))
    elif np.shape(warm.pair) != (len(graph.edges), rows.shape[1]):
        raise CoterieError("warm must come from a solution with the same edges and parameters; leave it out")
    with jax.enable_x64(True):
        stop = {"iterations": int(iterations), "tolerance": float(tolerance)}
        solution = _solve(graph, rows, float(lam), float(eta), p, warm, solver, **stop)
        return jax.tree.map(np.asarray, solution)


def _means(graph: Incidence, rows: np.ndarray) -> Solution:
    """Return the limit of an infinite pull."""
    labels = components(graph)
    total = np.zeros_like(rows)
    np.add.at(total, labels, rows)
    means = (total / np.maximum(np.bincount(labels, minlength=len(rows)), 1)[:, None])[labels]
    none = np.zeros(())
    cold = Warm(np.zeros((len(graph.edges), rows.shape[1])), np.zeros(len(graph.edges)))
    return Solution(means, labels, none, none, np.zeros((), np.int32), cold)
