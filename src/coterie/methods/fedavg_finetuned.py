"""The shared model of federated averaging, fine-tuned on each client's own data before it is evaluated.

Yu, Bagdasaryan, Shmatikov 2020 (fine-tuning); the training itself is `fedavg`. The fine-tuned models are used for
evaluation only: they are never sent and never enter the next round.
"""

import jax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import method
from coterie.methods.fedavg import FedAvg, State
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed, is_off

__all__ = ["FedAvgFinetuned"]


@method
class FedAvgFinetuned(FedAvg):
    """The shared model, fine-tuned on each client's own data."""

    finetune_epochs: int = param(5, "passes over the client's data before evaluation", at_least=1)
    finetune_lr: float = param(0.0, "step size of the fine-tuning; 0: lr", at_least=0)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared model, before they are fine-tuned."""
        return state.variables

    def finetune(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> Variables:
        """Return each client's fine-tuned copy of the shared model."""
        rate = self.lr if is_off(self.finetune_lr) else self.finetune_lr
        tuner = changed(self, lr=rate)

        def tune(start: Variables, data: Split, key: jax.Array) -> Variables:
            return tuner.train(task, start, data, key, epochs=self.finetune_epochs).variables

        return peers.each(tune, state.variables, clients.train, peers.keys(key))
