"""Faults: what a file may say, draws that agree inside and outside of a program, and the same bits as on a network."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie
from coterie import codecs
from coterie.errors import CoterieError
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods.gossip_sgd import GossipSGD
from coterie.models.linear import Linear
from coterie.peers.draws import ALWAYS, draw
from coterie.peers.faults import Faults
from coterie.peers.injection import Injection, one_round, unusable
from coterie.peers.line import HUB
from coterie.peers.local import Plan
from coterie.sites.deliveries import Round
from coterie.sites.replay import repeat
from coterie.testing.case import ROUNDS, SEED, Case
from coterie.testing.two_processes import SplitRun, merge, train
from support.graph_cases import row_weights
from support.verb_methods import EveryVerb

SOAK = pytest.mark.soak
NAMES = tuple("abcdefg")
GRAPH = Graph.from_edges([0, 0, 1, 2, 2, 3, 4, 5, 5, 5, 6], [1, 4, 0, 1, 3, 6, 0, 2, 3, 4, 3], 7)

# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_and_written_back(tmp_path):
    text = """
        seed = 3
        [drop]
        rate = 0.2
        [[delay]]
        rate = 0.1
        late = 3
        [[delay]]
        members = ["a"]
        rounds = [2, 4]
        [[partition]]
        groups = [["a", "b"], ["c"]]
        rounds = [4, 6]
        [[poison]]
        members = ["b"]
        kind = "scale"
        factor = -10
    """
    (tmp_path / "faults.toml").write_text(text)
    faults = Faults.read(tmp_path / "faults.toml")
    assert faults == Faults.from_dict(faults.to_dict())
    assert (faults.seed, len(faults.of("delay")), faults.of("poison")[0].factor) == (3, 2, -10.0)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"dropp": {"rate": 1}}, "unknown fault 'dropp'; did you mean drop?"),
        ({"drop": {"rate": 2.0}}, "drop.rate must be at most 1, not 2"),
        ({"drop": 0.2}, r"drop must be a section: write \[drop\]"),
        ({"drop": [{}, {"rat": 1}]}, "unknown key drop.2.rat; did you mean rate?"),
        ({"freeze": {"rounds": [5, 3]}}, r"freeze.rounds must be the first and the last one, such as \[3, 5\]"),
        ({"partition": {"groups": [["a"]]}}, "partition.groups must be two lists of members"),
        ({"partition": {"groups": [["a"], ["b", "a"]]}}, "partition.groups must not name 'a' twice"),
        ({"poison": {"members": ["a"]}}, "poison.kind is required"),
        ({"poison": {"members": ["a"], "kind": "nam"}}, "poison.kind must be one of nan, .* did you mean nan?"),
        ({"seed": -1}, "faults.seed must be at least 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(tables, sentence):
    with pytest.raises(CoterieError, match=sentence):
        Faults.from_dict(tables)


def test_members_that_do_not_exist_are_named():
    with pytest.raises(CoterieError, match=r"faults: freeze names 'norht', which is no member; did you mean north\?"):
        Injection.of(Faults.from_dict({"freeze": {"members": ["norht"]}}), ["north", "south"])
    with pytest.raises(CoterieError, match="faults: partition needs codec none"):
        Injection.of(Faults.from_dict({"partition": {"groups": [["a"], ["b"]]}}), ["a", "b"], codec=True)
    assert Injection.of(Faults.NONE, ["a"]) is None


# -- draws ------------------------------------------------------------------------------------------------------------


def test_draws_are_even_and_do_not_depend_on_each_other():
    sender, receiver = np.meshgrid(np.arange(300), np.arange(300))
    one, two = (draw(np.array([7]), np.array([kind]), sender, receiver) / ALWAYS for kind in (0, 1))
    assert abs(one.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.015
    assert max(abs(np.corrcoef(one.ravel(), np.roll(one, 1, axis).ravel())[0, 1]) for axis in (0, 1)) < 0.015


def test_a_program_and_its_host_draw_the_same():
    faults = {
        "seed": 5,
        "drop": {"rate": 0.3},
        "delay": {"rate": 0.2, "members": ["a", "hub"]},
        "corrupt": {"rate": 0.1},
    }
    faults |= {"partition": {"groups": [["a", "b"], ["c", "hub"]], "rounds": [1, 3]}, "freeze": {"rate": 0.2}}
    injection = Injection.of(Faults.from_dict(faults), NAMES)
    ids = np.array([*range(7), HUB], np.uint32)
    inside = jax.jit(lambda tables, t: unusable(tables, t, jnp.asarray(ids)[:, None], jnp.asarray(ids)))
    lost = []
    for number, exchange in itertools.product(range(6), range(3)):
        tables = one_round(injection.tables(number))
        outside = unusable(tables, np.array([exchange]), ids[:, None], ids)
        np.testing.assert_array_equal(outside, inside(jax.tree.map(jnp.asarray, tables), jnp.uint32(exchange)))
        lost.append(outside)
    assert not np.any(lost[:3])  # rules begin with round 1
    assert 0.3 < np.mean(lost[12:]) < 0.8
    assert np.all(lost[3][[0, 0, 1, 2], [2, 7, 7, 0]])  # the two sides of the partition


# -- a network and a simulation -----------------------------------------------------------------------------------


def _both(partner, method, tables, codec=None, robust=None, graph=None, **settings):
    """Return the models of two processes with these faults, those of a simulation, and what the latter watched."""
    case = Case(method, partner, codec, **settings)
    if graph is not None:
        case.graph, case.weights = graph, row_weights(graph)
    faults = Faults.from_dict(tables)
    what = SplitRun(case.method, case.federation, case.model, case.graph, case.weights, ROUNDS, SEED, codec)
    halves = partner.run(what._replace(robust=robust), faults=faults)
    injection = Injection.of(faults, case.federation.names, codec is not None)
    outcome = train(case.training("exact", faults=injection, robust=robust), ROUNDS)
    return merge(halves, "models"), outcome.models, outcome.traffic


def _assert_same(sent, simulated):
    for a, b in zip(jax.tree.leaves(sent), jax.tree.leaves(simulated), strict=True):
        np.testing.assert_array_equal(a, b)


def _names():
    return Case(EveryVerb).federation.names


LOSSES = {
    "seed": 2,
    "drop": {"rate": 0.1},
    "delay": {"rate": 0.1, "late": 2},
    "duplicate": {"rate": 1.0},
    "reorder": {"rate": 0.5},
    "corrupt": {"rate": 0.1},
}


def _everything(names):
    return LOSSES | {
        "partition": {"groups": [list(names[:3]), list(names[3:5])], "rounds": [2, 2]},
        "freeze": [{"members": [names[1]], "rounds": [1, 2]}, {"rate": 0.2}],
        "poison": [
            {"members": [names[0]], "kind": "scale", "factor": -2.0, "rounds": [1, 1]},
            {"members": [names[2]], "kind": "nan", "rounds": [2, 3]},
            {"members": [names[5]], "kind": "weight"},
            {"members": [names[6]], "kind": "shape", "rounds": [3, 3]},
        ],
    }


@SOAK
def test_every_verb_under_every_fault_has_the_bits_of_the_network(partner):
    sent, simulated, traffic = _both(partner, EveryVerb, _everything(_names()), graph=GRAPH)
    _assert_same(sent, simulated)
    for name in ("lost", "refused", "hub_lost", "hub_refused"):
        assert sum(np.sum(getattr(part, name)) for part, _ in traffic) > 0, name


@pytest.mark.parametrize("method", ["fedavg", *(pytest.param(n, marks=SOAK) for n in ("sgp", "scool-sbm", "ditto"))])
def test_methods_under_every_fault_have_the_bits_of_the_network(partner, method):
    _assert_same(*_both(partner, method, _everything(_names()))[:2])


@SOAK
def test_a_codec_under_loss_has_the_bits_of_the_network(partner):
    _assert_same(*_both(partner, "sgp", LOSSES, codec=codecs.QSGD(bits=4))[:2])


@pytest.mark.parametrize("method", [pytest.param("gossip-sgd", marks=SOAK), "fedavg"])
def test_robust_sums_have_the_bits_of_the_network(partner, method):
    """Two of seven send ten times what they should; they are clipped, and nobody moves far."""
    attack = {"poison": {"members": list(_names()[:2]), "kind": "scale", "factor": 10.0}}
    sent, simulated, traffic = _both(partner, method, attack, robust=2.0)
    _assert_same(sent, simulated)
    assert sum(np.sum(part.clipped) + np.sum(part.hub_clipped) for part, _ in traffic) > 0


# -- a lossy network, repeated ------------------------------------------------------------------------------------

LOSSY = {"drop": {"rate": 0.2}, "delay": {"rate": 0.1, "late": 3}, "duplicate": {}, "reorder": {}}
SEEDS = 50 if os.environ.get("COTERIE_FULL") else 3


def test_a_lossy_network_ends_uses_nothing_late_loses_little_and_can_be_replayed(partner):
    """20 % of the messages lost, 10 % late by up to three rounds, all repeated and reordered.

    No late message is used, or the simulation, in which there are none, would differ.
    """
    federation = coterie.load("digits", "dirichlet", clients=6)
    task, graph = Task.of(federation, Linear()), Ring(reach=2).build(6, 0)
    method, weights, rounds = GossipSGD(lr=0.1, batch_size=32), metropolis(graph)[0], 40
    what = SplitRun(method, federation, Linear(), graph, weights, rounds, SEED)
    engine = Engine(task, federation, choose_device("cpu"), Plan("exact"))

    def accuracy(training, state):
        return training.evaluate(state, rounds)["test_score"].mean()

    clean = Training(engine, method, graph, weights, SEED)
    at_best = accuracy(clean, train(clean, rounds).state)
    for seed in range(SEEDS):
        faults = Faults.from_dict(LOSSY | {"seed": seed})
        halves = partner.run(what, faults=faults)
        training = Training(engine, method, graph, weights, SEED, faults=Injection.of(faults, federation.names))
        outcome = train(training, rounds)
        _assert_same(merge(halves, "models"), outcome.models)
        assert accuracy(training, outcome.state) > at_best - 0.02
        logs = [
            [Round(n, half.ids, [d for d in half.deliveries if d.round == n]) for n in range(rounds + 1)]
            for half in halves
        ]
        replayed = repeat(Training(engine, method, graph, weights, SEED), federation.names, logs, {rounds})
        _assert_same(replayed[rounds], outcome.models)
