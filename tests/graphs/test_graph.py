"""Tables of slots and topologies, against tables by hand and against NetworkX."""

import os
import subprocess
import sys

import networkx
import numpy as np
import pytest
import scipy.sparse
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import registry
from coterie.data import load
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph, require_connected
from coterie.graphs.topologies import (
    Bipartite,
    Complete,
    Edges,
    ErdosRenyi,
    Exponential,
    GroupRing,
    KRegular,
    Ring,
    Star,
    Torus,
)
from support.graph_cases import row_weights


@st.composite
def adjacencies(draw):
    """A random 0/1 matrix without self loops."""
    clients = draw(st.integers(1, 12))
    bits = draw(st.lists(st.booleans(), min_size=clients**2, max_size=clients**2))
    matrix = np.array(bits).reshape(clients, clients)
    np.fill_diagonal(matrix, False)
    return matrix


def neighbours_of(graph, client):
    return graph.neighbours[client, graph.present[client]].tolist()


# -- tables --------------------------------------------------------------------------------------------------------


def test_table_by_hand():
    # 0 hears 2 and 3; 1 hears nobody; 2 hears 0; 3 hears 0, 1 and 2.
    graph = Graph.from_adjacency([[0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(graph.neighbours, [[2, 3, 0], [1, 1, 1], [0, 2, 2], [0, 1, 2]])
    np.testing.assert_array_equal(graph.present, [[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(graph.degree, [2, 0, 1, 3])
    listeners, listening = graph.listeners
    np.testing.assert_array_equal(listeners, [[2, 3], [3, 1], [0, 3], [0, 3]])
    np.testing.assert_array_equal(listening, [[1, 1], [1, 0], [1, 1], [1, 0]])
    # Client 3 is in slot 1 of 0's listeners, slot 0 of 1's and slot 1 of 2's.
    np.testing.assert_array_equal(graph.back[3], [1, 0, 1])
    # 0 is heard by 2 in its slot 0 and by 3 in its slot 0; 2 by 0 in slot 0 and by 3 in slot 2.
    np.testing.assert_array_equal(graph.listener_slots, [[0, 0], [1, -1], [0, 2], [1, -1]])
    assert graph.neighbours.dtype == listeners.dtype == np.int32
    assert (graph.clients, graph.edges(), graph.symmetric, graph.connected) == (4, 6, False, False)
    np.testing.assert_allclose(row_weights(graph), [[1 / 3, 1 / 3, 0], [0, 0, 0], [1 / 2, 0, 0], [1 / 4, 1 / 4, 1 / 4]])


@settings(deadline=None)
@given(adjacencies())
def test_tables_round_trip_and_transpose(matrix):
    graph = Graph.from_adjacency(matrix)
    np.testing.assert_array_equal(graph.to_adjacency().toarray(), matrix)
    np.testing.assert_array_equal(Graph.from_adjacency(scipy.sparse.csr_array(matrix)).neighbours, graph.neighbours)
    again = Graph.from_networkx(graph.to_networkx())
    np.testing.assert_array_equal(again.neighbours, graph.neighbours)
    np.testing.assert_array_equal(again.present, graph.present)
    assert graph.edges() == matrix.sum()
    assert graph.symmetric == (matrix == matrix.T).all()
    listeners, listening = graph.listeners
    for client in range(graph.clients):
        assert neighbours_of(graph, client) == np.flatnonzero(matrix[client]).tolist()
        assert listeners[client, listening[client]].tolist() == np.flatnonzero(matrix[:, client]).tolist()
        assert (graph.neighbours[client, ~graph.present[client]] == client).all()
        for slot in np.flatnonzero(graph.present[client]):
            neighbour = graph.neighbours[client, slot]
            assert listeners[neighbour, graph.back[client, slot]] == client
            assert listening[neighbour, graph.back[client, slot]]
            assert graph.listener_slots[neighbour, graph.back[client, slot]] == slot


@settings(deadline=None)
@given(adjacencies())
def test_connected_as_networkx_says(matrix):
    graph, reference = Graph.from_adjacency(matrix), networkx.from_numpy_array(matrix, create_using=networkx.DiGraph)
    assert graph.components == networkx.number_strongly_connected_components(reference)
    assert graph.connected == networkx.is_strongly_connected(reference)


def test_networkx_direction_order_and_weights():
    graph = Graph.from_networkx(networkx.DiGraph([("9", "10"), ("10", "2")]))
    assert [neighbours_of(graph, i) for i in range(3)] == [[2], [], [1]]  # 2, 9, 10: in integer order
    assert (
        neighbours_of(Graph.from_networkx(networkx.Graph([("b", "c"), ("a", "a")])), 0) == []
    )  # a self loop is no neighbour
    assert neighbours_of(Graph.from_networkx(networkx.MultiGraph([(5, 7), (5, 7), (7, 5)])), 0) == [1]
    weighted = graph.to_networkx(np.array([[0.25], [0.0], [0.75]]))
    assert set(weighted.edges(data="weight")) == {(2, 0, 0.25), (1, 2, 0.75)}


def test_a_hub_builds_no_table_and_huge_tables_are_refused():
    empty = Graph.empty(100_000)
    assert empty.neighbours.shape == empty.present.shape == empty.listeners[0].shape == empty.back.shape == (100_000, 0)
    assert (empty.edges(), empty.components, empty.symmetric) == (0, 100_000, True)
    with pytest.raises(CoterieError, match="would not fit in memory; choose a graph with fewer"):
        Star().build(100_000, 0)
    with pytest.raises(CoterieError, match="would not fit in memory"):
        Complete().build(100_000, 0)
    broadcaster = Graph.from_edges(np.arange(1, 100_000), np.zeros(99_999, int), 100_000)  # all hear one: D = 1
    with pytest.raises(CoterieError, match="would not fit in memory"):
        _ = broadcaster.listeners


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Graph.from_adjacency(np.ones((2, 3))), "must be square, not 2 x 3"),
        (lambda: Graph.from_adjacency([["a", "b"], ["c", "d"]]), "square matrix of numbers"),
        (lambda: Graph.from_adjacency([[0, np.nan], [1, 0]]), "NaN"),
        (lambda: Graph.from_edges([0], [5], 3), "ids are 0..2"),
        (lambda: Graph.from_networkx(networkx.Graph()), "at least one client"),
        (lambda: Graph.complete(0), "at least one client"),
        (lambda: Graph(np.array([[1], [0]]), np.ones((2, 2), bool)), r"\[clients, slots\]"),
        (lambda: Graph(np.array([[2], [0]]), np.ones((2, 1), bool)), "client ids, 0..1"),
        (lambda: Graph(np.array([[0], [0]]), np.ones((2, 1), bool)), "another client"),
        (lambda: Graph(np.array([[1], [0]]), np.array([[True], [False]])), "own id"),
        (lambda: Graph(np.array([[2, 1], [0, 2], [0, 1]]), np.ones((3, 2), bool)), "id order"),
    ],
)
def test_bad_tables_are_refused(build, words):
    with pytest.raises(CoterieError, match=words):
        build()


def test_import_is_light():
    modules = "coterie.graphs.graph, coterie.graphs.mixing, coterie.graphs.topologies"
    check = f"import sys, {modules}; print([m for m in ('jax', 'scipy', 'networkx') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "[]\n"


# -- topologies ----------------------------------------------------------------------------------------------------

REFERENCES = [
    (Complete(), 7, networkx.complete_graph(7)),
    (Complete(), 1, networkx.empty_graph(1)),
    (Ring(), 2, networkx.path_graph(2)),
    (Ring(), 9, networkx.cycle_graph(9)),
    (GroupRing(), 20, networkx.circulant_graph(20, [1, 2, 3, 4, 5])),
    (GroupRing(), 10, networkx.complete_graph(10)),
    (Bipartite(sides="in-order"), 7, networkx.complete_bipartite_graph(4, 3)),
    (Bipartite(sides="in-order", neighbours=0, first_side=0.25), 8, networkx.complete_bipartite_graph(2, 6)),
    (Bipartite(probability=1.0), 24, networkx.complete_bipartite_graph(12, 12)),
    (Torus(), 20, networkx.grid_2d_graph(4, 5, periodic=True)),
    (Torus(rows=2), 8, networkx.grid_2d_graph(2, 4, periodic=True)),
    (Star(), 6, networkx.star_graph(5)),
    (Exponential(), 12, networkx.circulant_graph(12, [1, 2, 4, 8])),
    (Exponential(), 2, networkx.path_graph(2)),
]


@pytest.mark.parametrize(("topology", "clients", "reference"), REFERENCES)
def test_topologies_equal_those_of_networkx(topology, clients, reference):
    graph = topology.build(clients, seed=3)
    expected = networkx.to_numpy_array(reference, nodelist=sorted(reference.nodes)) > 0
    np.testing.assert_array_equal(graph.to_adjacency().toarray(), expected)
    assert graph.symmetric
    assert graph.connected


@pytest.mark.parametrize("row", registry.KINDS["graphs"].rows, ids=lambda row: row.name)
def test_every_registered_graph_builds(row, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n")
    np.save(tmp_path / "links.npy", np.ones((2, 12, 12)))
    files = {"edges": "edges.txt", "time-varying": "links.npy"}
    options = {"path": str(tmp_path / files[row.name])} if row.name in files else {}
    chosen = registry.load("graphs", row.name)(**options)
    asked = hasattr(chosen, "build_from")  # made from the clients' data
    graph = chosen.build_from(load("planted-groups", clients=12)).graph if asked else chosen.build(12, 0)
    assert graph.clients == 12
    assert graph.symmetric
    assert graph.connected == (row.name != "edges")


@pytest.mark.parametrize("topology", [ErdosRenyi(), KRegular(), KRegular(k=2), Bipartite(), Bipartite(probability=0.4)])
def test_random_graphs_follow_their_seed(topology):
    graphs = [topology.build(30, seed).neighbours for seed in (0, 0, 1)]
    assert np.array_equal(graphs[0], graphs[1])
    assert not np.array_equal(graphs[0], graphs[2])


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 40), st.floats(0.05, 1.0))
def test_erdos_renyi_joins_pairs_independently(seed, clients, probability):
    graph = ErdosRenyi(probability=probability, connected=False).build(clients, seed)
    count = scipy.stats.binom(clients * (clients - 1) // 2, probability)
    assert graph.symmetric
    assert min(count.cdf(graph.edges() // 2), count.sf(graph.edges() // 2 - 1)) > 1e-12


def test_erdos_renyi_every_pair_is_equally_likely():
    total = sum(ErdosRenyi(probability=0.3, connected=False).build(6, s).to_adjacency().toarray() for s in range(2000))
    off = total[~np.eye(6, dtype=bool)] / 2000
    np.testing.assert_allclose(off, 0.3, atol=5 * np.sqrt(0.3 * 0.7 / 2000))


def test_erdos_renyi_at_scale_costs_edges_not_pairs():
    graph = ErdosRenyi(probability=2e-4, connected=False).build(50_000, 0)  # a K x K table would take 2.5 GB
    assert abs(graph.edges() / 2 - 249_995) < 7 * 500
    assert graph.neighbours.shape[1] < 50


@pytest.mark.parametrize(("k", "clients"), [(2, 11), (3, 10), (4, 9), (5, 40)])
def test_k_regular_has_k_neighbours(k, clients):
    graph = KRegular(k=k).build(clients, 5)
    assert (graph.degree == k).all()
    assert graph.symmetric
    assert graph.connected


def test_bipartite_as_in_the_paper_has_random_sides_and_ten_neighbours_each():
    graph = Bipartite().build(100, 4)
    side = networkx.bipartite.color(networkx.Graph(graph.to_adjacency().toarray()))
    sides = np.array([side[i] for i in range(100)])
    assert sides.sum() == 50
    assert 0 < sides[:50].sum() < 50  # not by id
    assert (graph.degree == 10).all()
    assert graph.symmetric
    assert graph.connected
    again = Bipartite().build(100, 5)
    assert not np.array_equal(graph.neighbours, again.neighbours)


@pytest.mark.parametrize(("clients", "first_side"), [(41, 0.5), (40, 0.3), (40, 0.7)])
def test_bipartite_with_unequal_sides_shares_the_edges_evenly(clients, first_side):
    graph = Bipartite(first_side=first_side, neighbours=4, sides="in-order").build(clients, 1)
    first = round(first_side * clients)
    one, two = graph.degree[:first], graph.degree[first:]
    large, small = (one, two) if len(one) > len(two) else (two, one)
    assert (large == 4).all()
    assert small.sum() == large.sum()
    assert small.max() - small.min() <= 1


def test_bipartite_joins_every_pair_of_the_sides_equally_often():
    total = sum(Bipartite(neighbours=3, sides="in-order").build(12, s).to_adjacency().toarray() for s in range(600))
    np.testing.assert_allclose(total[:6, 6:] / 600, 3 / 6, atol=5 * np.sqrt(0.25 / 600))


@pytest.mark.parametrize(
    ("topology", "clients", "words"),
    [
        (KRegular(k=3), 7, "k = 3 and 7 clients cannot be"),
        (KRegular(k=4), 4, "k must be less than the number of clients, 4"),
        (Ring(), 1, "ring needs at least 2 clients"),
        (GroupRing(), 8, "reach must be at most 4"),
        (Star(), 1, "star needs at least 2"),
        (Bipartite(), 1, "bipartite needs at least 2"),
        (Bipartite(neighbours=1), 20, "bipartite with neighbours 1 gave no connected .*raise neighbours"),
        (Bipartite(probability=0.01), 20, "bipartite with probability 0.01 gave no connected"),
        (Torus(), 3, "torus needs at least 4"),
        (Torus(), 13, "13 is prime"),
        (Torus(rows=5), 12, r"rows must divide the 12 clients into a grid \(2, 3, 4, 6\), not 5"),
        (Exponential(), 1, "exponential needs at least 2"),
        (ErdosRenyi(probability=0.01), 50, "probability 0.01 gave no connected .*connected = false"),
    ],
)
def test_impossible_graphs_are_refused_with_the_reason(topology, clients, words):
    with pytest.raises(CoterieError, match=words):
        topology.build(clients, 0)


def test_edges_from_files(tmp_path):
    listed = tmp_path / "mine.txt"
    listed.write_text("# who, whom, weight\n0 1 0.5\n\n10,2\n")
    graph = Edges(path=str(listed)).build(11, 0)
    assert [neighbours_of(graph, i) for i in (0, 1, 2, 5, 10)] == [[1], [0], [10], [], [2]]
    directed = Edges(path=str(listed), directed=True).build(11, 0)
    assert [neighbours_of(directed, i) for i in (0, 1, 2, 10)] == [[], [0], [10], []]
    listed.write_text("anna bert\nbert cora\n")
    assert neighbours_of(Edges(path=str(listed)).build(3, 0), 1) == [0, 2]
    networkx.write_graphml(networkx.cycle_graph(12, create_using=networkx.DiGraph), tmp_path / "ring.graphml")
    assert neighbours_of(Edges(path=str(tmp_path / "ring.graphml")).build(12, 0), 10) == [9]
    np.save(tmp_path / "matrix.npy", np.array([[0, 2.5], [0, 0]]))
    assert [neighbours_of(Edges(path=str(tmp_path / "matrix.npy")).build(2, 0), i) for i in (0, 1)] == [[1], []]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.txt", None, "cannot be read .No such file"),
        ("one.txt", b"0 1\n2\n", "line 2 names one client"),
        ("binary.txt", b"\xff\xfe\x00", "not a graph that can be read"),
        ("broken.graphml", b"<graphml><graph>", "not a graph that can be read"),
        ("text.graphml", b"0 1", "not a graph that can be read"),
        ("broken.npy", b"0 1", "not a readable .npy file"),
        ("empty.npy", b"", "not a readable .npy file"),
        ("few.txt", b"a b\n", "holds a graph of 2 clients but there are 4"),
        ("beyond.txt", b"0 7\n", "holds a graph of 2 clients but there are 4"),
    ],
)
def test_unreadable_graph_files(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CoterieError, match=words):
        Edges(path=str(tmp_path / name)).build(4, 0)


def test_require_connected():
    require_connected(Ring().build(5, 0), "gossip-sgd")
    with pytest.raises(
        CoterieError, match="gossip-sgd needs a connected graph, but this one falls into 2 components; join"
    ):
        require_connected(Graph.from_networkx(networkx.Graph([(0, 1), (2, 3)])), "gossip-sgd")
    with pytest.raises(CoterieError, match="strongly connected graph, but this one falls into 3 components"):
        require_connected(Graph.from_networkx(networkx.DiGraph([(0, 1), (1, 2)])), "push")
    with pytest.raises(CoterieError, match="has no edges"):
        require_connected(Graph.empty(3), "gossip-sgd")
