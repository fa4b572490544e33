"""The network lasso without a server: every edge has a dual variable, and every step is one exchange of messages.

Projected gradient on the dual, accelerated (Nesterov; Beck and Teboulle 2009):

    v_i = u_i + eta sum_(m of i) +-Y_m;   Om_m <- ball(Y_m - s_m (v_i - v_j));   Y <- Om + k / (k + 3) (Om - Om before)

The step is s_m = 1 / (eta (degree of i + degree of j)), which both ends know: D D^T is at most the diagonal matrix of
these sums, so that no eigenvalue of the whole graph is needed. `fista` does it for all clients at once; `edge_value`
and `edge_step` are what a client computes before and after neighbours have exchanged their v. See `terms.py` for the
objective and its dual.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from coterie.numerics.lasso.incidence import Incidence, differences
from coterie.numerics.lasso.terms import Norm, Solution, Terms, Warm, dual_norm, finish, norms, start, until
from coterie.numerics.prox import dual_ball

__all__ = ["edge_step", "edge_value", "fista", "momentum"]

Array = Any


def momentum(count: Any) -> Any:
    """Return the momentum of iteration `count` = 0, 1, ...: k / (k + 3)."""
    return count / (count + 3)


def edge_value(U: Array, ahead: Array, eta: Any, seal: Callable[[Array], Array] = lambda x: x) -> Array:
    """Return v = u + eta sum_slots Y, which a client sends to its neighbours.

    Args:
        U: `[C, d]` rows of the clients living here.
        ahead: `[C, D, d]` Y of every slot's edge, with the sign seen from the client.
        eta: step size.
        seal: `peers.seal`, which fixes the bits of a product before a sum.
    """
    nothing = jnp.zeros_like(U)
    total = lax.fori_loop(0, ahead.shape[1], lambda k, total: total + ahead[:, k], nothing) if ahead.size else nothing
    return U + seal(eta * total)


def edge_step(
    dual: Array,
    ahead: Array,
    own: Array,
    theirs: Array,
    step: Array,
    radius: Array,
    factor: Any,
    p: Norm = 2,
    seal: Callable[[Array], Array] = lambda x: x,
) -> tuple[Array, Array, Array]:
    """Update the dual variables of a client's edges with the neighbours' values.

    Each end has its own sign: Om at the lower end is -Om at the higher one. Both ends have exactly opposite numbers,
    since rounding and projection are symmetric about zero.

    Args:
        dual: `[C, D, d]` Om of every slot's edge; 0 at the start.
        ahead: `[C, D, d]` Y, from which `own` and `theirs` were computed; equal to `dual` at the start.
        own: `[C, d]` the result of `edge_value`.
        theirs: `[C, D, d]` that of the neighbours.
        step: `[C, D]` 1 / (eta (own degree + neighbour's degree)).
        radius: `[C, D]` lam w; 0 for a slot without a neighbour.
        factor: `momentum(count)`.
        p: norm of the differences.
        seal: `peers.seal`.

    Returns:
        Om, Y, and `[C, D]` whether the edge is closed: at the optimum its two ends are then equal.
    """
    radius = radius[..., None]
    moved = ahead - seal(step[..., None] * (own[:, None] - theirs))
    new = dual_ball(moved, radius, p, xp=jnp)
    closed = (norms(moved, dual_norm(p)) <= radius[..., 0]) & (radius[..., 0] > 0)
    return new, new + seal(factor * (new - dual)), closed


def fista(
    graph: Incidence,
    U: Array,
    lam: Any,
    eta: Any,
    p: Norm = 2,
    warm: Warm | None = None,
    iterations: Any = 1000,
    tolerance: Any = 1e-6,
    restart: bool = True,
) -> Solution:
    """Solve the dual for all clients at once; arguments as in `admm`.

    `restart` resets the momentum whenever it points uphill (O'Donoghue and Candès 2015), which saves many iterations
    but needs a sum over all edges, so that clients without a server cannot use it.
    """
    terms = Terms.of(graph, U, lam, eta, p)
    warm = start(graph, U.shape[1], U.dtype) if warm is None else warm
    degrees = jnp.maximum(terms.graph.degree[terms.graph.edges].sum(1), 1).astype(U.dtype)[:, None]
    step = 1 / (terms.eta * degrees)

    def iterate(_: Any, carry: tuple) -> tuple:
        Om, Y, _, count = carry
        moved = Y - step * differences(terms.graph, terms.primal(Y))
        new = terms.project(moved)
        if restart:  # in the metric of the steps
            count = jnp.where(((Y - new) * (new - Om) * degrees).sum() > 0, 0, count)
        return new, new + momentum(count).astype(U.dtype) * (new - Om), moved, count + 1

    def advance(state: tuple, count: Array, every: int) -> tuple[tuple, Solution]:
        state = lax.fori_loop(0, every, iterate, state)
        Om, _, moved, _ = state
        return state, finish(terms, terms.primal(Om), Warm(-moved, warm.rho), every * (count + 1), tolerance)

    Om = -terms.project(warm.pair)
    return until(advance, (Om, Om, Om, jnp.zeros((), jnp.int32)), iterations, tolerance)
