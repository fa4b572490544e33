"""FedAvg whose clients keep their features near those of the hub's model and away from their own last ones.

Li, He, Song 2021, *Model-Contrastive Federated Learning* (MOON), Algorithm 1. With the features z of a sample under the
model in training, z_glob under the hub's model and z_prev under the client's model of the round before, the local loss
is the usual one plus mu times

    l_con = -log( exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)) )     (a),

where sim is the cosine. The letter is ours. Nothing had to be inferred.

Changed: features are what the model's last layer sees, as in PFLlib's program. The authors add a projection head of two
layers before it; a model with such layers has them. A client that does not take part keeps its last model as z_prev's.
"""

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Clients, Federation, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, Tunes, method
from coterie.methods.shared.features import tapped
from coterie.methods.shared.hub import HubSGD
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed, is_off

__all__ = ["Moon"]


class State(NamedTuple):
    """Each client's copy of the hub's model, the model it trained last, and its loss."""

    variables: Variables
    previous: Variables
    loss: jax.Array


@method
class Moon(HubSGD):
    """FedAvg with a contrastive loss between models."""

    topology: ClassVar[Topology] = "hub"
    tunes: ClassVar[Tunes] = {"mu": (0.1, 1.0, 5.0)}
    mu: float = param(1.0, "weight of the contrastive loss (the paper: 1 to 10)", at_least=0)
    tau: float = param(0.5, "temperature of the contrastive loss", above=0)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), mu=0.0)

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse models without features, before anything is compiled."""
        tapped(task, "moon")

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        here = peers.ids.shape[0]
        fresh = tree.broadcast(task.init(key), here)
        return State(fresh, fresh, jnp.zeros(here, task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train with the contrastive loss at the selected clients, average at the hub."""
        tap = tapped(task, "moon")

        def work(start: Variables, previous: Variables, data: Split, key: jax.Array) -> tuple:
            def features(variables: Variables, x: Any) -> jax.Array:
                return lax.stop_gradient(tap.apply(variables, x)[0][:, task.outputs :])

            def loss(params: Any, statistics: Any, x: Any, y: Any, mask: jax.Array, key: jax.Array) -> tuple:
                values, statistics = tap.apply(Variables(params, statistics), x, key, True)
                z = values[:, task.outputs :]
                to_hub = cosine(z, features(start, x)) / self.tau
                to_previous = cosine(z, features(previous, x)) / self.tau
                contrast = jnp.logaddexp(to_hub, to_previous) - to_hub  # (a)
                total = task.losses(values[:, : task.outputs], y) + self.mu * contrast
                return jnp.where(mask, total, 0).sum() / jnp.maximum(mask.sum(), 1), statistics

            slope = None if is_off(self.mu) else jax.value_and_grad(loss, has_aux=True)
            trained = self.train(task, start, data, key, slope=slope)
            return trained.variables, trained.loss

        stacked = (state.variables, state.previous, clients.train)
        chosen, (trained, loss) = self.take_part(peers, key, work, (state.previous, state.loss), *stacked)
        before = task.shared(state.variables.params)
        shared = self.mean_of_models(task, peers, clients, chosen, before, trained)
        variables = Variables(task.join(shared, trained.params), trained.statistics)
        return State(variables, trained, loss), Info(loss)


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the cosine between rows; 0 where one of them is zero, with a gradient that is finite there."""
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    return jnp.where(squares > 0, (a * b).sum(-1) * lax.rsqrt(jnp.where(squares > 0, squares, 1)), 0)
