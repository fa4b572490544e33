"""A job of Python objects, and a method that follows a script, so that a test knows every score in advance."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Federation, stack
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job
from coterie.learning.task import Variables
from coterie.methods.base import Info, Method, method

CLIENTS = 3
LABELS = {"train": [0, 1, 2, 0], "validation": [0, 0, 0, 1], "test": [0, 1, 1, 2]}


def plain_federation(shift: float = 0.0) -> Federation:
    """Three clients with the same labels: 3 of 4 validation samples are of class 0, 2 of 4 test samples of class 1."""
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for part, labels in LABELS.items():
        pairs = [(random.normal(size=(4, 2)).astype(np.float32) + shift, np.int32(labels)) for _ in range(CLIENTS)]
        parts[part] = stack(pairs)
    return Federation(tuple(f"client-{i}" for i in range(CLIENTS)), **parts, kind="classification", classes=3)


def make_job(federation: Federation, *objects: Any, **options: Any) -> Job:
    """Make a job of what `coterie.run` takes."""
    return Job.of(Experiment.from_objects(federation, *objects, **options), federation)


class State(NamedTuple):
    variables: Variables
    round: jax.Array  # [C]


@method
class Scripted(Method):
    """In round r every client predicts class `script[r - 1]`, with a bias of r; in round `bad_...` client 1 breaks."""

    topology: ClassVar[Any] = "none"
    script: tuple[int, ...] = (0,)
    bad_loss: int = 0
    bad_model: int = 0

    def init(self, task, peers, clients, key):
        model = jax.tree.map(jnp.zeros_like, task.init(key))
        return State(jax.tree.map(lambda a: jnp.stack([a] * CLIENTS), model), jnp.zeros(CLIENTS, jnp.int32))

    def round(self, task, state, peers, clients, key):
        number = state.round + 1
        chosen = jnp.asarray(self.script)[number - 1]
        breaks = peers.ids == 1
        scale = jnp.where(breaks & (number == self.bad_model), jnp.nan, number.astype(task.dtype))
        bias = scale[:, None] * jax.nn.one_hot(chosen, 3)
        params = eqx.tree_at(lambda model: model.bias, state.variables.params, bias)
        loss = jnp.where(breaks & (number == self.bad_loss), jnp.nan, 1.0)
        return State(Variables(params), number), Info(loss)
