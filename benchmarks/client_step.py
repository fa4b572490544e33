"""One SGD step of all clients, against a PyTorch loop over clients on the same device in the same run.

    python benchmarks/client_step.py --model cnn --device gpu          # FedAvg's CIFAR CNN, batch 10, 100 clients
    python benchmarks/client_step.py --model mlp --device cpu          # 784-64-10
    python benchmarks/client_step.py --model cnn --device gpu --augment
    python benchmarks/client_step.py --model lstm --device gpu --clients 20 --batch 10   # Shakespeare's LSTM

The step is timed as `coterie run` does it: in FedAvg rounds of many local steps, without compilation.
Both sides use float32 storage; matrix units may round products to TF32 (JAX's and cuDNN's default).
"""

import argparse
import time
from typing import Any

import jax
import numpy as np
from common import best_of, federation, publish, texts

from coterie.experiment.device import Device, choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.plan import plan_for
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.models.augment import Augment
from coterie.models.cnn import Cnn
from coterie.models.lstm import Lstm
from coterie.models.mlp import Mlp

SHAPES = {"cnn": (3, 32, 32), "mlp": (784,), "lstm": (80,)}
CLASSES = {"cnn": 10, "mlp": 10, "lstm": 80}


def ours(args: argparse.Namespace, device: Device, augment: Augment | None, mode: str = "auto") -> float:
    """Return seconds for one step of all clients."""
    model = {"cnn": Cnn(), "mlp": Mlp(hidden=(64,)), "lstm": Lstm()}[args.model]
    make = texts if args.model == "lstm" else federation
    data = make(args.clients, args.samples, SHAPES[args.model], CLASSES[args.model])
    task = Task.of(data, model, augment=augment)
    engine = Engine(task, data, device, plan_for(task, data, device, mode))
    method = FedAvg(lr=0.01, batch_size=args.batch, steps=args.steps)
    training = Training(engine, method, Graph.empty(args.clients), np.zeros((args.clients, 0)), 0)
    state, _ = training.init()

    def block() -> None:
        nonlocal state
        state, _ = training.advance(state, 1, args.rounds)
        jax.block_until_ready(state)

    return best_of(args.repeats, block) / (args.rounds * args.steps)


def torch_loop(args: argparse.Namespace, kind: str) -> float:
    """Return seconds for one step of all clients in a PyTorch loop over clients, as other libraries simulate them."""
    import torch
    from torch import nn

    place = torch.device("cuda" if kind == "gpu" else "cpu")

    class Characters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(80, 8), nn.LSTM(8, 256, 2, batch_first=True)
            self.fc = nn.Linear(256, 80)

        def forward(self, x: Any) -> Any:
            return self.fc(self.lstm(self.embedding(x))[0]).transpose(1, 2)

    def build() -> Any:
        if args.model == "lstm":
            return Characters()
        if args.model == "mlp":
            return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        convolutions = [
            nn.Conv2d(3, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10))

    models = [build().to(place) for _ in range(args.clients)]
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models]
    shape, classes = (args.clients, args.samples, *SHAPES[args.model]), CLASSES[args.model]
    if args.model == "lstm":
        x, y = (torch.randint(0, classes, shape, device=place) for _ in range(2))
    else:
        x, y = torch.randn(shape, device=place), torch.randint(0, classes, shape[:2], device=place)
    loss_of = nn.CrossEntropyLoss()

    def sweep() -> None:
        for c in range(args.clients):
            picked = torch.randint(0, args.samples, (args.batch,), device=place)
            optimisers[c].zero_grad()
            loss_of(models[c](x[c, picked]), y[c, picked]).backward()
            optimisers[c].step()
        if kind == "gpu":
            torch.cuda.synchronize()

    return best_of(args.loop_repeats, sweep)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="cnn")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop-repeats", type=int, default=5)
    parser.add_argument("--augment", action="store_true", help="also time random crop and flip")
    parser.add_argument("--both-modes", action="store_true", help="also time the exact mode (CPU)")
    parser.add_argument("--no-rival", action="store_true")
    args = parser.parse_args()
    device = choose_device(args.device)
    began = time.time()
    seconds = ours(args, device, None)
    figures: dict[str, Any] = {"clients": args.clients, "batch": args.batch, "model": args.model}
    figures["coterie_ms_per_step_of_all_clients"] = round(1e3 * seconds, 3)
    if args.both_modes:
        for mode in ("exact", "fast"):
            figures[f"coterie_{mode}_ms"] = round(1e3 * ours(args, device, None, mode), 3)
    if args.augment:
        augmented = ours(args, device, Augment(crop=4, flip=True))
        figures["augmented_ms"] = round(1e3 * augmented, 3)
        figures["augmented_over_plain"] = round(augmented / seconds, 3)
    if not args.no_rival:
        loop = torch_loop(args, device.platform)
        figures["torch_loop_ms"] = round(1e3 * loop, 2)
        figures["times_faster_than_torch_loop"] = round(loop / seconds, 1)
    figures["benchmark_seconds"] = round(time.time() - began, 1)
    batch = "" if args.batch == 10 else f"-batch-{args.batch}"
    publish(f"client-step-{args.model}{batch}", device.label, figures)


if __name__ == "__main__":
    main()
