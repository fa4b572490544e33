"""Evaluation against NumPy: every own sample once, no padding, with all classes and with the client's own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data.clients import Federation, Split, stack
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.evaluate import BATCH, client_metrics, evaluate
from coterie.learning.task import Task, Variables
from coterie.methods import FedAvg, Pooled
from coterie.models.lstm import Lstm
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from support.cases import Weights

SIZES = (1, 5, BATCH, BATCH + 1, 2 * BATCH + 7)  # around the number of samples evaluated at a time
CLASSES = 4


@pytest.fixture(scope="module")
def federation():
    """Five clients with unequal test sets; client k trains on classes 0..k only (four at most), and two have no
    validation sample."""
    random = np.random.default_rng(0)

    def split(sizes, kinds=CLASSES):
        most = [min(kinds + i, CLASSES) if kinds < CLASSES else CLASSES for i in range(len(sizes))]
        return stack([(random.normal(size=(n, 3)), random.integers(0, m, n)) for n, m in zip(sizes, most, strict=True)])

    train = split((6,) * 5, kinds=1)
    names = tuple(f"client-{i}" for i in range(5))
    return Federation(names, train, split((0, 3, 0, 70, 1)), split(SIZES), "classification", CLASSES)


@pytest.fixture(scope="module")
def models():
    random = np.random.default_rng(1)
    return random.normal(size=(5, CLASSES, 3))


def poisoned(federation):
    """The same federation with NaN and huge inputs and labels out of range wherever there is padding."""

    def poison(split):
        padding = np.arange(split.x.shape[1]) >= split.count[:, None]
        x, y = split.x.copy(), split.y.copy()
        x[padding] = np.where(np.arange(padding.sum())[:, None] % 2, np.nan, 1e30)
        y[padding] = 99 if np.issubdtype(y.dtype, np.integer) else np.nan
        return Split(x, y, split.count)

    parts = {name: poison(getattr(federation, name)) for name in ("train", "validation", "test")}
    return dataclasses.replace(federation, **parts)


def evaluated(federation, models, mode="fast"):
    task = Task.of(federation, Weights(jnp.zeros(models.shape[1:])), dtype=jnp.float64)
    graph = Graph.empty(len(federation))
    tables = jax.tree.map(jnp.asarray, make_tables(graph, np.zeros((len(federation), 0))))

    @jax.jit
    def program(models, clients):
        return evaluate(task, LocalPeers(tables, Plan(mode)), Variables(Weights(models)), clients)

    return jax.device_get(program(jnp.asarray(models), jax.tree.map(jnp.asarray, federation.arrays())))


def numpy_metrics(federation, models, part, client):
    split = getattr(federation, part)
    n = split.count[client]
    x, y = split.x[client, :n], split.y[client, :n]
    logits = x @ models[client].T
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(n), y]
    known = np.unique(federation.train.y[client, : federation.train.count[client]])
    own = known[logits[:, known].argmax(1)] == y
    return loss.mean(), (logits.argmax(1) == y).mean(), own.mean()


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_accuracy_with_all_classes_and_with_the_clients_own(federation, models, x64, mode):
    metrics = evaluated(federation, models, mode)
    for part in ("validation", "test"):
        for client in range(5):
            mine = [values[client] for values in metrics[part]]
            if getattr(federation, part).count[client] == 0:
                assert mine == [0, 0, 0]
            else:
                np.testing.assert_allclose(mine, numpy_metrics(federation, models, part, client), rtol=1e-12)
    # A client that trained on class 0 alone predicts 0 among its own classes, which is right where the answer is 0.
    assert metrics["test"].own_score[0] == (federation.test.y[0, :1] == 0).mean()


def test_padding_is_never_evaluated(federation, models, x64):
    plain, poison = evaluated(federation, models), evaluated(poisoned(federation), models)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(poison), strict=True):
        assert (a == b).all()


@pytest.mark.parametrize(
    "method",
    [FedAvg(lr=0.1, batch_size=3), pytest.param(FedAvg(lr=0.1, batch_size=0), marks=pytest.mark.soak), Pooled(lr=0.1)],
)
def test_padding_is_never_trained_on(federation, device, x64, method):
    def trained(federation):
        task = Task.of(federation, Weights(jnp.zeros((CLASSES, 3))), dtype=jnp.float64)
        engine = Engine(task, federation, device, Plan("fast"))
        training = Training(engine, method, Graph.empty(5), np.zeros((5, 0)), 0)
        state, rounds = training.advance(training.init()[0], 1, 2)
        return jax.device_get((method.models(state), rounds.loss, training.evaluate(state, 2)))

    uneven = dataclasses.replace(federation, train=federation.train._replace(count=np.array([6, 2, 5, 1, 3])))
    for a, b in zip(jax.tree.leaves(trained(uneven)), jax.tree.leaves(trained(poisoned(uneven))), strict=True):
        assert np.isfinite(b).all()
        assert (a == b).all()


def test_regression_reports_the_root_of_the_mean_squared_error(x64):
    """Outputs 2 x of two numbers. Client a: errors (1, 0), (0, 2), (0, 0): mean square (1 + 4) / 6, loss 5 / 2 / 3.
    Client b has one sample with error (3, 4): sqrt(25 / 2), loss 12.5."""
    x = np.array([[1.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    first = (x, 2 * x - np.array([[1.0, 0], [0, 2], [0, 0]]))
    second = (np.ones((1, 2)), np.array([[-1.0, -2.0]]))
    split = stack([first, second])
    federation = Federation(("a", "b"), split, split, split, kind="regression", classes=2)
    metrics = evaluated(federation, np.stack([2 * np.eye(2)] * 2))
    np.testing.assert_allclose(metrics["test"].score, [np.sqrt(5 / 6), np.sqrt(12.5)], rtol=1e-12)
    np.testing.assert_allclose(metrics["test"].own_score, metrics["test"].score)
    np.testing.assert_allclose(metrics["test"].loss, [5 / 6, 12.5], rtol=1e-12)
    task = Task.of(federation, Weights(jnp.eye(2)))
    assert (task.metric, task.score.higher_is_better) == ("rmse", False)


def test_the_accuracy_of_a_text_is_the_share_of_its_characters():
    """The model says 'the next character is the present one': right 2 of 3 times, then 0 of 3; the third is padding."""

    class Echo(Weights):
        def __call__(self, x):
            return jax.nn.one_hot(x, 4) @ self.w

    x = np.array([[0, 1, 2], [3, 3, 3], [0, 0, 0]])
    y = np.array([[0, 1, 3], [0, 1, 2], [0, 0, 0]])
    task = Task(Echo(5.0 * jnp.eye(4)), "next-character")
    metrics = client_metrics(
        task, task.init(jax.random.key(0)), Split(jnp.array(x), jnp.array(y), jnp.int32(2)), jnp.zeros(0, bool)
    )
    np.testing.assert_allclose(metrics.score, 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics.own_score, 1 / 3, rtol=1e-6)
    wrong = np.log(np.exp(5) + 3)
    np.testing.assert_allclose(metrics.loss, (2 * (wrong - 5) + 4 * wrong) / 6, rtol=1e-6)


@pytest.mark.soak
def test_a_recurrent_model_is_evaluated_character_by_character():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 5, (2, 3, 7)), random.integers(0, 5, (2, 3, 7))
    split = Split(x, y, np.array([3, 2], np.int32))
    federation = Federation(("a", "b"), split, split, split, kind="next-character", classes=5)
    task = Task.of(federation, Lstm(hidden=4, embedding=3))
    variables = task.init(jax.random.key(0))
    for client, count in enumerate((3, 2)):
        mine = Split(*(jnp.asarray(a[client]) for a in split))
        metrics = client_metrics(task, variables, mine, jnp.zeros(0, bool))
        logits = np.stack([task.module(variables)(jnp.asarray(text)) for text in x[client, :count]])
        np.testing.assert_allclose(metrics.score, (logits.argmax(-1) == y[client, :count]).mean(), rtol=1e-6)
