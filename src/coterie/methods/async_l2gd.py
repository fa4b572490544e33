"""Known clusters: each client's model is tied to its cluster's mean and to the mean of all, with random exchanges.

Lyu, Hanzely and Kolar 2022, Algorithm 1 (Async-L2GD) for their objective (2.1), which `numerics/cluster_odds.py` states
with its corrections. Converges to a neighbourhood of the minimiser of squared radius 2 eta sigma^2 / mu (Theorem 3.5),
where sigma^2 is the variance of a step's gradient at the minimiser; it shrinks with `lr`, and `async-al2sgd+` converges
to the minimiser itself. With one cluster this is `l2gd`. Every exchange sends messages, even directly after another
one, where they carry nothing new; `counts` tells how many carried something new.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.shared.known_clusters import Exchanges, KnownClusters, count, draw_exchanges, start_counting
from coterie.methods.shared.tied import chosen, combine, is_auto
from coterie.numerics import tree
from coterie.numerics.cluster_odds import CLUSTER, GLOBAL, LOCAL, Odds, oracle
from coterie.peers.base import Peers

__all__ = ["AsyncL2GD"]


class State(NamedTuple):
    """Each client's model and last loss, its switching probabilities, the step size, and the number of exchanges."""

    variables: Variables
    loss: jax.Array
    odds: Odds
    lr: jax.Array  # [C]
    meetings: Exchanges


@method
class AsyncL2GD(KnownClusters):
    """Random choice between local steps, steps towards the cluster's mean, and steps towards the mean of all."""

    topology: ClassVar[Topology] = "hub"

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model; compute the probabilities and the step size."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        theory = self.theory(task, peers, clients, variables, jax.random.fold_in(key, 1), steps=is_auto(self.lr))
        one = jnp.ones(here, task.dtype)
        lr = chosen(self.lr, 1 / (2 * theory.expected))
        return State(variables, 0 * one, theory.odds, lr, start_counting(here))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Run the iterations of a round."""

        def iterate(number: jax.Array, state: State) -> State:
            draw_key, step_key = jax.random.split(jax.random.fold_in(key, number))
            everyone, cluster = draw_exchanges(state.odds, clients.cluster[0], draw_key)
            return self.iterate(task, state, peers, clients, step_key, everyone, cluster)

        state = self.run_iterations(peers, iterate, state)
        return state, Info(state.loss, counts={f"rounds_{k}": v for k, v in state.meetings.rounds._asdict().items()})

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
        clusters = clients.cluster
        one = jnp.ones_like(state.lr)

        def moved(state: State, params: Any, kind: jax.Array) -> State:
            variables = state.variables._replace(params=params)
            return state._replace(variables=variables, meetings=count(state.meetings, kind))

        def global_step(state: State) -> State:  # lines 5 to 8
            kind = jnp.full(one.shape, GLOBAL)
            shared, factors = task.shared(state.variables.params), oracle(state.odds, self.tie, kind)
            means, _ = peers.centres(shared, one, clusters, across=state.odds.to_all)
            far, near = tree.minus(shared, means.far), tree.minus(shared, means.near)
            step = combine(peers, shared, (-state.lr * factors.far, far), (-state.lr * factors.near, near))
            return moved(state, task.join(step, state.variables.params), kind)

        def cluster_or_local_step(state: State) -> State:  # lines 10 to 16
            kind = jnp.where(cluster, CLUSTER, LOCAL)
            shared, factors = task.shared(state.variables.params), oracle(state.odds, self.tie, kind)
            means, _ = peers.centres(shared, jnp.where(cluster, one, 0), clusters)
            step = combine(peers, shared, (-state.lr * factors.near, tree.minus(shared, means.near)))
            loss, gradient, statistics = peers.each(
                lambda data, key, model: self.slope(task, data, key)(model),
                clients.train,
                peers.keys(key),
                state.variables,
            )
            params = combine(peers, task.join(step, state.variables.params), (-state.lr * factors.own, gradient))
            loss = jnp.where(cluster, state.loss, loss)
            statistics = tree.where(cluster, state.variables.statistics, statistics)
            state = moved(state, params, kind)
            return state._replace(loss=loss, variables=state.variables._replace(statistics=statistics))

        if clusters[1] == 1:  # there are no other clusters
            return cluster_or_local_step(state)
        return peers.choose(everyone, global_step, cluster_or_local_step, state)
