"""Models with more than weights: batch statistics are never sent, dropout and augmentation happen in training only."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data.clients import Federation, Split, stack
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.methods import FedAvg
from coterie.models.augment import Augment
from coterie.models.mlp import Mlp
from coterie.peers.local import Plan
from support.cases import Weights, one

NONE = Graph.empty(3)


class Normalised(eqx.Module):
    """Batch norm, then a linear layer."""

    norm: eqx.nn.BatchNorm
    linear: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(2, "batch", momentum=0.5, mode="batch")
        self.linear = eqx.nn.Linear(2, 3, key=key)

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.linear(x), state


def federation(sizes=(4, 4, 4), shape=(2,)):
    """Three clients whose inputs lie around 0, 10 and 20."""
    random = np.random.default_rng(0)

    def split(sizes):
        parts = [
            (random.normal(10 * i, 1 + i, (size, *shape)).astype(np.float32), random.integers(0, 3, size))
            for i, size in enumerate(sizes)
        ]
        return stack(parts)

    names = ("a", "b", "c")[: len(sizes)]
    return Federation(names, split(sizes), split([2] * len(sizes)), split([5] * len(sizes)), "classification", 3)


@pytest.fixture(scope="module")
def normalised(device):
    data = federation()
    task = Task.of(data, lambda key: eqx.nn.make_with_state(Normalised)(key=key))
    engine = Engine(task, data, device, Plan("fast"))
    training = Training(engine, FedAvg(lr=0.1, batch_size=0), NONE, np.zeros((3, 0)), 0)
    start, _ = training.init()
    fresh = jax.device_get(start.variables)
    state, rounds = training.advance(start, 1, 2)
    return data, training, fresh, state, rounds


def test_batch_statistics_are_each_clients_own(normalised):
    """Two full passes over x: the running mean is half of (half of m) plus half of m: 3/4 m; the variance alike."""
    data, _, _, state, _ = normalised
    counter, mean, variance = jax.tree.leaves(state.variables.statistics)
    assert counter.tolist() == [2, 2, 2]
    np.testing.assert_allclose(mean, 0.75 * data.train.x.mean(1), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.25 + 0.75 * data.train.x.var(1), rtol=1e-4)


def test_parameters_are_sent_and_statistics_are_not(normalised):
    _, _, fresh, state, rounds = normalised
    for before, after in zip(jax.tree.leaves(fresh.params), jax.tree.leaves(state.variables.params), strict=True):
        assert (after[0] == after[1]).all()
        assert (after[0] == after[2]).all()
        assert not np.allclose(before, after)
    # Batch norm's scale and shift (2 + 2), the layer's weight and bias (6 + 3), and the client's weight: 14 float32.
    assert (rounds.traffic.up_bytes == 48 + 14 * 4).all()
    assert (rounds.traffic.down_bytes == 48 + 14 * 4).all()


def test_evaluation_uses_the_clients_running_statistics(normalised):
    data, training, _, state, _ = normalised
    metrics = training.evaluate(state, 2)
    params = jax.device_get(state.variables.params)
    mean, variance = 0.75 * data.train.x.mean(1), 0.25 + 0.75 * data.train.x.var(1)
    for i in range(3):
        unbiased = 1 - 0.5**2  # the running means began at 0 and 1, which Equinox divides out
        x = (data.test.x[i] - mean[i] / unbiased) / np.sqrt(variance[i] / unbiased + 1e-5)
        logits = (x * params.norm.weight[i] + params.norm.bias[i]) @ params.linear.weight[i].T + params.linear.bias[i]
        correct = logits.argmax(1) == data.test.y[i]
        chosen = logits[np.arange(5), data.test.y[i]]
        loss = np.log(np.exp(logits).sum(1)) - chosen
        np.testing.assert_allclose(metrics["test_score"][i], correct.mean(), rtol=1e-6)
        np.testing.assert_allclose(metrics["test_loss"][i], loss.mean(), rtol=1e-4)


def test_padding_enters_no_batch_statistic():
    """Two samples in a table of five, the rest poisoned: statistics of the two alone, repeated to fill the batch."""
    x = np.full((5, 2), np.nan, np.float32)
    x[:2] = [[1, 2], [3, 6]]
    task = Task(lambda key: eqx.nn.make_with_state(Normalised)(key=key), "classification")
    data = Split(jnp.asarray(x), jnp.array([0, 1, 2, 2, 2]), jnp.int32(2))
    trained = LocalSGD(lr=0.1, batch_size=0).train(task, task.init(jax.random.key(0)), data, jax.random.key(1))
    _, mean, variance = jax.tree.leaves(trained.variables.statistics)
    batch = x[[0, 1, 0, 1, 0]]
    np.testing.assert_allclose(mean, batch.mean(0) / 2, rtol=1e-6)
    np.testing.assert_allclose(variance, (1 + batch.var(0)) / 2, rtol=1e-6)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(trained.variables.params))


@pytest.mark.soak
def test_dropout_is_on_in_training_and_off_in_evaluation(device):
    data = federation()
    task = Task.of(data, Mlp(hidden=(16,), dropout=0.5))
    training = Training(
        Engine(task, data, device, Plan("fast")), FedAvg(lr=0.1, batch_size=0), NONE, np.zeros((3, 0)), 0
    )
    state, _ = training.init()
    params = jax.device_get(state.variables.params)
    first, again = training.evaluate(state, 0), training.evaluate(state, 1)
    for name in first:
        assert (first[name] == again[name]).all()
    for i in range(3):
        hidden = np.maximum(data.test.x[i] @ params.layers[0].weight[i].T + params.layers[0].bias[i], 0)
        logits = hidden @ params.layers[1].weight[i].T + params.layers[1].bias[i]
        np.testing.assert_allclose(first["test_score"][i], (logits.argmax(1) == data.test.y[i]).mean(), rtol=1e-6)
    # Every step of the full batch drops other units: with another key the same step gives another result.
    variables, split = task.init(jax.random.key(0)), one(data.train, 0)
    settings = LocalSGD(lr=0.1, batch_size=0)
    keys = [jax.random.key(1), jax.random.key(1), jax.random.key(2)]
    steps = [settings.train(task, variables, split, key).variables.params.layers[1].weight for key in keys]
    assert (steps[0] == steps[1]).all()
    assert not np.allclose(steps[0], steps[2])


def test_augmentation_happens_in_training_only():
    """One image (1, 0), target 1, and a linear model: only mirrored images can move the second weight."""
    image = np.array([[[[1.0, 0.0]]]], np.float32)
    split = Split(jnp.asarray(image), jnp.ones((1,)), jnp.int32(1))

    class Flat(Weights):
        def __call__(self, x):
            return super().__call__(x.reshape(-1))

    def trained(augment):
        task = Task(Flat(jnp.zeros((1, 2))), "regression", augment=augment)
        start = task.init(jax.random.key(0))
        return task, LocalSGD(lr=0.1, batch_size=0, steps=12).train(task, start, split, jax.random.key(3)).variables

    plain_task, plain = trained(None)
    np.testing.assert_allclose(plain.params.w, [[1 - 0.9**12, 0]], rtol=1e-5)
    task, variables = trained(Augment(flip=True))
    # Of twelve images m were mirrored: each side converges with its own count of steps.
    uses = np.log1p(-np.asarray(variables.params.w[0])) / np.log(0.9)
    np.testing.assert_allclose(uses, np.round(uses), atol=1e-3)
    assert round(uses.sum()) == 12
    assert uses.min() > 0.5
    outputs = [t.apply(variables, split.x)[0] for t in (task, plain_task)]
    assert outputs[0] == outputs[1] == variables.params.w[0, 0]  # the image is unchanged
