"""A personal model for each client, tied to the model all of them train together.

Li, Hu, Beirami, Smith 2021, Algorithm 1: the shared model w is trained by federated averaging; in addition, every
client that takes part runs v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)) for its personal model v_k.
"""

from typing import Any, ClassVar, NamedTuple, Self

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

__all__ = ["Ditto"]


class State(NamedTuple):
    """Each client's copy of the shared model, its personal model, and the loss of each."""

    shared: Variables
    personal: Variables
    shared_loss: jax.Array
    loss: jax.Array


@method
class Ditto(HubSGD):
    """A personal model tied to the shared one."""

    topology: ClassVar[Topology] = "hub"
    tunes: ClassVar[Tunes] = {"tie": (0.01, 0.1, 1.0)}
    tie: float = param(0.1, "strength of the tie to the shared model (lambda in eq. 2)", at_least=0)
    personal_epochs: int = param(0, "passes per round for the personal model; 0: as many as `epochs`", at_least=0)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), personal_epochs=0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Start shared and personal models from the same fresh model."""
        here = peers.ids.shape[0]
        fresh, zero = tree.broadcast(task.init(key), here), jnp.zeros(here, task.dtype)
        return State(fresh, fresh, zero, zero)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train the shared model by averaging and the personal ones near it."""
        shared_key, personal_key = jax.random.split(key)
        shared, shared_loss, chosen = self.average(task, state.shared, state.shared_loss, peers, clients, shared_key)

        def tune(personal: Variables, anchor: Any, data: Split, key: jax.Array) -> tuple[Variables, jax.Array]:
            def pull(params: Any) -> Any:
                return tree.scale(self.tie, tree.minus(params, anchor))  # lambda (v - w^t)

            trained = self.train(task, personal, data, key, pull=pull, epochs=self.personal_epochs or None)
            return trained.variables, trained.loss

        personal, loss = peers.each_of(
            chosen,
            self.participants(peers),
            tune,
            (state.personal, state.loss),
            state.personal,
            state.shared.params,
            clients.train,
            peers.keys(personal_key),
        )
        return State(shared, personal, shared_loss, loss), Info(loss)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared model."""
        return state.shared

    def models(self, state: State) -> Variables:
        """Return the personal models."""
        return state.personal
