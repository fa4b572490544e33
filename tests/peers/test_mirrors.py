"""A client is away for two rounds: senders and receivers of mirrored vectors start again, nobody else notices."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import registry
from coterie.peers.line import HUB
from coterie.peers.mirrors import Mirrors, is_whole
from coterie.testing.contract import SEED, Case
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
