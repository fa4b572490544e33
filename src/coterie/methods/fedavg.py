"""Federated averaging: one model for all, trained at the clients and averaged at a hub.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017, Algorithm 1: `participation` is C, `epochs` E, `batch_size` B.
Layers named as personal stay with their client, which makes this FedPer (Arivazhagan et al. 2019).
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients
from coterie.learning.task import Task
from coterie.methods.base import Info, Topology, method
from coterie.methods.shared.hub import HubSGD
from coterie.peers.base import Peers

__all__ = ["FedAvg", "State"]


class State(NamedTuple):
    """Each client's copy of the hub's model, or the one of all (`Same`), and each client's last training loss."""

    variables: Any
    loss: jax.Array


@method
class FedAvg(HubSGD):
    """One model for all, averaged at a hub."""

    topology: ClassVar[Topology] = "hub"

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        return State(self.start(task, peers, key), jnp.zeros(peers.ids.shape[0], task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train at the selected clients, average at the hub."""
        variables, loss, _ = self.average(task, *state, peers, clients, key)
        return State(variables, loss), Info(loss)
