"""A client is away for two rounds: senders and receivers of mirrored vectors start again, nobody else notices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import registry
from coterie.graphs.topologies import Ring
from coterie.peers.coding import Coder
from coterie.peers.line import HUB, Line
from coterie.peers.mirrors import Mirrors, is_whole
from coterie.peers.remote import RemotePeers
from coterie.peers.tables import make_tables
from coterie.testing.case import SEED, Case
from coterie.testing.two_processes import Site, SplitRun, arrivals_of, train

AWAY, ROUNDS_AWAY, ROUNDS = 2, (3, 4), 7
MORE = [("fomo", {}), ("async-l2gd", {"iterations": 3})]  # copies of those who ask, copies at the hub
ROWS = [("gossip-sgd", {}), *(pytest.param(*row, marks=pytest.mark.soak) for row in MORE)]


class Absence:
    """All clients live here; what is to or from one of them is lost in some rounds.

    With `knows` the carrier can tell which essential frames were lost, as one with acknowledgements does; without it,
    the receivers find out.
    """

    hub = True

    def __init__(self, knows):
        self.knows, self.lost, self.asked, self.sizes = knows, set(), [], {}

    def exchange(self, number, exchange, frames, outgoing, incoming):
        here = {pair: f for pair, f in frames.items() if number not in ROUNDS_AWAY or AWAY not in pair}
        if self.knows:
            self.lost |= frames.keys() - here.keys()
        self.sizes[number] = {pair: len(frame) for pair, frame in frames.items()}
        return here

    def lost_copies(self):
        lost, self.lost = self.lost, set()
        return lost

    def ask_whole(self, pair):
        self.asked.append(pair)
        self.lost.add(pair)


def trained(method, settings, knows):
    """Train over such a carrier, and repeat its deliveries in a simulation."""
    case = Case(method, codec=registry.load("codecs", "float16")(), **settings)
    what = SplitRun(case.method, case.federation, case.model, case.graph, case.weights, ROUNDS, SEED, case.codec)
    carrier = Absence(knows)
    half = Site(what, np.arange(len(case.federation))).run(carrier, 1)
    arrivals = arrivals_of([half], ROUNDS)
    return carrier, half, arrivals, train(case.training("exact"), ROUNDS, arrivals)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(("method", "settings"), ROWS)
def test_a_client_that_was_away_starts_again_and_nobody_else_notices(method, settings, knows):
    carrier, half, arrivals, simulated = trained(method, settings, knows)
    for a, b in zip(jax.tree.leaves(simulated.models), jax.tree.leaves(half.models), strict=True):
        np.testing.assert_array_equal(a, b)
    assert bool(carrier.asked) == (not knows)
    if method == "gossip-sgd":
        absent = [number for number in range(1, ROUNDS + 1) if not arrivals[number].edges[:, AWAY].all()]
        assert absent == [*ROUNDS_AWAY, *([] if knows else [5])]  # a receiver that must ask loses one more round
        first_back = max(absent) + 1
        whole, coded = max(carrier.sizes[1].values()), min(carrier.sizes[2].values())
        assert {size for pair, size in carrier.sizes[first_back].items() if AWAY in pair} == {whole}
        assert {size for pair, size in carrier.sizes[first_back].items() if AWAY not in pair} == {coded}
        assert set(carrier.sizes[7].values()) == {coded}


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), max_size=120))
def test_a_receiver_uses_a_change_only_on_top_of_all_changes_before_it(steps):
    """Messages and acknowledgements get lost, either end is started again: the copies of both ends never differ."""
    sender, receiver, pair = Mirrors(), Mirrors(), (3, HUB)
    copy = None
    for sent_copy, (arrives, acknowledged, sender_restarts, receiver_restarts) in enumerate(steps):
        sender = Mirrors() if sender_restarts else sender
        receiver, copy = (Mirrors(), None) if receiver_restarts else (receiver, copy)
        number = sender.number("0", pair, False, sent_copy)
        if arrives and receiver.fits("0", pair, number):
            copy = sent_copy if is_whole(number) else copy + 1
            assert copy == sent_copy
        elif arrives or not acknowledged:  # it asks for the whole, or the sender knows; else the next one is refused
            sender.forget(pair)


class Forgetful:
    """Everything arrives; in one round some receivers have lost their copies."""

    hub = True

    def __init__(self):
        self.lost, self.sizes = set(), {}

    def exchange(self, number, exchange, frames, outgoing, incoming):
        self.sizes[number, exchange] = {pair: len(frame) for pair, frame in frames.items()}
        return frames

    def lost_copies(self):
        lost, self.lost = self.lost, set()
        return lost


@pytest.mark.parametrize("hub", [True, False])
def test_a_vector_that_goes_whole_because_its_receiver_has_no_copy_is_charged_as_such(hub):
    """In a round: values to the hub (or to everybody) and the mean back, questions to neighbours and answers back."""
    graph, codec = Ring().build(5, 0), registry.load("codecs", "float16")()
    host, line, carrier = make_tables(graph, np.zeros(graph.present.shape)), Line(), Forgetful()
    line.connect(carrier)
    line.tables = host

    def one(tables, x, key, memory):
        peers = RemotePeers(tables, line, Coder(codec, key, memory), hub)
        peers.mean(x, jnp.ones(5))
        peers.ask(lambda mine, own: mine.sum() * own, x, jnp.ones(5))
        return peers.memory, peers.traffic()

    tables, key = jax.tree.map(jnp.asarray, host), jax.random.key(0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 40)), jnp.float32)
    memory = jax.eval_shape(lambda *args: one(*args, None)[0], tables, x, key)
    memory, run = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), memory), jax.jit(one)
    question = 2 if hub else 1  # the exchange; without a hub nothing comes back from it
    for number, lost in enumerate(({}, {}, {(1, HUB), (1, 4), (3, 2)}, {})):
        line.start_round(number)
        carrier.lost = set(lost)
        memory, traffic = run(tables, x + number, key, memory)
        up, told = np.zeros(5, int), np.zeros(graph.present.shape, int)
        for (i, j), size in carrier.sizes[number, 0].items():
            up[i] += size * (i != j)
        for (i, j), size in carrier.sizes[number, question].items():
            told[i, graph.neighbours[i].tolist().index(j)] += size
        assert traffic.up_bytes[:, 0].tolist() == up.tolist()
        assert traffic.told_bytes[:, :, 0].tolist() == told.tolist()
        if number == 2:
            assert up[1] > up[0], "nobody's vector was forced whole"
            assert told[3].max() > told[0].max()
