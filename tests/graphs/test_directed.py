"""Networks whose links come and go: tables, files, expected weights against enumeration, methods that run on them."""

import dataclasses
import itertools

import jax
import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.consensus.pushsum import network
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.job import make_graph
from coterie.experiment.parts import graph_part
from coterie.graphs.directed import RandomDirected, TimeVarying, expected_weights, perron
from coterie.graphs.graph import Graph, require_connected
from coterie.methods.gossip_sgd import GossipSGD
from coterie.methods.sgp import SGP


def enumerated(chance):
    """E[P] by enumeration of all links that each sender may have; chance[i, j]: i hears j."""
    clients = len(chance)
    mean = np.zeros((clients, clients))
    for j in range(clients):
        others = [i for i in range(clients) if i != j and chance[i, j] > 0]
        for live in itertools.product([False, True], repeat=len(others)):
            law = np.prod([chance[i, j] if on else 1 - chance[i, j] for i, on in zip(others, live, strict=True)])
            part = law / (1 + sum(live))
            mean[j, j] += part
            for i, on in zip(others, live, strict=True):
                mean[i, j] += part * on
    return mean


@st.composite
def probabilities(draw):
    """A matrix of probabilities; some links are missing, some certain."""
    clients = draw(st.integers(2, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chance = random.uniform(0.01, 1, (clients, clients))
    chance[random.random(chance.shape) < 0.2] = 0.0
    chance[random.random(chance.shape) < 0.1] = 1.0
    np.fill_diagonal(chance, 0)
    return chance


# -- tables ---------------------------------------------------------------------------------------------------------


def test_tables_by_hand():
    graph = Graph.from_probabilities([[9, 0.5, 0], [0.25, -1, 1], [0.75, 0, 0]])  # the diagonal means nothing
    np.testing.assert_array_equal(graph.neighbours, [[1, 0], [0, 2], [0, 2]])
    np.testing.assert_array_equal(graph.probability, [[0.5, 0], [0.25, 1], [0.75, 0]])
    assert not graph.certain
    assert Graph.complete(3).certain
    first, second = np.zeros((2, 3, 3))
    first[0, 1] = first[1, 2] = second[1, 0] = second[2, 0] = 1
    changing = Graph.from_schedule([first, second])
    np.testing.assert_array_equal(changing.neighbours, graph.neighbours)
    np.testing.assert_array_equal(changing.schedule[0], [[1, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(changing.schedule[1], [[0, 0], [1, 0], [1, 0]])


PAIR = (np.array([[1], [0]]), np.ones((2, 1), bool))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Graph(*PAIR, probability=[[0.5], [0.0]]), r"\(0, 1\] .* client 1 hears client 0 with 0; leave out"),
        (lambda: Graph(*PAIR, probability=[[1.5], [0.5]]), r"client 0 hears client 1 with 1.5"),
        (lambda: Graph(*PAIR, probability=[[np.nan], [0.5]]), "with nan"),
        (lambda: Graph(*PAIR, probability=[0.5, 0.5]), "one number per slot"),
        (lambda: Graph(*PAIR, schedule=[[True], [True]]), r"\[steps, clients, slots\]"),
        (lambda: Graph(*PAIR, schedule=np.zeros((0, 2, 1))), r"\[steps, clients, slots\]"),
        (lambda: Graph(*PAIR, schedule=[[[True], [False]]]), "client 1 never hears client 0"),
        (lambda: Graph(*PAIR, probability=[[1], [1]], schedule=np.ones((1, 2, 1))), "not both"),
        (lambda: Graph.from_probabilities([[0, 0.5]]), r"probabilities must have shape \[clients, clients\]"),
        (lambda: Graph.from_probabilities([[0, -0.5], [1, 0]]), "client 0 hears client 1 with -0.5"),
        (lambda: Graph.from_probabilities([[0, np.inf], [1, 0]]), "NaN or infinity"),
        (lambda: Graph.from_probabilities([["a", "b"], ["c", "d"]]), "must be numbers"),
        (lambda: Graph.from_schedule(np.ones((3, 3))), r"\[steps, clients, clients\]"),
        (lambda: Graph.from_probabilities(np.full((2, 2), 0.5)).keep(np.ones((2, 1), bool)), "keeps all of them"),
    ],
)
def test_links_that_make_no_sense_are_refused(make, reason):
    with pytest.raises(CoterieError, match=reason):
        make()


def test_a_client_that_is_never_heard_is_refused():
    chance = np.full((4, 4), 0.5)
    chance[:, 2] = 0  # nobody hears client 2
    with pytest.raises(CoterieError, match=r"strongly connected graph.*client 2 is never heard"):
        require_connected(Graph.from_probabilities(chance), "sgp")
    with pytest.raises(CoterieError, match="push-sum needs a strongly connected graph"):
        network(Graph.from_schedule([chance > 0]))


# -- by name and from files -----------------------------------------------------------------------------------------


def test_random_directed_draws_every_ordered_pair_from_the_seed():
    graphs = [RandomDirected().build(30, seed) for seed in (0, 0, 1)]
    chance = graphs[0].to_sparse(graphs[0].probability[graphs[0].present]).toarray()
    pairs = chance[~np.eye(30, dtype=bool)]
    assert pairs.min() >= 0.4
    assert pairs.max() <= 0.8
    assert abs(pairs.mean() - 0.6) < 5 * 0.4 / np.sqrt(12 * pairs.size)  # five standard errors of a uniform mean
    assert len(np.unique(pairs)) == 30 * 29  # both directions have their own
    np.testing.assert_array_equal(graphs[0].probability, graphs[1].probability)
    assert not np.array_equal(graphs[0].probability, graphs[2].probability)


def test_random_directed_over_another_graph():
    graph = RandomDirected(low=1.0, high=1.0, base="ring").build(6, 0)
    np.testing.assert_array_equal(graph.degree, np.full(6, 2))
    assert (graph.probability == 1).all()


def test_networks_from_files(tmp_path):
    chance = np.random.default_rng(0).uniform(0.1, 1, (5, 5))
    np.save(tmp_path / "chance.npy", chance)
    np.savez(tmp_path / "chance.npz", anything=chance)
    for name in ("chance.npy", "chance.npz"):
        graph = RandomDirected(path=str(tmp_path / name)).build(5, 0)
        np.testing.assert_array_equal(graph.probability[3], chance[3, [0, 1, 2, 4]])
    links = np.random.default_rng(1).random((7, 5, 5)) < 0.6
    np.save(tmp_path / "links.npy", links)
    graph = TimeVarying(path=str(tmp_path / "links.npy")).build(5, 0)
    np.testing.assert_array_equal(graph.schedule[:, 2], links[:, 2, [0, 1, 3, 4]])


def test_bad_files_and_settings_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    (tmp_path / "text.npy").write_text("not an array")
    np.save(tmp_path / "two.npy", np.full((2, 2), 0.5))
    for make, reason in [
        (lambda: RandomDirected(low=0.9, high=0.5), "low must be at most high = 0.5, not 0.9"),
        (lambda: RandomDirected(low=0.0), "low must be greater than 0"),
        (lambda: RandomDirected(high=1.1), "high must be at most 1"),
        (lambda: RandomDirected(base="random-directed"), "certain links"),
        (lambda: RandomDirected(base="rimg").build(4), "base: there is no graph called 'rimg'; did you mean ring"),
        (lambda: RandomDirected(base="time-varying").build(4), "needs no settings"),
        (lambda: RandomDirected(path=str(tmp_path / "none.npy")).build(4), "cannot be read"),
        (lambda: RandomDirected(path=str(tmp_path / "two.npz")).build(2), "must hold one array, not 2"),
        (lambda: RandomDirected(path=str(tmp_path / "text.npy")).build(2), "is not a readable .npy file"),
        (lambda: RandomDirected(path=str(tmp_path / "two.npy")).build(3), "a network of 2 clients but there are 3"),
        (lambda: TimeVarying(path=str(tmp_path / "two.npy")).build(2), r"\[steps, clients, clients\]"),
    ]:
        with pytest.raises(CoterieError, match=reason):
            make()


# -- expected weights -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(probabilities())
def test_expected_weights_equal_enumeration(chance):
    matrix = expected_weights(Graph.from_probabilities(chance)).matrix()
    np.testing.assert_allclose(matrix, enumerated(chance), atol=1e-14)
    np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-14)


def test_expected_weights_of_two_and_three_clients():
    # Two: d_12 / 2. Three: d_j [(1 - d_k) / 2 + d_k / 3]; here client 0 reaches 1 with .4 and 2 with .7.
    pair = expected_weights(Graph.from_probabilities([[0, 0.8], [0.4, 0]])).matrix()
    np.testing.assert_allclose(pair, [[0.8, 0.4], [0.2, 0.6]], atol=1e-15)
    three = expected_weights(Graph.from_probabilities([[0, 0.5, 0.5], [0.4, 0, 0.5], [0.7, 0.5, 0]])).matrix()
    np.testing.assert_allclose(three[1, 0], 0.4 * (0.3 / 2 + 0.7 / 3), atol=1e-15)
    np.testing.assert_allclose(three[2, 0], 0.7 * (0.6 / 2 + 0.4 / 3), atol=1e-15)


@pytest.mark.parametrize(("clients", "chance"), [(60, 0.6), (700, 0.9), (700, 0.02)])
def test_expected_weights_of_many_equal_links(clients, chance):
    """E[1 / (1 + S)] for a binomial S is (1 - (1 - q)^n) / (n q); beyond 512 clients the quadrature is not exact."""
    graph = dataclasses.replace(Graph.complete(clients), probability=np.full((clients, clients - 1), chance))
    expected = expected_weights(graph)
    own = (1 - (1 - chance) ** clients) / (clients * chance)
    np.testing.assert_allclose(expected.own, own, rtol=1e-12)
    np.testing.assert_allclose(expected.slots, (1 - own) / (clients - 1), rtol=1e-12)


def test_expected_weights_of_certain_and_scheduled_links():
    star = Graph.from_networkx(networkx.star_graph(3))
    np.testing.assert_allclose(expected_weights(star).own, [1 / 4, 1 / 2, 1 / 2, 1 / 2])
    links = np.random.default_rng(0).random((9, 5, 5)) < 0.5
    realised = np.zeros((9, 5, 5))
    for t, hears in enumerate(links | np.eye(5, dtype=bool)):
        realised[t] = hears / hears.sum(0)
    np.testing.assert_allclose(expected_weights(Graph.from_schedule(links)).matrix(), realised.mean(0), atol=1e-15)


def test_perron_vectors():
    pair = lambda there, back: expected_weights(Graph.from_probabilities([[0, back], [there, 0]])).matrix()  # noqa: E731
    np.testing.assert_allclose(pair(0.5, 0.5), [[0.75, 0.25], [0.25, 0.75]], atol=1e-15)
    np.testing.assert_allclose(perron(pair(0.5, 0.5)), [1, 1])
    np.testing.assert_allclose(perron(pair(0.4, 0.8)), [4 / 3, 2 / 3])
    matrix = expected_weights(RandomDirected().build(12, 3)).matrix()
    np.testing.assert_allclose(perron(matrix), 12 * np.linalg.matrix_power(matrix, 200)[:, 0], rtol=1e-10)
    for bad, reason in [(np.eye(3), "strongly connected"), (np.ones((2, 2)), "columns that sum to one")]:
        with pytest.raises(CoterieError, match=reason):
            perron(bad)


# -- drawing links --------------------------------------------------------------------------------------------------


def test_links_are_drawn_with_their_probabilities_and_independently():
    chance = np.random.default_rng(0).uniform(0.2, 0.9, (4, 4))
    graph = Graph.from_probabilities(chance)
    peers, steps = network(graph), 4000
    drawn = np.asarray(jax.vmap(peers.links)(jax.random.split(jax.random.key(0), steps)), float)  # [T, K, L]
    law = np.array([[chance[i, j] for i in graph.listeners[0][j]] for j in range(4)])
    np.testing.assert_array_less(abs(drawn.mean(0) - law), 4 * np.sqrt(law * (1 - law) / steps))
    together = np.corrcoef(drawn.reshape(steps, -1).T) - np.eye(12)
    assert abs(together).max() < 4.5 / np.sqrt(steps)
    after = (drawn[1:] - drawn.mean(0)) * (drawn[:-1] - drawn.mean(0))
    assert abs(after.mean(0)).max() < 4.5 * 0.25 / np.sqrt(steps)


def test_scheduled_links_repeat():
    links = np.random.default_rng(0).random((3, 4, 4)) < 0.7
    graph = Graph.from_schedule(links)
    peers = network(graph)
    for step in range(7):
        live = np.asarray(peers.links(jax.random.key(0), step))
        for j in range(4):
            reached = graph.listeners[0][j, live[j]]
            assert reached.tolist() == [i for i in range(4) if i != j and links[step % 3, i, j]]


# -- methods that run on them ---------------------------------------------------------------------------------------


def test_methods_that_mix_refuse_uncertain_links_and_methods_that_push_take_any_direction():
    graph = RandomDirected().build(5, 0)
    with pytest.raises(CoterieError, match=r"gossip-sgd needs links that are there in every step.*such as sgp"):
        make_graph(GossipSGD(), graph_part(graph), 5)
    assert make_graph(SGP(), graph_part(graph), 5)[0] is graph
    circle = Graph.from_networkx(networkx.cycle_graph(5, create_using=networkx.DiGraph))
    assert make_graph(SGP(), graph_part(circle), 5)[0] is circle
    with pytest.raises(CoterieError, match="undirected"):
        make_graph(GossipSGD(), graph_part(circle), 5)
    chosen = Experiment.from_dict({"method": {"name": "sgp"}})
    assert make_graph(chosen.method.spec, chosen.graph, 6)[0].probability.shape == (6, 5)
    assert make_graph(SGP(), graph_part(Graph.complete(6)), 6)[0].certain
