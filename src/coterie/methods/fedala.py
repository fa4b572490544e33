"""Each client starts a round from a mixture, number by number, of its own model and the hub's, which it learns.

Zhang, Hua, Wang, Song, Xue, Ma, Guan 2023, *FedALA: Adaptive Local Aggregation for Personalized Federated Learning*,
Algorithm 1. With its last model Theta_i, the hub's Theta, and W_i as large as the last `layers` layers and at first 1,
a client learns W_i on a random part of its samples (b) and starts from the mixture (a):

    start_i = Theta_i + (Theta - Theta_i) * W_i   in these layers,   Theta in the others                 (a)
    W_i <- clip(W_i - eta grad_start f_i(start_i) * (Theta - Theta_i), 0, 1)                             (b)

Then the client trains, and the hub averages as in `fedavg`. The letters are ours.

Inferred from the authors' program: nothing is learned in a client's first round, when both models are the same; the
next time W_i is learned until the loss settles, which is `first_passes` passes here, and later in one pass. The
personal model is the one that the client has just trained. `layers` counts layers, where the program counts arrays.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, Tunes, method
from coterie.methods.shared.hub import HubSGD
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["FedALA"]


class State(NamedTuple):
    """Each client's model, its copy of the hub's, its mixing weights, the rounds it took part in, and its loss."""

    variables: Variables
    shared: Any
    weights: Any
    taken_part: jax.Array
    loss: jax.Array


@method
class FedALA(HubSGD):
    """FedAvg with an adaptive mixture of the client's and the hub's model as start of every round."""

    topology: ClassVar[Topology] = "hub"
    tunes: ClassVar[Tunes] = {"weight_lr": (0.1, 1.0, 10.0)}
    layers: int = param(1, "number of last layers that are mixed (p); the others are taken from the hub", at_least=1)
    weight_lr: float = param(1.0, "step size of the mixing weights (eta)", above=0)
    sample: float = param(0.8, "share of the client's samples that the weights are learned on (s)", above=0, at_most=1)
    first_passes: int = param(10, "passes over them the first time; later one", at_least=1)

    def upper(self, task: Task) -> Task:
        """Return a task whose own part are the layers that are mixed."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in task.names))
        return task.keeping(tuple(layers[-self.layers :]))

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        shared = task.shared(variables.params)
        weights = jax.tree.map(jnp.ones_like, self.upper(task).own(shared))
        return State(variables, shared, weights, jnp.zeros(here, jnp.int32), jnp.zeros(here, task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Mix and train at the selected clients, average at the hub."""
        learner = changed(self, lr=self.weight_lr, momentum=0.0, weight_decay=0.0, local_optimiser="sgd")
        upper = self.upper(task)

        def work(own: Variables, hub: Any, weights: Any, times: jax.Array, data: Split, key: jax.Array) -> tuple:
            sample_key, weight_key, train_key = jax.random.split(key, 3)
            mine, lower = upper.own(task.shared(own.params)), upper.shared(hub)
            away = tree.minus(upper.own(hub), mine)  # Theta - Theta_i

            def start(weights: Any) -> Any:  # (a)
                moved = jax.tree.map(lambda a, d, w: a + d * w, mine, away, weights)
                return task.join(eqx.combine(moved, lower), own.params)

            def slope(weights: Any, statistics: Any, *batch: Any) -> Any:
                return jax.value_and_grad(lambda w: task.loss(start(w), statistics, *batch), has_aux=True)(weights)

            part, epochs = drawn(data, sample_key, self.sample), jnp.where(times == 1, self.first_passes, 1)
            learned = learner.train(  # (b)
                task,
                Variables(weights, own.statistics),
                part,
                weight_key,
                epochs=epochs,
                slope=slope,
                project=inside,
                whole=False,
            ).variables.params
            weights = tree.where(times > 0, learned, weights)  # in the first round both models are the same
            trained = self.train(task, Variables(start(weights), own.statistics), data, train_key)
            return trained.variables, weights, times + 1, trained.loss

        otherwise = (state.variables, state.weights, state.taken_part, state.loss)
        stacked = (state.variables, state.shared, state.weights, state.taken_part, clients.train)
        chosen, (trained, weights, times, loss) = self.take_part(peers, key, work, otherwise, *stacked)
        shared = self.mean_of_models(task, peers, clients, chosen, state.shared, trained)
        return State(trained, shared, weights, times, loss), Info(loss)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the hub's model, with the client's own personal layers."""
        return state.variables._replace(params=task.join(state.shared, state.variables.params))


def inside(weights: Any) -> Any:
    """Keep mixing weights in [0, 1]."""
    return jax.tree.map(lambda w: jnp.clip(w, 0, 1), weights)


def drawn(data: Split, key: jax.Array, share: Any) -> Split:
    """Return a random part of one client's samples, at least one."""
    n = data.x.shape[0]
    order = jnp.argsort(jnp.where(jnp.arange(n) < data.count, jax.random.uniform(key, (n,)), jnp.inf))
    count = jnp.maximum(1, jnp.ceil(share * data.count)).astype(data.count.dtype)
    return Split(data.x[order], data.y[order], jnp.minimum(count, data.count))
