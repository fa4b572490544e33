"""The convolutional network of the FedAvg paper (McMahan et al. 2017, section 3)."""

from typing import Literal

import equinox as eqx
import jax
from jax import Array

from coterie.errors import CoterieError
from coterie.models.conv import max_pool
from coterie.models.layers import Conv2d
from coterie.spec import param, spec

__all__ = ["Cnn", "CnnNetwork", "image_shape"]

KERNEL = 5


@spec
class Cnn:
    """Two 5x5 convolutions (32, 64 channels), each with a 2x2 maximum, then 512 units and the outputs."""

    padding: Literal["auto", "valid", "same"] = param(
        "auto", "zeros around each convolution: same keeps its size; auto is valid, or same below 16x16 pixels"
    )

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "CnnNetwork":
        """Return a network for channel-first images of this shape."""
        channels, *size = image_shape("cnn", shape)
        padding = self.padding
        if padding == "auto":
            padding = "valid" if min(size) >= 16 else "same"
        after = size
        for _ in range(2):
            after = [(n - (KERNEL - 1 if padding == "valid" else 0)) // 2 for n in after]
        if min(after) < 1:
            smallest = 16 if padding == "valid" else 4
            fix = ", or padding = 'same'" if padding == "valid" else "; linear and mlp take any size"
            raise CoterieError(
                f"model cnn with padding {padding!r} needs images of at least {smallest}x{smallest} pixels, not "
                f"{size[0]}x{size[1]}{fix}"
            )
        keys = jax.random.split(key, 4)
        return CnnNetwork(
            conv1=Conv2d.create(channels, 32, KERNEL, keys[0], padding=padding),
            conv2=Conv2d.create(32, 64, KERNEL, keys[1], padding=padding),
            fc1=eqx.nn.Linear(64 * after[0] * after[1], 512, key=keys[2]),
            fc2=eqx.nn.Linear(512, outputs, key=keys[3]),
        )


class CnnNetwork(eqx.Module):
    """Parameters `conv1`, `conv2`, `fc1`, `fc2`, each with `weight` and `bias` in PyTorch's layout."""

    conv1: Conv2d
    conv2: Conv2d
    fc1: eqx.nn.Linear
    fc2: eqx.nn.Linear

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs for one channel-first image."""
        x = x.transpose(1, 2, 0)
        # The maximum and ReLU commute; this order rectifies a quarter of the numbers.
        x = jax.nn.relu(max_pool(self.conv1(x)))
        x = jax.nn.relu(max_pool(self.conv2(x)))
        x = x.transpose(2, 0, 1).reshape(-1)  # PyTorch flattens (channel, row, column)
        return self.fc2(jax.nn.relu(self.fc1(x)))


def image_shape(model: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width), or refuse samples that are not images."""
    if len(shape) != 3:
        raise CoterieError(
            f"model {model} needs images of shape (channels, height, width), but a sample has shape {tuple(shape)}; "
            "choose linear or mlp"
        )
    return shape[0], shape[1], shape[2]
