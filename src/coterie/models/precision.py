"""A model that computes in bfloat16 with weights that stay in float32.

bfloat16 has the range of float32 and 8 significant bits: products, convolutions and activations can do with it. What
adds up many numbers or small differences cannot, and stays in float32: the normalisation layers (their own weights,
too), the mixture of an ensemble, the cell of an LSTM, and everything outside the model (`learning/task.py`).
"""

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.models.ensemble import Ensemble
from coterie.models.layers import GroupNorm
from coterie.models.torch_modules import Norm

__all__ = ["in_bfloat16", "like"]

Tree = TypeVar("Tree")

# They take bfloat16, compute in float32 with weights of float32, and return bfloat16.
NORMS = (GroupNorm, Norm, eqx.nn.GroupNorm, eqx.nn.LayerNorm, eqx.nn.RMSNorm)


class WideBatchNorm(eqx.nn.BatchNorm):
    """Equinox's batch norm with its statistics in float32, whatever the type of the input."""

    def __call__(self, x: Array, state: Any, **options: Any) -> tuple[Array, Any]:
        """Return the normalised sample in the type of `x`, and the statistics."""
        y, state = super().__call__(x.astype(jnp.promote_types(x.dtype, jnp.float32)), state, **options)
        return y.astype(x.dtype), state


def in_bfloat16(module: Tree) -> Tree:
    """Return a module whose arrays are rounded to bfloat16 where it may compute in it; gradients reach the originals.

    The gradient with respect to the original array has the original's type, since that is what rounding transposes to.
    """

    def apart(node: Any) -> bool:
        return isinstance(node, (*NORMS, eqx.nn.BatchNorm, Ensemble))

    def rounded(node: Any) -> Any:
        if isinstance(node, eqx.nn.BatchNorm):
            return _wide(node)
        if isinstance(node, Ensemble):
            return dataclasses.replace(node, members=in_bfloat16(node.members))
        return node.astype(jnp.bfloat16) if not apart(node) and eqx.is_inexact_array(node) else node

    return jax.tree.map(rounded, module, is_leaf=apart)


def like(values: Tree, wanted: Tree) -> Tree:
    """Return arrays in the types of others of the same structure."""
    return jax.tree.map(lambda a, other: a.astype(other.dtype), values, wanted)


def _wide(layer: eqx.nn.BatchNorm) -> WideBatchNorm:
    """Return the same layer, as the subclass; its constructor would make new weights."""
    wide = object.__new__(WideBatchNorm)
    for field in dataclasses.fields(layer):
        if hasattr(layer, field.name):
            object.__setattr__(wide, field.name, getattr(layer, field.name))
    return wide
