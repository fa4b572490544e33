"""A model for each client, pulled at random times to the mean of all: the mixture of local and global models.

Hanzely and Richtarik 2020, Algorithm 1 (L2GD) for sum_i f_i(theta_i) + (gamma/2) sum_i |theta_i - mean|^2, gamma =
`tie` (their lambda; their 1/n is in `lr`): with probability 1 - p every client takes a gradient step, with probability
p all step towards the mean, and only that is communicated. Converges to a neighbourhood of the minimiser that shrinks
with the step size; `async-al2sgd+`, which has the same minimiser with one cluster, converges to the minimiser itself.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Newcomer, Topology, Tunes, method
from coterie.methods.sends import CURVATURE, MODEL, Sends
from coterie.methods.shared.tied import Auto, TiedModels, chosen, combine, is_auto
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["L2GD"]


class State(NamedTuple):
    """Each client's model and last loss, step size and probability (the same for all), and the number of exchanges."""

    variables: Variables
    loss: jax.Array
    lr: jax.Array  # [C]
    p: jax.Array  # [C]
    meetings: jax.Array  # [C]


@method
class L2GD(TiedModels):
    """Random switch between local gradient steps and steps towards the mean of all."""

    topology: ClassVar[Topology] = "hub"
    sends: ClassVar[Sends] = {"mean": MODEL, "most": CURVATURE}
    tunes: ClassVar[Tunes] = {"tie": (0.1, 1.0, 10.0)}
    newcomer: ClassVar[Newcomer] = "shared"
    p: float | Auto = param(
        "auto", "probability of a step towards the mean; auto: gamma / (gamma + L)", above=0, below=1
    )

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model; compute the probability and the step size."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        one = jnp.ones(here, task.dtype)
        smoothness = chosen(self.smoothness, one)
        if is_auto(self.smoothness) and (is_auto(self.lr) or is_auto(self.p)):
            measured = self.curvature(task, peers, clients, variables, jax.random.fold_in(key, 1))
            smoothness = peers.most(measured[1])
        p = chosen(self.p, self.tie / (self.tie + smoothness))  # the best p, their section 4
        p = jnp.zeros_like(p) if peers.clients == 1 else p  # the mean of one client is its own model
        constant = jnp.maximum(smoothness / (1 - p), jnp.where(p > 0, self.tie / jnp.where(p > 0, p, 1), 0))
        return State(variables, 0 * one, chosen(self.lr, 1 / (2 * constant)), p, jnp.zeros(here, jnp.int32))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Run the iterations of a round."""

        def iterate(number: jax.Array, state: State) -> State:
            draw_key, step_key = jax.random.split(jax.random.fold_in(key, number))
            communicate = jax.random.bernoulli(draw_key, state.p[0])  # the same for all clients

            def towards_mean(state: State) -> State:
                shared = task.shared(state.variables.params)
                mean, _ = peers.mean(shared, jnp.ones_like(state.p))
                # theta_i - (eta gamma / p) (theta_i - mean); a client that misses the mean does not move
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

            return descend(state) if peers.clients == 1 else peers.choose(communicate, towards_mean, descend, state)

        state = self.run_iterations(peers, iterate, state)
        return state, Info(state.loss, counts={"rounds_between": state.meetings})
