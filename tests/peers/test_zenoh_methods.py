"""Methods between processes that talk over mutual TLS: the same bits and bytes as in a simulation.

Every process compiles every program (one that leaves for the network cannot be kept on disk), which is most of the
time. So `make test` has all methods in turn in one group of two processes, three rounds each, a few with three seeds;
`make soak` has them in a group of six, with ten rounds and three seeds.
"""

import contextlib
import os
import zlib

import jax
import numpy as np
import pytest

from coterie.peers.local import Plan, Simulation
from coterie.testing.case import SEED, Case
from coterie.testing.contract import _by_pair
from coterie.testing.two_processes import SplitRun, merge, train
from support.members import Members
from support.network_rows import SETTINGS, methods
from support.verb_methods import EveryVerb

SOAK = pytest.mark.soak
ROWS = [(2, 3, name, "site-0") for name in methods()]
ROWS += [pytest.param((3, 3, EveryVerb, "site-0"), marks=SOAK)]
ROWS += [pytest.param((6, 10, name, "site-0"), marks=SOAK) for name in methods()]
ROWS += [pytest.param((6, 10, name, None), marks=SOAK) for name in ("fedavg", "ditto", "async-l2gd", "component")]
# Equal to the bit (`make soak`); the quicker programs of `make test` round by what else is in them. With
# JAX 0.12 only those of `scool-attention` do (6e-8), and by this flag alone.
ROUNDING = 1e-6 if "xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", "") else 0.0
SEVERAL = ("gossip-sgd", "fedavg", "sgp")  # neighbours, a hub and clients that take no part, pushes


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Groups of processes by their number, started when they are needed."""
    groups = {}

    def group(count):
        if count not in groups:
            groups[count] = Members(tmp_path_factory.mktemp("keys"), count)
        return groups[count]

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [each.close() for each in groups.values()])
        yield group


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(getattr(part, "__name__", part)) for part in row))
def test_the_network_gives_the_numbers_of_a_simulation(members, row):
    count, rounds, name, hub = row
    case = Case(name, **SETTINGS.get(name, {}))
    what = SplitRun(
        case.method, case.federation, case.model, case.graph, case.weights, rounds, SEED, hub=hub is not None
    )
    number = 1 + zlib.crc32(repr(row).encode())  # others for each row
    seeds = (SEED, SEED + 1, SEED + 2) if count > 2 or name in SEVERAL else (SEED,)
    found = members(count).run(what, number, hub, seeds)
    for seed, parts in zip(seeds, found, strict=True):
        halves = [half for half, _ in parts]
        for _, counts in parts:
            assert not counts.refused
            assert not counts.absent
        peers = Simulation(Plan("exact"), hub is not None)
        simulated = train(case.training("exact", peers=peers, seed=seed), rounds)
        for a, b in zip(jax.tree.leaves(simulated.models), jax.tree.leaves(merge(halves, "models")), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * np.abs(a).max(initial=0))
        check_ledgers(simulated, halves, hub)


def check_ledgers(simulated, halves, hub):
    """What a simulation charges is what the carriers sent, and what the members' own ledgers have."""
    charged = {}
    for traffic, graph in simulated.traffic:
        for pair, size in _by_pair(traffic, graph):
            charged[pair] = charged.get(pair, 0) + size
    sent = {}
    for half in halves:
        sent |= half.sent
    if hub is None:  # each message to the hub went to everybody
        assert sum(charged[pair] for pair in charged if pair[0] < len(merge(halves, "loss"))) == sum(sent.values())
    else:
        assert {pair: size for pair, size in charged.items() if size} == sent
    for block, (traffic, _) in enumerate(simulated.traffic):
        counters = {name: count for name, count in traffic._asdict().items() if name.endswith(("messages", "bytes"))}
        for field, expected in counters.items():
            counted = [half._replace(models=np.moveaxis(getattr(half.traffic[block], field), 1, 0)) for half in halves]
            np.testing.assert_array_equal(np.moveaxis(merge(counted, "models"), 0, 1), expected, err_msg=field)
