"""MobileNet-v2 with group normalisation (Sandler et al. 2018): deep, yet small enough to send.

Group instead of batch normalisation: clients' batches are small and differ, and no statistics need to be sent.
Parameters have the names of torchvision's `mobilenet_v2(norm_layer=...)`, so that models can be exchanged with it.
"""

import math
from typing import Any, Literal

import equinox as eqx
import jax
from jax import Array

from coterie.errors import CoterieError
from coterie.models.cnn import image_shape
from coterie.models.layers import Conv2d, GroupNorm
from coterie.spec import param, spec

__all__ = ["InvertedResidual", "MobileNet", "MobileNetwork"]

# Stages: expansion, channels, blocks, stride of the first block (Sandler et al. 2018, Table 2).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM, LAST, UNIT = 32, 1280, 8


@spec
class MobileNet:
    """Seven stages of inverted residual blocks: widen, filter each channel, narrow, and add the input."""

    width: float = param(1.0, "factor on the number of channels", above=0)
    groups: int = param(8, "groups of channels that are normalised together", at_least=1)
    strides: Literal["small", "imagenet"] = param(
        "small", "imagenet: the paper's; small: two of them left out, for images of about 32 pixels"
    )

    def __post_init__(self) -> None:
        if UNIT % self.groups:
            raise CoterieError(f"groups must divide {UNIT}, which every number of channels is a multiple of")

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "MobileNetwork":
        """Return a network for channel-first images of this shape."""
        channels, _, _ = image_shape("mobilenet", shape)
        keys = iter(jax.random.split(key, 3 + sum(count for _, _, count, _ in STAGES)))
        width = self._channels(STEM)
        small = self.strides == "small"
        features: list[Any] = [self._unit(channels, width, 3, next(keys), stride=1 if small else 2)]
        for index, (expansion, wanted, count, stride) in enumerate(STAGES):
            for block in range(count):
                step = stride if block == 0 and not (small and index == 1) else 1
                next_width = self._channels(wanted)
                features.append(self._block(width, next_width, expansion, step, next(keys)))
                width = next_width
        last = self._channels(LAST) if self.width > 1 else LAST  # the paper never narrows the last layer
        features.append(self._unit(width, last, 1, next(keys)))
        return MobileNetwork(tuple(features), (None, eqx.nn.Linear(last, outputs, key=next(keys))))

    def _channels(self, wanted: int) -> int:
        """Scale and round to a multiple of 8, never down by more than a tenth, as torchvision does."""
        scaled = wanted * self.width
        rounded = max(UNIT, int(scaled + UNIT / 2) // UNIT * UNIT)
        return rounded + UNIT if rounded < 0.9 * scaled else rounded

    def _unit(
        self, inputs: int, outputs: int, kernel: int, key: Array, *, stride: int = 1, groups: int = 1
    ) -> tuple[Conv2d, GroupNorm]:
        return _conv(inputs, outputs, kernel, key, stride, groups), GroupNorm.create(outputs, self.groups)

    def _block(self, inputs: int, outputs: int, expansion: int, stride: int, key: Array) -> "InvertedResidual":
        widen, filter_, narrow = jax.random.split(key, 3)
        hidden = inputs * expansion
        units = [] if expansion == 1 else [self._unit(inputs, hidden, 1, widen)]
        units.append(self._unit(hidden, hidden, 3, filter_, stride=stride, groups=hidden))
        project = self._unit(hidden, outputs, 1, narrow)
        return InvertedResidual((*units, *project), stride == 1 and inputs == outputs)


def _conv(inputs: int, outputs: int, kernel: int, key: Array, stride: int, groups: int) -> Conv2d:
    """Return a convolution without bias, drawn as torchvision does: N(0, 2 / (kernel^2 outputs))."""
    deviation = math.sqrt(2 / (kernel * kernel * outputs / groups))
    weight = deviation * jax.random.normal(key, (outputs, inputs // groups, kernel, kernel))
    return Conv2d(weight, None, stride, kernel // 2, groups=groups, channel_last=True)


def _apply(unit: tuple[Conv2d, GroupNorm], x: Array) -> Array:
    return jax.nn.relu6(unit[1](unit[0](x)))


class InvertedResidual(eqx.Module):
    """Parameters `conv.0.0` (widen), `conv.1.0` (filter each channel), `conv.2` (narrow), each followed by its norm."""

    conv: tuple[Any, ...]
    residual: bool = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        """Return the next channel-last image."""
        *units, narrow, norm = self.conv
        y = x
        for unit in units:
            y = _apply(unit, y)
        y = norm(narrow(y))
        return x + y if self.residual else y


class MobileNetwork(eqx.Module):
    """Parameters `features.0.0`, ..., `features.18.1`, `classifier.1`, in PyTorch's layout."""

    features: tuple[Any, ...]
    classifier: tuple[None, eqx.nn.Linear]

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs for one channel-first image."""
        x = x.transpose(1, 2, 0)
        first, *blocks, last = self.features
        x = _apply(first, x)
        for block in blocks:
            x = block(x)
        return self.classifier[1](_apply(last, x).mean((0, 1)))
