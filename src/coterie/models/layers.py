"""The layers of our networks, with PyTorch's parameter names, layouts and initial distributions."""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.models.conv import Padding, Pair, conv2d, explicit_padding, pair

__all__ = ["Conv1d", "Conv2d", "GroupNorm", "PaddingMode", "rows_of", "uniform"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def uniform(key: Array, shape: tuple[int, ...], fan_in: int) -> Array:
    """Draw from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's initialisation of linear, convolution and LSTM layers."""
    bound = 1 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


@jax.custom_jvp
def rows_of(table: Array, numbers: Array) -> Array:
    """Return rows of a table, such as the embeddings of characters.

    Its derivative is a product with ones and zeros. JAX's own adds row by row, which GPUs do one after another where
    rows are bfloat16: a tenth of the time of a step of an LSTM.
    """
    return jnp.take(table, numbers, axis=0, mode="clip")


@rows_of.defjvp
def _rows_moved(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    table, numbers = primals
    which = jax.nn.one_hot(jnp.clip(numbers, 0, len(table) - 1), len(table), dtype=table.dtype)
    return rows_of(table, numbers), which @ tangents[0]


class Conv2d(eqx.Module):
    """A two-dimensional convolution through `conv2d`.

    Attributes:
        weight: `[outputs, inputs / groups, kernel height, kernel width]`.
        bias: `[outputs]` or None.
        channel_last: whether images are `[height, width, channels]` instead of `[channels, height, width]`.
    """

    weight: Array
    bias: Array | None
    stride: Pair = eqx.field(static=True, default=1)
    padding: Padding = eqx.field(static=True, default=0)
    dilation: Pair = eqx.field(static=True, default=1)
    groups: int = eqx.field(static=True, default=1)
    padding_mode: PaddingMode = eqx.field(static=True, default="zeros")
    channel_last: bool = eqx.field(static=True, default=False)

    @classmethod
    def create(
        cls, inputs: int, outputs: int, kernel: int, key: Array, *, padding: Padding = 0, channel_last: bool = True
    ) -> "Conv2d":
        """Return a layer with a square kernel and random parameters."""
        weight_key, bias_key = jax.random.split(key)
        fan_in = inputs * kernel * kernel
        weight = uniform(weight_key, (outputs, inputs, kernel, kernel), fan_in)
        return cls(weight, uniform(bias_key, (outputs,), fan_in), padding=padding, channel_last=channel_last)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Convolve one image."""
        if not self.channel_last:
            x = jnp.moveaxis(x, 0, -1)
        padding = self.padding
        if self.padding_mode != "zeros":
            kernel, stride, dilation = self.weight.shape[2:], pair(self.stride), pair(self.dilation)
            pads = explicit_padding(x.shape[:2], kernel, stride, padding, dilation)
            x, padding = jnp.pad(x, (*pads, (0, 0)), NUMPY_MODES[self.padding_mode]), 0
        x = conv2d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return x if self.channel_last else jnp.moveaxis(x, -1, 0)


class Conv1d(eqx.Module):
    """A one-dimensional convolution of `[channels, length]`: a two-dimensional one on an image of one row.

    Attributes:
        weight: `[outputs, inputs / groups, kernel]`.
        bias: `[outputs]` or None.
        padding: (before, after), or a word as in `conv2d`.
    """

    weight: Array
    bias: Array | None
    stride: int = eqx.field(static=True, default=1)
    padding: str | tuple[int, int] = eqx.field(static=True, default=(0, 0))
    dilation: int = eqx.field(static=True, default=1)
    groups: int = eqx.field(static=True, default=1)
    padding_mode: PaddingMode = eqx.field(static=True, default="zeros")

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Convolve one signal."""
        padding = self.padding if isinstance(self.padding, str) else ((0, 0), self.padding)
        stride, dilation = (1, self.stride), (1, self.dilation)
        row = Conv2d(self.weight[:, :, None], self.bias, stride, padding, dilation, self.groups, self.padding_mode)
        return row(x[:, None])[:, 0]


class GroupNorm(eqx.Module):
    """Group normalisation of one channel-last image (`eqx.nn.GroupNorm` needs the channels first)."""

    weight: Array
    bias: Array
    groups: int = eqx.field(static=True)
    eps: float = eqx.field(static=True, default=1e-5)

    @classmethod
    def create(cls, channels: int, groups: int) -> "GroupNorm":
        """Return a layer with scale 1 and shift 0."""
        return cls(jnp.ones(channels), jnp.zeros(channels), groups)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Normalise each group of channels to mean 0 and variance 1 over the image, then scale and shift channels."""
        kind, x = x.dtype, x.astype(jnp.promote_types(x.dtype, jnp.float32))  # bfloat16 is too short for a variance
        grouped = x.reshape(*x.shape[:2], self.groups, -1)
        mean = grouped.mean((0, 1, 3), keepdims=True)
        centred = grouped - mean
        variance = (centred * centred).mean((0, 1, 3), keepdims=True)
        normal = (centred / jnp.sqrt(variance + self.eps)).reshape(x.shape)
        return (normal * self.weight + self.bias).astype(kind)
