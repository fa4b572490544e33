"""Methods with a hub on least squares, against NumPy: descent paths, fixed points, and participation.

Client k's loss is F_k(w) = |X_k w - y_k|^2 / (2 n_k); all numbers are float64 and training takes full batches, so that
only the choice of clients is random.
"""

import dataclasses

import jax
import numpy as np
import pytest

from coterie.graphs.graph import Graph
from coterie.methods import Ditto, FedAvg, FedAvgFinetuned, FedProx, Pooled
from coterie.models.mlp import Mlp
from coterie.peers.base import Arrivals
from coterie.peers.local import LocalPeers
from coterie.peers.tables import make_tables
from support.cases import Weights, own, regression, run, slope, training, weights_of

pytestmark = pytest.mark.usefixtures("x64")

SIZES = [4, 9, 2, 6, 5]
N = np.array(SIZES)


@pytest.fixture(scope="module")
def federation():
    return regression(SIZES)


def descend(w, x, y, steps, lr, pull=lambda w: 0.0):
    for _ in range(steps):
        w = w - lr * (slope(w, x, y) + pull(w))
    return w


def pooled_data(federation):
    return tuple(
        np.concatenate(parts) for parts in zip(*(own(federation, k) for k in range(len(federation))), strict=True)
    )


def test_fedavg_with_one_full_step_is_gradient_descent_on_all_data(federation, device):
    _, models = run(training(federation, FedAvg(lr=0.3, batch_size=0), device), 4)
    expected = descend(np.zeros(3), *pooled_data(federation), 4, 0.3)
    np.testing.assert_allclose(models, np.tile(expected, (5, 1)), rtol=1e-12)


def test_fedavg_with_several_epochs_averages_what_the_clients_reach(federation, device):
    method = FedAvg(lr=0.2, batch_size=0, epochs=3, momentum=0.5, weight_decay=0.1)
    _, models = run(training(federation, method, device), 3)
    w = np.zeros(3)
    for _ in range(3):
        reached = []
        for k in range(5):
            mine, velocity = w, np.zeros(3)  # momentum starts at zero in every round
            for _ in range(3):
                velocity = 0.5 * velocity + slope(mine, *own(federation, k)) + 0.1 * mine
                mine = mine - 0.2 * velocity
            reached.append(mine)
        w = N @ reached / N.sum()
    np.testing.assert_allclose(models, np.tile(w, (5, 1)), rtol=1e-12)


def test_only_the_clients_that_take_part_change_the_mean(federation, device):
    started = training(federation, FedAvg(lr=0.3, batch_size=0, participation=0.5), device)
    state, block = started.advance(started.init()[0], 1, 6)
    chosen = np.asarray(block.traffic.up_messages) == 1
    assert (chosen.sum(1) == 2).all()  # round(0.5 * 5)
    assert len({tuple(row) for row in chosen}) > 1
    w, losses = np.zeros(3), np.zeros(5)
    for took_part, reported in zip(chosen, block.loss, strict=True):
        for k in np.flatnonzero(took_part):
            x, y = own(federation, k)
            losses[k] = 0.5 * np.mean((x @ w - y) ** 2)
        np.testing.assert_allclose(reported, losses, rtol=1e-12)  # a client that did not take part keeps its last loss
        reached = np.array([descend(w, *own(federation, k), 1, 0.3) for k in range(5)])
        w = (N * took_part) @ reached / (N * took_part).sum()
    np.testing.assert_allclose(weights_of(started.method.models(state)), np.tile(w, (5, 1)), rtol=1e-12)


@pytest.mark.soak
def test_what_a_lost_message_does_to_fedavg(federation, device):
    """Client 0's model does not reach the hub, which averages the others; client 1 misses the mean and keeps its old
    copy, not what it has just trained."""
    up, down = np.ones((2, 1, 1, 5), bool)
    up[0, 0, 0] = down[0, 0, 1] = False
    started = training(federation, FedAvg(lr=0.3, batch_size=0), device)
    state, _ = started.advance(started.init()[0], 1, 1, Arrivals(np.ones((1, 1, 5, 0), bool), up, down))
    reached = np.array([descend(np.zeros(3), *own(federation, k), 1, 0.3) for k in range(5)])
    mean = N[1:] @ reached[1:] / N[1:].sum()
    expected = np.array([mean, np.zeros(3), mean, mean, mean])
    np.testing.assert_allclose(weights_of(state.variables), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"), [(1.0, 5, 5), (0.5, 5, 2), (0.1, 5, 1), (0.001, 3, 1), (0.1, 100, 10)]
)
def test_a_fraction_of_the_clients_is_rounded_and_at_least_one(fraction, clients, expected):
    peers = LocalPeers(make_tables(Graph.empty(clients), np.zeros((clients, 0))))
    assert FedAvg(participation=fraction).participants(peers) == expected == max(1, round(fraction * clients))


def test_fedavg_costs_two_models_for_each_client_that_takes_part(federation, device):
    """A message is a header of 48 bytes, the model's 3 numbers and the client's weight, 8 bytes each: 80."""
    started = training(federation, FedAvg(lr=0.3, batch_size=0, participation=0.6), device)
    _, block = started.advance(started.init()[0], 1, 4)
    for link in ("up", "down"):
        messages, size = (np.asarray(getattr(block.traffic, f"{link}_{what}")) for what in ("messages", "bytes"))
        assert (messages.sum(1) == 3).all()
        assert (size == 80 * messages).all()


def prox_point(x, y, strength, anchor):
    """argmin F(w) + strength / 2 |w - anchor|^2, from its normal equations."""
    n = len(x)
    return np.linalg.solve(x.T @ x / n + strength * np.eye(x.shape[1]), x.T @ y / n + strength * anchor)


def test_fedprox_reaches_the_proximal_point(federation, device):
    """With many epochs a client minimises F_k(w) + mu/2 |w - w0|^2; the next round starts from the mean of those."""
    method = FedProx(lr=0.2, batch_size=0, steps=600, mu=0.7)
    model = Weights(np.array([[1.0, -2.0, 0.5]]))
    _, models = run(training(federation, method, device, model=model), 2)
    w = np.array([1.0, -2.0, 0.5])
    for _ in range(2):
        w = N @ [prox_point(*own(federation, k), 0.7, w) for k in range(5)] / N.sum()
    np.testing.assert_allclose(models, np.tile(w, (5, 1)), rtol=1e-9)


@pytest.mark.soak
def test_fedprox_without_the_term_is_fedavg(federation, device):
    _, prox = run(training(federation, FedProx(lr=0.2, batch_size=3, steps=2, mu=0.0), device), 2)
    _, plain = run(training(federation, FedAvg(lr=0.2, batch_size=3, steps=2), device), 2)
    assert (prox == plain).all()


def test_a_straggler_does_a_random_part_of_its_epochs(federation, device):
    """One client, always late: after every round it has made one, two or three of the three steps."""
    alone = federation.select([1])
    started = training(alone, FedProx(lr=0.1, batch_size=0, epochs=3, mu=0.5, stragglers=1.0), device)
    state, w, seen = started.init()[0], np.zeros(3), set()
    for number in range(1, 9):
        state, models = run(started, 1, state, number)
        paths = [descend(w, *own(alone, 0), steps, 0.1, lambda v, w=w: 0.5 * (v - w)) for steps in (1, 2, 3)]
        matches = [steps for steps, path in enumerate(paths, 1) if np.allclose(models[0], path, rtol=1e-10)]
        assert len(matches) == 1
        seen.add(matches[0])
        w = models[0]
    assert len(seen) > 1


def test_ditto_ties_a_personal_model_to_the_shared_one(federation, device):
    """The shared model converges to the pooled optimum w*, a personal one to argmin F_k(v) + lambda/2 |v - w*|^2."""
    started = training(federation, Ditto(lr=0.2, batch_size=0, tie=0.4), device)
    state, models = run(started, 600)
    optimum = np.linalg.lstsq(*pooled_data(federation), rcond=None)[0]
    np.testing.assert_allclose(weights_of(state.shared), np.tile(optimum, (5, 1)), rtol=1e-9)
    expected = [prox_point(*own(federation, k), 0.4, optimum) for k in range(5)]
    np.testing.assert_allclose(models, expected, rtol=1e-8)


def test_ditto_on_paper_uses_the_shared_model_of_the_round_before(device):
    """One client, F(v) = (v - 1)^2 / 2, lr = 1/2, lambda = 1. Shared: 0 -> 1/2 -> 3/4. Personal: round 1 pulls to
    w = 0: 0 - (0 - 1 + 0) / 2 = 1/2; round 2 to w = 1/2: 1/2 - (1/2 - 1 + 1/2 - 1/2) / 2 = 3/4."""
    alone = regression([1], features=1)
    alone = dataclasses.replace(alone, train=alone.train._replace(x=np.ones((1, 1, 1)), y=np.ones((1, 1))))
    state, models = run(training(alone, Ditto(lr=0.5, batch_size=0, tie=1.0), device), 2)
    assert weights_of(state.shared).tolist() == [[0.75]]
    assert models.tolist() == [[0.75]]
    # With two passes: 0 -> 1/2 -> 1/2 - (-1/2 + 1/2) / 2 = 1/2.
    _, models = run(training(alone, Ditto(lr=0.5, batch_size=0, tie=1.0, personal_epochs=2), device), 1)
    assert models.tolist() == [[0.5]]


@pytest.mark.soak
def test_finetuning_leaves_the_shared_model_of_fedavg_as_it_is(federation, device):
    common = {"lr": 0.1, "batch_size": 3, "steps": 2, "participation": 0.6}
    plain = training(federation, FedAvg(**common), device)
    tuned = training(federation, FedAvgFinetuned(**common, finetune_epochs=2), device)
    shared, tuned_state = plain.init()[0], tuned.init()[0]
    for number in (1, 2):
        shared, _ = plain.advance(shared, number, 1)
        tuned_state, _ = tuned.advance(tuned_state, number, 1)
        tuned.evaluate(tuned_state, number)  # fine-tuning does not change the state
        assert (weights_of(shared.variables) == weights_of(tuned_state.variables)).all()


@pytest.mark.soak
@pytest.mark.parametrize(("rate", "used"), [(0.0, 0.3), (0.05, 0.05)])
def test_finetuning_is_gradient_descent_on_the_clients_own_data(federation, device, rate, used):
    method = FedAvgFinetuned(lr=0.3, batch_size=0, finetune_epochs=4, finetune_lr=rate)
    started = training(federation, method, device)
    state, shared = run(started, 2)
    expected = [descend(shared[k], *own(federation, k), 4, used) for k in range(5)]
    np.testing.assert_allclose(weights_of(started.models(state, 2)), expected, rtol=1e-11)
    metrics = started.evaluate(state, 2)
    for name, models in (("test", expected), ("untuned", shared)):
        errors = [x @ models[k] - y for k in range(5) for x, y in [own(federation, k, "test")]]
        np.testing.assert_allclose(metrics[f"{name}_score"], [np.sqrt(np.mean(e**2)) for e in errors], rtol=1e-10)


def test_pooled_is_gradient_descent_on_the_union(federation, device):
    federation = dataclasses.replace(federation, validation=federation.validation._replace(count=np.zeros(5, np.int32)))
    started = training(federation, Pooled(lr=0.3, batch_size=0, momentum=0.6), device)
    state, opening = started.init()
    state, models = run(started, 5, state)
    (x, y), w, velocity = pooled_data(federation), np.zeros(3), np.zeros(3)
    for _ in range(5):
        velocity = 0.6 * velocity + slope(w, x, y)
        w = w - 0.3 * velocity
    np.testing.assert_allclose(models, np.tile(w, (5, 1)), rtol=1e-12)
    # The samples are sent once: x, y and a count of both splits up; down the table of five, and which are missing.
    numbers = 9 * (3 + 1) + 2 * (3 + 1)  # the largest client has 9 training samples, 2 for validation
    assert (np.asarray(opening.traffic.up_bytes) == 48 + 8 * numbers + 2 * 4).all()
    assert (np.asarray(opening.traffic.down_bytes) == 48 + 5 * (8 * numbers + 2 * 4) + 5).all()


def test_pooled_keeps_the_model_that_does_best_on_all_validation_samples(federation, device):
    x, y = pooled_data(federation)
    held_out = [np.concatenate(p) for p in zip(*(own(federation, k, "validation") for k in range(5)), strict=True)]
    w, velocity, path = np.zeros(3), np.zeros(3), []
    for _ in range(20):
        velocity = 0.95 * velocity + slope(w, x, y)
        w = w - 0.5 * velocity
        path.append((0.5 * np.mean((held_out[0] @ w - held_out[1]) ** 2), w))
    best = min(range(20), key=lambda t: path[t][0])
    assert 0 < best < 19  # so that the last model is not simply the best
    _, models = run(training(federation, Pooled(lr=0.5, batch_size=0, momentum=0.95), device), 20)
    np.testing.assert_allclose(models, np.tile(path[best][1], (5, 1)), rtol=1e-10)


@pytest.mark.soak
def test_personal_layers_are_never_mixed_and_never_sent(federation, device):
    """An MLP 3-4-1 has 16 parameters in its first layer and 5 in the second, which is personal."""
    method, model = FedAvg(lr=0.1, batch_size=0), Mlp(hidden=(4,))

    def trained(clients, personal):
        started = training(clients, method, device, model=model, personal=personal)
        state, block = started.advance(started.init()[0], 1, 1)
        return jax.device_get(state.variables.params), block.traffic

    params, traffic = trained(federation, ("layers.1",))
    _, everything = trained(federation, ())
    assert (np.asarray(everything.up_bytes) == 48 + 8 * (16 + 5 + 1)).all()
    assert (np.asarray(everything.up_bytes) - np.asarray(traffic.up_bytes) == 8 * 5).all()
    assert (np.asarray(everything.down_bytes) - np.asarray(traffic.down_bytes) == 8 * 5).all()
    assert np.ptp(params.layers[0].weight, axis=0).max() == 0
    assert np.ptp(params.layers[1].weight, axis=0).min() > 0
    alone, _ = trained(federation.select([2]), ("layers.1",))  # a personal layer sees nothing of the others
    np.testing.assert_allclose(params.layers[1].weight[2], alone.layers[1].weight[0], rtol=1e-12)
    np.testing.assert_allclose(params.layers[1].bias[2], alone.layers[1].bias[0], rtol=1e-12)
