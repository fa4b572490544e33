"""Four estimators of the hyper-gradient: how the sum of all outer costs depends on each client's personal parameters.

The problem (Terashita and Hara 2023, eq. 1-4): clients with personal lambda_i share x* = argmin_x sum_k f_k(x,
lambda_k), and want to minimise sum_s F_s(x*, lambda_s). With H_i, C_i = d2 f_i / dx dx, d2 f_i / dlambda dx (rows of C
are those of lambda),

    d_lambda_i F = d_lambda F_i - C_i q,   q = (sum_k H_k)^-1 sum_s d_x F_s.

- `hgp`: hyper-gradient push (Terashita and Hara 2023, Algorithm 2), unbiased for the gradient of the fixed point of
  stochastic gradient push with learning rate `damping`, which differs from the gradient above by about the learning
  rate; noisy.
- `neumann`: q = damping * sum_m (I - damping Hbar)^m ubar, averages by `gossip` steps of push-sum (arXiv 2210.02129);
  as exact as the averages: its error is large with gossip = 1, small with 5 to 10.
- `tracking`: push-DIGing (Nedic, Olshevsky and Shi 2017) on the quadratic whose minimiser is q; exact in the limit,
  also with gossip = 1 where the network is well connected.
- `local`: d_lambda F_i alone, as if x did not depend on lambda; sends nothing.

Signatures (C clients living here; x, lam, data are trees of arrays `[C, ...]`; all pure, for use inside a round):

    inner(x, lam, data, key) -> number           one client's f_i; key is fresh in each iteration (for a minibatch)
    outer(x, lam, data) -> number                one client's F_i
    estimate(peers, inner, outer, x, lam, data, key, settings, statistics=None, step=0) -> Hypergradient
    Settings(estimator, depth, damping, gossip=5, order="before")
    Statistics(sent [C, L], kept [C], heard [C, D], weight [C])          only `hgp` needs them
    Hypergradient(value: a tree like lam, first [C], last [C])
    products(inner, x, lam, data, key, a) -> (H a, C a)                  one client; one vjp of the gradient
    safe_damping(peers, inner, x, lam, data, key) -> number              1 / the largest curvature of any client

Each iteration costs one Hessian-vector product per client: both Jacobian products come from one vjp of the gradient in
(x, lambda). No Hessian is ever formed.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from coterie.consensus.pushsum import Frequencies, Mass, Order, push_step, ratio, start
from coterie.errors import CoterieError
from coterie.numerics import tree
from coterie.peers.base import Peers

__all__ = [
    "Estimator",
    "Hypergradient",
    "Inner",
    "Outer",
    "Settings",
    "Statistics",
    "estimate",
    "products",
    "safe_damping",
]

Tree = Any
Inner = Callable[[Tree, Tree, Tree, jax.Array], jax.Array]
Estimator = Literal["hgp", "neumann", "tracking", "local"]
Outer = Callable[[Tree, Tree, Tree], jax.Array]
Statistics = Frequencies  # for `hgp`: from `pushsum.observe_push` or `bilevel.expected_statistics`
POWER_STEPS = 15  # of the power iteration: an error of about a tenth, where only a factor of two would matter


class Settings(NamedTuple):
    """Settings of an estimator. The numbers may be traced; the strings are static.

    Attributes:
        estimator: `hgp`, `neumann`, `tracking` or `local`.
        depth: number of iterations (M), each of one Hessian-vector product.
        damping: the step size of the iteration; for `hgp` the learning rate with which x was computed.
        gossip: push-sum steps in each iteration (S): `neumann` is only as exact as its averages, so never 1; `tracking`
            is exact with any number, but on a sparse network it is stable at this damping only with several.
        order: of stochastic gradient push, for `hgp`: `before` (gradient step, then communication), `after` (the same
            sequence, shifted by half a step) or `authors` (z <- P z - lr g(z / w), as in the authors' program).
    """

    estimator: Estimator
    depth: Any
    damping: Any
    gossip: Any = 5
    order: Order = "before"


class Hypergradient(NamedTuple):
    """The estimate, and the residual norm of the iteration, which tends to zero as it converges."""

    value: Tree  # [C, ...], like lambda
    first: jax.Array  # [C] residual norm at the start
    last: jax.Array  # [C] and after the last iteration


class _Local(NamedTuple):
    """The functions and values that need no communication."""

    peers: Peers
    jacobians: Callable[[Any, Tree], tuple[Tree, Tree]]  # (iteration, a) -> (H_i a_i, C_i a_i) for all clients
    links: Callable[[Any], jax.Array]  # network step -> the listeners that each client reaches
    slope: Tree  # d_x F_i
    direct: Tree  # d_lambda F_i


def products(inner: Inner, x: Tree, lam: Tree, data: Tree, key: jax.Array, a: Tree) -> tuple[Tree, Tree]:
    """Return one client's (H a, C a): the vjp of the gradient of its inner loss, in (x, lambda) and along a.

    That is the gradient in (x, lambda) of the loss's derivative along a. In this form (reverse over forward mode) it
    costs a fifth less than the vjp of a gradient (reverse over reverse).
    """

    def slope(x: Tree, lam: Tree) -> jax.Array:
        return jax.jvp(lambda x: inner(x, lam, data, key), (x,), (a,))[1]

    return jax.grad(slope, argnums=(0, 1))(x, lam)


def estimate(
    peers: Peers,
    inner: Inner,
    outer: Outer,
    x: Tree,
    lam: Tree,
    data: Tree,
    key: jax.Array,
    settings: Settings,
    statistics: Statistics | None = None,
    step: Any = 0,
) -> Hypergradient:
    """Estimate d_lambda_i sum_s F_s for each client; a pure function of arrays, without checks on the host.

    Args:
        peers: the verbs; their links may be random or scheduled.
        inner: one client's inner loss f_i(x, lambda_i, data_i, key).
        outer: one client's outer cost F_i(x, lambda_i, data_i).
        x: each client's current solution of the inner problem, `[C, ...]`.
        lam: each client's personal parameters, `[C, ...]`.
        data: each client's data, `[C, ...]`.
        key: of the links and of the minibatches.
        settings: which estimator, and its numbers.
        statistics: of the network, for `hgp`.
        step: the number of the first network step, for scheduled links.
    """
    slope, direct = peers.each(jax.grad(outer, argnums=(0, 1)), x, lam, data)
    if settings.estimator == "local" or (isinstance(settings.depth, int) and settings.depth == 0):
        nothing = jnp.zeros(peers.ids.shape[0], peers.weights.dtype)
        return Hypergradient(direct, nothing, nothing)
    link_key, batch_key = jax.random.split(key)

    def jacobians(m: Any, a: Tree) -> tuple[Tree, Tree]:
        keys = peers.keys(jax.random.fold_in(batch_key, m))
        return peers.each(lambda *one: products(inner, *one), x, lam, data, keys, a)

    def links(t: Any) -> jax.Array:
        return peers.links(jax.random.fold_in(link_key, t), step + t)

    local = _Local(peers, jacobians, links, slope, direct)
    if settings.estimator == "hgp":
        if statistics is None:
            raise CoterieError("the estimator hgp needs statistics, such as from bilevel.expected_statistics")
        return _hgp(local, settings, statistics)
    return {"neumann": _neumann, "tracking": _tracking}[settings.estimator](local, settings)


def _hgp(local: _Local, settings: Settings, statistics: Statistics) -> Hypergradient:
    """Terashita and Hara 2023, Algorithm 2; with order `authors` as in the authors' program."""
    peers, rate = local.peers, settings.damping
    # A receiver weighs u_j by pbar_ij / dbar_ji: in expectation it receives pbar_ij u_j, the transpose of the mixing.
    heard = peers.present & (statistics.heard > 0)
    weights = jnp.where(heard, statistics.sent / jnp.where(heard, statistics.heard, 1), 0)

    def collect(m: Any, u: Tree) -> Tree:
        received, _, _ = peers.push(u, local.links(m), weights)
        return tree.plus(peers.seal(tree.times(statistics.kept, u)), received)

    def iterate(m: Any, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        u, v = carry
        collected = collect(m, u)
        at = u if settings.order == "authors" else collected
        curved, crossed = local.jacobians(m, at)
        v = tree.minus(v, peers.seal(tree.scale(rate, crossed)))  # v_i -= gamma C_i a_i
        u = tree.minus(collected, peers.seal(tree.times(rate / statistics.weight, curved)))  # a_i - gamma/w_i H_i a_i
        return u, v

    first = tree.times(1 / statistics.weight, local.slope)  # (1 / w_i*) d_x F_i
    u, v = peers.loop(settings.depth, iterate, (first, local.direct))
    return Hypergradient(v, _sizes(peers, first), _sizes(peers, u))


def _neumann(local: _Local, settings: Settings) -> Hypergradient:
    """Push-sum Neumann (arXiv 2210.02129): the series, with averages by S push-sum steps."""
    peers, damping = local.peers, settings.damping

    def iterate(m: Any, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        u, v = carry
        y = ratio(_gossip(local, m, settings.gossip, start(peers, u)))  # weights start at one in every average
        curved, crossed = local.jacobians(m, y)
        v = tree.minus(v, peers.seal(tree.scale(damping, crossed)))  # v_i -= alpha C_i y_i
        return tree.minus(y, peers.seal(tree.scale(damping, curved))), v  # u_i = y_i - alpha H_i y_i

    u, v = peers.loop(settings.depth, iterate, (local.slope, local.direct))
    return Hypergradient(v, _sizes(peers, local.slope), _sizes(peers, u))


def _tracking(local: _Local, settings: Settings) -> Hypergradient:
    """Push-DIGing on 1/2 q' Hbar q - ubar' q: u <- P(u - a y), w <- P w, q = u / w, y <- P y + G(q) - G(old q)."""
    peers, damping = local.peers, settings.damping

    def iterate(m: Any, carry: tuple) -> tuple:
        mass, y, before, _ = carry
        stepped = tree.minus(mass.value, peers.seal(tree.scale(damping, y)))
        # One message carries the solution, the tracked gradient and the weight.
        (solution, tracked), weight = _gossip(local, m, settings.gossip, Mass((stepped, y), mass.weight))
        mass = Mass(solution, weight)
        curved, crossed = local.jacobians(m, ratio(mass))
        now = tree.minus(curved, local.slope)  # G_i(q) = H_i q - d_x F_i
        return mass, tree.plus(tracked, tree.minus(now, before)), now, crossed

    nothing = jax.tree.map(jnp.zeros_like, (local.slope, local.direct))
    first = tree.scale(-1, local.slope)  # G_i(0)
    _, y, _, crossed = peers.loop(settings.depth, iterate, (start(peers, nothing[0]), first, first, nothing[1]))
    return Hypergradient(tree.minus(local.direct, crossed), _sizes(peers, first), _sizes(peers, y))


def _gossip(local: _Local, m: Any, times: Any, mass: Mass) -> Mass:
    """Do the push-sum steps of iteration m: P^S applied to value and weight."""

    def once(s: Any, mass: Mass) -> Mass:
        return push_step(local.peers, mass, local.links(m * times + s))[0]

    return local.peers.loop(times, once, mass)


def safe_damping(peers: Peers, inner: Inner, x: Tree, lam: Tree, data: Tree, key: jax.Array) -> jax.Array:
    """Return 1 / the largest curvature of any client's inner loss, by power iteration; the same number for all.

    The curvature of the average is at most that of any client, so that the series converges: it would up to twice this.
    """

    def curvature(x: Tree, lam: Tree, data: Tree, key: jax.Array) -> jax.Array:
        flat, build = ravel_pytree(x)

        def apply(_: Any, a: jax.Array) -> jax.Array:
            size = jnp.sqrt(a @ a)
            unit = a / tree.divisor(size)  # the Hessian of a linear loss is zero
            curved, _ = products(inner, x, lam, data, key, build(unit))
            return ravel_pytree(curved)[0]

        a = jax.lax.fori_loop(0, POWER_STEPS, apply, jax.random.normal(key, flat.shape, flat.dtype))
        return jnp.sqrt(a @ a)

    return 1 / peers.most(peers.each(curvature, x, lam, data, peers.keys(key)))[0]


def _norm(x: Tree) -> jax.Array:
    return jnp.sqrt(sum(jnp.vdot(a, a).real for a in jax.tree.leaves(x)))


def _sizes(peers: Peers, x: Tree) -> jax.Array:
    return peers.each(_norm, x).astype(peers.weights.dtype)
