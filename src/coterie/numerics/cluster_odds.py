"""Known clusters: strength of the ties between clients, probabilities of communication, and their best choice.

Lyu, Hanzely and Kolar 2022 minimise, over a model theta_i for each client i in its cluster j (their 2.1),

    F = sum_i f_i(theta_i) + gamma/2 sum_i [ (1 - a_j) |theta_i - thb_j|^2 + a_j |theta_i - thb|^2 ],

a_j = lambda / (lambda + Gamma_j) with Gamma_j = gamma times the clients of j, thb_j = the mean of cluster j and
thb = the mean over clusters weighted by a_j Gamma_j. That is the minimum over w_j and wbar of the hierarchical model

    sum_i [ f_i(theta_i) + gamma/2 |theta_i - w_j|^2 ] + lambda/2 sum_j |w_j - wbar|^2.

With probability p_0 an iteration is *global*: all clusters are averaged. Otherwise each cluster decides at random
whether it is averaged on its own (a *cluster* iteration, probability p_j) or its clients take a local step. The share
tau_j of the tie to the client's own cluster is applied in global iterations. `best_p_between`, `best_p_within` and
`best_tau` need the fewest iterations: the paper's Corollary 3.6, in the closed form that the paper calls infeasible
(with B_j = (1 - a_j) gamma the smallest expected smoothness is 2 C_1 + L + max_j (B_j - C_1)_+, C_1 = max_j a_j gamma;
for each cluster every p_j of an interval is optimal, and its lower end sends the fewest messages).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.numerics.tree import divisor

__all__ = [
    "CLUSTER",
    "GLOBAL",
    "LOCAL",
    "ClusterRounds",
    "Odds",
    "Oracle",
    "best_p_between",
    "best_p_within",
    "best_tau",
    "expected_smoothness",
    "oracle",
    "pull_to_all",
    "smallest_smoothness",
]

LOCAL, CLUSTER, GLOBAL = 0, 1, 2  # the kinds of an iteration, from the view of one cluster


class Odds(NamedTuple):
    """The probabilities of each client's cluster, p_0 and p_j, and its tau_j and a_j, `[C]` each."""

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
    """Return a_j = lambda / (lambda + Gamma_j): the share of the tie that pulls to the mean of all clusters."""
    return cluster_tie / (cluster_tie + total)


def oracle(odds: Odds, tie: Any, kind: jax.Array) -> Oracle:
    """Return the factors for an iteration of this `kind`: 2 global, 1 of this cluster, 0 a local step.

    Algorithm 1, lines 7, 13 and 15. Their expectations are gamma a_j, gamma (1 - a_j) and 1, so that the estimate of
    grad_i F is unbiased. `divisor` avoids dividing by zero probabilities.
    """
    p, q, tau, a = odds
    far = jnp.where(kind == GLOBAL, tie * a / divisor(p), 0)
    together = tie * tau * (1 - a) / divisor(p)
    alone = tie * (1 - tau) * (1 - a) / divisor((1 - p) * q)
    near = jnp.where(kind == GLOBAL, together, jnp.where(kind == CLUSTER, alone, 0))
    return Oracle(far, near, jnp.where(kind == LOCAL, 1 / ((1 - p) * (1 - q)), 0))


def expected_smoothness(p: Any, q: Any, far: Any, near: Any, smoothness: Any, tau: Any = None) -> jax.Array:
    """Return the constant of (3.3) for one cluster: `far` is C_1, `near` its B_j, `smoothness` L; None: the best tau.

    The largest constant of all clusters bounds the step size: eta <= 1 / (2 times it).
    """
    within = 2 * near / divisor(p + 2 * (1 - p) * q)
    if tau is not None:
        within = near * (2 * tau**2 / divisor(p) + (1 - tau) ** 2 / divisor((1 - p) * q))
    return jnp.maximum(jnp.maximum(2 * far / divisor(p), within), smoothness / ((1 - p) * (1 - q)))


def smallest_smoothness(p: Any, far: Any, near: Any, smoothness: Any) -> jax.Array:
    """Return the constant of (3.3) with the best p_j for a given p_0; `near` is the largest B_j.

    The best p_j makes 2 B / (p + 2 (1 - p) p_j) and L / ((1 - p) (1 - p_j)) equal, or is 0.
    """
    within = 2 * (near + smoothness) / (2 - p)
    return jnp.maximum(jnp.maximum(2 * far / divisor(p), within), smoothness / (1 - p))


def best_p_between(far: Any, near: Any, smoothness: Any) -> jax.Array:
    """Return p_0 = 2 C_1 / V, V = 2 C_1 + L + (B - C_1)_+ with the largest B_j."""
    return 2 * far / (2 * far + smoothness + jnp.maximum(near - far, 0))


def best_p_within(p: Any, near: Any, constant: Any) -> jax.Array:
    """Return the smallest p_j that keeps one cluster's smoothness at `constant` (`near` is its own B_j)."""
    return jnp.maximum(2 * near / constant - p, 0) / (2 * (1 - p))


def best_tau(p: Any, q: Any) -> jax.Array:
    """Return tau_j = p_0 / (p_0 + 2 (1 - p_0) p_j); 1 where there are no cluster iterations."""
    return jnp.where(q > 0, p / divisor(p + 2 * (1 - p) * q), 1.0)


class ClusterRounds(NamedTuple):
    """Rounds of communication, counted in two ways: all of them, and those that are necessary.

    Consecutive aggregations can be computed from the first one where all clients of a cluster are tied equally (here
    they are): a cluster's mean does not change in cluster iterations, and changes by a known amount in global ones.
    `between` and `within` count all; `between_runs` counts runs of global iterations, and `within_runs` cluster
    iterations directly after a local one. (For runs of global ones, clusters of unequal size must all receive every
    cluster's mean.) The paper's Proposition 3.2 counts the latter, but in the sequence without global iterations.
    """

    between: Any
    between_runs: Any
    within: Any
    within_runs: Any
