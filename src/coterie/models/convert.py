"""Make a user's own Equinox module fast: its convolutions are replaced by ours, with the same parameters and results.

Transposed and three-dimensional convolutions, and subclasses that change what a convolution does, are not replaced:
they work, only more slowly.
"""

from typing import Any, TypeVar, cast

import equinox as eqx
import jax

from coterie.models.layers import Conv1d, Conv2d, PaddingMode

__all__ = ["replace_convolutions"]

Module = TypeVar("Module")


def replace_convolutions(module: Module) -> Module:
    """Return a copy in which every `eqx.nn.Conv1d` and `eqx.nn.Conv2d` is ours (see `coterie.models.conv` for why).

    Names and weights stay; a bias `[outputs, 1, 1]` becomes `[outputs]`, as in PyTorch.
    """
    return jax.tree.map(lambda node: _ours(node) if _is_convolution(node) else node, module, is_leaf=_is_convolution)


def _is_convolution(node: Any) -> bool:
    known = type(node) in (eqx.nn.Conv, eqx.nn.Conv1d, eqx.nn.Conv2d)
    return known and node.num_spatial_dims in (1, 2)


def _ours(layer: eqx.nn.Conv) -> Conv1d | Conv2d:
    weight = layer.weight
    bias = None if layer.bias is None else layer.bias.reshape(layer.out_channels)
    mode = cast(PaddingMode, layer.padding_mode.lower())
    if layer.num_spatial_dims == 2:
        return Conv2d(weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups, mode)
    padding = layer.padding if isinstance(layer.padding, str) else layer.padding[0]
    return Conv1d(weight, bias, layer.stride[0], padding, layer.dilation[0], layer.groups, mode)
