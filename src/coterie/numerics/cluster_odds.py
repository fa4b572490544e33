"""Known clusters: how strongly clients are tied, how often they meet, and what that costs.

Lyu, Hanzely and Kolar 2022 minimise, over a model theta_i for each client i in its cluster j (their 2.1),

    F = sum_i f_i(theta_i) + gamma/2 sum_i [ (1 - a_j) |theta_i - thb_j|^2 + a_j |theta_i - thb|^2 ],

a_j = lambda / (lambda + Gamma_j) with Gamma_j = gamma times the clients of j, thb_j = the mean of cluster j and
thb = the mean over clusters weighted by a_j Gamma_j. That is the minimum over w_j and wbar of the hierarchical model

    sum_i [ f_i(theta_i) + gamma/2 |theta_i - w_j|^2 ] + lambda/2 sum_j |w_j - wbar|^2.

An iteration is one of three: all clusters meet (a *global* iteration, probability p_0), else each cluster by its own
coin meets alone (a *cluster* iteration, p_j) or its clients take a local step. The part tau_j of the tie to one's own
cluster is dealt with when all meet. `best_p_between`, `best_p_within` and `best_tau` are the choices that need the
fewest iterations: the paper's Corollary 3.6, in the closed form that the paper calls infeasible (with B_j = (1 - a_j)
gamma the smallest expected smoothness is 2 C_1 + L + max_j (B_j - C_1)_+, C_1 = max_j a_j gamma; for each cluster any
p_j between two ends will do, and the lower end is the one with fewer messages).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "ClusterRounds",
    "Odds",
    "Oracle",
    "best_p_between",
    "best_p_within",
    "best_tau",
    "cluster_rounds",
    "expected_rounds",
    "expected_smoothness",
    "oracle",
    "pull_to_all",
    "smallest_smoothness",
]

LOCAL, CLUSTER, GLOBAL = 0, 1, 2  # the kinds of an iteration, as one cluster sees it


class Odds(NamedTuple):
    """The coins of each client's cluster, `[C]` each: p_0, p_j and tau_j, and its a_j."""

    between: Any
    within: Any
    tau: Any
    to_all: Any


class Oracle(NamedTuple):
    """The factors of an unbiased estimate of grad_i F: of theta_i - thb, of theta_i - thb_j and of grad f_i."""

    far: jax.Array
    near: jax.Array
    own: jax.Array


def pull_to_all(cluster_tie: Any, total: Any) -> Any:
    """Return a_j = lambda / (lambda + Gamma_j): the part of the tie that pulls to the mean of all clusters."""
    return cluster_tie / (cluster_tie + total)


def oracle(odds: Odds, tie: Any, kind: jax.Array) -> Oracle:
    """Return the factors for an iteration of this `kind`: 2 all clusters meet, 1 this cluster alone, 0 a local step.

    Algorithm 1, lines 7, 13 and 15. Their means over the coins are gamma a_j, gamma (1 - a_j) and 1: with these
    factors grad_i F is met on average. What has probability 0 does not happen, and must not divide by it either.
    """
    p, q, tau, a = odds
    far = jnp.where(kind == GLOBAL, tie * a / _positive(p), 0)
    met = tie * tau * (1 - a) / _positive(p)
    alone = tie * (1 - tau) * (1 - a) / _positive((1 - p) * q)
    near = jnp.where(kind == GLOBAL, met, jnp.where(kind == CLUSTER, alone, 0))
    return Oracle(far, near, jnp.where(kind == LOCAL, 1 / ((1 - p) * (1 - q)), 0))


def expected_smoothness(p: Any, q: Any, far: Any, near: Any, smoothness: Any, tau: Any = None) -> jax.Array:
    """Return the constant of (3.3) for one cluster: `far` is C_1, `near` its B_j, `smoothness` L; None: the best tau.

    The largest over clusters bounds the step size: eta <= 1 / (2 times it).
    """
    meeting = 2 * near / _positive(p + 2 * (1 - p) * q)
    if tau is not None:
        meeting = near * (2 * tau**2 / _positive(p) + (1 - tau) ** 2 / _positive((1 - p) * q))
    return jnp.maximum(jnp.maximum(2 * far / _positive(p), meeting), smoothness / ((1 - p) * (1 - q)))


def smallest_smoothness(p: Any, far: Any, near: Any, smoothness: Any) -> jax.Array:
    """Return the constant of (3.3) when every p_j is chosen best for a given p_0; `near` is the largest B_j.

    The best p_j makes 2 B / (p + 2 (1 - p) p_j) and L / ((1 - p) (1 - p_j)) equal, or is 0.
    """
    meeting = 2 * (near + smoothness) / (2 - p)
    return jnp.maximum(jnp.maximum(2 * far / _positive(p), meeting), smoothness / (1 - p))


def best_p_between(far: Any, near: Any, smoothness: Any) -> jax.Array:
    """Return p_0 = 2 C_1 / V, V = 2 C_1 + L + (B - C_1)_+ with the largest B_j."""
    return 2 * far / (2 * far + smoothness + jnp.maximum(near - far, 0))


def best_p_within(p: Any, near: Any, constant: Any) -> jax.Array:
    """Return the smallest p_j that keeps one cluster's smoothness at `constant` (`near` is its own B_j)."""
    return jnp.maximum(2 * near / constant - p, 0) / (2 * (1 - p))


def best_tau(p: Any, q: Any) -> jax.Array:
    """Return tau_j = p_0 / (p_0 + 2 (1 - p_0) p_j); 1 where the cluster never meets alone."""
    return jnp.where(q > 0, p / _positive(p + 2 * (1 - p) * q), 1.0)


def _positive(value: Any) -> jax.Array:
    """Return what may be divided by: zeros become one."""
    return jnp.where(value > 0, value, 1.0)


class ClusterRounds(NamedTuple):
    """Rounds of communication, each counted twice: all of them, and those that bring something new.

    Aggregations in a row can be computed from the first one where every client of a cluster is tied equally (here
    they are): a cluster's mean does not move while it meets alone, and moves by a known amount when all meet. `between`
    and `within` count every one; `between_runs` counts runs of global iterations, and `within_runs` cluster iterations
    directly after a local one. (For runs of global ones clusters of unequal size must all be told every cluster's
    mean.) The paper's Proposition 3.2 counts the latter, but of the sequence without its global iterations.
    """

    between: Any
    between_runs: Any
    within: Any
    within_runs: Any


def cluster_rounds(kinds: np.ndarray) -> ClusterRounds:
    """Count rounds from the `kinds [T, G]` of every iteration (0 local, 1 cluster, 2 global): `[G]` each."""
    kinds = np.asarray(kinds)
    before = np.concatenate([np.full((1, *kinds.shape[1:]), LOCAL), kinds[:-1]])
    met, alone = kinds == GLOBAL, kinds == CLUSTER
    runs = (met & (before != GLOBAL)).sum(0), (alone & (before == LOCAL)).sum(0)
    return ClusterRounds(met.sum(0), runs[0], alone.sum(0), runs[1])


def expected_rounds(p: Any, q: Any, iterations: int) -> ClusterRounds:
    """Return the expected counts: p_0 T, p_0 + p_0 (1 - p_0)(T - 1), (1 - p_0) p_j T, and for cluster iterations after
    a local one (1 - p_0) p_j + (1 - p_0)^2 p_j (1 - p_j)(T - 1)."""
    more = iterations - 1
    return ClusterRounds(
        p * iterations,
        p + p * (1 - p) * more,
        (1 - p) * q * iterations,
        (1 - p) * q + (1 - p) ** 2 * q * (1 - q) * more,
    )
