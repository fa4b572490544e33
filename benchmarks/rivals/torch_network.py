"""The two models in PyTorch, and one client's local training, as the loop, Flower and pfl use them."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from workload import Workload

__all__ = ["Network", "local_training", "network", "numpy_weights"]


class Network(nn.Module):
    """The MLP or the CNN of a workload, with the workload's names and first weights."""

    def __init__(self, work: Workload):
        super().__init__()
        for name in dict.fromkeys(key.partition(".")[0] for key in work.weights):
            outputs, inputs, *kernel = work.weights[f"{name}.weight"].shape
            self.add_module(name, nn.Conv2d(inputs, outputs, kernel[0]) if kernel else nn.Linear(inputs, outputs))
        self.load_state_dict({name: torch.from_numpy(value) for name, value in work.weights.items()})
        self.convolutional = work.convolutional

    def forward(self, x: Any) -> Any:
        if self.convolutional:
            # The maximum and ReLU commute; this order rectifies a quarter of the numbers.
            x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
            x = functional.relu(functional.max_pool2d(self.conv2(x), 2)).flatten(1)
        return self.fc2(functional.relu(self.fc1(x)))


def network(work: Workload, place: str = "cpu") -> Network:
    """Return the model with the first weights."""
    return Network(work).to(place)


def local_training(model: nn.Module, x: Any, y: Any, work: Workload) -> None:
    """Train one client for a round: passes over its samples, each in a new order."""
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for rows in torch.randperm(len(x), device=x.device).split(work.batch):
            optimiser.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()


def numpy_weights(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return tensors by name as arrays on the host."""
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}
