"""A shared body trained under a head that nobody trains; before it is used, each client fine-tunes the model.

Oh, Kim, Yun 2022, *FedBABU: Towards Enhanced Representation for Federated Image Classification*, Algorithm 1. A model
is a body and a head, (theta_b, theta_h). During federated training the head keeps its random start, the same for all,
so that all clients fit one common criterion; only the body is trained, sent and averaged:

    theta_b,k <- theta_b,k - eta grad_b f_k(theta_b,k, theta_h),     theta_b <- sum_k n_k / n theta_b,k.

The personal model is the result of `finetune_epochs` passes over the client's own data, on the whole model or a part
of it.

Inferred: 5 passes, within the range that the paper tries (1 to 20). Clients count by their number of samples.
"""

from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.fedavg import FedAvg, State
from coterie.methods.shared.personal import KeepsLayers, slope_of_part
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["FedBABU"]


class Local(NamedTuple):
    """The result of one client's training."""

    variables: Variables
    loss: jax.Array


@method
class FedBABU(KeepsLayers, FedAvg):
    """A body averaged at a hub under a fixed head, then fine-tuned by each client."""

    topology: ClassVar[Topology] = "hub"
    alone_is_sgd: ClassVar[bool] = False  # the head is never trained
    finetune_epochs: int = param(5, "passes over the client's data before the model is used", at_least=1)
    finetunes: Literal["all", "head", "body"] = param("all", "what the client fine-tunes")

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train the body at the selected clients, average it at the hub."""

        def work(start: Variables, data: Split, key: jax.Array) -> Local:
            return self._train_part(task, start, data, key, "body")

        variables, loss, _ = self.average(task, *state, peers, clients, key, work)
        return State(variables, loss), Info(loss)

    def _train_part(
        self, task: Task, start: Variables, data: Split, key: jax.Array, which: str, epochs: int | None = None
    ) -> Local:
        body, head = task.shared(start.params), task.own(start.params)
        part, rest = {"body": (body, head), "head": (head, body), "all": (start.params, None)}[which]
        slope = None if rest is None else slope_of_part(task, rest)
        trained = self.train(task, Variables(part, start.statistics), data, key, slope=slope, epochs=epochs)
        params, statistics = trained.variables
        return Local(Variables(params if rest is None else eqx.combine(params, rest), statistics), trained.loss)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared body under the common head."""
        return state.variables

    def finetune(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> Variables:
        """Return each client's fine-tuned model."""

        def tune(start: Variables, data: Split, key: jax.Array) -> Variables:
            return self._train_part(task, start, data, key, self.finetunes, self.finetune_epochs).variables

        return peers.each(tune, state.variables, clients.train, peers.keys(key))
