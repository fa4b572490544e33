"""The similarity network: summaries against independent computations, planted groups, the ledger, and bad input."""

import dataclasses
import itertools

import jax
import networkx
import numpy as np
import pytest
import scipy.spatial.distance
from typer.testing import CliRunner

import coterie
from coterie import registry
from coterie.cli import app
from coterie.codecs.frame import Header, decode, encode, frame_bytes
from coterie.comparison.comparison import Comparison
from coterie.data.clients import Federation, Split, stack
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.graphs import summaries
from coterie.graphs.measured import MeasuredGraph
from coterie.graphs.similarity import ClientSummaries, Similarity, local_models
from coterie.graphs.summaries import (
    ClientSamples,
    covariance,
    draw_axes,
    draw_features,
    embedding,
    median_distance,
    training_samples,
)
from coterie.learning.task import Task
from coterie.methods import GossipSGD
from coterie.models import Linear, Mlp
from coterie.pages.weights import weight_maps
from coterie.testing.small import small_federation
from support.cases import regression, slope, zero_model
from support.run_cases import make_job

PLANTED = coterie.load("planted-groups", clients=24, train_size=30)


def within(network, groups):
    """The share of edges whose ends are of one group."""
    return (groups[network.edges[:, 0]] == groups[network.edges[:, 1]]).mean()


def client(n, d=3, seed=0, kind="labels", classes=4):
    random = np.random.default_rng(seed)
    targets = {"labels": random.integers(classes, size=n), "numbers": random.normal(size=(n, 2)), "none": None}[kind]
    return ClientSamples(random.normal(size=(n, d)).astype(np.float32), targets)


# -- data space --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["labels", "numbers", "none"])
def test_the_distance_of_embeddings_converges_to_the_exact_discrepancy(kind):
    one, other = client(9, seed=1, kind=kind), client(14, seed=2, kind=kind)
    width, target_width, features = 0.8, 1.3, 40_000
    known = {"labels": {"labels": 4}, "numbers": {"outputs": 2}, "none": {}}[kind]
    waves = draw_features(3, features, 3, width, target_scale=target_width, **known)

    def kernel(a, b):
        kernel = np.exp(-scipy.spatial.distance.cdist(a.inputs, b.inputs, "sqeuclidean") / (2 * width**2))
        if kind == "labels":
            kernel *= a.targets[:, None] == b.targets
        if kind == "numbers":
            kernel *= np.exp(-scipy.spatial.distance.cdist(a.targets, b.targets, "sqeuclidean") / (2 * target_width**2))
        return kernel

    exact = kernel(one, one).mean() + kernel(other, other).mean() - 2 * kernel(one, other).mean()
    difference = embedding(one, waves).astype(float) - embedding(other, waves)
    by_wave = (difference.reshape(2, -1) ** 2).sum(0) * (features / 2)  # each wave is an independent estimate
    assert abs(by_wave.mean() - exact) < 5 * by_wave.std() / np.sqrt(features / 2)
    assert 5 * by_wave.std() / np.sqrt(features / 2) < 0.1 * exact  # and the test is sharp


def test_an_embedding_does_not_depend_on_how_many_samples_are_read_at_a_time(monkeypatch):
    own = client(50, kind="numbers")
    waves = draw_features(0, 64, 3, 1.0, outputs=2)
    whole = embedding(own, waves)
    monkeypatch.setattr(summaries, "ROWS", 7)
    np.testing.assert_allclose(embedding(own, waves), whole, atol=1e-7)
    phase = own.inputs @ waves.inputs + own.targets @ waves.targets
    by_hand = np.concatenate([np.cos(phase).mean(0), np.sin(phase).mean(0)]) / np.sqrt(32)
    np.testing.assert_allclose(whole, by_hand, atol=1e-6)


def test_the_median_distance_of_a_clients_samples():
    values = np.random.default_rng(0).normal(size=(40, 5)) + 100
    assert median_distance(values) == pytest.approx(np.median(scipy.spatial.distance.pdist(values)), rel=1e-6)
    many = np.random.default_rng(1).normal(size=(991, 2))
    assert median_distance(many) == pytest.approx(np.median(scipy.spatial.distance.pdist(many[::10])), rel=1e-6)
    twice = np.repeat([[0.0], [3.0]], 30, axis=0)  # equal samples say nothing of the scale
    assert median_distance(twice) == 3
    assert median_distance(np.full((5, 2), 7.1)) == 0
    assert median_distance(np.zeros((1, 2))) == 0


def test_the_common_width_is_half_the_mean_of_the_positive_medians():
    x = np.zeros((3, 2, 1), np.float32)
    x[0, :, 0], x[1, :, 0] = (0, 2), (0, 4)  # the third client has two equal samples
    count = np.full(3, 2, np.int32)
    split = Split(x, np.array([[0, 6], [0, 2], [0, 4]], np.float32), count)
    federation = Federation(("a", "b", "c"), split, split, split, "regression", 1)
    widths, medians = Similarity(k=1)._widths(federation)
    assert widths == (1.5, 2.0)
    np.testing.assert_array_equal(medians, [[2, 6], [4, 2], [0, 4]])
    assert Similarity(k=1, bandwidth=3.0)._widths(federation)[1].shape == (3, 1)
    assert Similarity(k=1, bandwidth=3.0, targets=False)._widths(federation)[1].shape == (3, 0)


def test_inputs_are_those_the_model_reads():
    bytes_ = np.random.default_rng(0).integers(0, 256, (3, 4, 2, 5, 5)).astype(np.uint8)
    split = Split(bytes_, np.zeros((3, 4), np.int32), np.array([4, 3, 2], np.int32))
    federation = Federation(("a", "b", "c"), split, split, split, "classification", 2, mean=(0.1, 0.3), std=(0.5, 2.0))
    task = Task.of(federation, Linear())
    for i, own in enumerate(training_samples(federation)):
        prepared = np.asarray(task.prepare(jax.numpy.asarray(bytes_[i, : split.count[i]])))
        np.testing.assert_allclose(own.inputs, prepared.reshape(split.count[i], -1), atol=1e-6)


def test_texts_are_compared_by_the_share_of_each_character():
    text = [[0, 1, 1, 2], [2, 2, 2, 2]]
    split = stack([(np.array(text), np.array(text)), (np.array(text[1:]), np.array(text[1:]))])
    federation = Federation(("a", "b"), split, split, split, "next-character", 3)
    first, second = training_samples(federation)
    np.testing.assert_array_equal(first.inputs, [[0.25, 0.5, 0.25], [0, 0, 1]])
    np.testing.assert_array_equal(second.inputs, [[0, 0, 1]])
    assert first.targets is None
    assert Similarity(k=1).build_from(federation).edges.tolist() == [[0, 1]]


# -- feature space -----------------------------------------------------------------------------------------------------


def test_covariances_equal_those_of_numpy():
    own = client(30, d=4)
    columns = np.concatenate([own.inputs / 2, np.eye(4)[own.targets] / np.sqrt(2)], 1)
    expected = np.cov(columns.T, bias=True)[np.triu_indices(8)]
    np.testing.assert_allclose(covariance(own, draw_axes(0, 32, 4, 2.0), 4), expected, atol=1e-6)
    numbers = client(30, d=4, kind="numbers")
    expected = np.cov(np.concatenate([numbers.inputs, numbers.targets / 3], 1).T, bias=True)[np.triu_indices(6)]
    np.testing.assert_allclose(covariance(numbers, draw_axes(0, 32, 4, 1.0, 3.0), 2), expected, atol=1e-6)
    alone = client(1, kind="none")
    assert not covariance(alone, draw_axes(0, 32, 3, 1.0), 4).any()


def test_many_inputs_are_projected_on_axes_that_keep_distances_on_average():
    axes = draw_axes(0, 50, 400, 2.0)
    assert axes.inputs.shape == (400, 50)
    np.testing.assert_allclose(axes.inputs.T @ axes.inputs, np.eye(50) * 400 / 50 / 4, atol=1e-5)
    apart = np.random.default_rng(0).normal(size=(200, 400))
    kept = np.linalg.norm(apart @ axes.inputs, axis=1) * 2 / np.linalg.norm(apart, axis=1)
    assert abs(kept.mean() - 1) < 0.05


# -- model space -------------------------------------------------------------------------------------------------------


def test_a_local_model_is_one_step_of_gradient_descent_of_the_client_alone(x64):
    federation = regression([4, 7, 5])
    task = Task.of(federation, zero_model(), dtype=np.float64)
    moved = local_models(federation, task, seed=0, lr=0.1, batch_size=0, epochs=1)
    for i, count in enumerate(federation.train.count):
        own = federation.train.x[i, :count], federation.train.y[i, :count]
        np.testing.assert_allclose(moved[i], -0.1 * slope(np.zeros(3), *own), rtol=1e-6)  # float32 travels
    assert moved.dtype == np.float32


def test_personal_layers_do_not_leave_a_client():
    model = Mlp(hidden=(4,))
    whole, rest = (Task.of(PLANTED, model, personal=personal) for personal in ((), ("layers.1",)))
    sizes = [local_models(PLANTED, task, 0, 0.1, 0, 1).shape[1] for task in (whole, rest)]
    assert sizes == [10 * 4 + 4 + 4 * 4 + 4, 10 * 4 + 4]
    with pytest.raises(CoterieError, match="every part of the model is personal"):
        local_models(PLANTED, whole.keeping(("layers",)), 0, 0.1, 0, 1)


# -- the network -------------------------------------------------------------------------------------------------------


SPACES = [
    {},
    {"space": "features"},
    {"space": "features", "metric": "frobenius"},
    {"space": "model"},
    {"space": "model", "metric": "l2"},
]


@pytest.mark.parametrize("settings", SPACES, ids=lambda settings: "-".join(settings.values()) or "data")
def test_planted_groups_are_neighbours(settings):
    task = Task.of(PLANTED, Linear()) if settings.get("space") == "model" else None
    with pytest.warns(CoterieWarning, match="falls into 4 parts: the 3 shortest edges between them were added"):
        network = Similarity(k=3, connect=True, **settings).build_from(PLANTED, task=task)
    assert network.graph.connected
    assert network.graph.symmetric
    assert within(network, PLANTED.groups) == 1 - 3 / len(network.edges)  # all but the bridges


def test_labels_separate_groups_that_inputs_do_not():
    """The groups have the same inputs and label them differently: without labels, edges ignore the groups."""
    assert within(Similarity(k=6, targets=False).build_from(PLANTED), PLANTED.groups) < 0.4


def test_clients_with_the_same_coefficients_are_neighbours_in_a_regression():
    laws = coterie.load(
        "hierarchical-linear", clusters=3, clients_per_cluster=8, dimension=4, train_size=40, within=0.01, noise=0.1
    )
    for space in ("data", "features"):
        with pytest.warns(CoterieWarning):
            network = Similarity(space=space, k=3, connect=True).build_from(laws)
        assert within(network, laws.groups) > 0.9
    assert (network.sent.up_messages == 2).all()


def test_only_received_summaries_determine_the_network():
    """The hub gets what comes out of frames of bytes: float32 summaries and counts, of training samples."""
    spec = Similarity(k=7, space="features")
    received, up, _ = spec.collect(PLANTED)
    assert [a.dtype for a in received] == [np.float32, np.int32]
    frames = [encode(Header(1, 2, 0, 1, i, 99), [received.summaries[i], received.counts[i : i + 1]]) for i in range(24)]
    assert {len(frame) for frame in frames} == {frame_bytes(up[-1])}
    arrived = [decode(frame, up[-1])[1] for frame in frames]
    edges, lengths = spec.connect_nearest(
        ClientSummaries(np.stack([s for s, _ in arrived]), np.concatenate([n for _, n in arrived]))
    )
    network = spec.build_from(PLANTED)
    np.testing.assert_array_equal(edges, network.edges)
    np.testing.assert_array_equal(lengths, network.lengths)


def test_validation_and_test_samples_and_padding_are_not_used():
    noise = [Split(np.full_like(part.x, 7), part.y, part.count) for part in (PLANTED.validation, PLANTED.test)]
    shorter = PLANTED.train._replace(count=np.where(np.arange(24) % 2, 30, 20).astype(np.int32))
    padded = shorter._replace(x=np.where(np.arange(30)[None, :, None] < shorter.count[:, None, None], shorter.x, 99))
    one = dataclasses.replace(PLANTED, train=shorter)
    other = dataclasses.replace(PLANTED, train=padded, validation=noise[0], test=noise[1])
    for space in ("data", "features"):
        spec = Similarity(k=6, space=space)
        np.testing.assert_array_equal(spec.build_from(one).lengths, spec.build_from(other).lengths)


def test_the_network_goes_with_the_clients_and_follows_the_seed():
    spec, order = Similarity(k=6), np.random.default_rng(0).permutation(24)
    network, moved = spec.build_from(PLANTED), spec.build_from(PLANTED.select(order))
    named = {tuple(sorted(order[edge])) for edge in moved.edges}
    assert named == set(map(tuple, network.edges.tolist()))
    np.testing.assert_array_equal(spec.build_from(PLANTED).lengths, network.lengths)
    assert not np.array_equal(spec.build_from(PLANTED, seed=1).lengths, network.lengths)


def test_edges_by_slot_and_in_a_file():
    network = Similarity(k=6, edge_weights="gaussian").build_from(PLANTED)
    table = network.by_slot(network.weights)
    for (i, j), weight in zip(network.edges, network.weights, strict=True):
        assert table[i, network.graph.neighbours[i].tolist().index(j)] == weight
        assert table[j, network.graph.neighbours[j].tolist().index(i)] == weight
    assert (table > 0).sum() == 2 * len(network.edges)
    np.testing.assert_allclose(network.weights, np.exp(-0.5 * (network.lengths / np.median(network.lengths)) ** 2))
    again = MeasuredGraph.of(network.arrays())
    np.testing.assert_array_equal(again.graph.neighbours, network.graph.neighbours)
    np.testing.assert_array_equal(again.sent.down_bytes, network.sent.down_bytes)


# -- in a run ----------------------------------------------------------------------------------------------------------


def round_zero(result):
    """Bytes up and down by client, from the ledger's rows of round 0."""
    rows = result.ledger.edges()
    rows = rows[rows["round"] == 0].set_index(["sender", "receiver"])
    names = result.names
    return [
        [rows.loc[pair, what] for pair in ((n, "hub"), ("hub", n))] for n in names for what in ("messages", "bytes")
    ]


def test_round_zero_of_the_ledger_has_the_bytes_of_the_summaries():
    federation = coterie.load("planted-groups")
    result = coterie.run(federation, "linear", "gossip-sgd", graph="similarity", rounds=2, device="cpu")
    degree = Similarity().build_from(federation).graph.degree
    one = np.zeros(1, np.float32)
    up = frame_bytes([one]) + frame_bytes([np.zeros(1024, np.float32), np.zeros(1, np.int32)])
    down = [frame_bytes([one]) + frame_bytes([np.zeros(n, np.int32)]) for n in degree]
    expected = itertools.chain.from_iterable([[2, 2], [up, size]] for size in down)
    assert round_zero(result) == list(expected)
    model = frame_bytes([np.zeros(4, np.float32), np.zeros((4, 10), np.float32)])
    later = result.ledger.edges()
    later = later[later["round"] > 0]
    assert later["bytes"].sum() == 2 * model * degree.sum()  # and the rounds are those of any graph
    np.testing.assert_array_equal(result.ledger.totals()["sent"], up + 2 * model * degree)


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"bandwidth": 1.0}, 1024),
        ({"bandwidth": 1.0, "features": 10, "edge_weights": "gaussian"}, 10),
        ({"bandwidth": 1.0, "space": "features"}, 14 * 15 // 2),
        ({"space": "model"}, 10 * 4 + 4),
    ],
)
def test_without_an_automatic_bandwidth_there_is_one_message_each_way(settings, numbers):
    network = Similarity(k=7, **settings).build_from(PLANTED, task=Task.of(PLANTED, Linear()))
    assert (network.sent.up_messages == 1).all()
    assert (network.sent.down_messages == 1).all()
    assert (network.sent.up_bytes == frame_bytes([np.zeros(numbers, np.float32), np.zeros(1, np.int32)])).all()
    kinds = [np.int32, np.float32] if "edge_weights" in settings else [np.int32]  # ids, and weights that differ
    lists = [frame_bytes([np.zeros(degree, kind) for kind in kinds]) for degree in network.graph.degree]
    np.testing.assert_array_equal(network.sent.down_bytes, lists)


class Stopped(BaseException):
    """Replaces SIGKILL: nothing catches it."""


@pytest.mark.soak
def test_a_run_that_is_resumed_keeps_its_graph_and_counts_it_once(tmp_path, device):
    settings = {"graph": Similarity(k=2), "rounds": 3, "evaluate_every": 1, "checkpoint_every": 1}
    federation = small_federation(5)
    job = make_job(federation, "linear", GossipSGD(lr=0.1), **settings)
    engine = Engine(job.task, federation, device)
    whole = execute(job, engine=engine)

    def stop(stage, number, *_):
        if stage == "round" and number == 2:
            raise Stopped

    with pytest.raises(Stopped):
        execute(job, out=tmp_path / "run", engine=engine, progress=stop)
    resumed = execute(job, out=tmp_path / "run", engine=engine)
    assert resumed.rows == whole.rows
    assert resumed.ledger.edges().equals(whole.ledger.edges())

    # On another machine the same data may round to other neighbours: the run continues with its own.
    with pytest.raises(Stopped):
        execute(job, out=tmp_path / "other", engine=engine, progress=stop)
    elsewhere = dataclasses.replace(Similarity(k=4).build_from(federation), sent=job.measured_graph.sent)
    moved = dataclasses.replace(job, measured_graph=None).with_graph(elsewhere)
    assert not np.array_equal(moved.graph.neighbours, job.graph.neighbours)
    resumed = execute(moved, out=tmp_path / "other", engine=engine)
    assert resumed.rows == whole.rows
    assert resumed.ledger.edges().equals(whole.ledger.edges())


@pytest.mark.soak
def test_every_method_with_neighbours_takes_the_similarity_graph():
    expected = Similarity(k=6).build_from(PLANTED)
    names = [row.name for row in registry.KINDS["methods"].rows]
    having = [name for name in names if registry.load("methods", name).topology == "graph"]
    assert {"gossip-sgd", "sgp", "scool-sbm", "dada", "spd"} <= set(having)
    for name in having:
        settings = {"personal": ("layers.1",), "damping": 1.0} if name == "spdb" else {}
        method = registry.load("methods", name)(**settings)
        job = make_job(PLANTED, "mlp", method, graph=Similarity(k=6))
        np.testing.assert_array_equal(job.graph.neighbours, expected.graph.neighbours)
        assert job.measured_graph is not None
    hub = make_job(PLANTED, "linear", "fedavg", graph=Similarity(k=6))
    assert hub.measured_graph is None  # nobody is asked where there are no neighbours
    assert hub.graph.edges() == 0


@pytest.mark.soak
def test_the_report_draws_it_like_any_other_graph(tmp_path):
    result = coterie.run(
        PLANTED, "linear", "gossip-sgd", graph=Similarity(k=6), rounds=1, out=tmp_path / "run", device="cpu"
    )
    network = Similarity(k=6).build_from(PLANTED)
    drawn = result.graph()
    assert drawn.number_of_edges() == 2 * len(network.edges)
    for i, j in network.edges:
        assert drawn.has_edge(result.names[i], result.names[j])
    comparison = Comparison.read([tmp_path / "run"])
    (maps,) = weight_maps({name: runs[0] for name, runs in comparison.results.items()}, comparison.clients)
    assert maps["high"] > 0
    assert len(maps["labels"]) == 24


# -- by name -----------------------------------------------------------------------------------------------------------


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_line_prints_and_writes_the_network(tmp_path):
    chosen = [
        "--data",
        "planted-groups",
        "--set",
        "data.clients=24",
        "--set",
        "data.train_size=30",
        "--set",
        "graph.k=6",
    ]
    result = call("graph", "similarity", *chosen, "--out", tmp_path / "network.graphml")
    assert result.exit_code == 0, result.output
    network = Similarity(k=6).build_from(PLANTED)
    assert f"similarity: 24 clients, {len(network.edges)} edges" in result.stdout
    share = within(network, PLANTED.groups)
    assert f"{share:.0%} of the edges; of random edges: {5 / 23:.0%}" in result.stdout
    assert f"each client sends {network.sent.up_bytes[0]:,} bytes" in result.stdout
    written = networkx.read_graphml(tmp_path / "network.graphml")
    lengths = [written.edges[f"client-{i}", f"client-{j}"]["length"] for i, j in network.edges]
    np.testing.assert_allclose(lengths, network.lengths)
    assert call("graph", "similarity", *chosen, "--out", tmp_path / "network.npy").exit_code == 0
    matrix = np.load(tmp_path / "network.npy")
    np.testing.assert_array_equal(np.argwhere(np.triu(matrix)), network.edges)
    ring = call("graph", "ring", "--clients", 6)
    assert "ring: 6 clients, 6 edges, 2 to 2 neighbours each, connected" in ring.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simlarity"], "there is neither a folder nor a graph called simlarity; did you mean similarity?"),
        (["similarity", "--round", "3"], "--round is for the folder of a run, and similarity is the name of a graph"),
        (["nowhere", "--clients", "3"], "--clients is for a graph by name (coterie list graphs), and nowhere is none"),
        (["similarity", "--set", "graph.k=20"], "graph.k must be less than the number of clients, 20, not 20"),
        (["similarity", "--out", "network.png"], "written as .graphml or .npy"),
    ],
)
def test_the_command_line_refuses_what_it_cannot_use(words, sentence):
    result = call("graph", *words)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr


# -- bad input ---------------------------------------------------------------------------------------------------------


def clients_with(values, targets=None):
    """Clients with the given inputs (one sample each entry), all of one class."""
    x = np.asarray(values, np.float32)[..., None]
    y = np.zeros(x.shape[:2], np.int32) if targets is None else np.asarray(targets)
    split = Split(x, y, np.full(len(x), x.shape[1], np.int32))
    return Federation(tuple(f"client-{i}" for i in range(len(x))), split, split, split, "classification", 2)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Similarity(k=0), "k must be at least 1, not 0"),
        (lambda: Similarity(metric="l2"), "metric must be mmd where space = 'data', not 'l2'"),
        (lambda: Similarity(space="model", metric="mmd"), "metric must be cosine or l2 where space = 'model', not"),
        (lambda: Similarity(features=7), "features must be even .* not 7"),
        (lambda: Similarity(space="date"), "space must be one of data, features, model, not 'date'; did you mean data"),
        (lambda: Similarity().build(20), "is made from the clients' data: it needs a federation"),
        (lambda: Similarity(k=24).build_from(PLANTED), r"graph.k must be less than the number of clients, 24, not 24"),
        (lambda: Similarity(k=1).build_from(clients_with([[1, 2]])), "needs at least 2 clients"),
        (lambda: Similarity(space="model").build_from(PLANTED), "space = 'model' .* give build_from a task"),
        (
            lambda: Similarity(k=1).build_from(clients_with([[1, 1], [2, 2]])),
            "graph.bandwidth: no client has two different",
        ),
        (
            lambda: Similarity(k=1, bandwidth=1.0).build_from(clients_with([[1, 1], [1, 1]])),
            "all 2 clients have the same summary, so that none is nearer than another; choose another graph",
        ),
        (
            lambda: Similarity(k=1, bandwidth=1.0, space="features").build_from(clients_with([[1, 1], [5, 5]])),
            "all 2 clients have the same summary",
        ),
        (
            lambda: Similarity(k=1, bandwidth=1e-45).build_from(clients_with([[0, 1], [2, 3]])),
            "summary of client 'client-0' contains NaN or infinity; scale its inputs down, or raise graph.bandwidth",
        ),
        (
            lambda: Similarity(k=3).build_from(PLANTED),
            "network of 24 clients with k = 3 falls into 4 parts; raise graph.k, or set graph.connect = true",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, reason):
    with pytest.raises(CoterieError, match=reason):
        make()


def test_a_client_without_samples_is_refused_also_without_an_earlier_check():
    federation = clients_with([[1, 2], [3, 5], [2, 9]])
    object.__setattr__(federation, "train", federation.train._replace(count=np.array([2, 0, 2])))
    with pytest.raises(CoterieError, match="client 'client-1' has no training sample"):
        Similarity(k=1).build_from(federation)


def test_a_local_model_that_diverged_is_refused():
    task = Task.of(PLANTED, Linear())
    with pytest.raises(CoterieError, match=r"client 'client-0' contains NaN or infinity; lower graph\.lr"):
        Similarity(space="model", lr=1e39, k=3).build_from(PLANTED, task=task)


def test_by_name_as_in_a_config_file():
    tables = {
        "data": {"name": "planted-groups"},
        "method": {"name": "gossip-sgd"},
        "graph": {"name": "similarity", "k": 7},
    }
    experiment = coterie.experiment.config.Experiment.from_dict(tables)
    assert experiment.graph.spec == Similarity(k=7)
    job = Job.of(experiment)
    np.testing.assert_array_equal(job.measured_graph.graph.neighbours, job.graph.neighbours)
    assert job.graph.degree.min() >= 7
