"""Training alone: the baseline that cooperation has to beat.

Each client runs SGD on its own data and keeps the model that is best on its own validation samples, so that the
baseline is not weakened by overfitting.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.evaluate import client_metrics
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Role, Topology, method
from coterie.methods.shared.stopping import Best, keep_best, start_best
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["Local"]


class State(NamedTuple):
    """The model in training, its optimiser, and the best model so far."""

    variables: Variables
    optimiser: Any
    best: Best


@method
class Local(LocalSGD, Method):
    """Train alone, with early stopping on the client's own validation samples."""

    topology: ClassVar[Topology] = "none"
    role: ClassVar[Role] = "alone"
    newcomer: ClassVar[Newcomer] = "none"
    patience: int = param(0, "rounds without a better validation loss before a client stops; 0: never", at_least=0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        optimiser = jax.vmap(self.optimiser().init)(variables.params)
        return State(variables, optimiser, start_best(variables, jnp.zeros(here, task.dtype)))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train every client on its own samples."""

        def train(variables: Variables, optimiser: Any, data: Split, held_out: Split, labels: Any, key: Any) -> Any:
            trained = self.train(task, variables, data, key, optimiser_state=optimiser)
            return trained, client_metrics(task, trained.variables, held_out, labels).loss

        trained, loss = peers.each(
            train,
            state.variables,
            state.optimiser,
            clients.train,
            clients.validation,
            clients.labels,
            peers.keys(key),
        )
        best = keep_best(state.best, trained.variables, loss, self.patience, clients.validation.count > 0)
        return State(trained.variables, trained.optimiser, best), Info(trained.loss)

    def models(self, state: State) -> Variables:
        """Return the best models so far."""
        return state.best.variables
