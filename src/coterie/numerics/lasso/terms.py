"""The parts that the solvers of the network lasso share: projections, the duality gap, and exactly equal clients.

    P(Z) = lam sum_m w_m |z_i - z_j|_p  +  |Z - U|_F^2 / (2 eta),         one row per client, m = (i, j) an edge, i < j

With D Z = (z_i - z_j)_m, a dual variable Om_m per edge and q the dual norm of p, its dual is

    max  -<Om, D U> - (eta / 2) |D^T Om|^2   over  |Om_m|_q <= lam w_m,     and Z = U + eta D^T Om at the optimum.

For any Z and any such Om the difference of both values, the *gap*, bounds the suboptimality of Z. With
V = U + eta D^T Om it is a sum of non-negative terms, which keeps the digits that a difference would lose:

    gap = sum_m (lam w_m |z_i - z_j|_p + <Om_m, z_i - z_j>) + |Z - V|^2 / (2 eta),    |Z - Z*|^2 <= 2 eta gap.

Equal clients. The rows of a solver's Z are equal only up to its accuracy, but the split differences W, which are
proximal points, are exactly zero where an edge has closed. Clients joined by such edges form a cluster, and all get the
mean of its rows, as at the optimum. This is kept only if the gap still meets the tolerance or is no worse, since an
iteration that was stopped early may have closed an edge wrongly.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from coterie.numerics.lasso.incidence import Incidence, clusters, differences, sums
from coterie.numerics.prox import dual_ball

__all__ = ["Norm", "Solution", "Terms", "Warm", "dual_norm", "finish", "norms", "start", "until"]

CHECK_EVERY = 10  # iterations between two computations of the gap

Array = Any
Norm = Literal[1, 2, "inf"]


class Warm(NamedTuple):
    """The state of a solver, for a warm start when U, lam or eta have changed a little.

    `pair` combines both variables of an edge, the split difference W (the target of z_i - z_j) and the dual Om, as
    rho W - Om. One projection separates them: Om = -(pair projected on the ball), W = (pair + Om) / rho.
    """

    pair: Array  # [m, d]
    rho: Array  # [m]; 0: not chosen yet


class Solution(NamedTuple):
    """The result of a solver."""

    Z: Array  # [N, d]
    labels: Array  # [N] int32, the lowest client of each client's cluster; equal labels have exactly equal rows
    gap: Array  # [] bound on P(Z) - P(Z*)
    relative: Array  # [] the gap as a share of P(Z)
    iterations: Array  # [] int32
    warm: Warm


def start(graph: Incidence, width: int, dtype: Any = jnp.float32) -> Warm:
    """Return the cold start for rows of `width` numbers."""
    edges = graph.edges.shape[0]
    return Warm(jnp.zeros((edges, width), dtype), jnp.zeros(edges, dtype))


def norms(x: Array, p: Norm) -> Array:
    """Return |x|_p along the last axis."""
    if p == 2:
        return jnp.sqrt((x * x).sum(-1))
    return jnp.abs(x).sum(-1) if p == 1 else jnp.abs(x).max(-1, initial=0)


def dual_norm(p: Norm) -> Norm:
    """Return q with 1/p + 1/q = 1."""
    return "inf" if p == 1 else 1 if p == "inf" else 2


class Terms(NamedTuple):
    """One instance of the network lasso."""

    graph: Incidence
    U: Array  # [N, d]
    radius: Array  # [m, 1] lam w_m
    eta: Array
    p: Norm

    @classmethod
    def of(cls, graph: Incidence, U: Array, lam: Any, eta: Any, p: Norm) -> "Terms":
        """Return the instance in the floating-point type of U."""
        radius = jnp.asarray(lam, U.dtype) * jnp.asarray(graph.weight, U.dtype)[:, None]
        return cls(Incidence(*map(jnp.asarray, graph)), U, radius, jnp.asarray(eta, U.dtype), p)

    def project(self, pair: Array) -> Array:
        """Project every edge on the ball |.|_q <= lam w_m."""
        return dual_ball(pair, self.radius, self.p, xp=jnp)

    def closed(self, pair: Array) -> Array:
        """Return `[m]`: whether W, the proximal operator at an edge's pair, is exactly zero."""
        return (norms(pair, dual_norm(self.p)) <= self.radius[:, 0]) & (self.radius[:, 0] > 0)

    def primal(self, Om: Array) -> Array:
        """Return V = U + eta D^T Om."""
        return self.U + self.eta * sums(self.graph, Om)

    def gap(self, Z: Array, Om: Array, V: Array) -> tuple[Array, Array]:
        """Return the gap of Z and Om, and P(Z) (plus a rounding error, so that dividing by it never gives NaN)."""
        apart = differences(self.graph, Z)
        penalty = self.radius[:, 0] * norms(apart, self.p)
        gap = (penalty + (Om * apart).sum(1)).sum() + ((Z - V) ** 2).sum() / (2 * self.eta)
        noise = jnp.finfo(Z.dtype).eps ** 2 * (self.U**2).sum()
        value = penalty.sum() + (((Z - self.U) ** 2).sum() + noise) / (2 * self.eta)
        return jnp.maximum(gap, 0), value + jnp.finfo(Z.dtype).tiny


def finish(terms: Terms, Z: Array, warm: Warm, count: Array, tolerance: Any) -> Solution:
    """Return the best of Z, of V, and of clusters made exactly equal; see the module's docstring."""
    Om = -terms.project(warm.pair)
    V = terms.primal(Om)
    (gap, value), (other, its) = terms.gap(Z, Om, V), terms.gap(V, Om, V)
    Z, gap, value = lax.cond(other < gap, lambda: (V, other, its), lambda: (Z, gap, value))
    labels = clusters(terms.graph, terms.closed(warm.pair))
    members = jnp.zeros(len(labels), Z.dtype).at[labels].add(1)
    equal = (jnp.zeros_like(Z).at[labels].add(Z) / jnp.maximum(members, 1)[:, None])[labels]
    joint, its = terms.gap(equal, Om, V)
    good = joint <= jnp.maximum(gap, tolerance * its)
    Z, gap, value = lax.cond(good, lambda: (equal, joint, its), lambda: (Z, gap, value))
    alone = jnp.arange(len(labels), dtype=labels.dtype)
    return Solution(Z, jnp.where(good, labels, alone), gap, gap / value, count, warm)


def until(
    advance: Callable[[Any, Array, int], tuple[Any, Solution]], begin: Any, iterations: Any, tolerance: Any
) -> Solution:
    """Call `advance(state, count, every)`, `every` iterations each, until its solution meets the tolerance."""
    # A Python number may be small, as in a round that continues the last one; a scalar of the program is only a limit.
    every = max(1, min(CHECK_EVERY, iterations)) if isinstance(iterations, int) else CHECK_EVERY

    def going(carry: tuple) -> Array:
        _, solution, count = carry
        return (count * every < iterations) & ((solution.relative > tolerance) | (tolerance <= 0))

    def step(carry: tuple) -> tuple:
        state, _, count = carry
        return *advance(state, count, every), count + 1

    none = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(lambda: advance(begin, none, every)[1])
    blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    blank = blank._replace(relative=blank.relative + jnp.inf)
    return lax.while_loop(going, step, (begin, blank, none))[1]
