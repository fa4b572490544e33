"""How clients are run and counted: batches, chunks and devices, the choice of clients, loops, the price of a verb."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh

from coterie.data.clients import Federation, stack
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods import FedAvg
from coterie.peers.base import Arrivals, on_host
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from support.cases import regression, training, zero_model
from support.graph_cases import row_weights


def peers_on(graph, plan=Plan(), ids=None, arrivals=None):  # noqa: B008
    return LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, row_weights(graph), ids)), plan, arrivals)


def two_devices(device):
    assert len(device.devices) == 2
    return Mesh(np.array(device.devices), ("clients",))


@pytest.mark.parametrize("clients", [pytest.param(6, marks=pytest.mark.soak), 7])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_chunks_and_devices_change_nothing(device, mode, clients):
    graph = Ring(reach=1).build(clients, 0)
    x = jax.random.normal(jax.random.key(0), (clients, 4))
    factor = jnp.arange(clients * 1.0)

    def program(plan):
        def run(x):
            peers = peers_on(graph, plan)
            y = peers.each(lambda row, factor: jnp.sin(row) * factor, x, factor)
            mixed, _ = peers.mix(y, peers.weights)
            mean, _ = peers.mean(mixed, factor)
            answers, _ = peers.ask(lambda a, b: a @ b, y, mixed)
            return y, mixed, mean, answers, peers.share(y)[0]

        return jax.jit(run)(x)

    plain = program(Plan(mode))
    for plan in (
        Plan(mode, 2),
        Plan(mode, 4),
        Plan(mode, mesh=two_devices(device)),
        Plan(mode, 2, two_devices(device)),
    ):
        for a, b in zip(plain, program(plan), strict=True):
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(plain[0], np.sin(np.asarray(x)) * np.arange(clients)[:, None], rtol=1e-5, atol=1e-6)


@partial(jax.jit, static_argnums=1)
def _each_of(active, at_most):
    calls = jnp.arange(6.0)
    otherwise = (-calls, 10 * calls)
    return peers_on(Graph.empty(6)).each_of(active, at_most, lambda v: (v + 100, v * v), otherwise, calls)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_each_of_touches_only_the_active(active):
    found = _each_of(jnp.array(active), 3 if sum(active) <= 3 else 6)
    assert found[0].tolist() == [i + 100 if on else -i for i, on in enumerate(active)]
    assert found[1].tolist() == [i * i if on else 10 * i for i, on in enumerate(active)]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(7)), st.integers(0, 7), st.integers(0, 2**31 - 1))
def test_sample_chooses_exactly_so_many_and_the_same_wherever_clients_are_stored(order, count, seed):
    key = jax.random.key(seed)
    straight = np.asarray(peers_on(Graph.empty(7)).sample(key, count))
    moved = np.asarray(peers_on(Graph.empty(7), ids=np.array(order)).sample(key, count))
    assert straight.sum() == count
    assert (moved == straight[np.array(order)]).all()


def test_sample_gives_every_client_its_turn():
    """4 of 10 clients in each of 500 rounds: each is chosen 200 times, give or take 5 standard deviations (11 each)."""
    peers = peers_on(Graph.empty(10))
    chosen = jax.vmap(lambda key: peers.sample(key, 4))(jax.random.split(jax.random.key(3), 500))
    assert (abs(np.asarray(chosen).sum(0) - 200) < 5 * np.sqrt(500 * 0.4 * 0.6)).all()


def test_keys_follow_ids():
    order = np.array([2, 0, 3, 1])
    key = jax.random.key(9)
    expected = np.stack([jax.random.key_data(jax.random.fold_in(key, i)) for i in range(4)])
    assert (jax.random.key_data(peers_on(Graph.empty(4)).keys(key)) == expected).all()
    assert (jax.random.key_data(peers_on(Graph.empty(4), ids=order).keys(key)) == expected[order]).all()


def test_the_price_of_every_verb_on_paper():
    """1 hears 0; 2 hears 0 and 1; 0 hears 2. Slots: client 0 has [2, -], client 1 [0, -], client 2 [0, 1].

    A header has 48 bytes: magic 4, format 2, kind 2, run 8, round, exchange, sender and receiver 4 each, digest 8,
    size 8. x is two float32: 8 bytes, so a message of 56.
    """
    graph = Graph.from_edges([1, 2, 2, 0], [0, 0, 1, 2], 3)
    present = np.array([[1, 0], [1, 0], [1, 1]])
    mutual = np.array([[1, 0], [0, 0], [1, 0]])  # only 0 and 2 hear each other
    x = jnp.ones((3, 2), jnp.float32)

    def price(use):
        peers = peers_on(graph)
        use(peers)
        return {name: v for name, v in on_host(peers.traffic())._asdict().items() if np.any(v)}

    def same(found, **expected):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)

    same(price(lambda p: p.mix(x, p.weights)), heard_messages=present, heard_bytes=56 * present)
    # The acknowledgement of a push is a bare header.
    same(
        price(lambda p: p.push(x)),
        heard_messages=present,
        heard_bytes=56 * present,
        told_messages=present,
        told_bytes=48 * present,
    )
    same(price(lambda p: p.swap(jnp.ones((3, 2, 2)))), heard_messages=mutual, heard_bytes=56 * mutual)
    # The question is x, the answer one float32; folding the answers does not change what is sent.
    for weights in (None, jnp.ones((3, 2))):
        same(
            price(lambda p, w=weights: p.ask(lambda a, b: a @ b, x, x, w)),
            heard_messages=present,
            heard_bytes=52 * present,
            told_messages=present,
            told_bytes=56 * present,
        )
    # Value and weight up (48 + 8 + 4), mean and weight behind it down; client 1 takes no part.
    part = np.array([1, 0, 1])
    mean = {"up_messages": part, "up_bytes": 60 * part, "down_messages": part, "down_bytes": 60 * part}
    same(price(lambda p: p.mean(x, jnp.array([1.0, 0.0, 2.0]))), **mean)
    # With groups everyone says which it is in: 48 + 4.
    grouped = mean | {"up_messages": part + 1, "up_bytes": 60 * part + 52}
    same(price(lambda p: p.mean(x, jnp.array([1.0, 0.0, 2.0]), (jnp.array([0, 1, 1]), 2))), **grouped)
    # Everyone's 8 bytes up; down comes the table of three, and a byte each for who is missing: 48 + 24 + 3.
    all_three = np.ones(3, int)
    share = {"up_bytes": 56 * all_three, "down_bytes": 75 * all_three}
    same(price(lambda p: p.share(x)), up_messages=all_three, down_messages=all_three, **share)


def test_a_loop_counts_every_time_and_reads_its_own_losses():
    """Two clients, three exchanges in a loop, of which the second is lost at client 0: 1 -> 3 -> 3 -> ..."""
    graph = Graph.from_edges([0, 1], [1, 0], 2)
    edges = jnp.array([[[True], [True]], [[False], [True]], [[True], [True]], [[True], [False]]])
    everything = jnp.ones((4, 2), bool)

    @jax.jit
    def run(x):
        peers = peers_on(graph, Plan("exact"), arrivals=Arrivals(edges, everything, everything))

        def body(step, x):
            other, _ = peers.mix(x, jnp.ones((2, 1)))  # exactly the neighbour's value, or one's own if it is lost
            return other

        x = peers.loop(3, body, x)
        _, arrived = peers.mix(x, peers.weights)
        return x, arrived, peers.traffic()

    x, arrived, traffic = run(jnp.array([1.0, 2.0]))
    # (1, 2) -> (2, 1) -> lost at 0: (2, 2) -> (2, 2)
    assert x.tolist() == [2.0, 2.0]
    assert arrived.tolist() == [[True], [False]]  # the fourth exchange
    traffic = on_host(traffic)
    assert traffic.heard_messages.tolist() == [[4], [4]]
    assert traffic.heard_bytes.tolist() == [[4 * 52], [4 * 52]]


def _sizes(jaxpr):
    """Yield the number of elements of every array a program makes, inner programs too."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield int(np.prod(getattr(variable.aval, "shape", ()), dtype=np.int64))
        for inner in jaxprs_in_params(equation.params):
            yield from _sizes(inner)


def test_fedavg_with_100_000_clients_makes_no_table_of_pairs(device):
    clients, features = 100_000, 5
    random = np.random.default_rng(0)
    x = random.normal(size=(clients, 2, features)).astype(np.float32)
    y = (x @ np.arange(1.0, 6.0)).astype(np.float32)
    split = stack([(np.zeros((2, features), np.float32), np.zeros(2, np.float32))])
    whole = split._replace(x=x, y=y, count=np.full(clients, 2, np.int32))
    empty = whole._replace(count=np.zeros(clients, np.int32))
    federation = Federation(tuple(map(str, range(clients))), whole, empty, whole, kind="regression", classes=1)
    task = Task.of(federation, zero_model(features))
    method = FedAvg(lr=0.1, batch_size=0)
    graph = Graph.empty(clients)
    tables = make_tables(graph, np.zeros((clients, 0)))

    def one_round(tables, data, state, key):
        return method.round(task, state, LocalPeers(tables), data, key)

    state = method.init(task, LocalPeers(tables), federation.arrays(), jax.random.key(0))
    program = jax.make_jaxpr(one_round)(tables, federation.arrays(), state, jax.random.key(1))
    sizes = list(_sizes(program.jaxpr))
    assert max(sizes) == clients * 2 * features  # the data themselves are the largest array of the program

    started = Training(Engine(task, federation, device), method, graph, np.zeros((clients, 0)), 0)
    state, rounds = started.advance(started.init()[0], 1, 1)
    gradient = (x * (x @ np.zeros(features) - y)[..., None]).mean((0, 1))
    expected = np.broadcast_to(-0.1 * gradient, (clients, features))
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == clients + features  # losses, and one model for all
    np.testing.assert_allclose(method.models(state).params.w[:, 0], expected, rtol=1e-4)
    assert rounds.traffic.up_messages.sum() == clients


@pytest.mark.soak
def test_a_mesh_and_a_chunk_train_the_same_models(device, x64):
    federation = regression([3, 5, 2, 6, 4])
    method = FedAvg(lr=0.1, batch_size=2, participation=0.6)
    mesh = two_devices(device)
    found = []
    for plan in (Plan("fast"), Plan("fast", 2), Plan("fast", 0, mesh)):
        started = training(federation, method, device, plan=plan)
        state, rounds = started.advance(started.init()[0], 1, 2)
        found.append((np.asarray(method.models(state).params.w), rounds.loss, rounds.traffic.up_bytes))
    for other in found[1:]:
        np.testing.assert_allclose(other[0], found[0][0], rtol=1e-12)
        np.testing.assert_allclose(other[1], found[0][1], rtol=1e-12)
        assert (other[2] == found[0][2]).all()


def test_bytes_of_a_round_are_counted_past_four_gigabytes():
    """Seven messages of 3,000,000,001 bytes: 21,000,000,007, which takes 35 bits."""
    tables = jax.tree.map(jnp.asarray, make_tables(Graph.empty(2), np.zeros((2, 0))))

    @jax.jit
    def run(tables):
        peers = LocalPeers(tables, Plan("exact"))

        def once(_, x):
            peers._charge("up", jnp.array([True, False]), 3_000_000_001)
            return x

        peers.loop(7, once, jnp.zeros(2))
        return peers.traffic()

    traffic = on_host(run(tables))
    assert traffic.up_bytes.tolist() == [21_000_000_007, 0]
    assert traffic.up_messages.tolist() == [7, 0]
