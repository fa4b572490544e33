"""Logistic regression with the first class as reference: its output is 0, and two classes need one row of weights."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.errors import CoterieError
from coterie.models.layers import uniform
from coterie.spec import spec

__all__ = ["Logistic", "LogisticNetwork"]


@spec
class Logistic:
    """Logistic regression with one row of weights less than there are classes; half as much to send for two classes."""

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "LogisticNetwork":
        """Return a network for samples of this shape."""
        if outputs < 2:
            raise CoterieError("logistic is for classes, not for numbers; take linear")
        inputs = math.prod(shape)
        weight_key, bias_key = jax.random.split(key)
        rows = outputs - 1
        return LogisticNetwork(uniform(weight_key, (rows, inputs), inputs), uniform(bias_key, (rows,), inputs))


class LogisticNetwork(eqx.Module):
    """`weight [classes - 1, inputs]` and `bias [classes - 1]`, of all classes but the first."""

    weight: Array
    bias: Array

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs for one sample; they are log-odds against the first class."""
        return jnp.concatenate([jnp.zeros(1, self.bias.dtype), self.weight @ x.reshape(-1) + self.bias])
