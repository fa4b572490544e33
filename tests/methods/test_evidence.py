"""What SCooL's clients know of each other: averages over rounds by hand, one's own loss, and weak evidence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data import load
from coterie.data.clients import Federation, stack
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.quality import graph_quality
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_sbm import ScoolSBM
from coterie.methods.shared.evidence import ENOUGH, Evidence, averaged, judged_fairly, nothing_heard
from coterie.models.linear import Linear
from coterie.models.mlp import Mlp
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from coterie.testing.small import small_federation


@pytest.fixture(scope="module")
def pair():
    """Two clients that hear each other."""
    graph = Ring().build(2, seed=0)
    return LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, np.zeros((2, 1)))), Plan("exact"))


def heard_in(pair, memory, rounds):
    """Average `(losses, arrived, own losses)` of rounds; return the evidence of the last one."""
    heard = nothing_heard(jnp.zeros((2, 1)))
    for losses, arrived, own in rounds:
        columns = (jnp.array([[float(x)] for x in losses]), jnp.array([[x] for x in arrived]))
        evidence = Evidence(*columns, jnp.array(own), jnp.full(2, jnp.log(10.0)))
        evidence, heard = averaged(evidence, heard, memory, pair)
    return evidence


def test_losses_are_averaged_over_rounds_by_hand(pair):
    """Weights 1, 1/2, 1/4 of the rounds from the last one on: (4 + 2 / 2 + 8 / 4) / (1 + 1/2 + 1/4) = 4."""
    both = (True, True)
    rounds = [((8, 1), both, (1.0, 4.0)), ((2, 1), both, (1.0, 2.0)), ((4, 1), both, (1.0, 1.0))]
    evidence = heard_in(pair, 0.5, rounds)
    np.testing.assert_allclose(evidence.losses, [[4.0], [1.0]], rtol=1e-6)
    np.testing.assert_allclose(evidence.own_loss, [1.0, 12 / 7], rtol=1e-6)  # (1 + 2 / 2 + 4 / 4) / 1.75


def test_an_answer_that_was_lost_does_not_count_and_an_earlier_one_does(pair):
    """The first client's second answer was lost: (4 + 8 / 4) / (1 + 1/4); the second one has never heard anything."""
    rounds = [
        ((8, 0), (True, False), (1.0, 1.0)),
        ((0, 0), (False, False), (1.0, np.nan)),
        ((4, 0), (True, False), (1, 4)),
    ]
    evidence = heard_in(pair, 0.5, rounds)
    np.testing.assert_allclose(evidence.losses, [[4.8], [0.0]], rtol=1e-6)
    assert evidence.arrived.tolist() == [[True], [False]]
    np.testing.assert_allclose(evidence.own_loss, [1.0, 3.4], rtol=1e-6)  # (4 + 1 / 4) / 1.25: NaN does not count


def test_without_memory_the_last_round_counts(pair):
    both = (True, True)
    evidence = heard_in(pair, 0.0, [((8, 1), both, (5.0, 4.0)), ((2, 1), both, (1.0, 2.0))])
    np.testing.assert_array_equal(evidence.losses, [[2.0], [1.0]])
    np.testing.assert_array_equal(evidence.own_loss, [1.0, 2.0])


def test_a_client_judges_its_own_model_on_samples_it_has_not_seen(pair):
    """Zero weights have loss log 2 on anything; a client with too few validation samples keeps the loss it had."""
    random = np.random.default_rng(0)
    rows = [(random.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2) for n in (ENOUGH, ENOUGH - 1)]
    few = stack(rows)
    federation = Federation(("a", "b"), few, few, few, "classification", 2)
    task = Task.of(federation, Linear())
    zeros = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape), leaf.dtype), task.init(jax.random.key(0)))
    evidence = Evidence(jnp.zeros((2, 1)), jnp.ones((2, 1), bool), jnp.array([5.0, 7.0]), jnp.ones(2))
    clients = jax.tree.map(jnp.asarray, federation.arrays())
    fair = judged_fairly(task, zeros, evidence, pair, clients)
    np.testing.assert_allclose(fair.own_loss, [np.log(2), 7.0], rtol=1e-6)


def test_weak_evidence_adds_up():
    """Answers of two samples each: by the last round alone groups are hardly seen, by all ten rounds they are."""
    random, groups = np.random.default_rng(3), np.arange(12) % 3
    directions = random.normal(size=(3, 6))

    def samples(group, count):
        x = random.normal(size=(count, 6)).astype(np.float32)
        flipped = random.random(count) < 0.2
        return x, ((x @ directions[group] > 0) ^ flipped).astype(np.int64)

    train, held = (stack([samples(group, count) for group in groups]) for count in (40, 20))
    names = tuple(f"client-{i}" for i in range(12))
    federation = Federation(names, train, held, held, "classification", 2, groups=groups)
    engine = Engine(Task.of(federation, Linear()), federation, choose_device("cpu"))
    graph, found = Graph.complete(12), {}
    for memory in (0.0, 0.9):
        training = Training(
            engine, ScoolSBM(lr=0.1, cross_batch=2, memory=memory), graph, np.zeros(graph.neighbours.shape), 0
        )
        block = training.advance(training.init()[0], 1, 10)[1]
        table = {"neighbours": graph.neighbours, "present": graph.present, "weights": block.weights}
        found[memory] = graph_quality(table, groups)["graph_auroc"]
    assert found[0.9] > 0.9
    assert found[0.0] < 0.7


def test_attention_finds_groups_where_models_have_hardly_learned():
    """One epoch with a small rate: losses differ by little, and more between models and data than between groups."""
    federation = load("planted-groups", seed=1, validation_size=50)
    engine = Engine(Task.of(federation, Mlp(hidden=(16,))), federation, choose_device("cpu"))
    graph, inside = Graph.complete(len(federation)), {}
    groups = np.asarray(federation.groups)
    same = groups[graph.neighbours] == groups[:, None]
    for evidence in ("balanced", "plain"):
        method = ScoolAttention(lr=0.05, epochs=1, evidence=evidence)
        training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), 0)
        weights = training.advance(training.init()[0], 1, 10)[1].weights
        inside[evidence] = float((weights * same).sum(1).mean())
    assert inside["balanced"] > inside["plain"] + 0.1


@pytest.mark.parametrize("settings", [{"m_step": "first-order"}, {"sparsify_after": 0}, {"faithful": True}])
def test_only_weights_that_will_be_held_are_inferred_from_balanced_losses(settings):
    """Elsewhere the losses are those of the paper, and no more is sent."""
    federation = small_federation(6)
    engine, graph = Engine(Task.of(federation, Linear()), federation, choose_device("cpu")), Graph.complete(6)

    def weights(evidence):
        method = ScoolAttention(lr=0.1, evidence=evidence, **settings)
        training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), 0)
        block = training.advance(training.init()[0], 1, 3)[1]
        return block.weights, block.traffic.up_bytes

    for plain, balanced in zip(weights("plain"), weights("balanced"), strict=True):
        np.testing.assert_array_equal(plain, balanced)
