"""An affine layer before any model: a transform of the inputs that can be personal.

Microphones, sensors and scanners record the same things differently. Lu et al. 2022 give every client an affine layer
on the features of a frame, initialised as the identity, and share the network after it (`model.input_affine = true`,
`model.personal = ["input"]`).
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from coterie.errors import CoterieError

__all__ = ["AffineInput", "affine_input"]


class InputLayer(eqx.Module):
    """`weight [features, features]` and `bias [features]`, on the last axis of a sample."""

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        """Transform every row of features of one sample."""
        return x @ self.weight.T + self.bias


class AffineInput(eqx.Module):
    """Parameters `input.weight`, `input.bias`, and those of the model under `model`."""

    input: InputLayer
    model: Any

    def __call__(self, x: Array, *rest: Any, key: Array | None = None) -> Any:
        """Apply the model to the transformed sample; `rest` are its batch statistics, if it has any."""
        keyed = "key" in inspect.signature(type(self.model).__call__).parameters
        return self.model(self.input(x), *rest, **({"key": key} if keyed else {}))


def affine_input(build: Callable[[Array], Any], shape: tuple[int, ...]) -> Callable[[Array], Any]:
    """Return a function of a key that builds the model with an affine layer before it, initialised as the identity.

    Args:
        build: a function of a key that returns a module, or the pair `eqx.nn.make_with_state` returns.
        shape: the shape of a sample; its last axis has the features that are transformed.
    """
    if not shape:
        raise CoterieError("model.input_affine needs samples with at least one axis of features")

    def built(key: Array) -> Any:
        made = build(key)
        layer = InputLayer(jnp.eye(shape[-1]), jnp.zeros(shape[-1]))
        return (AffineInput(layer, made[0]), made[1]) if isinstance(made, tuple) else AffineInput(layer, made)

    return built
