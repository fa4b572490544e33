"""FedAvg through Apple's pfl: FederatedAveraging on its simulated backend; several processes under `torchrun`."""

import importlib.metadata
from typing import Any

import numpy as np
import torch
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from torch_network import Network, numpy_weights


class Classifier(Network):
    """The model with the two methods that pfl calls."""

    def loss(self, x: Any, y: Any) -> Any:
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: Any, y: Any) -> dict[str, Any]:
        return {}


class Marks(TrainingProcessCallback):
    """Marks the clock before the first round and after each block."""

    def __init__(self, work: workload.Workload, clock: workload.Clock):
        self.work, self.clock = work, clock

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.clock.mark()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        if (central_iteration + 1) % self.work.block == 0:
            self.clock.mark()
        return False, Metrics()


def clients_of(work: workload.Workload) -> FederatedDataset:
    """Return the clients; pfl does not shuffle, so a client's samples come in a new order each time."""
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)

    def client(number: int) -> PyTorchTensorDataset:
        order = torch.randperm(work.samples)
        return PyTorchTensorDataset((x[number][order], y[number][order]), user_id=str(number))

    everyone = list(range(work.clients))
    return FederatedDataset(client, get_user_sampler("minimize_reuse", everyone))


def main() -> None:
    args = workload.arguments(__doc__)
    torch.set_num_threads(args.threads)
    np.random.seed(0)
    for file in args.workloads:
        work, clock = workload.read(file, args.block), workload.Clock()
        module = Classifier(work)
        model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
        clients, rounds = clients_of(work), work.block * work.blocks
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=work.clients,
                val_cohort_size=0,
            ),
            SimulatedBackend(training_data=clients, val_data=clients),
            model,
            NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch),
            callbacks=[Marks(work, clock)],
            send_metrics_to_platform=False,
        )
        if get_framework_module().distributed.global_rank == 0:
            software = f"pfl {importlib.metadata.version('pfl')}, PyTorch {torch.__version__}"
            workload.report(args, file, work, clock, numpy_weights(dict(module.named_parameters())), software=software)


if __name__ == "__main__":
    main()
