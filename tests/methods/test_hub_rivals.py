"""Optimisers at the hub, SCAFFOLD, FedDyn, APFL, Per-FedAvg, FedALA, FedAMP, IFCA, FedEM on least squares, in NumPy.

Client k's loss is F_k(w) = |X_k w - y_k|^2 / (2 n_k); numbers are float64 and training takes full batches.
"""

import jax
import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.methods import (
    APFL,
    IFCA,
    FedAdam,
    FedALA,
    FedAMP,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedEM,
    FedYogi,
    PerFedAvg,
    Scaffold,
)
from support.cases import Weights, own, regression, run, slope, training, weights_of

pytestmark = pytest.mark.usefixtures("x64")

SIZES = [4, 9, 6]
N = np.array(SIZES) / sum(SIZES)
CLIENTS = len(SIZES)


@pytest.fixture(scope="module")
def federation():
    return regression(SIZES)


def optimum(federation):
    """The minimiser of the loss over all samples."""
    data = zip(*(own(federation, k) for k in range(CLIENTS)), strict=True)
    return np.linalg.lstsq(*map(np.concatenate, data), rcond=None)[0]


def curvatures(federation):
    """F_k(w) = w'A_k w / 2 - b_k'w + constant."""
    pairs = [own(federation, k) for k in range(CLIENTS)]
    return [(x.T @ x / len(x), x.T @ y / len(x)) for x, y in pairs]


def drawn(key):
    return Weights(jax.random.normal(key, (1, 3)))


@pytest.mark.parametrize("corrected", [Scaffold, FedDyn])
def test_corrected_clients_find_the_model_that_is_best_for_all(federation, device, corrected):
    """Several local steps lead FedAvg elsewhere: each client drifts towards its own best model."""
    settings = {"alpha": 0.5} if corrected is FedDyn else {}
    _, models = run(training(federation, corrected(lr=0.1, batch_size=0, steps=4, **settings), device), 1500)
    np.testing.assert_allclose(models, np.tile(optimum(federation), (CLIENTS, 1)), rtol=1e-7)
    _, drifted = run(training(federation, FedAvg(lr=0.1, batch_size=0, steps=4), device), 1500)
    assert np.abs(drifted[0] - optimum(federation)).max() > 0.01


@pytest.mark.parametrize(("renew", "counts"), [("path", "samples"), ("gradient", "samples"), ("path", "clients")])
def test_scaffold_step_by_step(federation, device, renew, counts):
    lr, steps, rounds = 0.1, 3, 3
    method = Scaffold(lr=lr, batch_size=0, epochs=steps, renew=renew, hub_lr=0.7, counts=counts)
    weights = N if counts == "samples" else np.full(CLIENTS, 1 / CLIENTS)
    _, models = run(training(federation, method, device), rounds)
    x, c, controls = np.zeros(3), np.zeros(3), np.zeros((CLIENTS, 3))
    for _ in range(rounds):
        y, renewed = np.tile(x, (CLIENTS, 1)), np.zeros_like(controls)
        for k in range(CLIENTS):
            for _ in range(steps):
                y[k] -= lr * (slope(y[k], *own(federation, k)) - controls[k] + c)
            renewed[k] = controls[k] - c + (x - y[k]) / (steps * lr)
            if renew == "gradient":
                renewed[k] = slope(x, *own(federation, k))
        x, c, controls = x + 0.7 * (weights @ y - x), c + weights @ (renewed - controls), renewed
    np.testing.assert_allclose(models, np.tile(x, (CLIENTS, 1)), rtol=1e-11)


def test_scaffold_counts_the_steps_of_an_epoch(federation, device):
    """9 samples in batches of at most 4 make 3 steps; the mean gradient along the path is (x - y) / (3 lr)."""
    alone = federation.select([1])
    started = training(alone, Scaffold(lr=0.1, batch_size=4), device)
    state, models = run(started, 1)
    np.testing.assert_allclose(np.asarray(state.own_control.w)[:, 0], -models / (3 * 0.1), rtol=1e-12)


def test_scaffold_refuses_steps_that_are_not_gradients(federation, device):
    started = training(federation, FedAvg(), device)
    with pytest.raises(CoterieError, match=r"scaffold reads gradients off the local steps.*set momentum = 0"):
        Scaffold(momentum=0.9).check(started.task, federation)


def test_feddyn_step_by_step_with_half_of_the_clients(federation, device):
    alpha, lr, rounds = 0.3, 0.1, 4
    started = training(federation, FedDyn(lr=lr, batch_size=0, epochs=2, alpha=alpha, participation=0.6), device)
    state, block = started.advance(started.init()[0], 1, rounds)
    chosen = np.asarray(block.traffic.up_messages) == 1
    theta, h, gradients = np.zeros(3), np.zeros(3), np.zeros((CLIENTS, 3))
    for took_part in chosen:
        reached = np.tile(theta, (CLIENTS, 1))
        for k in np.flatnonzero(took_part):
            for _ in range(2):
                pull = alpha * (reached[k] - theta) - gradients[k]
                reached[k] = reached[k] - lr * (slope(reached[k], *own(federation, k)) + pull)
            gradients[k] -= alpha * (reached[k] - theta)
        weight = N * took_part
        mean = weight @ reached / weight.sum()
        h = h - alpha * took_part.sum() / CLIENTS * (mean - theta)
        theta = mean - h / alpha
    np.testing.assert_allclose(weights_of(state.variables), np.tile(theta, (CLIENTS, 1)), rtol=1e-11)


def test_apfl_step_by_step(federation, device):
    lr, alpha_lr, rounds = 0.1, 0.3, 4
    method = APFL(lr=lr, batch_size=0, epochs=2, alpha=0.4, alpha_lr=alpha_lr)
    state, models = run(training(federation, method, device), rounds)
    w, v, alpha = np.zeros(3), np.zeros((CLIENTS, 3)), np.full(CLIENTS, 0.4)
    for _ in range(rounds):
        copies = np.tile(w, (CLIENTS, 1))
        for k in range(CLIENTS):
            data = own(federation, k)
            for _ in range(2):
                at_mixture = slope(alpha[k] * v[k] + (1 - alpha[k]) * copies[k], *data)
                along = (v[k] - copies[k]) @ at_mixture
                at_copy = slope(copies[k], *data)
                v[k] -= lr * alpha[k] * at_mixture
                copies[k] -= lr * at_copy
                alpha[k] = np.clip(alpha[k] - alpha_lr * along, 0, 1)
        w = N @ copies
    np.testing.assert_allclose(np.asarray(state.alpha), alpha, rtol=1e-11)
    np.testing.assert_allclose(models, alpha[:, None] * v + (1 - alpha)[:, None] * w, rtol=1e-11)
    assert np.ptp(alpha) > 0.001


@pytest.mark.parametrize("order", ["first", "exact"])
def test_per_fedavg_finds_the_best_start(federation, device, order):
    """With B = I - alpha A the adapted model is B w + alpha b. Exact: sum of n B (A (B w + alpha b) - b) is 0 at the
    minimiser of F; the first-order method drops the leading B."""
    alpha = 0.2
    started = training(federation, PerFedAvg(lr=0.2, batch_size=0, inner_lr=alpha, order=order), device)
    state, models = run(started, 2500)
    left, right = np.zeros((3, 3)), np.zeros(3)
    for n, (a, b) in zip(N, curvatures(federation), strict=True):
        step = np.eye(3) - alpha * a
        front = step if order == "exact" else np.eye(3)
        left, right = left + n * front @ a @ step, right + n * front @ (b - alpha * a @ b)
    start = np.linalg.solve(left, right)
    np.testing.assert_allclose(models, np.tile(start, (CLIENTS, 1)), rtol=1e-7)
    adapted = [start - alpha * slope(start, *own(federation, k)) for k in range(CLIENTS)]
    np.testing.assert_allclose(weights_of(started.models(state, 1)), adapted, rtol=1e-7)


def test_fedala_step_by_step(federation, device):
    lr, eta, rounds = 0.1, 0.5, 4
    method = FedALA(lr=lr, batch_size=0, weight_lr=eta, sample=1.0, first_passes=3)
    state, models = run(training(federation, method, device), rounds)
    theta, hub, weights = np.zeros((CLIENTS, 3)), np.zeros(3), np.ones((CLIENTS, 3))
    for number in range(rounds):
        for k in range(CLIENTS):
            data, away = own(federation, k), hub - theta[k]
            for _ in range(0 if number == 0 else 3 if number == 1 else 1):
                gradient = slope(theta[k] + away * weights[k], *data)
                weights[k] = np.clip(weights[k] - eta * gradient * away, 0, 1)
            start = theta[k] + away * weights[k]
            theta[k] = start - lr * slope(start, *data)
        hub = N @ theta
    np.testing.assert_allclose(models, theta, rtol=1e-11)
    np.testing.assert_allclose(np.asarray(state.weights.w)[:, 0], weights, rtol=1e-11)
    assert ((weights > 0) & (weights < 1)).any()


def test_fedamp_step_by_step(federation, device):
    lr, sigma, attention, tie, rounds = 0.2, 0.5, 0.8, 0.6, 4
    method = FedAMP(lr=lr, batch_size=0, sigma=sigma, attention=attention, tie=tie)
    graph = Graph.complete(CLIENTS)
    _, models = run(training(federation, method, device, graph, np.zeros(graph.present.shape)), rounds)
    w = np.zeros((CLIENTS, 3))
    for _ in range(rounds):
        squares = ((w[:, None] - w[None]) ** 2).sum(-1)
        xi = attention / (CLIENTS - 1) * np.exp(-squares / sigma)
        np.fill_diagonal(xi, 0)
        u = xi @ w + (1 - xi.sum(1))[:, None] * w
        w = np.array([w[k] - lr * (slope(w[k], *own(federation, k)) + tie * (w[k] - u[k])) for k in range(CLIENTS)])
    np.testing.assert_allclose(models, w, rtol=1e-11)


def test_ifca_step_by_step(federation, device):
    started = training(federation, IFCA(lr=0.2, batch_size=0, epochs=2, clusters=2), device, model=drawn, seed=2)
    state, _ = started.init()
    centres = np.array(state.hub.w)[:, 0]
    assert np.abs(centres[0] - centres[1]).max() > 0.1
    state, block = started.advance(state, 1, 5)
    for _ in range(5):
        reached, labels = [], []
        for k in range(CLIENTS):
            x, y = own(federation, k)
            labels.append(int(np.argmin([np.mean((x @ centre - y) ** 2) for centre in centres])))
            mine = centres[labels[-1]]
            for _ in range(2):
                mine = mine - 0.2 * slope(mine, x, y)
            reached.append(mine)
        labels, reached = np.array(labels), np.array(reached)
        for j in set(labels.tolist()):
            weight = N * (labels == j)
            centres[j] = weight @ reached / weight.sum()
    np.testing.assert_allclose(np.asarray(state.hub.w)[:, 0], centres, rtol=1e-11)
    np.testing.assert_allclose(weights_of(state.variables), centres[labels], rtol=1e-11)
    assert block.counts["cluster"].tolist() == labels.tolist()
    assert len(set(labels.tolist())) == 2
    # Up: the change, the cluster (4 bytes) and the count; down: both models.
    assert (np.asarray(block.traffic.up_bytes) == 48 + 8 * 3 + 4 + 8).all()
    assert (np.asarray(block.traffic.down_bytes) == 48 + 2 * 8 * 3).all()


def test_fedem_step_by_step(federation, device):
    started = training(federation, FedEM(lr=0.1, batch_size=0, epochs=2, components=2), device, model=drawn)
    state, _ = started.init()
    theta = np.stack([np.asarray(member.w)[0, 0] for member in state.variables.params.members])  # [M, 3]
    state, _ = started.advance(state, 1, 4)
    pi = np.full((CLIENTS, 2), 0.5)
    for _ in range(4):
        reached = np.empty((CLIENTS, 2, 3))
        for k in range(CLIENTS):
            x, y = own(federation, k)
            q = pi[k] * np.exp(-0.5 * (x @ theta.T - y[:, None]) ** 2)
            q /= q.sum(1, keepdims=True)
            pi[k] = q.mean(0)
            for m in range(2):
                w = theta[m]
                for _ in range(2):
                    w = w - 0.1 * x.T @ (q[:, m] * (x @ w - y)) / len(x)
                reached[k, m] = w
        theta = np.tensordot(N, reached, 1)
    for m, member in enumerate(state.variables.params.members):
        np.testing.assert_allclose(np.asarray(member.w)[:, 0], np.tile(theta[m], (CLIENTS, 1)), rtol=1e-10)
    np.testing.assert_allclose(np.exp(np.asarray(state.variables.params.mixture)), pi, rtol=1e-10)
    assert np.abs(pi - 0.5).max() > 0.05


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_optimisers_at_the_hub_step_by_step(federation, device, name):
    settings = {"fedavgm": {"hub_momentum": 0.8, "hub_lr": 0.5}, "fedadam": {"hub_lr": 0.1}, "fedyogi": {"hub_lr": 0.1}}
    method = {"fedavgm": FedAvgM, "fedadam": FedAdam, "fedyogi": FedYogi}[name](lr=0.1, batch_size=0, **settings[name])
    _, models = run(training(federation, method, device), 5)
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, 1e-6)
    for _ in range(5):
        reached = [x - 0.1 * slope(x, *own(federation, k)) for k in range(CLIENTS)]
        delta = N @ reached - x
        if name == "fedavgm":
            m = 0.8 * m + delta
            x = x + 0.5 * m
            continue
        m, square = 0.9 * m + 0.1 * delta, delta**2
        v = 0.99 * v + 0.01 * square if name == "fedadam" else v - 0.01 * square * np.sign(v - square)
        x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(models, np.tile(x, (CLIENTS, 1)), rtol=1e-10)
