"""`async-l2gd` with variance reduction and acceleration: it converges to the minimiser, not to a neighbourhood of it.

Lyu, Hanzely and Kolar 2022, Algorithm 2 (Async-AL2SGD+: loopless Katyusha, Hanzely, Kovalev and Richtarik 2020, with
their oracle). Each client keeps an anchor x with its gradient and means; the random estimate is of the *difference*
between theta and x, and the anchor's exact gradient is added. Changed: the printed oracle (4.1) lacks the tau_j part of
a global iteration and is biased; the means after a refresh are those of the new anchor; and the refresh probability is
p_0 (1 - p_0), the rate at which exchanges between clusters carry something new, since with a fixed one refreshes
dominate the communication. `acceleration` = 0 leaves out the momentum (loopless SVRG, L2SGD+ of Hanzely and Richtarik
2020).

Linear convergence to the minimiser needs convex losses and mu > 0; for neural networks it is a heuristic. Samples are
not augmented: an anchor's gradient needs fixed data.
"""

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.shared.known_clusters import (
    Exchanges,
    KnownClusters,
    Theory,
    count,
    draw_exchanges,
    start_counting,
)
from coterie.methods.shared.tied import Auto, chosen, combine, is_auto, pad_personal
from coterie.numerics import tree
from coterie.numerics.cluster_odds import CLUSTER, GLOBAL, LOCAL, Odds, oracle
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed, is_off

__all__ = ["AsyncAL2SGDPlus"]

LEAST_CONVEXITY = 1e-3  # as a fraction of L: with mu = 0 (a loss flat in some direction) the momentum would never move


class Anchor(NamedTuple):
    """The point x, the gradient of the client's loss there, and the means of the cluster's and of all anchors."""

    x: Any
    gradient: Any
    near: Any
    far: Any


class Pace(NamedTuple):
    """The step sizes of Theorem 4.3, `[C]` each and equal for all: eta, rho, a_1, a_2, b_1, b_2."""

    lr: jax.Array
    refresh: jax.Array
    a1: jax.Array
    a2: jax.Array
    b1: jax.Array
    b2: jax.Array


class State(NamedTuple):
    """The sequences y (the model) and z (the momentum), the anchor, loss, probabilities, step sizes and counts."""

    y: Variables
    z: Any
    anchor: Anchor
    loss: jax.Array
    odds: Odds
    pace: Pace
    meetings: Exchanges
    refreshes: jax.Array  # [C] number of new anchors


@method
class AsyncAL2SGDPlus(KnownClusters):
    """Known clusters with random exchanges, accelerated, to the exact minimiser."""

    topology: ClassVar[Topology] = "hub"
    convexity: float | Auto = param(
        "auto", "smallest curvature of a client's loss (mu); auto: measured, at least L / 1000", above=0
    )
    refresh: float | Auto = param("auto", "probability of a new anchor (rho); auto: p_0 (1 - p_0)", above=0, at_most=1)
    acceleration: float | Auto = param(
        "auto", "weight of the momentum (a_1 in the paper, at most 1/2); 0: none", at_least=0, at_most=0.5
    )

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), acceleration=0.0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model, which is then also the mean of all."""
        here = peers.ids.shape[0]
        y = tree.broadcast(task.init(key), here)
        steps = is_auto(self.lr) or not is_off(self.acceleration)
        convex = is_auto(self.convexity) and is_auto(self.acceleration)
        theory = self.theory(task, peers, clients, y, jax.random.fold_in(key, 1), steps, convex)
        loss, gradient = self._gradient(task, peers, clients, y)
        shared = task.shared(y.params)
        pace = peers.each(self._pace, theory)
        anchor = Anchor(y.params, gradient, shared, shared)
        return State(y, y.params, anchor, loss, theory.odds, pace, start_counting(here), jnp.zeros(here, jnp.int32))

    def _gradient(self, task: Task, peers: Peers, clients: Clients, variables: Variables) -> tuple[jax.Array, Any]:
        """Return the mean loss and the gradient on all samples."""

        def whole(data: Split, variables: Variables) -> tuple[jax.Array, Any]:
            loss, gradient, _ = self.slope(task, data, jax.random.key(0), whole=True)(variables)
            return loss, gradient

        return peers.each(whole, clients.train, variables)

    def _pace(self, theory: Theory) -> Pace:
        """Return the step sizes of Theorem 4.3, with rho = p (1 - p) for p = p_0, or p_1 if there is one cluster."""
        odds, smoothness, mu, expected = theory
        one = jnp.ones_like(smoothness)
        p = jnp.where(odds.between > 0, odds.between, odds.within)
        rho = chosen(self.refresh, jnp.where(p > 0, p * (1 - p), 0.1))  # p = 0: a refresh costs no message
        largest = jnp.maximum(smoothness + self.tie, expected)  # max(L_F, L of the oracle), L_F = L + gamma
        lr = chosen(self.lr, 1 / (4 * largest))
        if is_off(self.acceleration):
            return Pace(lr, rho, 0 * one, 0 * one, one, 0 * one)
        mu = chosen(self.convexity, jnp.maximum(mu, LEAST_CONVEXITY * smoothness))
        a2 = expected / (2 * largest)
        a1 = chosen(self.acceleration, jnp.minimum(0.5, jnp.sqrt(lr * mu * jnp.maximum(0.5, a2 / rho))))
        b2 = 1 / jnp.maximum(2 * mu, 4 * a1 / lr)
        return Pace(lr, rho, a1, a2, 1 - b2 * mu, b2)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Run the iterations of a round."""

        def iterate(number: jax.Array, state: State) -> State:
            draw_key, step_key, refresh_key = jax.random.split(jax.random.fold_in(key, number), 3)
            everyone, cluster = draw_exchanges(state.odds, clients.cluster[0], draw_key)
            state = self.iterate(task, state, peers, clients, step_key, everyone, cluster)
            refresh = jax.random.bernoulli(refresh_key, state.pace.refresh[0])  # the same for all clients
            return peers.choose(refresh, lambda s: self.renew(task, s, peers, clients), lambda s: s, state)

        state = self.run_iterations(peers, iterate, state)
        counts = state.meetings.rounds._asdict() | {"refresh": state.refreshes}
        return state, Info(state.loss, counts={f"rounds_{name}": value for name, value in counts.items()})

    def iterate(
        self,
        task: Task,
        state: State,
        peers: Peers,
        clients: Clients,
        key: jax.Array,
        everyone: jax.Array,
        cluster: jax.Array,
    ) -> State:
        """Run one iteration: an exchange of `everyone []`, or of each client's `cluster [C]`, or a local step."""
        y, z, anchor, pace = state.y, state.z, state.anchor, state.pace
        clusters = clients.cluster
        one, to_all = jnp.ones_like(pace.lr), state.odds.to_all
        theta = y.params  # a_1 z + a_2 x + (1 - a_1 - a_2) y
        if not is_off(self.acceleration):
            parts = (pace.a1, tree.minus(z, y.params)), (pace.a2, tree.minus(anchor.x, y.params))
            theta = combine(peers, y.params, *parts)
        now, then = task.shared(theta), task.shared(anchor.x)
        then_near, then_far = tree.minus(then, anchor.near), tree.minus(then, anchor.far)

        def global_step(carry: tuple[Any, State]) -> tuple[Any, State]:
            _, state = carry
            kind = jnp.full(one.shape, GLOBAL)
            factors = oracle(state.odds, self.tie, kind)
            means, arrived = peers.centres(now, one, clusters, across=to_all)
            far = tree.minus(tree.minus(now, means.far), then_far)
            near = tree.minus(tree.minus(now, means.near), then_near)
            estimate = combine(peers, tree.scale(0, now), (factors.far * arrived, far), (factors.near * arrived, near))
            return pad_personal(task, estimate, theta), state._replace(meetings=count(state.meetings, kind))

        def cluster_or_local_step(carry: tuple[Any, State]) -> tuple[Any, State]:
            _, state = carry
            kind = jnp.where(cluster, CLUSTER, LOCAL)
            factors = oracle(state.odds, self.tie, kind)
            means, arrived = peers.centres(now, jnp.where(cluster, one, 0), clusters)
            near = tree.minus(tree.minus(now, means.near), then_near)
            estimate = combine(peers, tree.scale(0, now), (factors.near * arrived, near))

            def differ(data: Split, key: jax.Array, theta: Any, x: Any, statistics: Any) -> tuple:
                slope = self.slope(task, data, key, augmented=False)  # the same samples at both points
                loss, here, after = slope(Variables(theta, statistics))
                return loss, tree.minus(here, slope(Variables(x, statistics))[1]), after

            loss, change, statistics = peers.each(
                differ, clients.train, peers.keys(key), theta, anchor.x, state.y.statistics
            )
            estimate = combine(peers, pad_personal(task, estimate, theta), (factors.own, change))
            loss = jnp.where(cluster, state.loss, loss)
            y = state.y._replace(statistics=tree.where(cluster, state.y.statistics, statistics))
            return estimate, state._replace(y=y, loss=loss, meetings=count(state.meetings, kind))

        start = (tree.scale(0, theta), state)
        if clusters[1] == 1:
            estimate, state = cluster_or_local_step(start)
        else:
            estimate, state = peers.choose(everyone, global_step, cluster_or_local_step, start)
        # The random estimate is added to the exact gradient of F at the anchor.
        tied = combine(peers, tree.scale(0, then), (self.tie * to_all, then_far), (self.tie * (1 - to_all), then_near))
        gradient = tree.plus(tree.plus(anchor.gradient, pad_personal(task, tied, theta)), estimate)
        after = combine(peers, theta, (-pace.lr, gradient))  # y+ = theta - eta g
        if not is_off(self.acceleration):  # z+ = b_1 z + (1 - b_1) theta + (b_2 / eta) (y+ - theta)
            z = combine(peers, theta, (pace.b1, tree.minus(z, theta)), (-pace.b2, gradient))
        return state._replace(y=state.y._replace(params=after), z=z)

    def renew(self, task: Task, state: State, peers: Peers, clients: Clients) -> State:
        """Make y the new anchor: everyone sends it and gets the means; without an answer it keeps the old one."""
        x, here = state.y.params, jnp.ones_like(state.pace.lr)
        clusters = clients.cluster
        _, gradient = self._gradient(task, peers, clients, state.y)
        across = state.odds.to_all if clusters[1] > 1 else None  # with one cluster the two means are equal
        means, arrived = peers.centres(task.shared(x), here, clusters, across)
        new = Anchor(x, gradient, means.near, means.near if across is None else means.far)
        return state._replace(anchor=tree.where(arrived, new, state.anchor), refreshes=state.refreshes + 1)

    def models(self, state: State) -> Variables:
        """Return y, each client's own model."""
        return state.y
