"""FedAvg whose clients keep the normalisation layers of their models to themselves.

Li, Jiang, Zhang, Kamp, Dou 2021, *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*,
Algorithm 1. With w_k,l layer l of client k's model after local training,

    w_k,l <- 1 / K sum_j w_j,l     if layer l is not batch normalisation,     else w_k,l stays as it is,

so that clients whose inputs differ (scanners, cameras) normalise them each in its own way. Nothing had to be inferred.

Changed: clients count by their number of samples, as in `fedavg`. All normalisation layers stay, group and layer
normalisation too, since the built-in networks have group normalisation. The running statistics of batch normalisation
never travel here, whatever the method.
"""

from typing import ClassVar

import equinox as eqx

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task
from coterie.methods.base import Topology, method
from coterie.methods.fedavg import FedAvg
from coterie.models.layers import GroupNorm
from coterie.spec import param

__all__ = ["FedBN"]

NORMS = (eqx.nn.BatchNorm, eqx.nn.GroupNorm, eqx.nn.LayerNorm, eqx.nn.RMSNorm, GroupNorm)


@method
class FedBN(FedAvg):
    """FedAvg with personal normalisation layers."""

    topology: ClassVar[Topology] = "hub"
    personal: tuple[str, ...] = param((), "names of the layers that stay with the client; empty: normalisation layers")

    def adapt(self, task: Task) -> Task:
        """Return the task whose normalisation layers, and those of model.personal, are personal."""
        norms = [name for name in task.layers_of(NORMS) if any(known.startswith(f"{name}.") for known in task.names)]
        if not (self.personal or norms):
            raise CoterieError(
                "fedbn needs a model with normalisation layers (cnn4, mobilenet or your own), or names of layers in "
                f"method.personal (known: {', '.join(task.names)})"
            )
        return task.keeping((*task.personal, *(self.personal or norms)))

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse models without normalisation layers, before anything is compiled."""
        self.adapt(task)
