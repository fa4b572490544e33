"""Stacked LSTM layers with PyTorch's names and layouts: `weight_ih_l0`, ...; gates: input, forget, cell, output."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.models.recurrence import recur

__all__ = ["Recurrent", "lstm_layer"]

PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def lstm_layer(weights: Mapping[str, Array], name: str, inputs: Array, reverse: bool = False) -> Array:
    """Return the outputs `[length, hidden]` of one layer for inputs `[length, features]`.

    Args:
        weights: those of all layers.
        name: the end of this layer's names, such as "l0"; biases may be missing.
        inputs: in the order of time.
        reverse: whether the layer reads from the last step to the first; its outputs stay in the order of time.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = (weights.get(f"{part}_{name}") for part in PARTS)
    assert weight_ih is not None
    assert weight_hh is not None

    # The inputs' part does not depend on the past: one product for all times, outside the loop.
    input_part = inputs @ weight_ih.T
    input_part = input_part if bias_ih is None or bias_hh is None else input_part + (bias_ih + bias_hh)
    return recur(input_part[::-1], weight_hh)[::-1] if reverse else recur(input_part, weight_hh)


class Recurrent(eqx.Module):
    """Stacked LSTM layers: the outputs of the last one at every step, or at the last step.

    With two directions the outputs of both stand side by side, as PyTorch's do. Parameters are `lstm.weight_ih_l0`, ...
    """

    lstm: dict[str, Array]
    dropout: eqx.nn.Dropout
    layers: int = eqx.field(static=True)
    both_ways: bool = eqx.field(static=True)
    last_step: bool = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return the outputs `[length, hidden]`, or `[hidden]`, for one sample `[length, features]`."""
        for layer in range(self.layers):
            if layer:  # between layers, as PyTorch has it
                x = self.dropout(x, key=None if key is None else jax.random.fold_in(key, layer))
            outputs = [lstm_layer(self.lstm, f"l{layer}", x)]
            if self.both_ways:
                outputs.append(lstm_layer(self.lstm, f"l{layer}_reverse", x, reverse=True))
            x = jnp.concatenate(outputs, -1)
        return x[-1] if self.last_step else x
