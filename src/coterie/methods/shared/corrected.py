"""Base of gossip methods with a correction: local training, then an exchange that makes all clients agree exactly.

A round is a client's local training and one exchange, as in `gossip-sgd`; with `steps = 1` it is one iteration of the
papers. The correction works with the step s^r, the shared parameters before minus after local training: eta_r g^r for
a single step, the sum of these for several. Layers named in `model.personal` are trained too but never sent.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.consensus.primal_dual import Memory
from coterie.data.clients import Clients
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology
from coterie.methods.sends import MODEL, Sends
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import spec

__all__ = ["CorrectedSGD", "State"]


class State(NamedTuple):
    """Each client's model, its optimiser, and the memory of the correction."""

    variables: Variables
    optimiser: Any
    memory: Memory


@spec
class CorrectedSGD(LocalSGD, Method):
    """Local training and a corrected exchange, which subclasses define."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {"mix": MODEL}
    newcomer: ClassVar[Newcomer] = "shared"
    # If Metropolis weights W have no eigenvalue below -1/3, (I + W) / 2 has none below 1/3, and `spd` is then stable
    # for all steps up to 1 / curvature, also for several local steps; with W far smaller.
    default_weights: ClassVar[str] = "lazy-metropolis"

    @abc.abstractmethod
    def remember(self, shared: Any) -> Memory:
        """Return the memory before the first round."""

    @abc.abstractmethod
    def exchange(self, peers: Peers, shared: Any, memory: Memory, step: Any) -> tuple[Any, Memory]:
        """Exchange with the neighbours: compute x^{r+1} from x^r and the step s^r."""

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
