"""Clients whose models are near each other draw each other nearer: attentive message passing.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang 2021, *Personalized Cross-Silo Federated Learning on Non-IID Data* (FedAMP),
Algorithm 1. With A(x) = 1 - exp(-x / sigma), and so A'(x) = exp(-x / sigma) / sigma, client i gets u_i (a) and trains
near it (b):

    u_i = sum_j xi_ij w_j,   xi_ij = alpha_k A'(|w_i - w_j|^2) for j != i,   xi_ii = 1 - sum of the others    (a)
    w_i <- argmin F_i(w) + lambda / (2 alpha_k) |w - u_i|^2                                                   (b)

The letters are ours. Nothing had to be inferred. (PFLlib's program has the norm in (b) without the square, of numbers
that carry no gradient.) The variant with cosines, HeurFedAMP, is not here.

Changed: messages go along a graph, complete by default, where the paper has a cloud that sees all models. One number,
`attention`, stands for (K - 1) alpha_k / sigma: the weight of all others together if all models were equal, so that no
client's own weight can become negative. `tie` is lambda / alpha_k. A client makes the local steps of the settings,
from its own model, where the paper minimises. A neighbour that did not answer has weight 0.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, Tunes, method
from coterie.methods.sends import FROM_NUMBERS, MODEL, Sending, Sends
from coterie.methods.shared.tied import pad_personal
from coterie.numerics import tree
from coterie.peers.base import Peers, blend
from coterie.spec import param

__all__ = ["FedAMP"]


class State(NamedTuple):
    """Each client's model and its optimiser."""

    variables: Variables
    optimiser: Any


@method
class FedAMP(LocalSGD, Method):
    """Train near a mixture of the models that are near one's own."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "ask": MODEL,
        "answer": Sending("how far its model is from the one that it was asked about", FROM_NUMBERS),
        "mix": MODEL,
    }
    default_graph: ClassVar[str] = "complete"
    learns_weights: ClassVar[bool] = True
    tunes: ClassVar[Tunes] = {"sigma": (0.1, 1.0, 10.0)}
    attention: float = param(0.9, "weight of all others together where all models are equal", above=0, at_most=1)
    sigma: float = param(1.0, "squared distance over which attention falls to 1/e, in units of the model", above=0)
    tie: float = param(1.0, "strength of the tie to the mixture (lambda / alpha_k)", at_least=0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        return State(variables, jax.vmap(self.optimiser().init)(variables.params))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Mix the models that are near, then train near the mixture."""

        def squared_distance(theirs: Any, own: Any) -> jax.Array:
            difference = tree.minus(theirs, own)
            return tree.dot(difference, difference)

        shared = task.shared(state.variables.params)
        far, arrived = peers.ask(squared_distance, shared, shared)
        near = jnp.where(arrived & jnp.isfinite(far), jnp.exp(-far / self.sigma), 0)
        weights = (self.attention / jnp.maximum(peers.present.sum(1), 1)[:, None] * near).astype(task.dtype)  # (a)
        mixture = blend(peers, shared, weights)  # u_i

        def train(variables: Variables, optimiser: Any, mixture: Any, data: Split, key: jax.Array) -> Trained:
            def pull(params: Any) -> Any:  # (b)
                return pad_personal(task, tree.scale(self.tie, tree.minus(task.shared(params), mixture)), params)

            return self.train(task, variables, data, key, optimiser_state=optimiser, pull=pull)

        trained: Trained = peers.each(train, state.variables, state.optimiser, mixture, clients.train, peers.keys(key))
        return State(trained.variables, trained.optimiser), Info(trained.loss, weights)
