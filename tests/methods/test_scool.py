"""SCooL's round: the M-step, sparsification, recovery of planted groups, personal layers, infinite losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data.clients import Federation, stack
from coterie.data.embedded import Digits
from coterie.data.partition import Classes, Groups, Natural
from coterie.data.synthetic import PlantedGroups
from coterie.errors import CoterieError
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis
from coterie.graphs.quality import graph_quality, true_groups
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods.gossip_sgd import GossipSGD
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_mmsbm import ScoolMMSBM
from coterie.methods.scool_sbm import ScoolSBM
from coterie.methods.shared.m_steps import mix, move
from coterie.methods.shared.scool import State
from coterie.models.linear import Linear
from coterie.models.mlp import Mlp
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables

SETTINGS = {"lr": 0.1, "epochs": 5, "sparsify_after": 0}  # five local epochs, as in the paper; weights in every round


def learn(engine: Engine, method, rounds: int, seed: int = 0):
    """Train on the complete graph; returns state, last block and training."""
    graph = Graph.complete(engine.size)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), seed)
    state, _ = training.init()
    state, block = training.advance(state, 1, rounds)
    return state, block, training


def quality(federation: Federation, block, graph: Graph):
    table = {"neighbours": graph.neighbours, "present": graph.present, "weights": block.weights}
    return graph_quality(table, true_groups(federation.groups, federation.label_counts()))


@pytest.fixture(scope="module")
def digits():
    federation = Groups(groups=5)(Digits().load(), 20, 0)
    return federation, Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))


@pytest.fixture(scope="module")
def planted():
    federation = Natural()(PlantedGroups(groups=4, clients=16).load(), None, 0)
    return federation, Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))


@pytest.mark.parametrize(
    "method",
    [pytest.param(ScoolSBM(**SETTINGS), marks=pytest.mark.soak), ScoolAttention(**SETTINGS)],
    ids=["sbm", "attention"],
)
@pytest.mark.parametrize("data", [pytest.param("digits", marks=pytest.mark.soak), "planted"])
def test_planted_groups_are_recovered_by_round_ten(request, method, data):
    federation, engine = request.getfixturevalue(data)
    for seed in range(5):
        _, block, training = learn(engine, method, 10, seed)
        scores = quality(federation, block, training.graph)
        assert scores["graph_auroc"] >= 0.99
        assert scores["graph_ari"] >= 0.95


@pytest.mark.soak
@pytest.mark.parametrize(
    "method",
    [ScoolSBM(**SETTINGS), pytest.param(ScoolAttention(**SETTINGS), marks=pytest.mark.soak)],
    ids=["sbm", "attention"],
)
def test_equal_label_sets_get_five_times_the_weight_of_disjoint_ones(method):
    federation = Classes(classes=2)(Digits().load(), 20, 0)
    engine = Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))
    _, block, training = learn(engine, method, 10)
    sets = federation.label_counts() > 0
    common = (sets[:, None, :] & sets[None, :, :]).sum(2)
    by_slot = np.take_along_axis(common, training.graph.neighbours, 1)
    assert (by_slot == 2).any()
    assert (by_slot == 0).any()
    assert block.weights[by_slot == 2].mean() >= 5 * block.weights[by_slot == 0].mean()


@pytest.mark.soak
def test_mixed_memberships_recover_groups_too(planted):
    federation, engine = planted
    _, block, training = learn(engine, ScoolMMSBM(**SETTINGS), 10)
    assert quality(federation, block, training.graph)["graph_auroc"] >= 0.99


def test_m_step_by_hand():
    """Two clients, theta = (1, 2), pseudo-gradients (0.5, -1); w_01 = 0.25, w_10 = 0.5, own weights 0.75 and 0.5."""
    graph = Graph.complete(2)
    peers = LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, np.zeros((2, 1)))), Plan("exact"))
    before, pseudo = jnp.array([[1.0], [2.0]]), jnp.array([[0.5], [-1.0]])
    moved = move(peers, before, pseudo, jnp.array([[0.25], [0.5]]), jnp.array([0.75, 0.5]))
    # client 0: 1 - (0.75 * 0.5 + 0.25 * -1) = 0.875; client 1: 2 - (0.5 * -1 + 0.5 * 0.5) = 2.25
    np.testing.assert_allclose(moved, [[0.875], [2.25]], rtol=1e-6)


def test_mixing_the_models_by_hand():
    """Trained models (1, 2) of two clients; w_01 = 0.25, w_10 = 0.5, own weights 0.75 and 0.5."""
    graph = Graph.complete(2)
    peers = LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, np.zeros((2, 1)))), Plan("exact"))
    mixed = mix(peers, jnp.array([[1.0], [2.0]]), jnp.array([[0.25], [0.5]]), jnp.array([0.75, 0.5]))
    np.testing.assert_allclose(mixed, [[1.25], [1.5]], rtol=1e-6)


def test_which_m_step_is_taken():
    """The authors' program moves along pseudo-gradients whatever m_step says; held weights need a stage to begin."""
    graph = Graph.complete(2)
    peers = LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, np.zeros((2, 1)))), Plan("exact"))
    before, after = jnp.array([[1.0], [2.0]]), jnp.array([[0.5], [3.0]])
    weights, own = jnp.array([[1.0], [3.0]]), jnp.array([3.0, 1.0])  # rows (3/4, 1/4) and (3/4, 1/4)
    mixed = [[0.75 * 0.5 + 0.25 * 3], [0.75 * 0.5 + 0.25 * 3]]
    moved = [[1 - (0.75 * 0.5 + 0.25 * -1)], [2 - (0.75 * 0.5 + 0.25 * -1)]]
    for settings, expected, holds in (
        ({}, mixed, True),
        ({"sparsify_after": 0}, mixed, False),
        ({"m_step": "first-order"}, moved, False),
        ({"faithful": True}, moved, False),
    ):
        method = ScoolSBM(**settings)
        assert method.holds == holds
        step = method._move(before, after, weights, own, peers)
        np.testing.assert_allclose(step, expected, rtol=1e-6)


@pytest.mark.parametrize(("fraction", "kept"), [(0.07, 7), (0.14, 14), (0.28, 28), (0.55, 55), (0.56, 56), (0.011, 2)])
def test_a_fraction_of_100_clients_is_rounded_up_only_where_it_is_no_whole_number(fraction, kept):
    """In floating point 0.07 * 100 is 7.000000000000001."""
    present = jnp.ones((100, 99), bool)
    weights = jax.random.uniform(jax.random.key(0), present.shape)
    state = State((), (), weights, jnp.ones(100), (), jnp.arange(100, dtype=jnp.uint32))
    for m_step in ("mix", "first-order"):
        kept_slots = ScoolSBM(fraction=fraction, m_step=m_step).keep(state, present, 100)
        assert kept_slots.sum(1).tolist() == [kept] * 100


def test_neighbours_are_drawn_by_their_weights_where_models_are_mixed():
    """Nineteen equal members of a group and 80 that hardly help: drawn from the group, and not all the same ones."""
    present = jnp.ones((100, 99), bool)
    weights = jnp.where(jnp.arange(99) < 19, 0.9, 0.05) * jnp.ones((100, 1))
    state = State((), (), weights, jnp.ones(100), (), jnp.arange(100, dtype=jnp.uint32))
    drawn = ScoolSBM(fraction=0.02).keep(state, present, 100)
    heard = np.asarray(drawn.sum(0))
    assert heard[19:].sum() <= 2  # of 200: the chance of one is 80 / 19 (0.05 / 0.9)^4
    assert (heard[:19] > 0).all()
    strongest = ScoolSBM(fraction=0.02, m_step="first-order").keep(state, present, 100)
    assert np.asarray(strongest.sum(0))[:2].tolist() == [100, 100]


@pytest.mark.soak
def test_general_m_step_with_a_dirac_prior_is_d_psgd():
    """No weight on the others' data and a Gaussian tie W between neighbours: x <- W x - eta g(x)."""
    federation = Classes(classes=3)(Digits().load(), 6, 0)
    task = Task.of(federation, Linear())
    engine = Engine(task, federation, choose_device("cpu"), Plan("exact"))
    graph = Ring().build(6, 0)
    weights = metropolis(graph)[0]
    gossip = GossipSGD(lr=0.1, batch_size=0, order="mix-and-step")
    training = Training(engine, gossip, graph, weights, 0)
    state, _ = training.init()
    state, _ = training.advance(state, 1, 2)  # let the models differ first
    start = jax.device_get(state)
    after, _ = training.advance(state, 3, 1)
    peers = LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, weights)), Plan("exact"))
    data = jax.tree.map(jnp.asarray, federation.arrays())
    alone = jax.vmap(lambda v, d: gossip.train(task, v, d, jax.random.key(0)).variables)(start.variables, data.train)
    pseudo = jax.tree.map(jnp.subtract, start.variables.params, alone.params)
    zero, one = jnp.zeros(weights.shape), jnp.ones(6)
    moved = move(peers, start.variables.params, pseudo, zero, one, coupling=peers.weights)
    for a, b in zip(jax.tree.leaves(moved), jax.tree.leaves(after.variables.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_clients_train_alone_until_edges_are_dropped_and_then_mix_with_the_weights_they_had(digits):
    """Three rounds alone equal training without others; the fourth is sum_j wt_ij theta_j' in NumPy."""
    federation, engine = digits
    settings = {**SETTINGS, "batch_size": 0}
    method, graph = ScoolAttention(**{**settings, "sparsify_after": 3, "fraction": 0.12}), Graph.complete(20)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), 0)
    state, _ = training.init()
    data = jax.tree.map(jnp.asarray, federation.arrays())
    alone = jax.jit(
        jax.vmap(lambda v, d: method.train(engine.task, v, d, jax.random.key(0)).variables)
    )  # full batches: no draw matters
    trained = jax.device_get(state.variables)
    assert training.rounds_to_stage(1, 10) == 3
    state, _ = training.advance(state, 1, 3)
    for _ in range(3):
        trained = alone(trained, data.train)
    for a, b in zip(jax.tree.leaves(trained), jax.tree.leaves(state.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    weights = np.asarray(state.weights)
    state, news = training.next_stage(state, 3)
    kept = training.graph
    assert kept.degree.tolist() == [3] * 20  # ceil(0.12 * 20), itself not counted
    for i in range(20):
        heaviest = graph.neighbours[i][np.argsort(-weights[i], kind="stable")[:3]]
        assert set(kept.neighbours[i].tolist()) == set(heaviest.tolist())
    by_slot = np.take_along_axis(weights, kept.neighbours - (kept.neighbours > np.arange(20)[:, None]), 1)
    np.testing.assert_array_equal(state.weights, by_slot)
    assert news.up_messages.sum() == 20  # everyone sends which neighbours it keeps

    own = np.asarray(state.own_weight)
    trained = alone(jax.device_get(state.variables), data.train)
    state, block = training.advance(state, 4, 1)
    assert block.traffic.heard_messages[0].tolist() == [[1, 1, 1]] * 20  # one model from each kept neighbour,
    assert not block.traffic.told_messages[0].any()  # and no more questions
    np.testing.assert_array_equal(state.weights, by_slot)  # held
    matrix = np.diag(own).astype(np.float64)
    np.put_along_axis(matrix, kept.neighbours, by_slot, 1)
    matrix /= matrix.sum(1, keepdims=True)
    for a, b in zip(jax.tree.leaves(trained.params), jax.tree.leaves(state.variables.params), strict=True):
        a = np.asarray(a, np.float64)
        np.testing.assert_allclose(np.einsum("ij,j...->i...", matrix, a), b, atol=2e-6)


@pytest.mark.parametrize("serve", ["validated", "mixture"])
def test_a_client_uses_its_own_model_where_the_mixture_is_clearly_worse(serve):
    """Two pairs with opposite labels, all of one block: a mixture of a pair helps, one of all four is useless."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 60, 3)).astype(np.float32)
    labels = (x[..., 0] > 0).astype(np.int32)
    labels[2:] = 1 - labels[2:]
    thirds = ((0, 20), (20, 40), (40, 60))
    train, validation, test = (stack([(x[k, a:b], labels[k, a:b]) for k in range(4)]) for a, b in thirds)
    federation = Federation(tuple("abcd"), train, validation, test, "classification", 2)
    engine = Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))
    method = ScoolSBM(lr=0.5, epochs=20, sparsify_after=1, fraction=1.0, serve=serve)
    graph = Graph.complete(4)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), 0)
    state, _ = training.init()
    state, _ = training.advance(state, 1, 1)
    state, _ = training.next_stage(state, 1)
    state = state._replace(weights=jnp.ones_like(state.weights), own_weight=jnp.ones_like(state.own_weight))
    state, _ = training.advance(state, 2, 1)
    weights = np.asarray(jax.tree.leaves(state.variables.params)[0])
    np.testing.assert_allclose(weights, weights[:1].repeat(4, 0), atol=1e-5)  # training goes on from one mixture
    scores = training.evaluate(state, 2)["test_score"]
    assert (scores >= 0.8).all() if serve == "validated" else scores.mean() < 0.7, scores
    if serve == "mixture":
        return
    used = jax.device_get(state.served)
    flipped = jax.tree.map(lambda a: -100 * a, state.variables)  # training goes on from models that are broken
    once_more, _ = training.advance(state._replace(variables=flipped), 3, 1)
    jax.tree.map(np.testing.assert_array_equal, once_more.served, used)  # nobody uses what comes of them
    assert (training.evaluate(once_more, 3)["test_score"] == scores).all()


@pytest.mark.soak
def test_a_budget_always_leaves_one_neighbour(digits):
    _, engine = digits
    method = ScoolSBM(lr=0.1, fraction=0.001, sparsify_after=1)
    state, _, training = learn(engine, method, 1)
    training.next_stage(state, 1)
    assert training.graph.degree.tolist() == [1] * 20


@pytest.mark.soak
def test_personal_layers_are_not_sent_and_not_mixed():
    federation = Classes(classes=3)(Digits().load(), 6, 0)
    sizes = {}
    for personal in ((), ("layers.1",)):
        task = Task.of(federation, Mlp(hidden=(8,)), personal=personal)
        engine = Engine(task, federation, choose_device("cpu"))
        _, block, _ = learn(engine, ScoolAttention(**SETTINGS), 1)
        sizes[personal] = block.traffic.told_bytes.sum() / block.traffic.told_messages.sum()
    assert sizes[()] - sizes["layers.1",] == 4 * (8 * 10 + 10)  # the last layer's floats


@pytest.mark.soak
@pytest.mark.parametrize("cls", [ScoolSBM, ScoolAttention])
def test_groups_are_found_with_personal_layers_too(cls):
    """Trained alone, the shared layers differ enough; neighbours' heads make all losses small, hence the median."""
    federation = Natural()(PlantedGroups(groups=4, clients=16, separation=3.0).load(), None, 0)
    task = Task.of(federation, Mlp(hidden=(16,)), personal=("layers.1",))
    engine = Engine(task, federation, choose_device("cpu"))
    method = cls(lr=0.1, epochs=5, sparsify_after=10)
    assert cls is ScoolAttention or method.rule(task) == "median"
    _, block, training = learn(engine, method, 10)
    assert quality(federation, block, training.graph)["graph_auroc"] >= 0.95  # 0.5 where bases move together


@pytest.mark.soak
def test_a_neighbour_whose_loss_is_not_a_number_gets_no_weight():
    federation = Classes(classes=3)(Digits().load(), 6, 0)
    x = federation.train.x.copy()
    x[2] = 1e30  # finite data on which every model's loss overflows
    poisoned = dataclasses.replace(federation, train=federation.train._replace(x=x))
    task = Task.of(poisoned, Mlp(hidden=(8,)))
    engine = Engine(task, poisoned, choose_device("cpu"))
    method = dataclasses.replace(ScoolSBM(**SETTINGS), lr=1e-30)
    graph = Graph.complete(6)
    training = Training(engine, method, graph, np.zeros((6, 5)), 0)
    state, _ = training.init()
    state, block = training.advance(state, 1, 1)
    others = graph.neighbours == 2
    assert np.isfinite(block.weights[graph.neighbours[:, 0] != 2]).all()
    assert (np.nan_to_num(block.weights[others]) < 0.01).all()


@pytest.mark.soak
def test_exact_m_step_follows_the_weighted_gradient():
    """One exact step is that of own L_i + sum_j w_ij L_j, with rows of sum one and weight decay, without the verbs."""
    federation = Classes(classes=3)(Digits().load(), 4, 0)
    task = Task.of(federation, Linear())
    engine = Engine(task, federation, choose_device("cpu"), Plan("exact"))
    method = ScoolSBM(lr=0.1, sparsify_after=0, m_step="exact", exact_steps=1, batch_size=0, weight_decay=0.01)
    graph = Graph.complete(4)
    training = Training(engine, method, graph, np.zeros((4, 3)), 0)
    state, _ = training.init()
    before = jax.device_get(state.variables.params)
    state, _ = training.advance(state, 1, 1)
    data = federation.train

    def loss(params, j):
        n = int(data.count[j])
        return task.loss(params, (), jnp.asarray(data.x[j, :n]), jnp.asarray(data.y[j, :n]), jnp.ones(n, bool))[0]

    for i in range(4):
        mine = jax.tree.map(lambda a: jnp.asarray(a[i]), before)  # noqa: B023
        weights, own = np.asarray(state.weights)[i], float(state.own_weight[i])
        slope = jax.grad(
            lambda p: own * loss(p, i) + sum(float(w) * loss(p, int(j)) for w, j in zip(weights, graph.neighbours[i]))  # noqa: B023, B905
        )(mine)
        total = own + weights.sum()
        expected = jax.tree.map(lambda p, g: p - 0.1 * (g / total + 0.01 * p), mine, slope)  # noqa: B023
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(state.variables.params), strict=True):
            np.testing.assert_allclose(a, np.asarray(b)[i], atol=2e-6)


def test_attention_refuses_personal_layers_that_move_together(planted):
    federation, _ = planted
    task = Task.of(federation, Linear(), personal=("bias",))
    ScoolAttention().check(task, federation)
    with pytest.raises(CoterieError, match="finds no structure where layers are personal"):
        ScoolAttention(m_step="first-order").check(task, federation)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "temperature must be greater than 0"),
        ({"fraction": 0.0}, "fraction must be greater than 0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(CoterieError, match=words):
        ScoolSBM(**settings)


def test_more_blocks_than_clients(digits):
    federation, engine = digits
    for method in (ScoolSBM(blocks=21), ScoolMMSBM(blocks=21)):
        with pytest.raises(CoterieError, match=r"method\.blocks is 21 but there are only 20 clients"):
            method.check(engine.task, federation)


def test_slopes_of_very_many_clients_are_those_of_the_matrix(monkeypatch):
    """Beyond `DENSE_LIMIT` the scores and the gradient are summed slot by slot: (D + D^T) E all the same."""
    graph = Graph.from_edges([0, 0, 1, 2, 3, 3, 4], [1, 2, 0, 4, 0, 1, 2], 5)  # not symmetric
    peers = LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, np.zeros(graph.present.shape))))
    random = np.random.default_rng(0)
    codes = jnp.asarray(random.normal(size=(5, 3)), jnp.float32)
    rows = jnp.asarray(graph.present * random.normal(size=(5, 2)), jnp.float32)
    owns = jnp.asarray(random.normal(size=5), jnp.float32)
    method, found = ScoolAttention(), []
    for limit in (4096, 0):
        monkeypatch.setattr("coterie.methods.scool_attention.DENSE_LIMIT", limit)
        slope = method._slope(peers, codes, rows, owns, peers.neighbours)
        scores = jnp.where(graph.present, method._scores(peers, codes, codes), 0)
        found.append((np.asarray(slope), np.asarray(scores)))
    for dense, sparse in zip(*found, strict=True):
        np.testing.assert_allclose(sparse, dense, rtol=1e-5, atol=1e-6)
