"""Fully connected layers, for tables and small images."""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Mlp", "MlpNetwork"]

ACTIVATIONS = {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}


@spec
class Mlp:
    """Fully connected layers on the flattened input."""

    hidden: tuple[int, ...] = param((64,), "number of units of each hidden layer")
    activation: Literal["relu", "sigmoid", "tanh"] = param("relu", "activation function after each hidden layer")
    dropout: float = param(0.0, "share of the hidden units dropped while training", at_least=0, below=1)

    def __post_init__(self) -> None:
        if any(units < 1 for units in self.hidden):
            raise CoterieError(f"hidden must hold layer sizes of at least 1, not {list(self.hidden)}")

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "MlpNetwork":
        """Return a network for samples of this shape."""
        sizes = (math.prod(shape), *self.hidden, outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        return MlpNetwork(layers, eqx.nn.Dropout(self.dropout), self.activation)


class MlpNetwork(eqx.Module):
    """Parameters `layers.0.weight`, `layers.0.bias`, `layers.1.weight`, ..., as in a PyTorch `ModuleList`."""

    layers: tuple[eqx.nn.Linear, ...]
    dropout: eqx.nn.Dropout
    activation: str = eqx.field(static=True)

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs for one sample."""
        hidden = len(self.layers) - 1
        keys = [None] * hidden if key is None else [jax.random.fold_in(key, index) for index in range(hidden)]
        x = x.reshape(-1)
        for layer, layer_key in zip(self.layers[:-1], keys, strict=True):
            x = self.dropout(ACTIVATIONS[self.activation](layer(x)), key=layer_key)
        return self.layers[-1](x)
