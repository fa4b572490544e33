"""Average with the neighbours and step: decentralised SGD without a hub.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu 2017, Algorithm 1 (D-PSGD), in its two orders:
- "mix-and-step": x_i <- sum_j W_ij x_j - eta g_i(x_i); mixing and gradient from the same point (D-PSGD as printed);
- "step-then-mix": x_i <- sum_j W_ij (x_j - eta g_j(x_j)); adapt-then-combine (often called DSGD).
With several local steps the gradient step becomes the displacement of the local training. Both orders are biased by
O(eta) when clients differ (`spd`, `d2` and `gnsd` correct this). The name avoids "dpsgd", which elsewhere means
differentially private SGD.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology, method
from coterie.methods.sends import MODEL, Sends
from coterie.numerics import tree
from coterie.peers.base import Peers, blend
from coterie.spec import param

__all__ = ["GossipSGD"]


class State(NamedTuple):
    """Each client's model and its optimiser."""

    variables: Variables
    optimiser: Any


@method
class GossipSGD(LocalSGD, Method):
    """Mix with the neighbours and step, without a hub."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {"mix": MODEL}
    newcomer: ClassVar[Newcomer] = "shared"
    order: Literal["mix-and-step", "step-then-mix"] = param(
        "step-then-mix", "local step, then mix; or D-PSGD's W x - eta g(x), both from x (docs/methods/index.md)"
    )

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        return State(variables, jax.vmap(self.optimiser().init)(variables.params))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train locally and mix with the neighbours."""

        def train(variables: Variables, optimiser: Any, data: Split, key: jax.Array) -> Trained:
            return self.train(task, variables, data, key, optimiser_state=optimiser)

        trained = peers.each(train, state.variables, state.optimiser, clients.train, peers.keys(key))
        before, after = task.shared(state.variables.params), task.shared(trained.variables.params)
        if self.order == "mix-and-step":
            step = tree.minus(after, before)
            shared = tree.plus(blend(peers, before, peers.weights), step)  # W x - eta g(x)
        else:
            shared = blend(peers, after, peers.weights)  # W (x - eta g(x))
        params = task.join(shared, trained.variables.params)
        variables = Variables(params, trained.variables.statistics)
        return State(variables, trained.optimiser), Info(trained.loss, jnp.where(peers.present, peers.weights, 0))
