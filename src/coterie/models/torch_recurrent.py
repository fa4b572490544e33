"""PyTorch's LSTM inside a `Sequential`: the layer, and the module after it that takes its outputs apart.

An LSTM returns a pair, (outputs, (hidden, cell)), which no layer of PyTorch takes. In a `Sequential` people put a small
module of their own after it:

    class LastStep(torch.nn.Module):
        def forward(self, returned):
            outputs, _ = returned
            return outputs[:, -1]          # or all of them: return outputs

Its class says nothing about what it does, so it is tried out, on arrays in which every number is different.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array

from coterie.errors import CoterieError
from coterie.models.recurrent import Recurrent

__all__ = ["convert_lstm"]

BATCH, LENGTH = 2, 3  # of the arrays that a module is tried on


def convert_lstm(layer: Any, after: Any, name: str, array: Callable[[Any], Any]) -> Recurrent:
    """Return an LSTM and the module after it as one layer.

    Args:
        layer: the LSTM.
        after: the module that takes what it returns; None: there is none.
        name: the LSTM's, for errors.
        array: makes an array of a tensor.
    """
    if getattr(layer, "proj_size", 0):
        raise CoterieError(f"from_torch: layer {name} is an LSTM with proj_size, which is not converted; leave it out")
    names = [
        f"{part}_l{number}{end}"
        for number in range(layer.num_layers)
        for end in ("", "_reverse")[: 2 if layer.bidirectional else 1]
        for part in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ()))
    ]
    weights: dict[str, Array] = {each: array(getattr(layer, each)) for each in names}
    last_step = _takes_last_step(layer, after, name)
    return Recurrent(weights, eqx.nn.Dropout(layer.dropout), layer.num_layers, bool(layer.bidirectional), last_step)


def _takes_last_step(layer: Any, after: Any, name: str) -> bool:
    """Try out which of an LSTM's outputs the next module takes: the last step's, or all."""
    ways = 2 if layer.bidirectional else 1
    # One sample after another, or one step after another: both are per sample what `Recurrent` computes.
    shape = (BATCH, LENGTH) if layer.batch_first else (LENGTH, BATCH)
    outputs = np.arange(np.prod(shape) * ways * layer.hidden_size, dtype=float).reshape(*shape, -1)
    last = outputs[:, -1] if layer.batch_first else outputs[-1]
    hidden = -1 - np.arange(ways * layer.num_layers * BATCH * layer.hidden_size, dtype=float)
    hidden = hidden.reshape(ways * layer.num_layers, BATCH, layer.hidden_size)
    if ways == 1:
        hidden[-1] = last  # what the last layer has at the end is its last output
    try:
        taken = after.forward((outputs, (hidden, hidden - outputs.size)))
    except Exception:  # a layer of PyTorch's does not take a pair, nor an array; what else it may raise is its own
        taken = None
    for answer, is_last in ((last, True), (outputs, False)):
        if isinstance(taken, np.ndarray) and taken.shape == answer.shape and (taken == answer).all():
            return is_last
    raise CoterieError(
        f"from_torch: layer {name} is an LSTM, which returns a pair: put a module after it whose forward(returned) "
        "returns returned[0] (all outputs) or returned[0][:, -1] (those of the last step)"
    )
