"""The network lasso without a server: every edge keeps its dual variable, every step is a message between neighbours.

Projected gradient on the dual, accelerated (Nesterov; Beck and Teboulle 2009):

    v_i = u_i + eta sum_(m of i) +-Y_m;   Om_m <- ball(Y_m - s_m (v_i - v_j));   Y <- Om + k / (k + 3) (Om - Om before)

The step is s_m = 1 / (eta (degree of i + degree of j)), a number both ends know: D D^T is at most the diagonal matrix
of these sums, so that no eigenvalue of the whole graph is needed. `fista` does it for all clients at once; `edge_value`
and `edge_step` are the two halves as clients do them, before and after neighbours have exchanged their v. See
`lasso_terms.py` for the problem and its dual.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from coterie.numerics.lasso.incidence import Problem, differences
from coterie.numerics.lasso.terms import Norm, Solution, Terms, Warm, dual_norm, finish, norms, start, until
from coterie.numerics.prox import dual_ball

__all__ = ["edge_step", "edge_value", "fista", "momentum"]

Array = Any


def momentum(count: Any) -> Any:
    """Return how far iteration `count` = 0, 1, ... (since the start) looks ahead: k / (k + 3)."""
    return count / (count + 3)


def edge_value(U: Array, ahead: Array, eta: Any, seal: Callable[[Array], Array] = lambda x: x) -> Array:
    """Return what a client sends its neighbours: v = u + eta sum_slots Y.

    Args:
        U: `[C, d]` rows of the clients living here.
        ahead: `[C, D, d]` Y of every slot's edge, seen from oneself.
        eta: step size.
        seal: `peers.seal`, which fixes a product's bits before it is added to something.
    """
    nothing = jnp.zeros_like(U)
    total = lax.fori_loop(0, ahead.shape[1], lambda k, total: total + ahead[:, k], nothing) if ahead.size else nothing
    return U + seal(eta * total)


def edge_step(
    dual: Array,
    ahead: Array,
    own: Array,
    heard: Array,
    step: Array,
    radius: Array,
    look: Any,
    p: Norm = 2,
    seal: Callable[[Array], Array] = lambda x: x,
) -> tuple[Array, Array, Array]:
    """Move the dual variables of one's edges, when the neighbours' values have come in.

    An edge is seen from oneself: what the lower end calls Om, the higher one calls -Om. No sign is needed then, and
    both ends hold exactly opposite numbers, since rounding and projection are symmetric about zero.

    Args:
        dual: `[C, D, d]` Om of every slot's edge; 0 at the start.
        ahead: `[C, D, d]` Y, at which `own` and `heard` were taken; equal to `dual` at the start.
        own: `[C, d]` what `edge_value` returned.
        heard: `[C, D, d]` what the neighbours sent.
        step: `[C, D]` 1 / (eta (own degree + neighbour's degree)).
        radius: `[C, D]` lam w; 0 for a slot without a neighbour.
        look: how far to look ahead, `momentum(count)`.
        p: norm of the differences.
        seal: `peers.seal`.

    Returns:
        Om, Y, and `[C, D]` whether the edge is closed: at the optimum its two ends are then equal.
    """
    radius = radius[..., None]
    moved = ahead - seal(step[..., None] * (own[:, None] - heard))
    new = dual_ball(moved, radius, p, xp=jnp)
    closed = (norms(moved, dual_norm(p)) <= radius[..., 0]) & (radius[..., 0] > 0)
    return new, new + seal(look * (new - dual)), closed


def fista(
    problem: Problem,
    U: Array,
    lam: Any,
    eta: Any,
    p: Norm = 2,
    warm: Warm | None = None,
    iterations: Any = 1000,
    tolerance: Any = 1e-6,
    restart: bool = True,
) -> Solution:
    """Solve on the dual, for all clients at once; arguments as in `network_lasso.admm`.

    `restart` gives up the momentum whenever it points uphill (O'Donoghue and Candès 2015), which saves many iterations
    but takes a sum over all edges: clients without a server go on with it off.
    """
    terms = Terms.of(problem, U, lam, eta, p)
    warm = start(problem, U.shape[1], U.dtype) if warm is None else warm
    degrees = jnp.maximum(terms.graph.degree[terms.graph.edges].sum(1), 1).astype(U.dtype)[:, None]
    step = 1 / (terms.eta * degrees)

    def iterate(_: Any, carry: tuple) -> tuple:
        Om, Y, _, count = carry
        moved = Y - step * differences(terms.graph, terms.primal(Y))
        new = terms.project(moved)
        if restart:  # in the metric of the steps
            count = jnp.where(((Y - new) * (new - Om) * degrees).sum() > 0, 0, count)
        return new, new + momentum(count).astype(U.dtype) * (new - Om), moved, count + 1

    def look(state: tuple, count: Array, every: int) -> tuple[tuple, Solution]:
        state = lax.fori_loop(0, every, iterate, state)
        Om, _, moved, _ = state
        return state, finish(terms, terms.primal(Om), Warm(-moved, warm.rho), every * (count + 1), tolerance)

    Om = -terms.project(warm.pair)
    return until(look, (Om, Om, Om, jnp.zeros((), jnp.int32)), iterations, tolerance)
