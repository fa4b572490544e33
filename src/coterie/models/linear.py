"""One linear layer on the flattened input: logistic regression for classes, linear regression for numbers."""

import math

import equinox as eqx
import jax
from jax import Array

from coterie.models.layers import uniform
from coterie.spec import spec

__all__ = ["Linear", "LinearNetwork"]


@spec
class Linear:
    """One linear layer: logistic or linear regression."""

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "LinearNetwork":
        """Return a network for samples of this shape."""
        inputs = math.prod(shape)
        weight_key, bias_key = jax.random.split(key)
        return LinearNetwork(uniform(weight_key, (outputs, inputs), inputs), uniform(bias_key, (outputs,), inputs))


class LinearNetwork(eqx.Module):
    """`weight [outputs, inputs]` and `bias [outputs]`, as in PyTorch's `Linear`."""

    weight: Array
    bias: Array

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs for one sample."""
        return self.weight @ x.reshape(-1) + self.bias
