"""The ledger on a graph of three clients, by hand.

Client a hears b; b hears a and c; c hears b. Slots: a [b, -], b [a, c], c [b, -].
"""

import numpy as np
import pytest

from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis
from coterie.methods import FedAvg, GossipSGD, Pooled
from coterie.peers.base import Traffic
from coterie.peers.ledger import HUB, Ledger
from support.cases import regression, training

GRAPH = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], 3)
NAMES = ("a", "b", "c")
EDGES = ("heard_messages", "heard_bytes", "told_messages", "told_bytes")  # [rounds, clients, slots], hubs lack the last


def traffic(**changes):
    """Two rounds in which nothing happens but what is given as `{link: {(round, client[, slot]): bytes}}`."""
    found = {name: np.zeros((2, 3, 2) if name in EDGES else (2, 3), np.uint32) for name in Traffic._fields}
    for link, sent in changes.items():
        for place, size in sent.items():
            found[f"{link}_messages"][place] += 1
            found[f"{link}_bytes"][place] += size
    return Traffic(**found)


@pytest.fixture
def ledger():
    """Round 4: b hears 10 bytes from a (slot 0) and 20 from c (slot 1), and tells c 3. Round 5: a sends 100 up and gets
    50 down, c hears 7 from b."""
    ledger = Ledger(NAMES, GRAPH.neighbours)
    sent = traffic(
        heard={(0, 1, 0): 10, (0, 1, 1): 20, (1, 2, 0): 7}, told={(0, 1, 1): 3}, up={(1, 0): 100}, down={(1, 0): 50}
    )
    ledger.add(4, sent)
    return ledger


def test_totals_by_hand(ledger):
    assert {k: v.tolist() for k, v in ledger.totals().items()} == {
        "sent": [10 + 100, 3 + 7, 20],  # a to b and to the hub; b to c, twice; c to b
        "received": [50, 10 + 20, 3 + 7],
    }
    assert {k: v.tolist() for k, v in ledger.totals("messages").items()} == {"sent": [2, 2, 1], "received": [1, 2, 2]}
    assert ledger.bytes_per_client() == (160 + 40 + 30) / 3


def test_edges_by_hand(ledger):
    found = [tuple(row) for row in ledger.edges().itertuples(index=False)]
    assert sorted(found) == [
        (4, "a", "b", 1, 10),
        (4, "b", "c", 1, 3),
        (4, "c", "b", 1, 20),
        (5, "a", HUB, 1, 100),
        (5, "b", "c", 1, 7),
        (5, HUB, "a", 1, 50),
    ]


def test_the_same_edge_heard_and_told_in_one_round_is_one_row():
    ledger = Ledger(NAMES, GRAPH.neighbours)
    ledger.add(1, traffic(heard={(0, 2, 0): 7}, told={(0, 1, 1): 3}))  # c hears b; b tells c
    assert [tuple(row) for row in ledger.edges().itertuples(index=False)] == [(1, "b", "c", 2, 10)]


def test_blocks_add_up_and_survive_a_file(ledger, tmp_path):
    second = ledger.add(6, traffic(up={(0, 2): 1_000}))
    assert second["rounds"].tolist() == [6, 7]
    assert "heard_bytes" not in second  # what nobody sent is not stored
    blocks = []
    for number, block in enumerate(ledger.blocks):
        np.savez(tmp_path / f"{number}.npz", **block)
        with np.load(tmp_path / f"{number}.npz") as arrays:
            blocks.append(dict(arrays))
    again = Ledger(NAMES, GRAPH.neighbours, blocks)
    assert again.totals()["sent"].tolist() == ledger.totals()["sent"].tolist() == [110, 10, 1_020]
    assert again.edges().equals(ledger.edges())


def test_totals_do_not_overflow_over_rounds():
    """Three rounds of 2 GB each are more than 32 bits hold."""
    ledger = Ledger(NAMES, GRAPH.neighbours)
    for number in (1, 2, 3):
        ledger.add(number, traffic(up={(0, 0): 2_000_000_000}, heard={(0, 1, 0): 2_000_000_000}))
    assert ledger.totals()["sent"].tolist() == [12_000_000_000, 0, 0]
    assert ledger.edges()["bytes"].sum() == 12_000_000_000


def test_nothing_sent_is_an_empty_table():
    ledger = Ledger(NAMES, np.zeros((3, 0), np.int32))
    ledger.add(1, Traffic(**{name: np.zeros((1, 3, 0) if name in EDGES else (1, 3)) for name in Traffic._fields}))
    assert ledger.edges().empty
    assert list(ledger.edges().columns) == ["round", "sender", "receiver", "messages", "bytes"]
    assert ledger.bytes_per_client() == 0


def test_a_run_of_each_kind_by_formula(device, x64):
    """Models of 3 float64: 24 bytes, a header of 48; a hub's message carries a weight of 8 bytes too."""
    federation = regression([4, 3, 2])
    slots = metropolis(GRAPH)[0]
    cases = [
        (GossipSGD(lr=0.1, batch_size=0, steps=1), GRAPH, slots, 72 * np.array([1, 2, 1])),  # one for each listener
        (FedAvg(lr=0.1, batch_size=0, steps=1), None, None, 80 * np.array([1, 1, 1])),
        (Pooled(lr=0.1, batch_size=0, steps=1), None, None, np.zeros(3)),  # after the start nobody says anything
    ]
    for method, graph, weights, sent in cases:
        started = training(federation, method, device, graph, weights)
        state, _ = started.init()
        _, block = started.advance(state, 1, 3)
        ledger = Ledger(NAMES, (graph or Graph.empty(3)).neighbours)
        ledger.add(1, block.traffic)
        assert ledger.totals()["sent"].tolist() == (3 * sent).tolist()
        assert ledger.totals()["received"].tolist() == (3 * sent).tolist()


def test_a_table_of_a_ledger_from_a_file_is_that_of_the_run():
    """A file has counts in the narrowest type: here 200 and 100 bytes on one edge, in numbers of 8 bits."""
    sent = traffic(heard={(0, 1, 0): 200}, told={(0, 0, 0): 100})
    ledger, read = Ledger(NAMES, GRAPH.neighbours), Ledger(NAMES, GRAPH.neighbours)
    ledger.add(1, sent)
    read.add(1, Traffic(*(values.astype(np.uint8) for values in sent)))
    assert [tuple(row) for row in read.edges().itertuples(index=False)] == [(1, "a", "b", 2, 300)]
    assert read.edges().equals(ledger.edges())
