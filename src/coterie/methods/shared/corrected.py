"""The round that gossip methods with a correction share: train locally, then exchange so that all agree exactly.

A round is a client's local training and one exchange, as in `gossip-sgd`; with `steps = 1` it is one iteration of the
papers. The step s^r that the correction works with is what the local training took away from the shared parameters:
eta_r g^r for a single step; for several, their sum. Layers named in `model.personal` are trained along and stay.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.consensus.primal_dual import Memory
from coterie.data.clients import Clients
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import spec

__all__ = ["CorrectedSGD", "State"]


class State(NamedTuple):
    """Each client's model, its optimiser, and what the correction remembers."""

    variables: Variables
    optimiser: Any
    memory: Memory


@spec
class CorrectedSGD(LocalSGD, Method):
    """Local training and a corrected exchange (abstract: methods say which one)."""

    topology: ClassVar[Topology] = "graph"
    # Where Metropolis weights W have no eigenvalue below -1/3, (I + W) / 2 has none below 1/3, and `spd` then bears
    # every step up to 1 / curvature (see `mixing`), so also several local steps; with W it bears far less.
    default_weights: ClassVar[str] = "lazy-metropolis"

    @abc.abstractmethod
    def remember(self, shared: Any) -> Memory:
        """Return the memory before the first round."""

    @abc.abstractmethod
    def exchange(self, peers: Peers, shared: Any, memory: Memory, step: Any) -> tuple[Any, Memory]:
        """Exchange with the neighbours: x^r and the step s^r give x^{r+1}."""

    def start_optimiser(self, task: Task, params: Any) -> Any:
        """Return the state of one client's optimiser."""
        return self.optimiser().init(params)

    def descend(
        self, task: Task, variables: Variables, optimiser: Any, clients: Clients, key: jax.Array
    ) -> tuple[Variables, Any, jax.Array]:
        """Train one client for a round: its model, its optimiser and its mean loss."""
        trained = self.train(task, variables, clients.train, key, optimiser_state=optimiser)
        return trained.variables, trained.optimiser, trained.loss

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        optimiser = jax.vmap(lambda params: self.start_optimiser(task, params))(variables.params)
        return State(variables, optimiser, self.remember(task.shared(variables.params)))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train locally and exchange."""

        def train(variables: Variables, optimiser: Any, clients: Clients, key: jax.Array) -> Any:
            return self.descend(task, variables, optimiser, clients, key)

        trained, optimiser, loss = peers.each(train, state.variables, state.optimiser, clients, peers.keys(key))
        before, after = task.shared(state.variables.params), task.shared(trained.params)
        shared, memory = self.exchange(peers, before, state.memory, tree.minus(before, after))
        variables = Variables(task.join(shared, trained.params), trained.statistics)
        return State(variables, optimiser, memory), Info(loss, jnp.where(peers.present, peers.weights, 0))

    def models(self, state: State) -> Variables:
        """Return each client's own model."""
        return state.variables
