"""PDBO-MTL: its hyper-gradient against a dense solution, its steps, its restarts, what is sent, and bad input."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import coterie
from coterie.data.clients import Split
from coterie.errors import CoterieError
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.directed import RandomDirected
from coterie.graphs.graph import Graph
from coterie.learning.task import Task, Variables
from coterie.methods.pdbo_mtl import PDBOMTL
from coterie.models.linear import Linear
from coterie.testing.small import small_federation

CLIENTS = 3
PLAIN = {"lr": 0.5, "batch_size": 0, "weight_decay": 0.1, "predictors": 2, "outer_decay": 0.01}


@pytest.fixture(scope="module")
def engine():
    federation = small_federation(CLIENTS)
    return Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))


def train(engine, method, rounds, graph=None, seed=0):
    graph = graph or Graph.complete(engine.size)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), seed)
    state, _ = training.init()
    states = []
    for number in range(1, rounds + 1):
        state, block = training.advance(state, number, 1)
        states.append(jax.device_get(state))
    return training, states, block


def gradient_of_adam(state, what=0):
    """Adam's first moment after one step is a tenth of the gradient: of the weights, or of the importance."""
    return np.asarray(jax.tree.leaves(state.outer[0].mu)[what], np.float64) / 0.1


def held_out(method, data, client, in_order=False):
    """Return one client's samples of the inner problem and of the outer cost, without padding."""
    key = jax.random.fold_in(jax.random.key(0), client)
    parts = method._divide(in_order, jax.tree.map(jnp.asarray, data.client(client)), key)
    return [(part.x[: int(part.count)], part.y[: int(part.count)]) for part in parts]


@pytest.mark.soak
@pytest.mark.parametrize("upper", ["held-out", "train"])
def test_the_step_follows_the_dense_hypergradient(engine, upper):
    """On certain links and full batches the Neumann estimate tends to d_lambda F_i - C_i (sum H)^-1 sum d_x F.

    After a few pushes only: at the minimum the two predictors are equal, and no weight matters. Importance mu counts a
    loss 2 sigmoid(mu) times: once here, with slope one half, so that its C_i is half of the loss's gradient.
    """
    settings = PLAIN | {"weight_decay": 0.5, "upper": upper, "held_out": 0.4}  # not convex without the penalty
    settings |= {"importance": upper == "held-out"}
    method = PDBOMTL(**settings, pushes=2, estimator="neumann", depth=150, damping=0.4, gossip=2, outer_lr=0.01)
    training, (state,), block = train(engine, method, 1)
    task, clients = training.task, jax.device_get(engine.clients).train
    params = jax.tree.map(jnp.asarray, state.variables.params)
    one = jax.tree.map(lambda a: a[0], params)
    point, unravel = ravel_pytree(task.shared(one))

    def loss(rows, x, mixture):
        personal = dataclasses.replace(task.own(one), mixture=mixture)
        output, _ = task.apply(Variables(task.join(unravel(x), personal)), jnp.asarray(rows[0]))
        return task.losses(output, jnp.asarray(rows[1])).mean()

    whole = [[clients.rows(i)] * 2 for i in range(CLIENTS)]
    rows = [held_out(method, clients, i) for i in range(CLIENTS)] if upper == "held-out" else whole

    def inner(i, x, mixture):
        return loss(rows[i][0], x, mixture) + 0.25 * jnp.sum(x * x)

    def outer(i, x, mixture):
        return loss(rows[i][1], x, mixture) + 0.005 * jnp.sum(mixture * mixture)

    lam = jnp.zeros(2)

    @partial(jax.jit, static_argnums=0)
    def derivatives(i):
        mixed = jax.jacfwd(jax.grad(inner, 1), 2)(i, point, lam)  # [dx, dlambda]
        return jax.hessian(inner, 1)(i, point, lam), mixed, *jax.grad(outer, (1, 2))(i, point, lam)

    each = [[np.asarray(a, np.float64) for a in derivatives(i)] for i in range(CLIENTS)]
    hessian, slope = sum(terms[0] for terms in each), sum(terms[2] for terms in each)
    assert np.linalg.eigvalsh(hessian).min() > 0.1  # the series converges
    q = np.linalg.solve(hessian, slope)
    gradient = gradient_of_adam(state)
    for i, (_, cross, _, direct) in enumerate(each):
        expected = direct - cross.T @ q
        np.testing.assert_allclose(gradient[i], expected, atol=1e-3 * np.abs(gradient).max())
        assert np.abs(cross.T @ q).max() > 0.05 * np.abs(gradient).max()  # the indirect part is not negligible here
    assert np.abs(gradient).max() > 1e-3
    if upper == "held-out":
        slopes = [np.asarray(jax.grad(loss, 1)(rows[i][0], point, lam), np.float64) for i in range(CLIENTS)]
        expected = np.array([-0.5 * slope @ q for slope in slopes])
        np.testing.assert_allclose(gradient_of_adam(state, 1), expected, atol=1e-3 * np.abs(expected).max())
        np.testing.assert_allclose(state.importance, -0.01 * np.sign(expected), rtol=1e-3)
        assert (block.counts["importance"] == 1).all()  # what this round counted with; the step is for the next one


def test_importance_is_refused_where_it_cannot_be_learned():
    for settings in ({"upper": "held-out"}, {"estimator": "neumann"}):
        with pytest.raises(CoterieError, match="importance is learned through the predictors"):
            PDBOMTL(importance=True, **settings)


def test_held_out_samples_are_a_share_of_the_training_samples_and_never_learned_from():
    """Five samples, 0.4 of them held out: two, the others remain; of a text the last two; never all, never none."""
    rows = Split(np.arange(8.0)[None, :, None], np.arange(8)[None], np.array([5]))
    for in_order in (False, True):
        (kept, _), (out, labels) = held_out(PDBOMTL(held_out=0.4), rows, 0, in_order)
        assert sorted([*kept[:, 0].tolist(), *out[:, 0].tolist()]) == [0, 1, 2, 3, 4]
        assert labels.tolist() == out[:, 0].tolist()
        assert len(out) == 2
    assert out[:, 0].tolist() == [3, 4]
    for share, size in ((0.01, 1), (0.99, 4)):
        assert len(held_out(PDBOMTL(held_out=share), rows, 0)[1][0]) == size
    federation = small_federation(3)
    few = dataclasses.replace(federation, train=federation.train._replace(count=np.array([4, 1, 4])))
    with pytest.raises(CoterieError, match="has one training sample"):
        PDBOMTL(upper="held-out").check(None, few)


@pytest.mark.soak
def test_the_local_estimate_is_the_plain_gradient_and_the_first_step_of_adam_its_sign(engine):
    method = PDBOMTL(**PLAIN, pushes=5, estimator="local", outer_lr=0.3)
    training, (state,), block = train(engine, method, 1)
    task, clients = training.task, jax.device_get(engine.clients).train
    for i in range(CLIENTS):
        params = jax.tree.map(lambda a, i=i: jnp.asarray(a[i]), state.variables.params)
        count = int(clients.count[i])

        def cost(mixture, params=params, i=i, count=count):
            whole = dataclasses.replace(params, mixture=mixture)
            output, _ = task.apply(Variables(whole), jnp.asarray(clients.x[i, :count]))
            return task.losses(output, jnp.asarray(clients.y[i, :count])).mean()

        gradient = jax.grad(cost)(params.mixture)
        np.testing.assert_allclose(gradient_of_adam(state)[i], gradient, atol=1e-6)
        np.testing.assert_allclose(state.weights.mixture[i], -0.3 * np.sign(gradient), rtol=1e-3)
    # only the pushes: the local estimate sends no message
    assert (block.traffic.heard_messages[0] == 5).all()
    assert (state.pushed == 5).all()  # and takes no step of the network


@pytest.mark.soak
def test_a_restart_forgets_and_a_warm_start_goes_on(engine):
    """With weights that hardly move, a restarted round repeats itself; a warm one makes progress."""
    settings = PLAIN | {"pushes": 5, "estimator": "local", "outer_lr": 1e-9}
    _, (first, second), _ = train(engine, PDBOMTL(**settings, inner="restart"), 2)
    for a, b in zip(jax.tree.leaves(first.variables), jax.tree.leaves(second.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    _, warm, _ = train(engine, PDBOMTL(**settings, inner="warm"), 2)
    _, (long,), _ = train(engine, PDBOMTL(**(settings | {"pushes": 10}), inner="warm"), 1)
    for a, b in zip(jax.tree.leaves(warm[1].variables), jax.tree.leaves(long.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.soak
def test_the_learning_rate_can_be_annealed_from_round_to_round(engine):
    """A rate of 0.5, halved from the first round on, equals a rate of 0.25."""
    settings = PLAIN | {"pushes": 5, "estimator": "local"}
    _, (annealed,), _ = train(engine, PDBOMTL(**settings, decay=0.5, decay_every=2), 1)
    _, (small,), _ = train(engine, PDBOMTL(**(settings | {"lr": 0.25})), 1)
    for a, b in zip(jax.tree.leaves(annealed.variables), jax.tree.leaves(small.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.soak
def test_the_learning_rate_falls_at_the_end_of_a_round():
    """One client, one predictor: plain gradient descent with lr, then lr / 10, then lr / 100, step by step."""
    federation = small_federation(1)
    engine = Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))
    method = PDBOMTL(lr=0.5, batch_size=0, predictors=1, pushes=6, settle=4, estimator="local")
    training, (state,), _ = train(engine, method, 1, Graph.empty(1))
    task = training.task
    count = int(federation.train.count[0])
    x, y = jnp.asarray(federation.train.x[0, :count]), jnp.asarray(federation.train.y[0, :count])
    params = task.init(jax.random.split(jax.random.key(0), 3)[0]).params
    for lr in (0.5, 0.5, 0.05, 0.05, 0.005, 0.005):
        gradient = jax.grad(lambda p: task.losses(task.apply(Variables(p), x)[0], y).mean())(params)
        params = jax.tree.map(lambda p, g, lr=lr: p - lr * g, params, gradient)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(state.variables.params), strict=True):
        np.testing.assert_allclose(a, np.asarray(b)[0], atol=1e-6)


def test_the_personal_weights_are_not_sent(engine):
    """A message of gradient push is the base predictors and the push-sum weight: not the two personal numbers."""
    method = PDBOMTL(**PLAIN, pushes=1, estimator="local")
    training, _, block = train(engine, method, 1)
    floats = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(engine.task.init, jax.random.key(0)).params))
    size = (block.traffic.heard_bytes / block.traffic.heard_messages)[0, 0, 0]
    header = size - 4 * (2 * floats + 1)
    assert 0 < header < 64 + 16 * len(jax.tree.leaves(training.task.init(jax.random.key(0)).params))
    sent = jax.tree.leaves(training.task.shared(training.task.init(jax.random.key(0)).params))
    assert sum(leaf.size for leaf in sent) == 2 * floats


@pytest.mark.soak
def test_hyper_gradient_push_needs_links_both_ways():
    federation = small_federation(4)
    one_way = Graph.from_edges([1, 2, 3, 0], [0, 1, 2, 3], 4)  # a directed ring
    with pytest.raises(CoterieError, match="both directions"):
        coterie.run(federation, "linear", PDBOMTL(estimator="hgp"), graph=one_way, rounds=1)
    coterie.run(
        federation, "linear", PDBOMTL(pushes=2, estimator="neumann", depth=2, gossip=2), graph=one_way, rounds=1
    )


def test_bad_input():
    with pytest.raises(CoterieError, match="settle must be at most pushes"):
        PDBOMTL(pushes=3, settle=4)
    with pytest.raises(CoterieError, match="no validation sample"):
        coterie.run(small_federation(3, validation=False), "linear", PDBOMTL(upper="validation"), rounds=1)
    with pytest.raises(CoterieError, match="personal"):
        coterie.run(small_federation(3), "linear", "pdbo-mtl", personal=("weight",), rounds=1)


@pytest.mark.soak
def test_random_links_are_observed(engine):
    """The observed link frequencies tend to the probabilities, where nobody waits; the report's weights are theirs."""
    graph = RandomDirected(low=0.3, high=0.9).build(CLIENTS, 1)
    method = PDBOMTL(**PLAIN, pushes=4000, estimator="local", least_weight=0.0)
    _, _, block = train(engine, method, 1, graph)
    frequency = graph.probability
    np.testing.assert_allclose(block.weights, frequency / (1 + frequency.sum(1, keepdims=True)), atol=0.02)


@pytest.mark.soak
@pytest.mark.parametrize("inner", ["restart", "warm"])
def test_link_counts_are_kept_from_round_to_round(engine, inner):
    """A round of a few pushes says little about a link, so hyper-gradient push counts over all rounds."""
    graph = RandomDirected(low=0.3, high=0.9).build(CLIENTS, 1)
    method = PDBOMTL(**PLAIN, pushes=4, estimator="hgp", depth=1, inner=inner)
    _, (first, second), _ = train(engine, method, 2, graph)
    assert (first.seen.steps == 4).all()
    assert (second.seen.steps == 8).all()
    counted = second.seen.total.heard - first.seen.total.heard
    assert ((counted >= 0) & (counted <= 4)).all()
    assert counted.sum() > 0
