"""Every verb between two processes that talk through a pipe: the same bits, the same loss, the same bytes.

The built-in methods use three of the verbs; the method of `verb_methods.py` uses all of them, inside a loop too, on a
directed graph where some neighbours hear each other and some do not.
"""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie import registry
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.graphs.topologies import Ring
from coterie.peers import ALL_TO_ALL
from coterie.peers.ledger import Ledger
from coterie.peers.line import Line
from coterie.peers.local import LocalPeers, Plan, Simulation
from coterie.peers.remote import RemotePeers
from coterie.peers.tables import make_tables
from coterie.testing.case import ROUNDS, SEED, Case
from coterie.testing.contract import CHECKS
from coterie.testing.two_processes import SplitRun, arrivals_of, merge, train
from support.graph_cases import row_weights
from support.verb_methods import EveryVerb

GRAPH = Graph.from_edges([0, 0, 1, 2, 2, 3, 4, 5, 5, 5, 6], [1, 4, 0, 1, 3, 6, 0, 2, 3, 4, 3], 7)
USEFUL = sorted(set(CHECKS) - {"alone_without_others"})  # it is no training: nothing to compare with


@pytest.fixture(scope="module")
def case(partner):
    case = Case(EveryVerb, partner)
    case.graph, case.weights = GRAPH, row_weights(GRAPH)
    return case


@pytest.mark.parametrize("check", USEFUL)
def test_every_verb_keeps_the_contract(case, check):
    CHECKS[check](case)


def test_the_recorded_loss_touches_every_link(case):
    """A tenth of about 300 messages is lost: edges, ways up and ways down, and more than once inside the loop."""
    rounds = arrivals_of(case.halves(0.1), ROUNDS)[1:]
    lost_edges = np.stack([~arrivals.edges & GRAPH.present for arrivals in rounds])
    assert min(lost_edges.sum(), *(sum((~getattr(a, way)).sum() for a in rounds) for way in ("up", "down"))) > 0
    # A round: mix, ask, ask, twice (push, swap, ask, mix, mean), centres in the second one only, share, mean.
    assert lost_edges.shape[1] == 3 + 2 * 5 + 1 + 2
    second_time = lost_edges[:, 8:12].sum()
    assert second_time > 0


def test_the_sum_of_push_survives_the_loss(case):
    """What is lost stays with its sender: the masses of the seven clients sum to seven in a lossy run."""
    first, *rest = arrivals_of(case.halves(0.1), ROUNDS)
    stacked = jax.tree.map(lambda *parts: np.stack(parts), *rest)
    training = case.training("exact")
    state, _ = training.advance(training.init(first)[0], 1, ROUNDS, stacked)
    assert not np.allclose(state.mass, 1)
    np.testing.assert_allclose(np.sum(state.mass), 7, rtol=1e-6)


def totals(outcome):
    """Return the bytes that each client sent and received in all, as the ledger has them."""
    ledger = Ledger(tuple(map(str, range(GRAPH.clients))), GRAPH.neighbours)
    for part, _ in outcome.traffic:
        ledger.add(0, part)
    return ledger.totals()


@pytest.mark.parametrize("codec", [None, pytest.param("float16", marks=pytest.mark.soak)])
def test_without_a_hub_everybody_computes_what_it_would(case, codec):
    """The same numbers as with a hub, at another price: everybody sends to everybody, in a simulation too."""
    if codec is not None:
        case = copy.copy(case)
        case.codec, case._straight = registry.load("codecs", codec)(), {}
    what = SplitRun(case.method, case.federation, case.model, GRAPH, case.weights, ROUNDS, SEED, case.codec, hub=False)
    halves = case._partner.run(what)
    simulated = train(case.training("exact", peers=Simulation(Plan("exact"), hub=False)), ROUNDS)
    with_hub = case.straight("exact")
    for models in (merge(halves, "models"), with_hub.models):
        for a, b in zip(jax.tree.leaves(simulated.models), jax.tree.leaves(models), strict=True):
            np.testing.assert_array_equal(a, b)
    charged, sent = totals(simulated), np.zeros(GRAPH.clients, int)
    for (sender, _), size in [item for half in halves for item in half.sent.items()]:
        sent[sender] += size
    assert charged["sent"].tolist() == sent.tolist()
    assert charged["received"].sum() == sent.sum() > totals(with_hub)["sent"].sum()
    for link in ("up_bytes", "down_bytes"):  # each process counts what its own clients sent and heard
        counted = [half._replace(models=sum(getattr(part, link).sum(0) for part in half.traffic)) for half in halves]
        expected = sum(getattr(part, link).sum(0) for part, _ in simulated.traffic)
        assert merge(counted, "models").tolist() == expected.tolist()


def test_too_many_clients_are_refused_without_a_hub():
    graph = Graph.empty(ALL_TO_ALL + 1)
    tables = jax.tree.map(jnp.asarray, make_tables(graph, np.zeros(graph.present.shape)))
    sentence = rf"at most {ALL_TO_ALL} clients \(run.all_to_all\), not {ALL_TO_ALL + 1}: name a member"
    with pytest.raises(CoterieError, match=sentence):
        LocalPeers(tables, Plan("exact"), hub=False).share(jnp.ones(graph.clients))


class Loopback:
    """A carrier between clients of one process: every frame arrives."""

    hub = True

    def exchange(self, number, exchange, frames, outgoing, incoming):
        return frames


class Cut(Loopback):
    """A carrier on which the acknowledgements of two pairs get lost, and one that says so, or does not."""

    def __init__(self, knows):
        self.lost = {(1, 0), (3, 2)}
        if knows:
            self.untaken = lambda: self.lost

    def exchange(self, number, exchange, frames, outgoing, incoming):
        return {pair: frame for pair, frame in frames.items() if exchange % 2 == 0 or pair not in self.lost}


@pytest.mark.parametrize("knows", [True, False])
def test_a_message_whose_acknowledgement_gets_lost_is_not_used_twice(knows):
    """Its sender keeps it, so its receiver must not use it; where a carrier cannot tell, that mass is there twice.

    Each of four clients in a ring pushes a third of its mass to each side. Client 1 has heard client 0, and client 3
    client 2, but these do not learn of it: two thirds too much.
    """
    graph = Ring().build(4, 0)
    host, line = make_tables(graph, np.zeros(graph.present.shape)), Line()
    line.connect(Cut(knows))
    line.tables = host

    @jax.jit
    def run(tables, mass):
        peers = RemotePeers(tables, line)
        got, arrived, acked = peers.push(mass / 3)
        stays = mass / 3 * (1 + (tables.listening & ~acked).sum(1))
        return stays + got, arrived

    mass, arrived = run(jax.tree.map(jnp.asarray, host), jnp.array([1.0, 2, 3, 4]))
    twice = 0 if knows else (1 + 3) / 3
    np.testing.assert_allclose(mass.sum(), 10 + twice, rtol=1e-6)
    lost = np.array([(i, j) in ((1, 0), (3, 2)) for i in range(4) for j in graph.neighbours[i]]).reshape(4, 2)
    np.testing.assert_array_equal(arrived, ~lost if knows else np.ones((4, 2), bool))
    np.testing.assert_array_equal(line.deliveries[0].edges, arrived)  # a simulation repeats it


def test_values_that_are_not_finite_arrive_nowhere():
    """Client 2 of a ring of four has diverged: a simulation in exact mode does what a network does."""
    graph = Ring().build(4, 0)
    host = make_tables(graph, np.full(graph.present.shape, 0.25))
    line = Line()
    line.connect(Loopback())
    line.tables = host

    def verbs(make):
        @jax.jit
        def run(tables, x):
            peers, one = make(tables), jnp.ones(4)
            small = jnp.broadcast_to(x[:, None], (4, 2, 2))
            asked = peers.ask(lambda mine, own: mine.sum() * 0 + own, x, jnp.arange(4.0))
            hub = peers.hub(lambda x, arrived, memory: (x + 1, memory), x, ())
            cluster = (jnp.zeros(4, int), 1)
            return (
                peers.mix(x, tables.weights), peers.push(x), peers.swap(small), asked, peers.mean(x, one), hub,
                peers.centres(x, one, cluster), peers.share(x),
            )  # fmt: skip

        return run

    programs = verbs(lambda tables: LocalPeers(tables, Plan("exact"))), verbs(lambda tables: RemotePeers(tables, line))
    for number, bad in enumerate((np.nan, np.inf, 1e30)):
        x = jnp.arange(8.0).reshape(4, 2).at[2, 1].set(bad)
        line.start_round(number)
        found = [jax.tree.leaves(program(jax.tree.map(jnp.asarray, host), x)) for program in programs]
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)
            assert np.abs(np.delete(a, 2, axis=0)).max() < 100  # nobody else sees it
    assert {why for _, why in line.counts.refused} == {"numbers that are not finite, or too large"}
