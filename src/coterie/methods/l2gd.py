"""A model for each client, pulled to the mean of all now and then: the mixture of local and global models.

Hanzely and Richtarik 2020, Algorithm 1 (L2GD) for sum_i f_i(theta_i) + (gamma/2) sum_i |theta_i - mean|^2, gamma =
`tie` (their lambda; their 1/n is in `lr`): with probability 1 - p every client takes a gradient step, with probability
p all step towards the mean, and only that is communicated. Converges to a ball around the minimiser, the smaller the
step size the smaller; there is no such ball with `async-al2sgd+`, which on one cluster has the same minimiser.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.shared.tied import Auto, TiedModels, chosen, combine, is_auto
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["L2GD"]


class State(NamedTuple):
    """Each client's model and last loss, the step size and the probability (the same for all), how often all met."""

    variables: Variables
    loss: jax.Array
    lr: jax.Array  # [C]
    p: jax.Array  # [C]
    meetings: jax.Array  # [C]


@method
class L2GD(TiedModels):
    """Local gradient steps, and now and then a step towards the mean of all."""

    topology: ClassVar[Topology] = "hub"
    p: float | Auto = param(
        "auto", "probability of a step towards the mean; auto: gamma / (gamma + L)", above=0, below=1
    )

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model; find out how often to meet."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        one = jnp.ones(here, task.dtype)
        smoothness = chosen(self.smoothness, one)
        if is_auto(self.smoothness) and (is_auto(self.lr) or is_auto(self.p)):
            measured = self.curvature(task, peers, clients, variables, jax.random.fold_in(key, 1))
            smoothness = peers.most(measured[1])
        p = chosen(self.p, self.tie / (self.tie + smoothness))  # the best p, their section 4
        p = jnp.zeros_like(p) if peers.clients == 1 else p  # the mean of one is itself
        constant = jnp.maximum(smoothness / (1 - p), jnp.where(p > 0, self.tie / jnp.where(p > 0, p, 1), 0))
        return State(variables, 0 * one, chosen(self.lr, 1 / (2 * constant)), p, jnp.zeros(here, jnp.int32))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Run the iterations of a round."""

        def iterate(number: jax.Array, state: State) -> State:
            coin_key, step_key = jax.random.split(jax.random.fold_in(key, number))
            coin = jax.random.bernoulli(coin_key, state.p[0])  # one coin for all

            def meet(state: State) -> State:
                shared = task.shared(state.variables.params)
                mean, _ = peers.mean(shared, jnp.ones_like(state.p))
                # theta_i - (eta gamma / p) (theta_i - mean); who missed the mean stays where it is
                step = combine(peers, shared, (-state.lr * self.tie / state.p, tree.minus(shared, mean)))
                params = task.join(step, state.variables.params)
                return state._replace(variables=state.variables._replace(params=params), meetings=state.meetings + 1)

            def descend(state: State) -> State:
                loss, gradient, statistics = peers.each(
                    lambda data, key, model: self.slope(task, data, key)(model),
                    clients.train,
                    peers.keys(step_key),
                    state.variables,
                )
                params = combine(peers, state.variables.params, (-state.lr / (1 - state.p), gradient))
                return state._replace(variables=Variables(params, statistics), loss=loss)

            return descend(state) if peers.clients == 1 else peers.choose(coin, meet, descend, state)

        state = self.walk(peers, iterate, state)
        return state, Info(state.loss, counts={"rounds_between": state.meetings})

    def models(self, state: State) -> Variables:
        """Return each client's own model."""
        return state.variables
