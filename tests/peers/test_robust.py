"""Robust sums are bounded and otherwise change nothing; a member that sends nonsense is as good as absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.graphs.topologies import Complete
from coterie.peers.faults import Faults
from coterie.peers.injection import Injection
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from coterie.testing.case import ROUNDS, Case
from coterie.testing.two_processes import train

CLIENTS = 6


@pytest.fixture(scope="module")
def tables():
    graph = Complete().build(CLIENTS, 0)
    return jax.tree.map(jnp.asarray, make_tables(graph, np.full(graph.present.shape, 1 / CLIENTS)))


def _values(liar=1.0):
    random = np.random.default_rng(3)
    values = {"a": random.normal(size=(CLIENTS, 4)), "b": random.normal(size=(CLIENTS, 2, 3))}
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32).at[2].multiply(liar), values)


def _flat(x):
    return np.concatenate([np.asarray(a).reshape(CLIENTS, -1) for a in jax.tree.leaves(x)], 1)


def _verbs(tables, x, robust, mode="exact"):
    """Return what mix, push, mean and centres make of x, and who was clipped."""

    @jax.jit
    def run(tables, x):
        peers = LocalPeers(tables, Plan(mode), robust=robust)
        weight = jnp.arange(1.0, CLIENTS + 1)
        groups = (peers.ids % 2, 2)
        parts = (
            peers.mix(x, tables.weights)[0],
            peers.push(x)[0],
            peers.mean(x, weight)[0],
            peers.mean(x, weight, groups)[0],
            peers.centres(x, weight, groups, across=weight)[0].near,
        )
        return parts, peers.traffic()

    return run(tables, x)


def test_a_radius_that_nobody_reaches_changes_no_bit(tables):
    plain, _ = _verbs(tables, _values(), None)
    robust, traffic = _verbs(tables, _values(), 1e6)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(robust), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.any(traffic.clipped)
    assert not np.any(traffic.hub_clipped)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_mixing_moves_nobody_farther_than_twice_the_median_distance(tables, mode):
    """ClippedGossip by hand: x_i + sum_j w clip(x_j - x_i), the radius twice the median of five distances."""
    x = _flat(_values(liar=1e6))
    (mixed, *_), traffic = _verbs(tables, _values(liar=1e6), 2.0, mode)
    for i in range(CLIENTS):
        others = np.delete(x, i, 0) - x[i]
        away = np.linalg.norm(others, axis=1)
        scale = np.minimum(1, 2 * np.median(away) / away)
        # mix returns the neighbours' part: what client i keeps of its own is added by the caller
        expected = ((x[i] + others * scale[:, None]) / CLIENTS).sum(0)
        if i != 2:
            np.testing.assert_allclose(_flat(mixed)[i], expected, rtol=2e-5, atol=1e-5)
    senders = np.bincount(np.asarray(tables.neighbours).ravel(), np.asarray(traffic.clipped).ravel(), CLIENTS)
    assert senders.argmax() == 2  # the liar is named


def test_a_hub_is_moved_no_farther_than_twice_the_median_distance_from_the_middle(tables):
    x = _flat(_values(liar=1e6))
    (_, _, mean, *_), traffic = _verbs(tables, _values(liar=1e6), 2.0)
    middle = np.sort(x, 0)[(CLIENTS - 1) // 2]  # the lower median of every coordinate
    away = np.linalg.norm(x - middle, axis=1)
    radius = 2 * np.sort(away)[(CLIENTS - 1) // 2]
    scale, weight = np.minimum(1, radius / away), np.arange(1.0, CLIENTS + 1)
    expected = ((middle + (x - middle) * scale[:, None]) * weight[:, None]).sum(0) / weight.sum()
    np.testing.assert_allclose(_flat(mean)[0], expected, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(_flat(mean)[0] - middle) <= radius * (1 + 1e-5)
    assert traffic.hub_clipped[2] > 0


# -- poison ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        ("gossip-sgd", ("nan", "infinity", "huge", "shape")),
        ("fedavg", ("nan", "infinity", "huge", "shape", "weight")),
        pytest.param("sgp", ("nan", "infinity", "huge", "shape", "weight"), marks=pytest.mark.soak),
    ],
)
def test_honest_models_are_those_of_a_run_without_the_poisoner(method, kinds):
    """One of seven sends nonsense: to the last bit it is as if its messages had not come."""
    case = Case(method)
    names = case.federation.names

    def models(tables):
        injection = Injection.of(Faults.from_dict(tables), names)
        outcome = train(case.training("exact", faults=injection), ROUNDS)
        return outcome, [np.delete(leaf, 3, 0) for leaf in jax.tree.leaves(outcome.models)]

    _, absent = models({"drop": {"members": [names[3]]}})
    for kind in kinds:
        outcome, honest = models({"poison": {"members": [names[3]], "kind": kind}})
        for a, b in zip(absent, honest, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=kind)
        refused = sum(np.sum(part.refused) + np.sum(part.hub_refused) for part, _ in outcome.traffic)
        assert refused > 0 or kind == "shape", kind  # another shape is noticed before the program sees it
