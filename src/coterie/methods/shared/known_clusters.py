"""Base of methods for known clusters: ties within and between clusters, and how often each of them communicates.

The mathematics is in `numerics/cluster_odds.py`. The clusters come with the data (`group` of a table or a file,
`groups` of `coterie.federation`); without groups all clients are one cluster.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import Newcomer
from coterie.methods.sends import CURVATURE, MODEL, Sends
from coterie.methods.shared.tied import Auto, TiedModels, chosen, is_auto
from coterie.numerics.cluster_odds import (
    CLUSTER,
    GLOBAL,
    LOCAL,
    ClusterRounds,
    Odds,
    best_p_between,
    best_p_within,
    best_tau,
    expected_smoothness,
    pull_to_all,
    smallest_smoothness,
)
from coterie.peers.base import Peers
from coterie.spec import param, spec
from coterie.traced import is_off

__all__ = ["Exchanges", "KnownClusters", "Theory", "count", "draw_exchanges", "start_counting"]


class Theory(NamedTuple):
    """What a client knows before the first iteration, `[C]` each: probabilities, and constants equal for all."""

    odds: Odds
    smoothness: jax.Array  # L, the largest curvature of a client's loss
    convexity: jax.Array  # mu, the smallest one
    expected: jax.Array  # the constant of (3.3)


@spec
class KnownClusters(TiedModels):
    """A random switch between local steps and steps towards the mean of the cluster and of all clusters."""

    newcomer: ClassVar[Newcomer] = "cluster"
    sends: ClassVar[Sends] = {"centres": MODEL, "most": CURVATURE}
    cluster_tie: float = param(1.0, "strength of the tie between the clusters' centres (lambda)", at_least=0)
    p_between: float | Auto = param(
        "auto", "probability of an exchange between all clusters (p_0)", at_least=0, below=1
    )
    p_within: float | Auto | tuple[float, ...] = param(
        "auto", "probability of an exchange within a cluster, if not between all (p_j): one number, or one per cluster"
    )
    tau: float | Auto = param(
        "auto", "part of the tie to the own cluster applied in exchanges between all (tau_j)", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        for p in self.p_within if isinstance(self.p_within, tuple) else (self.p_within,):
            if p != "auto" and not 0 <= p < 1:
                raise CoterieError(f"p_within must be at least 0 and less than 1, not {p:g}")
        if is_off(self.p_between) and not is_off(self.cluster_tie):
            raise CoterieError(
                "p_between must be above 0, or clusters that are tied (cluster_tie > 0) never communicate"
            )

    def theory(
        self,
        task: Task,
        peers: Peers,
        clients: Clients,
        variables: Variables,
        key: jax.Array,
        steps: bool,
        convexity: bool = False,
    ) -> Theory:
        """Return the probabilities and, if `steps` need them, the constants; what was not given is measured (with
        `convexity` also the smallest curvature). Constants that are not needed are 1."""
        one = jnp.ones(peers.ids.shape[0], task.dtype)
        label, clusters = clients.cluster
        size = peers.clients * one
        if clusters > 1:
            size = peers.centres((), one, (label, clusters), certain=True)[0].near_weight

        # With one cluster the two means are equal: the whole tie is to the cluster, and p_0 is 0.
        tied = clusters > 1 and not is_off(self.cluster_tie)

        # All arithmetic is done per client (`each`), so that its bits do not depend on where clients live.
        def ties(size: jax.Array) -> tuple[jax.Array, jax.Array]:
            to_all = pull_to_all(self.cluster_tie, self.tie * size) if tied else 0 * size
            return to_all, jnp.where(size > 1, (1 - to_all) * self.tie, 0)  # B_j; the mean of one client is itself

        to_all, near = peers.each(ties, size)
        smallest = largest = one
        automatic = is_auto(self.p_between) or is_auto(self.p_within)
        if convexity or (is_auto(self.smoothness) and (steps or automatic)):
            smallest, largest = self.curvature(task, peers, clients, variables, key)
        largest = jnp.maximum(chosen(self.smoothness, largest), 1e-12)  # inputs of zero give no curvature at all
        # In one small message: C_1 = max_j a_j gamma, max_j B_j, L and -mu.
        far, nearest, smoothness, minus_mu = peers.most((to_all * self.tie, near, largest, -smallest))

        given = None if is_auto(self.p_within) else self._given(clusters).astype(task.dtype)[label]
        odds, expected = peers.each(
            lambda *known: self._odds(clusters, *known), far, nearest, smoothness, to_all, near, size, given
        )
        if steps and (given is not None or not is_auto(self.tau)):
            expected = peers.most(expected)
        return Theory(odds, smoothness, -minus_mu, expected)

    def _odds(
        self,
        clusters: int,
        far: jax.Array,
        nearest: jax.Array,
        smoothness: jax.Array,
        to_all: jax.Array,
        near: jax.Array,
        size: jax.Array,
        given: jax.Array | None,
    ) -> tuple[Odds, jax.Array]:
        """Return one client's probabilities and the constant of (3.3) that follows from them."""
        p = chosen(self.p_between, best_p_between(far, nearest, smoothness)) if clusters > 1 else jnp.zeros_like(far)
        if given is None:
            expected = smallest_smoothness(p, far, nearest, smoothness)
            q = best_p_within(p, near, expected)
        else:
            q = jnp.where(size > 1, given, 0)
            expected = expected_smoothness(p, q, far, near, smoothness)
        tau = jnp.where(q > 0, chosen(self.tau, best_tau(p, q)), 1)
        tau = jnp.where(
            p > 0, tau, jnp.where(q > 0, 0, 1)
        )  # without exchanges between all, the cluster's own do it all
        if not is_auto(self.tau):  # any tau but the best one needs shorter steps
            expected = expected_smoothness(p, q, far, near, smoothness, tau)
        return Odds(p, q, tau, to_all), expected

    def _given(self, clusters: int) -> jax.Array:
        """Return the probability of each cluster, `[G]`."""
        if not isinstance(self.p_within, tuple):
            return chosen(self.p_within, jnp.ones(clusters))
        if len(self.p_within) not in (1, clusters):
            raise CoterieError(
                f"p_within has {len(self.p_within)} entries but the data have {clusters} clusters; give one number, or "
                "one for each cluster"
            )
        return jnp.broadcast_to(jnp.array(self.p_within), clusters)


def draw_exchanges(odds: Odds, label: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw whether everyone communicates in an iteration `[]`, and whether each client's cluster does `[C]`.

    The draws depend on the key and on the cluster only, so that all clients concerned agree without a message.
    """
    all_key, cluster_key = jax.random.split(key)
    draw = jax.vmap(lambda j, q: jax.random.bernoulli(jax.random.fold_in(cluster_key, j), q))
    return jax.random.bernoulli(all_key, odds.between[0]), draw(label, odds.within)


class Exchanges(NamedTuple):
    """Rounds of communication so far, and the kind of the last iteration: `[C]` each."""

    rounds: ClusterRounds
    last: jax.Array


def start_counting(clients: int) -> Exchanges:
    """Return the counters before the first iteration."""
    zero = jnp.zeros(clients, jnp.int32)
    return Exchanges(ClusterRounds(*[zero] * 4), zero + LOCAL)


def count(so_far: Exchanges, kind: jax.Array) -> Exchanges:
    """Count one iteration of this `kind [C]`."""
    between, within, last = kind == GLOBAL, kind == CLUSTER, so_far.last
    new = between, between & (last != GLOBAL), within, within & (last == LOCAL)
    return Exchanges(ClusterRounds(*(a + b for a, b in zip(so_far.rounds, new, strict=True))), kind.astype(last.dtype))
