"""Any method with any codec: the same bits and bytes in one process and in two, also when messages get lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie
from coterie import registry
from coterie.codecs.frame import HEADER
from coterie.comparison.config import ComparisonConfig, choice_of, with_method
from coterie.comparison.repeat import repeat_command
from coterie.consensus.pushsum import push_step, start
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.graphs.directed import RandomDirected
from coterie.peers.base import Arrivals
from coterie.peers.coding import Coder
from coterie.peers.line import Line
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from coterie.testing.case import ROUNDS, Case
from coterie.testing.contract import CHECKS
from coterie.testing.small import small_federation

# A change since the hub's mean, where few meet; in `make soak` also mirrors of neighbours, pushed mass, questions and
# their mirrors, and the largest codec.
ROWS = [("fedavg", {"participation": 0.6}, "top-k", {"fraction": 0.3})]
MORE = [
    ("gossip-sgd", {}, "float16", {}),
    ("sgp", {}, "qsgd", {"bits": 4, "bucket": 8}),
    ("sgp", {"pushes": 2}, "qsgd", {"bits": 4, "bucket": 8}),
    ("gossip-sgd", {}, "fused", {"gamma": 0.5}),
    ("fomo", {}, "float16", {}),
    ("async-l2gd", {"iterations": 3}, "fused", {"gamma": 0.5, "centres": 3}),
    ("scool-attention", {"sparsify_after": 2, "fraction": 0.3}, "qsgd", {"bits": 6}),
]
ROWS += [pytest.param(row, marks=pytest.mark.soak) for row in MORE]


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: f"{row[0]}-{row[2]}")
def case(request, partner):
    method, settings, codec, chosen = request.param
    return Case(method, partner, codec=registry.load("codecs", codec)(**chosen), **settings)


@pytest.mark.parametrize("check", ["lives_anywhere", "repeats_loss", "ledger_is_right", "resumes"])
def test_a_codec_keeps_the_contract(case, check):
    if check == "repeats_loss" and type(case.method).__name__ == "GossipSGD":
        # Mirrors must agree, so none of their messages gets lost: the run is the one without loss.
        models = [half.models for half in case.halves(0.1)]
        expected = [half.models for half in case.halves(0.0)]
        assert all((a == b).all() for a, b in zip(jax.tree.leaves(models), jax.tree.leaves(expected), strict=True))
        return
    CHECKS[check](case)


# -- what is sent, and what stands for it ---------------------------------------------------------------------------


def everything(method):
    """Run a method with a codec that drops nothing, and without one."""
    whole = registry.load("codecs", "top-k")(fraction=1.0, short=False)
    settings = {"rounds": 4, "graph": "ring", "mode": "fast", "lr": 0.1}
    lr = settings.pop("lr")
    chosen = registry.load("methods", method)(lr=lr)
    return [coterie.run(small_federation(6), "linear", chosen, codec=codec, **settings) for codec in (whole, "none")]


@pytest.mark.parametrize(
    "method", ["gossip-sgd", *(pytest.param(name, marks=pytest.mark.soak) for name in ("l2gd", "fedavg", "sgp"))]
)
def test_a_codec_that_drops_nothing_changes_nothing(method):
    coded, plain = everything(method)
    for a, b in zip(jax.tree.leaves(coded.variables), jax.tree.leaves(plain.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_uplink_bytes_are_those_of_the_encoded_changes():
    half = coterie.run(small_federation(6), "linear", "fedavg", codec="float16", rounds=3)
    plain = coterie.run(small_federation(6), "linear", "fedavg", rounds=3)
    numbers = 3 * 6 + 3  # of the linear model
    # header, the weight of the mean, one byte that says "encoded", and the codec's own: layout and checksum
    assert (half.ledger.totals()["sent"] == 3 * (HEADER + 4 + 1 + 5 + 2 * numbers)).all()
    assert (half.ledger.totals()["received"] == plain.ledger.totals()["received"]).all()  # the way back is not coded


def test_the_first_message_to_a_neighbour_is_whole():
    run = coterie.run(small_federation(6), "linear", "gossip-sgd", graph="ring", codec="float16", rounds=3)
    edges = run.ledger.edges().groupby("round")["bytes"].sum()
    numbers = 3 * 6 + 3
    assert edges[1] == 12 * (HEADER + 1 + 4 * numbers)
    assert edges[2] == edges[3] == 12 * (HEADER + 1 + 5 + 2 * numbers)


def mirrored(fraction):
    """Run gossip without training, so that mirrors have time to agree with what they mirror."""
    graph = coterie.graphs.topologies.Ring().build(5, 0)
    tables = jax.tree.map(jnp.asarray, make_tables(graph, np.full(graph.present.shape, 1 / 3)))
    codec = registry.load("codecs", "top-k")(fraction=fraction, short=False)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 40)), jnp.float32)

    def coded(x, key, memory):
        peers = LocalPeers(tables, Plan("exact"), None, Coder(codec, key, memory))
        return peers.mix(x, tables.weights)[0], peers.memory

    shapes = jax.eval_shape(lambda x, key: coded(x, key, None)[1], x, jax.random.key(0))
    memory, distances = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes), []
    compiled, exactly = jax.jit(coded), jax.jit(lambda x: LocalPeers(tables, Plan("exact")).mix(x, tables.weights)[0])
    for number in range(12):
        now = x if number == 0 else x + 1  # everyone moves once, by 1
        mixed, memory = compiled(now, jax.random.key(number), memory)
        distances.append(float(jnp.abs(mixed - exactly(now)).max()))
    return distances


def test_what_a_codec_drops_reaches_the_neighbours_later():
    distances = mirrored(0.25)
    assert distances[0] == 0  # whole
    assert distances[1] > 0.3  # a quarter of the numbers has moved
    assert distances[-1] < 1e-6  # four messages later all have


def test_pushed_mass_stays_whatever_a_codec_takes_and_the_network_loses():
    graph = RandomDirected().build(6, 0)
    with jax.enable_x64(True):
        tables = jax.tree.map(jnp.asarray, make_tables(graph, np.zeros(graph.present.shape), dtype=np.float64))
        random = np.random.default_rng(1)
        x = jnp.asarray(random.normal(size=(6, 30)))
        codec = registry.load("codecs", "qsgd")(bits=3)
        lost = Arrivals(jnp.asarray(random.random((5, *graph.present.shape)) < 0.7), *(jnp.ones((5, 6), bool),) * 2)

        def pushed(memory):
            peers = LocalPeers(tables, Plan("exact"), lost, Coder(codec, jax.random.key(0), memory))
            return push_step(peers, start(peers, x), peers.links(jax.random.key(9)))[0], peers.memory

        shapes = jax.eval_shape(lambda: pushed(None)[1])
        new, _ = jax.jit(pushed)(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes))
        np.testing.assert_allclose(new.value.sum(0), x.sum(0), rtol=1e-12)
        np.testing.assert_allclose(new.weight.sum(), 6, rtol=1e-12)
        assert float(jnp.abs(new.value - x).max()) > 0.1


class Nowhere:
    hub = True


def test_a_coded_message_that_was_changed_on_its_way_does_not_arrive():
    from coterie.codecs.frame import Header, encode
    from coterie.peers.coding import wrap_vector

    codec = registry.load("codecs", "float16")()
    vector = np.linspace(-1, 1, 9, dtype=np.float16).astype(np.float32)
    like = [jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((9,), np.float32)]
    data = encode(Header(0, 0, 0, 0, 1, 2), [np.float32(3)], wrap_vector(codec, vector, 1), like[1])
    line = Line()
    line.connect(Nowhere())
    line.exchange = 1
    weight, found, whole = line.open(data, (1, 2), like, codec)
    assert (found == vector).all()
    assert weight == 3
    assert not whole
    for place in range(HEADER + 4, len(data)):
        broken = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert line.open(broken, (1, 2), like, codec) is None
        assert line.open(data[:place], (1, 2), like, codec) is None


# -- how a codec is asked for ---------------------------------------------------------------------------------------


def test_a_codec_is_named_in_any_of_these_ways():
    ways = [
        {"codec": "qsgd"},
        {"codec": {"name": "qsgd"}},
        {"method": {"name": "ditto", "codec": "qsgd"}},
        {"method": {"codec": {"name": "qsgd", "bits": 4}}},
    ]
    for tables in ways:
        experiment = Experiment.from_dict(tables)
        assert experiment.codec.name == "qsgd"
        assert experiment.codec.spec.bits == 4
        assert Experiment.from_dict(experiment.to_dict()) == experiment
    with pytest.raises(CoterieError, match="qsgd"):
        Experiment.from_dict({"codec": "qsdg"})
    with pytest.raises(CoterieError, match=r"codec\.bits"):
        Experiment.from_dict({"codec": {"name": "qsgd", "bits": 99}})


@pytest.mark.soak
def test_methods_of_a_comparison_have_codecs_of_their_own(tmp_path):
    tables = {
        "data": {"name": "planted-groups"},
        "model": {"name": "linear"},
        "run": {"rounds": 2},
        "compare": {"methods": ["fedavg", "fedavg-small"], "tune": False, "splits": 1},
        "methods": {"fedavg-small": {"name": "fedavg", "codec": {"name": "qsgd", "bits": 2}}},
    }
    planned = ComparisonConfig.from_dict(tables)
    entries = [choice_of(method) for method in planned.methods]
    codecs = [with_method(planned.experiment, entry).codec for entry in entries]
    assert [codec.name for codec in codecs] == ["none", "qsgd"]
    assert codecs[1].spec.bits == 2
    command = repeat_command(planned.experiment, entries, 1)
    assert 'methods.fedavg-small.codec={ name = "qsgd", bits = 2 }' in command
    found = coterie.compare(planned.experiment, planned.methods, out=tmp_path / "both", splits=1, tune=False)
    sent = {label: runs[0].ledger.totals()["sent"].sum() for label, runs in found.results.items()}
    assert sent["fedavg-small"] < sent["fedavg"]
    again = ComparisonConfig.from_dict(coterie.comparison.folder.ComparisonFolder(tmp_path / "both").read())
    assert with_method(again.experiment, choice_of(again.methods[1])).codec == codecs[1]


@pytest.mark.soak
def test_solved_methods_say_that_a_codec_changes_nothing_for_them():
    federation = coterie.load("hierarchical-linear")
    with pytest.warns(CoterieWarning, match="changes nothing for pooled-exact"):
        coterie.run(federation, "linear", "pooled-exact", codec="float16", rounds=1)


def test_what_is_no_codec_is_refused():
    with pytest.raises(CoterieError, match="codec must be a name or a configured codec"):
        coterie.run(small_federation(4), "linear", "fedavg", codec=3, rounds=1)


@pytest.mark.soak
def test_a_run_with_error_feedback_resumes_with_the_same_bits(tmp_path):
    settings = {"codec": {"name": "top-k", "fraction": 0.2}, "checkpoint_every": 1, "evaluate_every": 1}
    whole = coterie.run(small_federation(5), "linear", "fedavg", rounds=ROUNDS + 1, **settings)

    def stop(stage, number, rounds, metrics):
        if stage == "round" and number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.run(
            small_federation(5), "linear", "fedavg", rounds=ROUNDS + 1, out=tmp_path / "a", progress=stop, **settings
        )
    rest = coterie.run(small_federation(5), "linear", "fedavg", rounds=ROUNDS + 1, out=tmp_path / "a", **settings)
    for a, b in zip(jax.tree.leaves(whole.variables), jax.tree.leaves(rest.variables), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()
    assert (whole.ledger.totals()["sent"] == rest.ledger.totals()["sent"]).all()
