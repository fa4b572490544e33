"""The log of what arrived at a site: written round by round, continued after a crash, read back, put together."""

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.peers.ledger import Ledger
from coterie.peers.line import Delivery
from coterie.sites.deliveries import FILE, DeliveryLog, Restored, Round, arrivals_in_round, read_log
from coterie.sites.network import about_network

YES, NO = True, False


def deliveries(number, *edges, up=None, down=None):
    found = [Delivery(number, edges=np.array([row])) for row in edges]
    return found + ([Delivery(number, up=np.array(up)), Delivery(number, down=np.array(down))] if up else [])


def test_a_log_is_read_as_it_was_written(tmp_path):
    log = DeliveryLog(tmp_path, [1], hub=True)
    log.round(0, deliveries(0, up=[YES, NO, YES], down=[YES]))
    log.round(1, deliveries(1, [YES, NO], [NO, NO]))
    log.round(2, deliveries(2, [YES, YES], up=[NO, NO, YES], down=[NO]))
    log.restored(1)
    log.round(4, [])
    first, second, third, back, last = read_log(tmp_path, 3)
    assert [one.round for one in (first, second, third, back, last)] == [0, 1, 2, 1, 4]
    assert isinstance(back, Restored)
    assert last.exchanges == []
    assert first.ids.tolist() == [1]
    np.testing.assert_array_equal(first.exchanges[0].up, [YES, NO, YES])
    assert [one.edges.tolist() for one in second.exchanges] == [[[YES, NO]], [[NO, NO]]]
    assert [third.exchanges[0].edges.tolist(), third.exchanges[2].down.tolist()] == [[[YES, YES]], [NO]]


def test_what_partners_sent_is_in_the_log_and_missing_messages_count_for_their_sender(tmp_path):
    """Of three clients, the third hands its sums to the first, and gets the result from it: four messages."""
    steps = [[YES, NO], [YES, YES], [NO, NO]]  # at clients 0 and 1; the third step is the answer to client 2
    log = DeliveryLog(tmp_path, [0, 1], hub=True)
    log.round(1, [Delivery(1, pushed=np.array(row)) for row in steps])
    (found,) = read_log(tmp_path, 3)
    assert [one.pushed.tolist() for one in found.exchanges] == steps
    there = Round(1, np.array([2]), [Delivery(1, pushed=np.array([row])) for row in (NO, NO, NO)])
    np.testing.assert_array_equal(
        arrivals_in_round([found, there], 3).pushed, [[YES, NO, NO], [YES, YES, NO], [NO, NO, NO]]
    )
    ledger = Ledger(("a", "b", "c"), np.zeros((3, 0), int))
    assert about_network("abc", [[found], [], [there]], [ledger] * 3, [], [])["missing"] == {"a": 1, "b": 0, "c": 0}


def test_a_log_goes_on_after_a_torn_record(tmp_path):
    log = DeliveryLog(tmp_path, [0], hub=False)
    log.round(1, deliveries(1, [YES]))
    log.round(2, deliveries(2, [NO]))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-7])
    log = DeliveryLog(tmp_path, [0], hub=False)
    log.restored(1)
    log.round(3, deliveries(3, [YES]))
    assert [one.round for one in read_log(tmp_path, 2)] == [1, 1, 3]  # the middle one: went back to 1


def test_a_damaged_log_is_refused_in_one_sentence(tmp_path):
    DeliveryLog(tmp_path, [0], hub=False).round(1, deliveries(1, [YES]))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-1] + b"x")
    with pytest.raises(CoterieError, match=r"deliveries.blocks cannot be read \(record 1 is damaged\)"):
        read_log(tmp_path, 1)
    DeliveryLog(tmp_path, [5], hub=False).round(1, deliveries(1, [YES]))
    with pytest.raises(CoterieError, match="ids names number 5, where there are 3 clients"):
        read_log(tmp_path, 3)


def test_what_three_sites_know_becomes_the_loss_of_a_round():
    """Client 1 was not there: nothing arrived at it. Only client 0's site knows what came up to the hub."""
    here = Round(3, np.array([0]), deliveries(3, [YES, NO], up=[YES, NO, YES], down=[YES]))
    there = Round(3, np.array([2]), deliveries(3, [NO, YES], up=[NO, NO, NO], down=[NO]))
    arrived = arrivals_in_round([here, there], 3)
    np.testing.assert_array_equal(arrived.edges[0], [[YES, NO], [NO, NO], [NO, YES]])
    np.testing.assert_array_equal(arrived.up, [[YES, YES, YES], [YES, NO, YES]])
    np.testing.assert_array_equal(arrived.down, [[YES, YES, YES], [YES, NO, NO]])


def test_sites_of_other_runs_are_refused():
    here, there = (Round(1, np.array([i]), deliveries(1, *rows, **more)) for i, rows, more in (
        (0, ([YES],), {}), (1, (), {"up": [YES, YES], "down": [YES]})))  # fmt: skip
    with pytest.raises(CoterieError, match="round 1 are not of the same run"):
        arrivals_in_round([here, there], 2)
