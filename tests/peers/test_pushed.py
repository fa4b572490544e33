"""The mean of many without a hub: exact, the same bits everywhere, a mean of some where messages are lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import codecs
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.peers import ALL_TO_ALL
from coterie.peers.base import Arrivals
from coterie.peers.coding import Coder
from coterie.peers.faults import Faults
from coterie.peers.injection import Injection
from coterie.peers.ledger import Ledger
from coterie.peers.local import LocalPeers, Plan, Simulation
from coterie.peers.pushed import push_steps
from coterie.peers.tables import make_tables
from coterie.testing.case import ROUNDS, SEED, Case
from coterie.testing.two_processes import SplitRun, arrivals_of, merge, train

HEADER = 48  # bytes of a frame before its arrays


def tables_of(clients, ids=None):
    graph = Graph.empty(clients)
    tables = make_tables(graph, np.zeros(graph.present.shape), np.arange(clients) if ids is None else ids)
    return jax.tree.map(jnp.asarray, tables)


def pushing(tables, arrivals=None, mode="exact", **options):
    return LocalPeers(tables, Plan(mode), arrivals, hub=False, all_to_all=1, **options)


def pushed_mean(clients, x, weight, groups=None, ids=None, mode="exact"):
    """Return the mean, who got it, and what was sent."""

    count = None if groups is None else groups[1]
    run = jax.jit(lambda tables, x, weight, label: _mean(tables, x, weight, label, count, mode))
    return run(tables_of(clients, ids), x, jnp.asarray(weight, jnp.float32), None if groups is None else groups[0])


def _mean(tables, x, weight, label, count, mode):
    peers = pushing(tables, mode=mode)
    found, arrived = peers.mean(x, weight, None if label is None else (label, count))
    return found, arrived, peers.traffic()


@given(st.integers(2, 300))
def test_every_step_is_a_pairing_and_few_messages_leave_a_member(clients):
    sent, known = np.zeros(clients, int), [{i} for i in range(clients)]
    for step in push_steps(clients):
        before = list(known)
        for i in np.flatnonzero(step.hears >= 0):
            other = before[step.hears[i]]
            assert step.sends[step.hears[i]] == i
            assert not step.adds or not before[i] & other, "somebody is counted twice"
            known[i] = before[i] | other if step.adds else other
        assert (step.sends >= 0).sum() == (step.hears >= 0).sum()
        sent += step.sends >= 0
    assert known == [set(range(clients))] * clients
    assert sent.max() <= np.log2(clients) + 1


@pytest.mark.parametrize(("clients", "mode"), [(2, "exact"), (12, "exact"), (33, "fast")])
def test_the_mean_of_those_who_take_part_reaches_everybody(clients, mode):
    """Clients are stored in another order than their ids'; a third of them takes no part."""
    random = np.random.default_rng(clients)
    ids = random.permutation(clients)
    x, weight = random.normal(size=(clients, 3)).astype(np.float32), random.integers(1, 90, clients) * (ids % 3 > 0)
    found, arrived, traffic = pushed_mean(clients, (x, x[:, 0]), weight, ids=ids, mode=mode)
    expected = np.average(x.astype(float), axis=0, weights=weight)
    assert arrived.all()
    np.testing.assert_allclose(found[0], np.tile(expected, (clients, 1)), rtol=1e-5, atol=1e-6)
    assert (found[0] == found[0][0]).all(), "not the same bits everywhere"
    np.testing.assert_allclose(found[1], found[0][:, 0], rtol=1e-6)
    sent = sum(step.sends >= 0 for step in push_steps(clients))[ids]
    assert traffic.up_messages.tolist() == sent.tolist()
    assert traffic.up_bytes[:, 0].tolist() == (sent * (HEADER + 4 * (3 + 1 + 1))).tolist()  # value, number, weight
    assert traffic.down_bytes[:, 0].sum() == traffic.up_bytes[:, 0].sum()


def test_groups_have_their_own_means_and_a_group_of_nobody_keeps_its_values():
    x, weight, label = jnp.arange(5.0), jnp.array([1.0, 2, 3, 0, 0]), jnp.array([0, 1, 0, 1, 2])
    found, arrived, _ = pushed_mean(5, x, weight, (label, 3))
    np.testing.assert_allclose(found, [1.5, 1, 1.5, 1, 4], rtol=1e-6)  # (0 * 1 + 2 * 3) / 4; 1; nobody
    assert arrived.tolist() == [True, True, True, True, False]


def test_who_has_diverged_takes_no_part_and_gets_the_mean():
    x = jnp.array([1.0, jnp.nan, 3.0, 1e30, 5.0])
    found, arrived, _ = pushed_mean(5, x, jnp.ones(5))
    np.testing.assert_allclose(found, [3.0] * 5, rtol=1e-6)
    assert arrived.all()


CLIENTS = 11


@jax.jit
def lossy_mean(tables, pushed, x, weight):
    return pushing(tables, Arrivals(pushed[:, :, None], pushed, pushed, pushed)).mean(x, weight)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_with_loss_it_is_a_mean_of_some_by_their_true_weights(seed, rate):
    """Client k sends the k-th unit vector, so that the mean shows whose values are in it: compared with sets."""
    random, steps = np.random.default_rng(seed), push_steps(CLIENTS)
    weight = random.integers(0, 5, CLIENTS).astype(np.float32)
    came = random.random((len(steps), CLIENTS)) >= rate
    known = [{i} if weight[i] else set() for i in range(CLIENTS)]
    for step, arrived in zip(steps, came, strict=True):
        before = list(known)
        for i in np.flatnonzero((step.hears >= 0) & arrived):
            known[i] = before[i] | before[step.hears[i]] if step.adds else before[step.hears[i]]
    found, arrived = lossy_mean(tables_of(CLIENTS), came, jnp.eye(CLIENTS), weight)
    assert arrived.tolist() == [bool(some) for some in known]
    for i, some in enumerate(known):
        members = np.isin(np.arange(CLIENTS), list(some))
        expected = np.where(members, weight, 0) / weight[members].sum() if some else np.eye(CLIENTS)[i]
        np.testing.assert_allclose(found[i], expected, rtol=1e-6)


def test_what_sums_cannot_do_is_refused():
    with pytest.raises(CoterieError, match=r"more than 1 clients \(run.all_to_all\) .* set codec none"):
        pushing(tables_of(3), coder=Coder(codecs.Half(), jax.random.key(0), None)).mean(jnp.ones((3, 4)), jnp.ones(3))
    with pytest.raises(CoterieError, match=r"leave run\.robust out"):
        pushing(tables_of(3), robust=2.0).mean(jnp.ones((3, 4)), jnp.ones(3))
    assert not LocalPeers(tables_of(ALL_TO_ALL), hub=False)._pushes
    assert LocalPeers(tables_of(ALL_TO_ALL + 1), hub=False)._pushes


# -- the same on a network ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(partner):
    case = Case("fedavg", partner, participation=0.6)
    what = SplitRun(
        case.method, case.federation, case.model, case.graph, case.weights, ROUNDS, SEED, hub=False, all_to_all=2
    )
    return case, what, partner


def simulated(case, **options):
    return train(case.training("exact", peers=Simulation(Plan("exact"), hub=False, all_to_all=2), **options), ROUNDS)


def assert_same(halves, models):
    for a, b in zip(jax.tree.leaves(merge(halves, "models")), jax.tree.leaves(models), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_processes_have_the_numbers_and_the_bytes_of_a_simulation(runs):
    case, what, partner = runs
    halves, outcome = partner.run(what), simulated(case)
    assert_same(halves, outcome.models)
    for a, b in zip(jax.tree.leaves(outcome.models), jax.tree.leaves(case.straight("exact").models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # as with a hub, up to rounding
        assert (a == a[0]).all(), "members of one model differ"
    ledger = Ledger(case.federation.names, case.graph.neighbours)
    for part, _ in outcome.traffic:
        ledger.add(0, part)
    sent = {way: np.zeros(len(case.federation), int) for way in ("sent", "received")}
    for pair, size in [item for half in halves for item in half.sent.items()]:
        sent["sent"][pair[0]] += size
        sent["received"][pair[1]] += size
    assert {way: total.tolist() for way, total in ledger.totals().items()} == {w: t.tolist() for w, t in sent.items()}


def test_lost_messages_are_repeated_by_a_simulation(runs):
    case, what, partner = runs
    halves = partner.run(what, loss=0.2)
    arrivals = arrivals_of(halves, ROUNDS)
    assert not all(one.pushed.all() for one in arrivals)
    peers = Simulation(Plan("exact"), hub=False, all_to_all=2)
    assert_same(halves, train(case.training("exact", peers=peers), ROUNDS, arrivals).models)


def test_faults_do_on_a_network_what_they_do_in_a_simulation(runs):
    case, what, partner = runs
    names = case.federation.names
    faults = Faults.from_dict(
        {"seed": 2, "drop": {"rate": 0.2}, "duplicate": {}, "freeze": {"members": [names[1]], "rounds": [2, 2]}}
        | {"poison": [{"members": [names[2]], "kind": "weight"}, {"members": [names[4]], "kind": "infinity"}]}
    )
    halves, outcome = partner.run(what, faults=faults), simulated(case, faults=Injection.of(faults, names))
    assert_same(halves, outcome.models)
    for what in ("hub_lost", "hub_refused"):
        assert sum(np.sum(getattr(part, what)) for part, _ in outcome.traffic) > 0


@pytest.mark.parametrize("kind", ["nan", "huge", "weight", "shape"])
def test_poison_is_for_the_others_as_if_nothing_came_from_that_member(runs, kind):
    """Bit for bit: its messages are dropped in the other run. What it hears itself is the same in both."""
    case, names = runs[0], runs[0].federation.names
    ways = ({"poison": {"members": [names[3]], "kind": kind}}, {"drop": {"members": [names[3]]}})
    spoiled, dropped = (simulated(case, faults=Injection.of(Faults.from_dict(tables), names)).models for tables in ways)
    for a, b in zip(jax.tree.leaves(spoiled), jax.tree.leaves(dropped), strict=True):
        np.testing.assert_array_equal(a, b)
