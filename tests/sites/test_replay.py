"""A simulation repeats what sites recorded, also where one was away or started again from an older state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.peers.base import Arrivals
from coterie.peers.line import Delivery
from coterie.peers.local import Plan, Simulation
from coterie.peers.pushed import push_steps
from coterie.sites.deliveries import Restored, Round
from coterie.sites.replay import repeat
from coterie.testing.case import CLIENTS, Case

AWAY = 2  # the client whose site is away


@pytest.fixture(scope="module")
def case():
    return Case("gossip-sgd")


def _heard(graph, silent):
    """What arrives by slot if the clients in `silent` send nothing."""
    return graph.present & ~np.isin(graph.neighbours, silent)


def _logs(case, rounds, away):
    """Return the logs of sites with one client each; `away` maps a round to who was not there."""
    logs = []
    for i in range(CLIENTS):
        log = [Round(0, np.array([i]), [])]
        for number in range(1, rounds + 1):
            silent = away.get(number, [])
            if i not in silent:
                log.append(Round(number, np.array([i]), [Delivery(number, edges=_heard(case.graph, silent)[[i]])]))
        logs.append(log)
    return logs


def _by_hand(case, steps):
    """Train step by step: `steps` are (round, who is away, the state it goes back to before)."""
    training = case.training("exact")
    state, _ = training.init()
    states = {0: jax.device_get(state)}
    for number, silent, back in steps:
        mask = np.isin(np.arange(CLIENTS), silent)
        if back is not None:
            who = np.arange(CLIENTS) == AWAY
            state = _pick(who, states[back], jax.device_get(state))
        before = jax.device_get(state)
        edges = _heard(case.graph, silent)
        edges[mask] = False
        ones = np.ones((1, 1, CLIENTS), bool)
        state, _ = training.advance(
            jax.tree.map(jnp.asarray, state), number, 1, Arrivals(edges[None, None], ones, ones)
        )
        state = _pick(mask, before, jax.device_get(state))
        states[number] = state
    return jax.device_get(training.models(jax.tree.map(jnp.asarray, state), steps[-1][0]))


def _pick(mask, yes, no):
    return jax.tree.map(lambda a, b: np.where(mask.reshape(-1, *(1,) * (a.ndim - 1)), a, b), yes, no)


def _assert_same(a, b):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(u, v)


def test_a_site_that_was_away_did_nothing(case):
    logs = _logs(case, 4, {2: [AWAY], 3: [AWAY]})
    models = repeat(case.training("exact"), case.federation.names, logs, {4})[4]
    _assert_same(models, _by_hand(case, [(1, [], None), (2, [AWAY], None), (3, [AWAY], None), (4, [], None)]))


def test_a_site_that_starts_again_has_the_state_of_its_checkpoint(case):
    """It ran rounds 1 and 2, died, and came back in round 4 with what it had after round 1; others used its round 2."""
    logs = _logs(case, 4, {3: [AWAY]})
    logs[AWAY].insert(3, Restored(1, np.array([AWAY])))
    models = repeat(case.training("exact"), case.federation.names, logs, {4})[4]
    _assert_same(models, _by_hand(case, [(1, [], None), (2, [], None), (3, [AWAY], None), (4, [], 1)]))


def test_a_partner_that_stopped_between_two_steps_of_a_mean_is_refused():
    """In the second exchange of the round, client 3 hears client 2, of which there is no record."""
    case, steps = Case("fedavg"), push_steps(CLIENTS)
    peers = Simulation(Plan("exact"), hub=False, all_to_all=2)
    logs = [[Round(0, np.array([i]), [])] for i in range(CLIENTS)]
    for i in {*range(CLIENTS)} - {AWAY}:
        came = [Delivery(1, pushed=np.array([step.hears[i] >= 0])) for step in steps]
        logs[i].append(Round(1, np.array([i]), came))
    assert steps[1].hears[3] == AWAY
    with pytest.raises(CoterieError, match="client-2 stopped in the middle of round 1"):
        repeat(case.training("exact", peers=peers), case.federation.names, logs, {1})


def test_what_the_record_does_not_determine_is_refused(case):
    names = case.federation.names
    twice = _logs(case, 2, {})
    twice[AWAY] += [Restored(1, np.array([AWAY])), twice[AWAY][-1]]
    with pytest.raises(CoterieError, match="client-2 ran round 2 twice"):
        repeat(case.training("exact"), names, twice, {2})
    broken = _logs(case, 2, {2: [AWAY]})  # it sent once more in the second exchange of a round that it did not end
    for log in broken[:AWAY] + broken[AWAY + 1 :]:
        second = Delivery(2, edges=case.graph.present[log[-1].ids])
        log[-1] = log[-1]._replace(exchanges=[*log[-1].exchanges, second])
    with pytest.raises(CoterieError, match="client-2 stopped in the middle of round 2"):
        repeat(case.training("exact"), names, broken, {2})
    with pytest.raises(CoterieError, match="no deliveries to repeat"):
        repeat(case.training("exact"), names, [], {2})
