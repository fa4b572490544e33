"""What a model sees before its last layer: the features of a sample, for methods that compare or average them."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Split
from coterie.errors import CoterieError
from coterie.learning.evaluate import BATCH
from coterie.learning.task import Task
from coterie.methods.shared.personal import last_layer

__all__ = ["TwoHeads", "layer_at", "sum_over", "tapped", "two_heads"]


class Tap(eqx.Module):
    """A layer that returns its outputs and its inputs, one after the other."""

    layer: Any

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return jnp.concatenate([self.layer(x), x])


def layer_at(module: Any, path: str) -> Any:
    """Return the part of a module with a dotted name, such as `layers.1`."""
    for step in path.split("."):
        module = module[int(step)] if step.isdigit() else getattr(module, step)
    return module


def tapped(task: Task, name: str) -> Task:
    """Return the task whose model returns the outputs and, after them, the features, `[outputs + features]`.

    Args:
        task: classes, and a model whose outputs are those of its last layer.
        name: of the method, for the sentence that refuses others.
    """
    if task.kind != "classification":
        raise CoterieError(f"{name} compares features of classes; it cannot train for {task.kind}")
    path = last_layer(task)
    other = task.viewed(lambda module: eqx.tree_at(lambda m: layer_at(m, path), module, replace_fn=Tap))
    try:
        shape = jax.eval_shape(lambda: _one(other))
    except (TypeError, ValueError) as error:
        raise CoterieError(_no_features(name, path)) from error
    if shape.ndim != 1 or (task.outputs and shape.shape[0] <= task.outputs):
        raise CoterieError(_no_features(name, path))
    return other


def _one(task: Task) -> jax.Array:
    x = jnp.zeros((1, *task.sample_shape), task.dtype)
    return task.apply(task.init(jax.random.key(0)), x)[0][0]


def _no_features(name: str, path: str) -> str:
    return f"{name} needs a model whose outputs are those of its last layer ({path}), applied to one vector per sample"


class TwoHeads(eqx.Module):
    """A network, and a second last layer `head` on the same features whose outputs are added to the network's.

    Parameters are those of `network`, and `head`.
    """

    network: Any
    head: Any
    path: str = eqx.field(static=True)

    def both(self, x: jax.Array, *rest: Any, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array, tuple]:
        """Return the network's outputs, the features, and the new statistics if there are any."""
        network = eqx.tree_at(lambda m: layer_at(m, self.path), self.network, replace_fn=Tap)
        takes_key = "key" in inspect.signature(type(self.network).__call__).parameters
        result = network(x, *rest, **({"key": key} if takes_key else {}))
        values, statistics = (result[0], result[1:]) if rest else (result, ())
        count = self.head.weight.shape[0]
        return values[:count], values[count:], statistics

    def __call__(self, x: jax.Array, *rest: Any, key: jax.Array | None = None) -> Any:
        """Return the sum of both heads' outputs for one sample."""
        outputs, features, statistics = self.both(x, *rest, key=key)
        total = outputs + self.head(features)
        return (total, *statistics) if rest else total


def two_heads(task: Task) -> Callable[[Any], TwoHeads]:
    """Return the function that gives a module a second last layer, of zeros."""
    path = last_layer(task)
    return lambda module: TwoHeads(module, jax.tree.map(jnp.zeros_like, layer_at(module, path)), path)


def sum_over(fn: Callable[[jax.Array, jax.Array], Any], data: Split) -> Any:
    """Return the sum of `fn(x [B, ...], y [B, ...])`, arrays `[B, ...]`, over one client's samples, in batches."""
    n = data.x.shape[0]
    size = min(BATCH, n)

    def batch(b: Any) -> Any:
        place = b * size + jnp.arange(size)
        inside = jnp.minimum(place, n - 1)  # the last batch may be short: repeated samples are left out
        real = place < data.count
        values = fn(data.x[inside], data.y[inside])
        return jax.tree.map(lambda v: jnp.where(real.reshape((-1,) + (1,) * (v.ndim - 1)), v, 0).sum(0), values)

    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(batch, 0))
    return lax.fori_loop(0, -(-n // size), lambda b, total: jax.tree.map(jnp.add, total, batch(b)), zero)
