"""Methods without a hub on quadratics: `gossip-sgd` against linear algebra, `local` against a NumPy descent path.

What holds for all methods is in tests/testing, methods with a hub are in test_hub.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data.clients import Federation, Split
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis, weight_matrix
from coterie.graphs.topologies import Ring
from coterie.learning.task import Variables
from coterie.methods import FedAvg, GossipSGD, Local
from coterie.models.mlp import Mlp
from coterie.numerics import tree
from coterie.traced import is_off
from support.cases import Weights, own, regression, run, slope, training, weights_of

pytestmark = pytest.mark.usefixtures("x64")

ORDERS = ("mix-and-step", "step-then-mix")
FULL = {"batch_size": 0, "steps": 1}


def scalars(x, y):
    """One client for each row of x and y `[K, n]`, with one feature."""
    x, y = np.asarray(x, float)[:, :, None], np.asarray(y, float)
    split = Split(x, y, np.full(len(x), x.shape[1], np.int32))
    return Federation(tuple(f"client-{i}" for i in range(len(x))), split, split, split, kind="regression", classes=1)


def started_from(started, weights):
    """The state of a method before its first round, with each client's model replaced `[K, features]`."""
    state, _ = started.init()
    return state._replace(variables=Variables(Weights(jnp.asarray(weights, float)[:, None])))


@pytest.mark.parametrize("order", ORDERS)
def test_gossip_on_paper(device, order):
    """Two nodes, W = [[.6, .4], [.4, .6]], f_i(x) = (x - c_i)^2 / 2, c = (1, 3), x = (0, 2), eta = 0.1.

    Gradients x - c = (-1, -1). mix-and-step: W x = (.8, 1.2), minus eta g: (.9, 1.3).
    step-then-mix: x - eta g = (.1, 2.1), W of it: (.06 + .84, .04 + 1.26) = (.9, 1.3): the same, as the gradients are.
    Then g = (-.1, -1.7). mix-and-step: W x = (1.06, 1.14), minus eta g: (1.07, 1.31).
    step-then-mix: x - eta g = (.91, 1.47), W of it: (.546 + .588, .364 + .882) = (1.134, 1.246).
    """
    federation = scalars([[1], [1]], [[1], [3]])
    pair = Graph.from_edges([0, 1], [1, 0], 2)
    started = training(federation, GossipSGD(lr=0.1, order=order, **FULL), device, pair, np.array([[0.4], [0.4]]))
    state, models = run(started, 1, started_from(started, [[0], [2]]))
    np.testing.assert_allclose(models[:, 0], [0.9, 1.3], rtol=1e-14)
    _, models = run(started, 1, state, 2)
    np.testing.assert_allclose(models[:, 0], [1.07, 1.31] if order == "mix-and-step" else [1.134, 1.246], rtol=1e-14)


def test_without_gradients_disagreement_shrinks_by_the_second_eigenvalue(device):
    """Inputs of zero have no gradient: x <- W x. On a ring of six an eigenvector of W shrinks by its eigenvalue."""
    graph = Ring(reach=1).build(6, 0)
    slots, self_weight = metropolis(graph)
    W = weight_matrix(slots, self_weight, graph).toarray()
    values, vectors = np.linalg.eigh(W)
    second = int(np.argsort(np.abs(values))[-2])
    np.testing.assert_allclose(values[second], (1 + 2 * np.cos(np.pi / 3)) / 3, rtol=1e-12)  # 2/3 for this ring
    started = training(scalars(np.zeros((6, 1)), np.zeros((6, 1))), GossipSGD(lr=0.1, **FULL), device, graph, slots)
    _, models = run(started, 8, started_from(started, vectors[:, [second]]))
    np.testing.assert_allclose(models[:, 0], (2 / 3) ** 8 * vectors[:, second], atol=1e-14)
    start = np.random.default_rng(0).normal(size=(6, 1))
    _, models = run(started, 8, started_from(started, start))
    np.testing.assert_allclose(models, np.linalg.matrix_power(W, 8) @ start, rtol=1e-12)
    np.testing.assert_allclose(models.mean(), start.mean(), rtol=1e-12)


@pytest.fixture(scope="module")
def curved():
    """Five scalar clients on a ring: F_i(x) = a_i x^2 / 2 - b_i x + ..., with mixing weights W."""
    random = np.random.default_rng(3)
    federation = scalars(random.normal(1, 0.3, (5, 4)), random.normal(1, 2, (5, 4)))
    x, y = federation.train.x[:, :, 0], federation.train.y
    graph = Ring(reach=1).build(5, 0)
    slots, self_weight = metropolis(graph)
    W = weight_matrix(slots, self_weight, graph).toarray()
    return federation, graph, slots, W, np.diag((x * x).mean(1)), (x * y).mean(1)


@pytest.mark.parametrize("order", ORDERS)
def test_gossip_ends_where_its_equation_says_and_its_bias_is_of_order_eta(curved, device, order):
    """x = W x - eta (A x - b), or x = W (x - eta (A x - b)): a linear system. Halving eta halves the distance to the
    minimiser of the sum, sum b / sum a."""
    federation, graph, slots, W, A, b = curved
    optimum = b.sum() / np.trace(A)
    bias = []
    for lr in (0.05, 0.025):
        mixed = np.eye(5) if order == "mix-and-step" else W
        solved = np.linalg.solve(np.eye(5) - W + lr * mixed @ A, lr * mixed @ b)
        started = training(federation, GossipSGD(lr=lr, order=order, **FULL), device, graph, slots)
        _, models = run(started, 1500)
        np.testing.assert_allclose(models[:, 0], solved, rtol=1e-9)
        bias.append(np.abs(models[:, 0] - optimum).max())
    assert 1.8 < bias[0] / bias[1] < 2.2


@pytest.mark.parametrize("order", ORDERS)
def test_gossip_with_local_steps_and_momentum_redone_in_numpy(device, order):
    """Three local steps per round; the velocity is kept from round to round and never sent."""
    federation = regression([4, 6, 3])
    graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], 3)
    slots, self_weight = metropolis(graph)
    W = weight_matrix(slots, self_weight, graph).toarray()
    method = GossipSGD(lr=0.1, order=order, batch_size=0, steps=3, momentum=0.7)
    _, models = run(training(federation, method, device, graph, slots), 3)
    w, velocity = np.zeros((3, 3)), np.zeros((3, 3))
    for _ in range(3):
        after = w.copy()
        for k in range(3):
            for _ in range(3):
                velocity[k] = 0.7 * velocity[k] + slope(after[k], *own(federation, k))
                after[k] = after[k] - 0.1 * velocity[k]
        w = W @ w + (after - w) if order == "mix-and-step" else W @ after
    np.testing.assert_allclose(models, w, rtol=1e-12)


@pytest.mark.soak
def test_gossip_sends_one_model_per_edge_without_personal_layers(device):
    """An MLP 3-4-1 has 16 parameters in the first layer and 5 in the second; a message has a header of 48 bytes."""
    federation = regression([4, 6, 3])
    graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], 3)
    slots, _ = metropolis(graph)
    for personal, sent in (((), 21), (("layers.1",), 16)):
        started = training(
            federation, GossipSGD(lr=0.1, **FULL), device, graph, slots, model=Mlp(hidden=(4,)), personal=personal
        )
        _, block = started.advance(started.init()[0], 1, 2)
        assert (np.asarray(block.traffic.heard_bytes) == (48 + 8 * sent) * graph.present).all()
        assert not np.any(block.traffic.told_bytes)
        assert not np.any(block.traffic.up_bytes)
        np.testing.assert_allclose(block.weights, slots)
    alone = training(federation, Local(lr=0.1, **FULL), device, model=Mlp(hidden=(4,)))
    one_round = started.advance(started.init()[0], 1, 1)[0].variables.params
    trained = alone.advance(alone.init()[0], 1, 1)[0].variables.params
    assert (one_round.layers[1].weight == trained.layers[1].weight).all()  # personal: as if there were no others
    assert not np.allclose(one_round.layers[0].weight, trained.layers[0].weight)


def local_path(federation, client, rounds, lr, momentum):
    """The models after each round of full gradient steps, and their validation losses, in NumPy."""
    w, velocity, path = np.zeros(3), np.zeros(3), []
    held_x, held_y = own(federation, client, "validation")
    for _ in range(rounds):
        velocity = momentum * velocity + slope(w, *own(federation, client))
        w = w - lr * velocity
        path.append((0.5 * np.mean((held_x @ w - held_y) ** 2) if len(held_x) else np.nan, w))
    return path


@pytest.mark.parametrize("patience", [0, 2])
def test_training_alone_keeps_each_clients_best_model(device, patience):
    """A heavy momentum makes the validation loss go up and down; patience 2 ends the search after two bad rounds."""
    federation = regression([4, 9, 2, 6, 5], seed=7, validation=3)
    counts = federation.validation.count.copy()
    counts[3] = 0  # without validation samples it keeps its newest model
    federation = dataclasses.replace(federation, validation=federation.validation._replace(count=counts))
    rounds = 15
    method = Local(lr=0.3, momentum=0.9, patience=patience, **FULL)
    _, models = run(training(federation, method, device), rounds)
    kept = []
    for client in range(5):
        path = local_path(federation, client, rounds, 0.3, 0.9)
        best = 0
        for t in range(1, rounds):
            if patience and t - best > patience:
                break
            if path[t][0] < path[best][0]:
                best = t
        kept.append(rounds - 1 if client == 3 else best)
        np.testing.assert_allclose(models[client], path[kept[-1]][1], rtol=1e-10)
    assert len(set(kept)) > 2
    assert min(kept) < rounds - 1
    if patience:  # some client stopped before its best round
        everything = [
            np.nanargmin([loss for loss, _ in local_path(federation, k, rounds, 0.3, 0.9)]) for k in (0, 1, 2, 4)
        ]
        assert any(early < late for early, late in zip([kept[k] for k in (0, 1, 2, 4)], everything, strict=True))


def test_training_alone_sends_nothing(device):
    federation = regression([4, 3])
    started = training(federation, Local(lr=0.1, **FULL), device)
    state, opening = started.init()
    _, block = started.advance(state, 1, 3)
    for traffic in (opening.traffic, block.traffic):
        assert not any(np.any(value) for value in traffic)


def test_zero_settings_are_constants_and_other_numbers_are_traced():
    """A new learning rate is only a new leaf; switching momentum on gives another program."""
    leaves, structure = jax.tree.flatten(FedAvg(lr=0.1))
    assert leaves == [0.1]
    assert jax.tree.structure(FedAvg(lr=0.2)) == structure
    assert jax.tree.structure(FedAvg(lr=0.1, momentum=0.5)) != structure
    assert jax.tree.structure(FedAvg(lr=0.1, participation=0.5)) != structure  # it shapes the program
    assert jax.tree.unflatten(structure, [0.7]) == FedAvg(lr=0.7)
    assert is_off(0.0)
    assert is_off(0)
    assert not is_off(1e-300)
    assert not is_off(jnp.zeros(()))


def test_clients_start_from_one_model_and_seeds_from_different_ones(device):
    federation = regression([4, 3])
    starts = []
    for seed in (0, 0, 1):
        started = training(federation, GossipSGD(**FULL), device, model=Mlp(hidden=(4,)), seed=seed)
        starts.append(np.asarray(started.init()[0].variables.params.layers[0].weight))
    assert (starts[0][0] == starts[0][1]).all()
    assert (starts[0] == starts[1]).all()
    assert not np.allclose(starts[0], starts[2])


def test_the_models_are_those_of_the_state(device):
    federation = regression([4, 3])
    started = training(federation, FedAvg(lr=0.1, **FULL), device)
    state, models = run(started, 2)
    assert (weights_of(tree.for_each(started.models(state, 2), 2)) == models).all()
