"""Who takes part in a round: the schedule against a simulation of its own, event by event, and probabilities."""

import numpy as np
import pytest
from scipy import stats

from coterie.errors import CoterieError
from coterie.peers.world import Schedule, World
from coterie.spec import build

SETTINGS = [{"participation": 0.3}, {"slow": 0.4, "late": 3}, {"participation": 0.5, "slow": 0.5, "late": 2}]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_schedule_is_what_happens_client_by_client(settings):
    """Drawn in a round: there at once, or `late` rounds later for a slow client, which is busy until then."""
    world, clients, rounds = World(**settings), 11, 40
    schedule = Schedule(world, 3, clients)
    everyone = Schedule(World(participation=world.participation, dropout=0.5), 3, clients)  # the same draws, none slow
    drawn = everyone.presence(1, rounds).part
    assert (drawn.sum(1) == max(1, round(world.participation * clients))).all()
    assert schedule.slow.sum() == round(world.slow * clients)
    expected, late = np.zeros_like(drawn), np.zeros_like(drawn)
    for client in range(clients):
        number = 0
        while number < rounds:
            if not drawn[number, client]:
                number += 1
                continue
            arrives = number + (world.late if schedule.slow[client] else 0)
            if arrives < rounds:
                expected[arrives, client], late[arrives, client] = True, schedule.slow[client]
            number = arrives + 1
    presence = schedule.presence(1, rounds)
    assert (presence.part == expected).all()
    assert (presence.late == late).all()
    assert presence.part.sum(1).max() <= world.most(clients)


def test_a_schedule_does_not_depend_on_where_it_is_read():
    world = World(participation=0.4, dropout=0.3, slow=0.3, late=2)
    whole = Schedule(world, 7, 9).tables(1, 30)
    backwards = Schedule(world, 7, 9)
    for number in range(30, 0, -1):
        for all_rounds, one in zip(whole, backwards.tables(number), strict=True):
            assert (all_rounds[number - 1] == one[0]).all()
    other = Schedule(world, 8, 9).tables(1, 30)
    assert any((a != b).any() for a, b in zip(whole, other, strict=True))
    assert not any(table.any() for table in backwards.tables(0))  # everybody is there at the start


def test_everybody_is_drawn_equally_often_and_drops_out_as_often_as_the_setting_says():
    world, clients, rounds = World(participation=0.25, dropout=0.2), 20, 2000
    presence = Schedule(world, 1, clients).presence(1, rounds)
    times = presence.part.sum(0)
    assert stats.chisquare(times).pvalue > 1e-3  # 500 each
    assert stats.binomtest(int(presence.mute.sum()), int(presence.part.sum()), 0.2).pvalue > 1e-3
    assert not (presence.mute & ~presence.part).any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"participation": 0}, "world.participation must be greater than 0"),
        ({"participation": 1.5}, "world.participation must be at most 1"),
        ({"dropout": -0.1}, "world.dropout must be at least 0"),
        ({"late": 0}, "world.late must be at least 1"),
        ({"partcipation": 0.5}, "did you mean participation"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(CoterieError, match=words):
        build(World, settings, "world")


def test_a_world_says_what_it_is():
    assert not World(late=5)
    assert World(participation=0.1, dropout=0.05, slow=0.2, late=2).words() == (
        "10 % of the clients are drawn to take part in each round; each of them drops out of it with a chance of 5 %; "
        "20 % of the clients are slow: what they begin arrives 2 rounds later"
    )
