"""What methods share that tie personal models to means of models and throw a coin to save communication.

One iteration is a local gradient step, or a step towards a mean; which one, a coin decides that is the same for all who
have to meet. Step size and probabilities follow from the smoothness of the losses: given, or measured at the start with
Hessian-vector products.
"""

from collections.abc import Callable
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Method
from coterie.numerics import tree
from coterie.numerics.curvature import extreme_curvature
from coterie.peers.base import Peers
from coterie.spec import param, spec
from coterie.traced import changed

__all__ = ["Auto", "Slope", "TiedModels", "at_home", "chosen", "combine", "is_auto"]

Auto = Literal["auto"]
Slope = tuple[jax.Array, Any, Any]  # the mean loss, the gradient of the client's loss, the new statistics

DRAWS = 8  # minibatches whose curvature is measured


@spec
class TiedModels(Method):
    """The settings such methods share (abstract: methods derive from it).

    A round is `iterations` iterations, so that methods can be compared by rounds: most iterations are a local step
    without any message, where other methods make an epoch of them in a round.
    """

    lr: float | Auto = param("auto", "step size (eta); auto takes the largest one the theory allows", above=0)
    tie: float = param(1.0, "strength of the tie of a client's model to the mean (gamma)", above=0)
    loss: Literal["mean", "sum"] = param("mean", "a client's loss: mean over its samples, or sum (a likelihood)")
    batch_size: int = param(0, "samples in a minibatch; 0 takes all of the client's data", at_least=0)
    iterations: int = param(10, "iterations of the algorithm in a round", at_least=1)
    smoothness: float | Auto = param("auto", "largest curvature of a client's loss (L); auto measures it", above=0)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(self, batch_size=0, iterations=1)

    def scale(self, data: Split) -> jax.Array:
        """Return what makes the client's loss of the mean over its samples."""
        return data.count if self.loss == "sum" else jnp.ones_like(data.count)

    def slope(
        self, task: Task, data: Split, key: jax.Array, whole: bool = False, augmented: bool = True
    ) -> Callable[[Variables], Slope]:
        """Return a function of the model: loss and gradient on a minibatch drawn with replacement, or all samples."""
        n = data.x.shape[0]
        draw_key, augment_key, model_key = jax.random.split(key, 3)
        if self.batch_size == 0 or whole:
            indices, mask = jnp.arange(n) % jnp.maximum(data.count, 1), jnp.arange(n) < data.count
        else:
            indices = jax.random.randint(draw_key, (self.batch_size,), 0, data.count)
            mask = jnp.ones(self.batch_size, bool)
        x, y = task.batch(data.x, indices, augment_key if augmented and not whole else None), data.y[indices]

        def of(variables: Variables) -> Slope:
            found = jax.value_and_grad(task.loss, has_aux=True)(*variables, x, y, mask, model_key)
            (loss, statistics), gradient = found
            factor = self.scale(data).astype(task.dtype)
            return loss, jax.tree.map(lambda g: factor * g, gradient), statistics

        return of

    def curvature(
        self, task: Task, peers: Peers, clients: Clients, variables: Variables, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Measure the smallest and the largest curvature of each client's loss, `[C]` each.

        With minibatches the largest one is that of several minibatches, each of which is a step's loss.
        """

        def measure(variables: Variables, data: Split, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            whole_key, draws_key, start_key = jax.random.split(key, 3)

            def ends(key: jax.Array, whole: bool) -> tuple[jax.Array, jax.Array]:
                slope = self.slope(task, data, key, whole)
                gradient = lambda params: slope(Variables(params, variables.statistics))[1]  # noqa: E731
                return extreme_curvature(gradient, variables.params, start_key)

            smallest, largest = ends(whole_key, True)
            if self.batch_size:
                drawn = jax.lax.map(lambda key: ends(key, False)[1], jax.random.split(draws_key, DRAWS))
                largest = jnp.maximum(largest, drawn.max())
            return smallest, largest

        return peers.each(measure, variables, clients.train, peers.keys(key))

    def walk(self, peers: Peers, body: Callable[[jax.Array, Any], Any], state: Any) -> Any:
        """Run the iterations of a round: `body(number, state)`."""
        return body(jnp.int32(0), state) if self.iterations == 1 else peers.loop(self.iterations, body, state)


def is_auto(value: Any) -> bool:
    """Whether a setting is left to the method; asked while tracing, where a number may have no value yet."""
    return isinstance(value, str)


def chosen(setting: Any, otherwise: jax.Array) -> jax.Array:
    """Return a setting for each client `[C]`, or what the theory says where it is left to that."""
    return otherwise if is_auto(setting) else setting * jnp.ones_like(otherwise)


def combine(peers: Peers, start: Any, *terms: tuple[jax.Array, Any]) -> Any:
    """Return start + sum of factor * value over the terms; a factor is `[C]`, a value `[C, ...]`."""
    for factor, value in terms:
        start = tree.plus(start, peers.seal(tree.times(factor, value)))
    return start


def at_home(task: Task, shared: Any, params: Any) -> Any:
    """Return a tree like `params`: the values of `shared` where they may travel, zero where they are personal."""
    return task.join(shared, jax.tree.map(jnp.zeros_like, params))
