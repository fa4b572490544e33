"""ResNet-18 (He, Zhang, Ren, Sun 2016) with group or batch normalisation.

With batch normalisation the running statistics stay with each client, whatever the method; its scales and shifts are
parameters like others (`fedbn` keeps them, too). Parameters have the names of torchvision's `resnet18`, so that models
can be exchanged with it.
"""

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.errors import CoterieError
from coterie.models.cnn import image_shape
from coterie.models.layers import Conv2d
from coterie.spec import param, spec

__all__ = ["Block", "ResNet18", "ResNetwork"]

STAGES = 4  # of two blocks each; every stage but the first halves the image and doubles the channels


@spec
class ResNet18:
    """Four stages of two residual blocks with 3x3 convolutions."""

    width: int = param(64, "channels of the first stage; doubled in each of the next three", at_least=1)
    norm: Literal["group", "batch"] = param("group", "normalisation; the statistics of batch stay with the client")
    groups: int = param(2, "for norm = group: groups of channels that are normalised together", at_least=1)
    stem: Literal["auto", "small", "imagenet"] = param(
        "auto", "imagenet: 7x7 with stride 2 and a maximum, the paper's; small: 3x3; auto: small below 64 pixels"
    )

    def __post_init__(self) -> None:
        if self.norm == "group" and self.width % self.groups:
            raise CoterieError(f"groups must divide width = {self.width}, not be {self.groups}")

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> Any:
        """Return a network for channel-first images of this shape; with batch norm, and its statistics."""
        channels, *size = image_shape("resnet18", shape)
        small = min(size) < 64 if self.stem == "auto" else self.stem == "small"
        keys = iter(jax.random.split(key, 2 + 3 * 2 * STAGES))
        stem = _convolution(channels, self.width, 3 if small else 7, 1 if small else 2, next(keys))
        stages, inputs = [], self.width
        for stage in range(STAGES):
            width, stride = self.width * 2**stage, 1 if stage == 0 else 2
            stages.append((self._block(inputs, width, stride, keys), self._block(width, width, 1, keys)))
            inputs = width
        head = eqx.nn.Linear(inputs, outputs, key=next(keys))
        one, two, three, four = stages
        network = ResNetwork(stem, self._norm(self.width), one, two, three, four, head, small)
        return eqx.nn.make_with_state(lambda: network)() if self.norm == "batch" else network

    def _block(self, inputs: int, width: int, stride: int, keys: Any) -> "Block":
        first, second, third = next(keys), next(keys), next(keys)
        downsample = None
        if stride > 1 or inputs != width:
            downsample = (_convolution(inputs, width, 1, stride, third), self._norm(width))
        return Block(
            _convolution(inputs, width, 3, stride, first),
            self._norm(width),
            _convolution(width, width, 3, 1, second),
            self._norm(width),
            downsample,
        )

    def _norm(self, channels: int) -> Any:
        if self.norm == "batch":
            return eqx.nn.BatchNorm(channels, "batch", momentum=0.9, mode="batch")
        return eqx.nn.GroupNorm(self.groups, channels)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, key: Array) -> Conv2d:
    """Return a convolution without bias, drawn as He et al. 2015 do (fan-out), channels first."""
    scale = math.sqrt(2 / (outputs * kernel * kernel))
    weight = scale * jax.random.normal(key, (outputs, inputs, kernel, kernel))
    return Conv2d(weight, None, stride=stride, padding=kernel // 2)


def _normalised(norm: Any, x: Array, state: Any) -> tuple[Array, Any]:
    """Return a normalised image, and the statistics, which only batch norm has."""
    return norm(x, state) if isinstance(norm, eqx.nn.BatchNorm) else (norm(x), state)


class Block(eqx.Module):
    """Two convolutions, and the input added to their result: `conv1`, `bn1`, `conv2`, `bn2`, `downsample`."""

    conv1: Conv2d
    bn1: Any
    conv2: Conv2d
    bn2: Any
    downsample: tuple[Any, Any] | None

    def __call__(self, x: Array, state: Any = None) -> tuple[Array, Any]:
        """Return the block's output for one image, and the statistics."""
        y, state = _normalised(self.bn1, self.conv1(x), state)
        y, state = _normalised(self.bn2, self.conv2(jax.nn.relu(y)), state)
        if self.downsample is not None:
            x, state = _normalised(self.downsample[1], self.downsample[0](x), state)
        return jax.nn.relu(x + y), state


class ResNetwork(eqx.Module):
    """Parameters `conv1`, `bn1`, `layer1.0.conv1`, ..., `layer4.1.bn2`, `fc`, in PyTorch's layout."""

    conv1: Conv2d
    bn1: Any
    layer1: tuple[Block, Block]
    layer2: tuple[Block, Block]
    layer3: tuple[Block, Block]
    layer4: tuple[Block, Block]
    fc: eqx.nn.Linear
    small: bool = eqx.field(static=True)

    def __call__(self, x: Array, *rest: Any, key: Array | None = None) -> Any:
        """Return the outputs for one channel-first image, and with batch norm the statistics."""
        state = rest[0] if rest else None
        x, state = _normalised(self.bn1, self.conv1(x), state)
        x = jax.nn.relu(x)
        if not self.small:
            x = eqx.nn.MaxPool2d(3, 2, 1)(x)
        for block in (*self.layer1, *self.layer2, *self.layer3, *self.layer4):
            x, state = block(x, state)
        outputs = self.fc(jnp.mean(x, (1, 2)))
        return (outputs, state) if rest else outputs
