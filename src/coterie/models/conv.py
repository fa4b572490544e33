"""Convolution as shifted slices and one matrix product, because every client has its own kernels.

Mapped over clients, `lax.conv_general_dilated` becomes a grouped convolution, which XLA runs ten times slower than it
could. The same sum written as slices and a product becomes one batched matrix product
`[clients; batch * height * width, kernel * channels] x [clients; kernel * channels, outputs]`. Pixels are channel-last
here so that a shifted slice is a contiguous row of channels; kernels keep PyTorch's layout.
"""

from collections.abc import Sequence
from typing import cast

import jax.numpy as jnp
from jax import Array, lax

from coterie.errors import CoterieError

__all__ = ["Padding", "Pair", "conv2d", "explicit_padding", "max_pool", "pair"]

Pair = int | Sequence[int]
Padding = str | int | Sequence[int] | Sequence[Sequence[int]]


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """Convolve one channel-last image.

    Args:
        x: `[height, width, channels]`.
        weight: `[outputs, channels / groups, kernel height, kernel width]`, as PyTorch stores it.
        bias: `[outputs]` or None.
        stride: step of the window, one number or one per dimension.
        padding: zeros around the image: a number, one per dimension, (before, after) per dimension, "SAME",
            "SAME_LOWER" or "VALID".
        dilation: distance between the kernel's taps.
        groups: number of groups of channels that are convolved separately.

    Returns:
        `[height', width', outputs]`.
    """
    outputs, channels, *kernel = weight.shape
    strides, dilations = pair(stride), pair(dilation)
    pads = explicit_padding(x.shape[:2], kernel, strides, padding, dilations)
    x = lax.pad(x, jnp.zeros((), x.dtype), [(*pads[0], 0), (*pads[1], 0), (0, 0, 0)])
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if x.shape[0] < reach[0] or x.shape[1] < reach[1]:
        raise CoterieError(
            f"a convolution of {reach[0]}x{reach[1]} does not fit an image of {x.shape[0]}x{x.shape[1]} (padding "
            "included); use padding 'same', a smaller kernel, or larger images"
        )
    height, width = ((size - r) // s + 1 for size, r, s in zip(x.shape[:2], reach, strides, strict=True))

    # Rows first, then columns: k + k concatenations instead of k * k, in the order (column, row, channel).
    starts = [[k * d for k in range(size)] for size, d in zip(kernel, dilations, strict=True)]
    rows = jnp.concatenate([_window(x, start, height, strides[0], axis=0) for start in starts[0]], axis=-1)
    patches = jnp.concatenate([_window(rows, start, width, strides[1], axis=1) for start in starts[1]], axis=-1)
    kernels = weight.transpose(0, 3, 2, 1)
    if groups == 1:
        # [outputs, patch] rather than [patch, outputs]: its gradient then transposes the smaller of the two factors.
        result = jnp.einsum("hwp,op->hwo", patches, kernels.reshape(outputs, -1))
    else:
        taps = patches.reshape(height, width, kernel[0] * kernel[1], groups, channels)
        kernels = kernels.reshape(groups, outputs // groups, kernel[0] * kernel[1], channels)
        result = _grouped(taps, kernels).reshape(height, width, outputs)
    return result if bias is None else result + bias


def _window(x: Array, start: int, length: int, stride: int, axis: int) -> Array:
    return lax.slice_in_dim(x, start, start + (length - 1) * stride + 1, stride, axis)


def _grouped(taps: Array, kernels: Array) -> Array:
    """Return `[height, width, groups, outputs per group]`."""
    if kernels.shape[3] > 1:
        return jnp.einsum("hwkgc,gokc->hwgo", taps, kernels)
    # One channel per group (depthwise): such a product would be mostly overhead, so multiply and add.
    return sum(taps[:, :, k] * kernels[:, :, k, 0] for k in range(kernels.shape[2]))  # type: ignore[return-value]


def pair(value: Pair) -> tuple[int, int]:
    """Return one number per dimension."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def explicit_padding(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (before, after) for each of the two dimensions."""
    if isinstance(padding, str):
        reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
        return [(int(lo), int(hi)) for lo, hi in lax.padtype_to_pads(size, reach, stride, padding.upper())]
    if isinstance(padding, int):
        return [(padding, padding)] * 2
    if isinstance(padding[0], int):
        return [(p, p) for p in cast(Sequence[int], padding)]
    return [(lo, hi) for lo, hi in cast(Sequence[Sequence[int]], padding)]


def max_pool(x: Array) -> Array:
    """Take the maximum of each 2x2 square of a channel-last image.

    An odd last row or column is left out, as in PyTorch. Uses a reshape and a maximum, since the gradient of
    `reduce_window` is slow; equal maxima share their gradient.
    """
    height, width, channels = x.shape[0] // 2, x.shape[1] // 2, x.shape[2]
    return x[: 2 * height, : 2 * width].reshape(height, 2, width, 2, channels).max((1, 3))
