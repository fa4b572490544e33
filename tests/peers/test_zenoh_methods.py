"""Every method between processes that talk over mutual TLS: the same bits and bytes as in a simulation."""

import jax
import numpy as np
import pytest

from coterie.testing.contract import ROUNDS, SEED, Case, _by_pair
from coterie.testing.two_processes import SplitRun, merge
from support.members import Members
from support.network_rows import ROWS


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    group = Members(tmp_path_factory.mktemp("keys"), 3)
    yield group
    group.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join([row[0], *row[1]]))
def test_the_network_gives_the_numbers_of_a_simulation(members, row):
    name, settings = row
    case = Case(name, **settings)
    what = SplitRun(case.method, case.federation, case.model, case.graph, case.weights, ROUNDS, SEED, case.codec)
    found = members.run(what, number=hash(row[0]) % 2**32)
    halves = [half for half, refused, absent in found]
    assert not any(refused or absent for _, refused, absent in found)
    simulated = case.straight("exact")
    for a, b in zip(jax.tree.leaves(simulated.models), jax.tree.leaves(merge(halves, "models")), strict=True):
        np.testing.assert_array_equal(a, b)
    charged = {}
    for traffic, graph in simulated.traffic:
        for pair, size in _by_pair(traffic, graph):
            charged[pair] = charged.get(pair, 0) + size
    sent = {}
    for half in halves:
        sent |= half.sent
    assert {pair: size for pair, size in charged.items() if size} == sent
