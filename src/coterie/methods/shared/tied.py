"""Base of L2GD-type methods: a random switch between a local gradient step and a step towards a mean of models.

Only steps towards a mean are communicated, and the random choice is the same for all clients concerned. Step size and
switching probabilities follow from the smoothness of the losses: given, or measured at the start with Hessian-vector
products.
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

__all__ = ["Auto", "Slope", "TiedModels", "chosen", "combine", "is_auto", "pad_personal"]

Auto = Literal["auto"]
Slope = tuple[jax.Array, Any, Any]  # the mean loss, the gradient of the client's loss, the new statistics

DRAWS = 8  # minibatches whose curvature is measured


@spec
class TiedModels(Method):
    """Personal models tied to a mean.

    A round is `iterations` iterations, so that methods can be compared by rounds: most iterations are local steps
    without a message, of which other methods do an epoch per round.
    """

    lr: float | Auto = param("auto", "step size (eta); auto: the largest one the theory allows", above=0)
    tie: float = param(1.0, "strength of the tie of a client's model to the mean (gamma)", above=0)
    loss: Literal["mean", "sum"] = param(
        "mean", "a client's loss: mean or sum over its samples (a negative log-likelihood)"
    )
    batch_size: int = param(0, "samples per minibatch; 0: all of the client's data", at_least=0)
    iterations: int = param(10, "iterations of the algorithm per round", at_least=1)
    smoothness: float | Auto = param("auto", "largest curvature of a client's loss (L); auto measures it", above=0)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(self, batch_size=0, iterations=1)

    def scale(self, data: Split) -> jax.Array:
        """Return the factor from the mean loss over the samples to the client's loss."""
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
            loss_and_gradient = jax.value_and_grad(task.loss, has_aux=True)
            (loss, statistics), gradient = loss_and_gradient(*variables, x, y, mask, model_key)
            factor = self.scale(data).astype(task.dtype)
            return loss, jax.tree.map(lambda g: factor * g, gradient), statistics

        return of

    def curvature(
        self, task: Task, peers: Peers, clients: Clients, variables: Variables, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Measure the smallest and the largest curvature of each client's loss, `[C]` each.

        With minibatches the largest one is the maximum over several minibatches, since each step uses one.
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

    def run_iterations(self, peers: Peers, body: Callable[[jax.Array, Any], Any], state: Any) -> Any:
        """Run the iterations of a round: `body(number, state)`."""
        return body(jnp.int32(0), state) if self.iterations == 1 else peers.loop(self.iterations, body, state)


def is_auto(value: Any) -> bool:
    """Whether a setting is "auto"; works while tracing, where a number may be a tracer."""
    return isinstance(value, str)


def chosen(setting: Any, otherwise: jax.Array) -> jax.Array:
    """Return a setting for each client `[C]`, or the theory's value `otherwise` if it is "auto"."""
    return otherwise if is_auto(setting) else setting * jnp.ones_like(otherwise)


def combine(peers: Peers, start: Any, *terms: tuple[jax.Array, Any]) -> Any:
    """Return start + sum of factor * value over the terms; a factor is `[C]`, a value `[C, ...]`."""
    for factor, value in terms:
        start = tree.plus(start, peers.seal(tree.times(factor, value)))
    return start


def pad_personal(task: Task, shared: Any, params: Any) -> Any:
    """Return a tree like `params`: the values of `shared`, and zeros for the personal layers."""
    return task.join(shared, jax.tree.map(jnp.zeros_like, params))
