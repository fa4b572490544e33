"""What a run will take, before anything is trained: parameters, memory, bytes per round and an estimate of the time.

Bytes come from the method itself: one round is traced and only its traffic is computed, so that the compiler removes
the training from the program. The time is that of one gradient of all clients, measured, times the number of local
steps; the evaluations are measured in the same way. Nothing is written, and no model is changed.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Split
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job, precision
from coterie.experiment.judging import EVALUATIONS
from coterie.experiment.plan import working_bytes
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Variables
from coterie.methods.base import Solved
from coterie.methods.local import Local
from coterie.peers.ledger import Ledger

__all__ = ["Estimate", "Pace", "estimate", "measure"]

REPEATS = 3  # measurements, of which the fastest counts


class Estimate(NamedTuple):
    """What a run will take.

    Attributes:
        parameters: of one client's model.
        memory: bytes on the device: the data, the models and what training needs besides.
        sent, received: bytes per client and round, the mean over clients; for a learned graph, in the first round.
        seconds: of all rounds and evaluations, without compilation; None where the method is solved at once.
    """

    parameters: int
    memory: int
    sent: float
    received: float
    seconds: float | None


class Pace(NamedTuple):
    """How fast a device is: seconds of one gradient of every client, and of one evaluation of every model."""

    gradient: float
    evaluation: float


def measure(job: Job, engine: Engine) -> Pace:
    """Measure the pace of clients that train alone: methods differ in what they do besides, which is less."""
    with precision(job.settings.precision):
        training = Training(engine, Local(), Graph.empty(engine.size), np.zeros((engine.size, 0)), job.settings.seed)
        state, _ = training.init()
        return Pace(_gradient_seconds(job, training, state), _fastest(lambda: training.evaluate(state, 1)))


def estimate(job: Job, engine: Engine, pace: Pace) -> Estimate:
    """Return what a run will take on the engine's device."""
    settings = job.settings
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(engine.clients))
    if isinstance(job.method, Solved):
        return Estimate(job.task.size, data, 0.0, 0.0, None)
    with precision(settings.precision):
        training = Training(engine, job.method, job.graph, job.weights, settings.seed, codec=job.codec)
        state, _ = training.init()
        traffic = jax.tree.map(lambda a: a[None], training.price(state))
    ledger = Ledger(job.federation.names, job.graph.neighbours)
    ledger.add(1, traffic, job.graph.neighbours)
    totals = ledger.totals()
    plan, size = engine.plan, len(job.federation)
    at_once = plan.chunk or (size if plan.mode == "fast" else 1)
    models = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    evaluations = settings.rounds / settings.evaluate_every if settings.evaluate_every else EVALUATIONS
    return Estimate(
        parameters=job.task.size,
        memory=data + 2 * models + at_once * working_bytes(job.task, job.federation),
        sent=float(totals["sent"].mean()),
        received=float(totals["received"].mean()),
        seconds=settings.rounds * local_steps(job) * pace.gradient + evaluations * pace.evaluation,
    )


def local_steps(job: Job) -> float:
    """Return the local steps of a client per round: of the largest client, for which the others wait."""
    method, largest = job.method, int(job.federation.train.count.max())
    if not isinstance(method, LocalSGD):
        return 1
    return method.steps or method.epochs * -(-largest // (method.batch_size or largest))


def _gradient_seconds(job: Job, training: Training, state: Any) -> float:
    """Measure one gradient of every client on one of its minibatches."""
    task, size = training.task, job.method.batch_size if isinstance(job.method, LocalSGD) else 0

    def program(method: Any, tables: Any, clients: Any, state: Any) -> Any:
        def one(variables: Variables, data: Split) -> Any:
            rows = jnp.arange(min(size or data.x.shape[0], data.x.shape[0]))
            x = task.batch(data.x, rows, jax.random.key(0))
            mask = jnp.ones(rows.shape, bool)
            gradient = jax.grad(lambda p: task.loss(p, variables.statistics, x, data.y[rows], mask)[0])(
                variables.params
            )
            return jax.tree.map(lambda p, g: p - g, variables.params, gradient)

        return training.peers.make(tables).each(one, training.kept_models(method, state), clients.train)

    return _fastest(lambda: training.call(program, "gradient", training.inner(state)))


def _fastest(action: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of some calls; the first one, which compiles, does not count."""
    action()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(action())
        times.append(time.perf_counter() - start)
    return float(np.min(times))
