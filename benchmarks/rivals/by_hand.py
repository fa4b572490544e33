"""What the experiment must give, in NumPy and by hand: the models' outputs, their gradients and FedAvg.

It decides what is measured, not how fast: every program's final weights are scored here, and on a workload where a
client's samples are one batch, so that nothing is left to chance, all programs must reach these weights.
"""

import numpy as np
from workload import Workload

__all__ = ["fedavg", "score"]

Weights = dict[str, np.ndarray]


def _convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the convolution of channel-first images, and the patches it saw `[batch, height, width, patch]`."""
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3)).transpose(0, 2, 3, 1, 4, 5)
    patches = windows.reshape(*windows.shape[:3], -1)
    return (patches @ weight.reshape(len(weight), -1).T + bias).transpose(0, 3, 1, 2), patches


def _squares(x: np.ndarray) -> np.ndarray:
    """Return the 2x2 squares of images, `[batch, channels, height / 2, width / 2, 4]`; odd ends are left out."""
    batch, channels, height, width = x.shape
    x = x[:, :, : height // 2 * 2, : width // 2 * 2].reshape(batch, channels, height // 2, 2, width // 2, 2)
    return x.transpose(0, 1, 2, 4, 3, 5).reshape(batch, channels, height // 2, width // 2, 4)


def _forward(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, list]:
    """Return the outputs for a batch, and what the gradient needs of each layer."""
    kept = []
    if "conv1.weight" in weights:
        for name in ("conv1", "conv2"):
            full, patches = _convolve(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
            squares = _squares(full)
            best = squares.argmax(-1)
            kept.append((x.shape, full.shape, patches, best))
            x = np.maximum(np.take_along_axis(squares, best[..., None], -1)[..., 0], 0)
            kept.append(x)
    flat = x.reshape(len(x), -1)
    hidden = np.maximum(flat @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    return hidden @ weights["fc2.weight"].T + weights["fc2.bias"], [*kept, flat, hidden]


def _probabilities(outputs: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Return the gradient of the mean cross-entropy of a batch."""
    outputs, (*kept, flat, hidden) = _forward(weights, x)
    slope = (_probabilities(outputs) - np.eye(outputs.shape[1])[y]) / len(y)
    found = {"fc2.weight": slope.T @ hidden, "fc2.bias": slope.sum(0)}
    slope = slope @ weights["fc2.weight"] * (hidden > 0)
    found |= {"fc1.weight": slope.T @ flat, "fc1.bias": slope.sum(0)}
    slope = slope @ weights["fc1.weight"]
    for name in ("conv2", "conv1") if kept else ():
        after, (before, full, patches, best) = kept.pop(), kept.pop()
        slope = slope.reshape(after.shape) * (after > 0)
        spread = np.zeros(full)
        batch, channel, row, column = np.indices(best.shape)
        spread[batch, channel, 2 * row + best // 2, 2 * column + best % 2] = slope
        kernels = weights[f"{name}.weight"]
        by_place = spread.transpose(0, 2, 3, 1).reshape(-1, len(kernels))
        found[f"{name}.weight"] = (by_place.T @ patches.reshape(len(by_place), -1)).reshape(kernels.shape)
        found[f"{name}.bias"] = by_place.sum(0)
        parts = (by_place @ kernels.reshape(len(kernels), -1)).reshape(len(spread), *full[2:], *kernels.shape[1:])
        slope = np.zeros(before)
        for i, j in np.ndindex(*kernels.shape[2:]):
            slope[:, :, i : i + full[2], j : j + full[3]] += parts[..., i, j].transpose(0, 3, 1, 2)
    return found


def fedavg(work: Workload) -> Weights:
    """Return the weights after all rounds, in float64, for a workload whose clients have one batch each."""
    if work.samples != work.batch:
        raise ValueError("the order of the samples is chance: only a client with a single batch has an exact answer")
    shared = {name: value.astype(np.float64) for name, value in work.weights.items()}
    for _ in range(work.block * work.blocks):
        total = {name: np.zeros_like(value) for name, value in shared.items()}
        for x, y in zip(work.x.astype(np.float64), work.y, strict=True):
            own = shared
            for _ in range(work.epochs):
                slope = _gradient(own, x, y)
                own = {name: value - work.lr * slope[name] for name, value in own.items()}
            for name in total:
                total[name] += own[name] / work.clients
        shared = total
    return shared


def score(weights: Weights, work: Workload) -> float:
    """Return the share of the test samples that a model gets right."""
    right = 0
    for start in range(0, len(work.y_test), 500):
        outputs, _ = _forward(weights, work.x_test[start : start + 500])
        right += int((outputs.argmax(1) == work.y_test[start : start + 500]).sum())
    return right / len(work.y_test)
