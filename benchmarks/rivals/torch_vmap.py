"""FedAvg as the best PyTorch we can write: `torch.func.vmap` over clients, convolutions as matrix products.

With --graph (GPU) a whole round is captured in a CUDA graph, so that no step waits for Python; with --compile (CPU) the
step is compiled by `torch.compile`.
"""

from typing import Any

import torch
import workload
from torch.func import grad, vmap
from torch.nn import functional
from torch_network import numpy_weights


def convolution(x: Any, weight: Any, bias: Any) -> Any:
    """Convolve channel-last images `[batch, height, width, channels]` as one matrix product."""
    height, width = (x.shape[1] - weight.shape[2] + 1, x.shape[2] - weight.shape[3] + 1)
    # Shifted slices, rows first and then columns: the gradients of `unfold` are not batched by vmap, and these are.
    rows = torch.cat([x[:, i : i + height] for i in range(weight.shape[2])], -1)
    patches = torch.cat([rows[:, :, j : j + width] for j in range(weight.shape[3])], -1)
    return patches @ weight.permute(0, 3, 2, 1).flatten(1).T + bias


def largest(x: Any) -> Any:
    """Return the maxima of 2x2 squares of channel-last images."""
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).amax((2, 4))


def loss(weights: dict[str, Any], x: Any, y: Any) -> Any:
    """Return the mean loss of one client's batch."""
    if "conv1.weight" in weights:
        x = x.permute(0, 2, 3, 1)
        for name in ("conv1", "conv2"):
            x = functional.relu(largest(convolution(x, weights[f"{name}.weight"], weights[f"{name}.bias"])))
        x = x.permute(0, 3, 1, 2).flatten(1)
    x = functional.relu(x @ weights["fc1.weight"].T + weights["fc1.bias"])
    return functional.cross_entropy(x @ weights["fc2.weight"].T + weights["fc2.bias"], y)


class Rounds:
    """The rounds of a workload: `shared` is the hub's model."""

    def __init__(self, work: workload.Workload, place: str, compiled: bool):
        self.work = work
        self.x, self.y = torch.from_numpy(work.x).to(place), torch.from_numpy(work.y).to(place)
        self.shared = {name: torch.from_numpy(value).to(place) for name, value in work.weights.items()}
        self.everyone = torch.arange(work.clients, device=place)[:, None]
        self.step = torch.compile(self._step) if compiled else self._step

    def _step(self, weights: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        gradients = vmap(grad(loss))(weights, x, y)
        return {name: value - self.work.lr * gradients[name] for name, value in weights.items()}

    def one(self) -> None:
        """Train every client from the hub's model, then average."""
        work = self.work
        weights = {name: value.expand(work.clients, *value.shape).clone() for name, value in self.shared.items()}
        for _ in range(work.epochs):
            order = torch.rand(work.clients, work.samples, device=self.x.device).argsort(1)
            for rows in order.split(work.batch, 1):
                weights = self.step(weights, self.x[self.everyone, rows], self.y[self.everyone, rows])
        for name, value in weights.items():
            self.shared[name].copy_(value.mean(0))


def captured(rounds: Rounds) -> Any:
    """Return a round as a CUDA graph; the hub's model is as it was before."""
    before = {name: value.clone() for name, value in rounds.shared.items()}
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        rounds.one()  # libraries choose their kernels before the capture
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rounds.one()
    for name, value in before.items():
        rounds.shared[name].copy_(value)
    return graph.replay


def main() -> None:
    flag = {"action": "store_true"}
    args = workload.arguments(__doc__, graph=flag, compile=flag)
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as JAX does
    place = "cuda" if args.device == "gpu" else "cpu"
    for file in args.workloads:
        work, clock = workload.read(file, args.block), workload.Clock()
        rounds = Rounds(work, place, args.compile)
        clock.mark()
        one = captured(rounds) if args.graph else rounds.one
        for _ in range(work.blocks):
            for _ in range(work.block):
                one()
            if place == "cuda":
                torch.cuda.synchronize()
            clock.mark()
        workload.report(args, file, work, clock, numpy_weights(rounds.shared), software=f"PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
