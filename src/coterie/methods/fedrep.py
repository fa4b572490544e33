"""A shared representation and a personal head, trained in turns; the representation is averaged at a hub.

Collins, Hassani, Mokhtari, Shakkottai 2021 (FedRep), Algorithm 1: a client that takes part first trains its head on the
hub's representation, then the representation with its head fixed. As in `fedavg`, the hub weights clients by their
number of samples (the printed algorithm assumes equal numbers).
"""

from typing import ClassVar, NamedTuple

import jax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.fedavg import FedAvg, State
from coterie.methods.shared.personal import InTurns
from coterie.peers.base import Peers

__all__ = ["FedRep"]


class Local(NamedTuple):
    """The result of one client's training."""

    variables: Variables
    loss: jax.Array


@method
class FedRep(InTurns, FedAvg):
    """Personal layers, trained first, on a representation that is averaged at a hub."""

    topology: ClassVar[Topology] = "hub"
    in_turns: ClassVar[bool] = True

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train the heads, then the representation, and average the representation at the hub."""

        def work(start: Variables, data: Split, key: jax.Array) -> Local:
            variables, _, loss = self.train_in_turns(task, start, data, key)
            return Local(variables, loss)

        variables, loss, _ = self.average(task, *state, peers, clients, key, work)
        return State(variables, loss), Info(loss)
