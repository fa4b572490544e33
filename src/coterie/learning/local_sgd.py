"""Local training: stochastic gradient descent of one client on its own samples, shared by all methods.

A minibatch comes only from the client's own samples. `epochs` counts passes over them, each in a new random order: 62
samples in batches of at most 10 make 7 steps of 8 or 9 samples (six steps of 10 and one of 2 would end every pass with
a noisy gradient). `steps` counts minibatches drawn with replacement instead.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax import lax

from coterie.data.clients import Split
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.numerics.integers import quotient, remainder
from coterie.spec import param, spec
from coterie.traced import changed, is_off

__all__ = ["LocalSGD", "Trained"]

AHEAD = 2048  # samples of a client's round up to which all its minibatches are drawn at once, so that memory is bounded


class Trained(NamedTuple):
    """The result of a client's local training."""

    variables: Variables
    optimiser: Any
    loss: jax.Array  # mean over the local steps


@spec
class LocalSGD:
    """Local training and its settings; methods derive from it."""

    lr: float = param(0.05, "step size of a local step", above=0)
    momentum: float = param(0.0, "momentum of the local optimiser", at_least=0, below=1)
    weight_decay: float = param(0.0, "L2 penalty added to every gradient", at_least=0)
    batch_size: int = param(10, "samples per minibatch; 0: all of the client's data", at_least=0)
    epochs: int = param(1, "passes over the client's data per round", at_least=1, at_most=100_000)
    steps: int = param(0, "local steps per round, instead of epochs; 0: use epochs", at_least=0, at_most=10**9)
    decay: float = param(0.0, "factor applied to lr at each decay; 0: lr stays constant", at_least=0, at_most=1)
    decay_after: int = param(0, "rounds before the first decay of lr", at_least=0)
    decay_every: int = param(1, "rounds between two decays of lr", at_least=1)
    local_optimiser: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop", "yogi", "lion"] = param(
        "sgd",
        "rule of a local step, with Optax's own settings; all but sgd need a smaller lr, such as 0.001",
        left_out=True,
    )
    schedule: Literal["constant", "cosine", "linear"] = param(
        "constant", "how lr falls from round to round, besides decay: to 0 after schedule_rounds", left_out=True
    )
    schedule_rounds: int = param(0, "rounds over which lr falls along the schedule", at_least=0, left_out=True)

    def __post_init__(self) -> None:
        if self.momentum and self.local_optimiser != "sgd":
            raise CoterieError(
                f"momentum is for local_optimiser = 'sgd'; {self.local_optimiser} has its own: set momentum = 0"
            )
        if (self.schedule == "constant") != (self.schedule_rounds == 0):
            raise CoterieError(
                "schedule 'cosine' or 'linear' and schedule_rounds belong together: set both, for example "
                "schedule = 'cosine' and schedule_rounds = the rounds of the run"
            )

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the method with the learning rate of round `number`, counted from 1."""
        method = self
        if self.schedule != "constant":
            fall = {
                "cosine": optax.cosine_decay_schedule,
                "linear": lambda start, n: optax.linear_schedule(start, 0.0, n),
            }
            # Round 1 has the whole lr; after the last round of the schedule it is 0.
            method = self.scaled(fall[self.schedule](1.0, self.schedule_rounds)(number - 1))
        if is_off(self.decay):
            return method
        times = jnp.maximum(0, number - self.decay_after + self.decay_every - 1) // self.decay_every
        return method.scaled(self.decay ** times.astype(float))

    def scaled(self, factor: Any) -> Self:
        """Return the method with its learning rate times a factor, which may be traced."""
        return changed(self, lr=self.lr * factor)

    def plain(self) -> Self:
        """Return the settings under which a round is one step of full-batch gradient descent."""
        whole = dataclasses.replace(self, batch_size=0, epochs=1, steps=0, schedule="constant", schedule_rounds=0)
        return dataclasses.replace(whole, local_optimiser="sgd", momentum=0.0, weight_decay=0.0, decay=0.0)

    def refuse_other_steps(self, name: str) -> None:
        """Raise `CoterieError` unless a local step is the gradient times the learning rate."""
        if self.momentum or self.local_optimiser != "sgd":
            raise CoterieError(
                f"{name} reads gradients off the local steps, so it needs plain ones: set momentum = 0 and "
                "local_optimiser = 'sgd'"
            )

    def optimiser(self) -> optax.GradientTransformation:
        """Return the rule of a local step as Optax has it, with weight decay; what is switched off is left out."""
        rules = {
            "adam": optax.scale_by_adam,
            "adamw": optax.scale_by_adam,
            "adagrad": optax.scale_by_rss,
            "rmsprop": optax.scale_by_rms,
            "yogi": optax.scale_by_yogi,
            "lion": optax.scale_by_lion,
        }
        decay = [] if is_off(self.weight_decay) else [optax.add_decayed_weights(self.weight_decay)]
        if self.local_optimiser == "sgd":
            rule = [] if is_off(self.momentum) else [optax.trace(decay=self.momentum)]
        else:
            rule = [rules[self.local_optimiser]()]
        # AdamW and Lion shrink the weights themselves; with the others the penalty is a part of the gradient.
        parts = [*rule, *decay] if self.local_optimiser in ("adamw", "lion") else [*decay, *rule]
        return optax.chain(*parts, optax.scale_by_learning_rate(self.lr))

    def train(
        self,
        task: Task,
        variables: Variables,
        data: Split,
        key: jax.Array,
        *,
        optimiser_state: Any = None,
        pull: Callable[[Any], Any] | None = None,
        epochs: int | jax.Array | None = None,
        slope: Callable[..., Any] | None = None,
        project: Callable[[Any], Any] | None = None,
        whole: bool = True,
    ) -> Trained:
        """Train one client for a round.

        Args:
            task: model and loss.
            variables: where to start.
            data: the client's own samples, `x [n, ...]`, `y [n, ...]`, `count []`.
            key: the client's key for this round.
            optimiser_state: momentum from the previous round; None starts without.
            pull: an extra gradient as a function of the parameters (a proximal term).
            epochs: overrides the setting.
            slope: `slope(params, statistics, x, y, mask, key) -> ((loss, statistics), gradient)` instead of the
                gradient of the loss; `params` may then be a part of the model.
            project: applied to the parameters after every step, to keep them in a set.
            whole: whether `data` are all samples of the client; a part of them says nothing by its number of rows.
        """
        optimiser, follow = self.optimiser(), slope or jax.value_and_grad(task.loss, has_aux=True)
        if optimiser_state is None:
            optimiser_state = optimiser.init(variables.params)

        def step(carry: tuple, indices: jax.Array, mask: jax.Array, key: jax.Array) -> tuple:
            variables, optimiser_state, total = carry
            augment_key, model_key = jax.random.split(key)
            x = task.batch(data.x, indices, augment_key)
            (loss, statistics), gradient = follow(*variables, x, data.y[indices], mask, model_key)
            if pull is not None:
                gradient = jax.tree.map(jnp.add, gradient, pull(variables.params))
            updates, optimiser_state = optimiser.update(gradient, optimiser_state, variables.params)
            params = optax.apply_updates(variables.params, updates)
            params = params if project is None else project(params)
            return Variables(params, statistics), optimiser_state, total + loss

        start = (variables, optimiser_state, jnp.zeros((), task.dtype))
        n = data.x.shape[0]
        if self.steps and epochs is None:
            carry = self._with_drawn(lambda t: self._draw(n, data.count, key, t), step, start)
            return Trained(carry[0], carry[1], carry[2] / self.steps)
        epochs = self.epochs if epochs is None else epochs
        size = min(self.batch_size, n) or n
        own_steps = self._steps_per_epoch(task, data, whole)

        def one_epoch(e: jax.Array, carry: tuple) -> tuple:
            order_key, step_key = jax.random.split(jax.random.fold_in(key, e))
            rank = jnp.where(jnp.arange(n) < data.count, jax.random.uniform(order_key, (n,)), jnp.inf)
            order = jnp.argsort(rank) if size < n else jnp.arange(n)  # a full batch needs no shuffling

            def start_of(t: jax.Array) -> jax.Array:  # the first steps take one more sample than the others
                return t * quotient(data.count, own_steps) + jnp.minimum(t, remainder(data.count, own_steps))

            def one_step(t: jax.Array, carry: tuple) -> tuple:
                place = start_of(t) + jnp.arange(size)
                mask = place < start_of(t + 1)
                # Masked places repeat the client's own samples, so that padding reaches no gradient and no statistic.
                indices = order[remainder(place, jnp.maximum(data.count, 1))]
                return step(carry, indices, mask, jax.random.fold_in(step_key, t))

            return lax.fori_loop(0, own_steps, one_step, carry)

        carry = lax.fori_loop(0, epochs, one_epoch, start)
        return Trained(carry[0], carry[1], carry[2] / (epochs * own_steps))

    def _with_drawn(self, draw: Callable[[Any], tuple], step: Callable[..., tuple], start: tuple) -> tuple:
        """Take all steps, with minibatches that are drawn before the first: fewer kernels on a GPU (measured)."""
        if not 0 < self.steps * self.batch_size <= AHEAD:
            return lax.fori_loop(0, self.steps, lambda t, carry: step(carry, *draw(t)), start)
        drawn = jax.vmap(draw)(jnp.arange(self.steps))
        return lax.scan(lambda carry, at: (step(carry, *at), None), start, drawn)[0]

    def local_steps(self, task: Task, data: Split) -> Any:
        """Return how many local steps one client takes in a round."""
        return self.steps or self.epochs * self._steps_per_epoch(task, data)

    def _steps_per_epoch(self, task: Task, data: Split, whole: bool = True) -> Any:
        n = data.x.shape[0]
        size = min(self.batch_size, n) or n
        # Under vmap a bound that differs between clients becomes a mask: clients that have finished their pass wait.
        return -(-n // size) if whole and task.equal_sizes else quotient(data.count + (size - 1), size)

    def _draw(self, n: int, count: jax.Array, key: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draw the minibatch of local step t with replacement; batch size 0 takes every sample once."""
        draw_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        if self.batch_size == 0:
            return remainder(jnp.arange(n), jnp.maximum(count, 1)), jnp.arange(n) < count, step_key
        indices = jax.random.randint(draw_key, (self.batch_size,), 0, count)
        return indices, jnp.ones(self.batch_size, bool), step_key
