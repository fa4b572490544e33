"""Guessing: the commonest class or the mean of a client's own training data, whatever the inputs."""

import jax
import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import log_loss, root_mean_squared_error

import coterie as ct
from coterie.data.clients import Federation, stack
from coterie.learning.task import Task
from coterie.methods import Guess
from coterie.models.lstm import Lstm
from coterie.testing.contract import SOLVED, Case, checks_of


def federation(pairs, test, **about):
    """Clients of (x, y) pairs; the last ones have padding."""
    none = stack([(x[:0], y[:0]) for x, y in pairs])
    return Federation(tuple(f"client-{i}" for i in range(len(pairs))), stack(pairs), none, stack(test), **about)


@pytest.fixture(scope="module")
def classes():
    """Three clients: 7 of 10 rows of class 2; one row only; a tie of classes 0 and 1."""
    random = np.random.default_rng(0)
    labels = [[2] * 7 + [0, 1, 1], [1], [0, 1, 1, 0]]
    pairs = [(random.normal(size=(len(y), 4)).astype(np.float32), np.int32(y)) for y in labels]
    test = [
        (random.normal(size=(n, 4)).astype(np.float32), random.integers(0, 3, n).astype(np.int32)) for n in (6, 3, 5)
    ]
    return federation(pairs, test, kind="classification", classes=3)


@pytest.fixture(scope="module")
def guessed(classes):
    return ct.run(classes, "mlp", "guess", rounds=2, evaluate_every=1)


def own(split, client):
    count = split.count[client]
    return split.x[client, :count], split.y[client, :count]


def test_it_names_the_commonest_class_of_the_client(classes, guessed):
    for client, commonest in enumerate((2, 1, 0)):
        x, y = own(classes.test, client)
        assert (guessed.model(client)(x).argmax(1) == commonest).all()
        rival = DummyClassifier(strategy="most_frequent").fit(*own(classes.train, client))
        assert guessed.final["test_score"][client] == pytest.approx(rival.score(x, y))


def test_its_probabilities_are_smoothed_frequencies(classes, guessed):
    probabilities = np.exp(np.asarray(guessed.variables.params.bias))
    by_hand = [[2 / 13, 3 / 13, 8 / 13], [1 / 4, 2 / 4, 1 / 4], [3 / 7, 3 / 7, 1 / 7]]
    np.testing.assert_allclose(probabilities, by_hand, rtol=1e-6)
    for client, row in enumerate(by_hand):
        _, y = own(classes.test, client)
        expected = log_loss(y, np.tile(row, (len(y), 1)), labels=[0, 1, 2])
        assert guessed.scores["log-loss"][client] == pytest.approx(expected, rel=1e-6)


def test_it_costs_nothing_and_never_changes(guessed):
    assert guessed.ledger.edges().empty
    assert guessed.role == "guess"
    assert guessed.rows[0]["test_loss"] == guessed.rows[1]["test_loss"]


def test_numbers_are_guessed_by_the_mean():
    random = np.random.default_rng(1)
    pairs = [
        (random.normal(size=(n, 2)).astype(np.float32), random.normal(i, 1, n).astype(np.float32))
        for i, n in enumerate((5, 9))
    ]
    result = ct.run(federation(pairs, pairs, kind="regression", classes=1), "linear", Guess(), rounds=1)
    for client, (x, y) in enumerate(pairs):
        rival = DummyRegressor().fit(x, y).predict(x)
        np.testing.assert_allclose(result.model(client)(x)[:, 0], rival, rtol=1e-5)
        assert result.final["test_score"][client] == pytest.approx(root_mean_squared_error(y, rival), rel=1e-5)
    np.testing.assert_allclose(result.scores["r2"], 0, atol=1e-5)


def test_text_is_guessed_by_its_commonest_character():
    """Characters 1, 1, 1 and 0, 1, 2: four ones of six, so (4 + 1) / (6 + 3)."""
    y = np.array([[1, 1, 1], [0, 1, 2]])
    clients = federation([(y, y)], [(y, y)], kind="next-character", classes=3)
    task = Guess().adapt(Task.of(clients, Lstm(hidden=2, embedding=2)))
    models = Guess().fit(task, clients.arrays()).models
    output, _ = task.apply(jax.tree.map(lambda a: a[0], models), y)
    np.testing.assert_allclose(np.exp(output), np.tile([2 / 9, 5 / 9, 2 / 9], (2, 3, 1)), rtol=1e-6)


def test_it_keeps_the_part_of_the_contract_that_is_not_about_rounds():
    case = Case("guess")
    checks = checks_of(case.method)
    assert tuple(sorted(checks)) == tuple(sorted(SOLVED))
    for check in checks.values():
        check(case)
    assert len(checks_of(Case("local").method)) > len(SOLVED)
