"""Members meet before the first round, and one that was away finds back. Threads of one process; no network."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.sites.cards import Card
from coterie.sites.meeting import Meeting
from support.switchboard import Switchboard

NAMES = ("north", "east", "south", "west")
CARD = Card(hash="a" * 64, contract="", coterie="0.2", jax="0.10", python="3.12", processor="one", session=1)


def member(board, name, *, names=NAMES, notes=None, hub=None, patience=30.0, **changes):
    note = [].append if notes is None else notes.append
    card = CARD._replace(**{"session": names.index(name) + 1, **changes})
    return Meeting(board.end(name), name, names, card, hub=hub, patience=patience, deadline=5.0, note=note)


def started(board, names=NAMES, **changes):
    """Members that have started together."""
    meetings = [member(board, name, names=names, **changes) for name in names]
    assert all(together(lambda meeting: meeting.start(0, -1), meetings))
    return meetings


def together(fn, meetings):
    with ThreadPoolExecutor(len(meetings)) as pool:
        return list(pool.map(fn, meetings))


def test_all_begin_together_with_a_number_that_no_other_run_has():
    runs = set()
    for _ in range(3):
        meetings = started(Switchboard())
        assert len({meeting.card.run for meeting in meetings}) == 1
        runs.add(meetings[0].card.run)
    assert len(runs) == 3
    assert 0 not in runs


def test_members_that_differ_refuse_both_and_say_what_and_with_whom():
    board = Switchboard()
    meetings = [member(board, "north", names=NAMES[:2]), member(board, "east", names=NAMES[:2], hash="b" * 64)]

    def refused(meeting):
        with pytest.raises(CoterieError) as error:
            meeting.start(0, -1)
        return str(error.value)

    said = together(refused, meetings)
    assert "configuration" in said[0]
    assert "is bbbbbbbbbbbb at east and aaaaaaaaaaaa here" in said[0]
    assert "is aaaaaaaaaaaa at north and bbbbbbbbbbbb here" in said[1]


def test_the_key_that_differs_is_named():
    board, pair = Switchboard(), NAMES[:2]
    meetings = [
        Meeting(
            board.end(name),
            name,
            pair,
            CARD._replace(hash=hash, session=session),
            configuration={"run": {"rounds": rounds}},
        )
        for name, hash, session, rounds in (("north", "a" * 64, 1, 10), ("east", "b" * 64, 2, 20))
    ]

    def refused(meeting):
        with pytest.raises(CoterieError, match="make them equal") as error:
            meeting.start(0, -1)
        return str(error.value)

    said = together(refused, meetings)
    assert "run.rounds is 20 there and 10 here, where there is east" in said[0]
    assert "run.rounds is 10 there and 20 here, where there is north" in said[1]


@pytest.mark.parametrize(("field", "words"), [("jax", "version of JAX"), ("contract", "column contract")])
def test_versions_and_the_contract_must_agree(field, words):
    board = Switchboard()
    member(board, "north", names=NAMES[:2], **{field: "other"})
    with pytest.raises(CoterieError, match=words):
        member(board, "east", names=NAMES[:2]).start(0, -1)


def test_another_processor_is_a_note():
    board, notes = Switchboard(), []
    meetings = [member(board, name, names=NAMES[:2], notes=notes) for name in NAMES[:2]]
    meetings[1].say(processor="another")
    together(lambda meeting: meeting.start(0, -1), meetings)
    assert any("another processor" in note for note in notes)


def test_who_is_alone_says_so_after_the_deadline():
    with pytest.raises(CoterieError, match=r"none of east, south, west came within 0.2 seconds"):
        member(Switchboard(), "north", patience=0.2).start(0, -1)


def test_those_who_are_there_start_after_the_deadline_and_a_late_one_joins_them():
    board = Switchboard()
    meetings = [member(board, name, patience=0.5) for name in NAMES[1:]]
    assert all(together(lambda meeting: meeting.start(0, -1), meetings))
    for meeting in meetings:
        meeting.say(round=7)
    late = member(board, "north")
    assert not late.start(0, -1)
    assert late.card.run == meetings[0].card.run
    assert late.current(1) == 7


@pytest.mark.parametrize("ever", [True, False])
def test_nobody_begins_before_all_have_found_each_other_or_long_after(monkeypatch, ever):
    """East and south are called by north, and not connected yet: without each other they would go on at once."""
    monkeypatch.setattr("coterie.sites.meeting.CONNECTING", 30.0 if ever else 0.5)
    board, notes = Switchboard(), []
    meetings = [member(board, name, names=NAMES[:3], notes=notes) for name in NAMES[:3]]
    board.apart.add(frozenset(("east", "south")))
    began = time.monotonic()

    def connect():
        while "east, south: not all are connected yet" not in notes:
            time.sleep(0.01)
        assert not any(meeting.card.started for meeting in meetings)
        if ever:
            board.apart.clear()

    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect)
        assert all(together(lambda meeting: meeting.start(0, -1), meetings))
        connecting.result()
    assert time.monotonic() - began < 20


def test_who_can_never_be_connected_is_not_waited_for():
    """Neither east nor south can be reached: they exchange nothing."""
    board = Switchboard()
    links = {"north": ["east", "south"], "east": ["north"], "south": ["north"]}
    meetings = [member(board, name, names=NAMES[:3]) for name in NAMES[:3]]
    for meeting in meetings:
        meeting.linked = links[meeting.me]
    board.apart.add(frozenset(("east", "south")))
    began = time.monotonic()
    assert all(together(lambda meeting: meeting.start(0, -1), meetings))
    assert time.monotonic() - began < 20


def test_who_sees_the_start_late_begins_with_the_first_round_all_the_same():
    """North begins, and east, who has seen it, gets to round 5 before south looks: in these rounds nobody hears it."""
    board = Switchboard()
    north, east, south = (member(board, name, names=NAMES[:3]) for name in NAMES[:3])
    for meeting in (east, south):
        meeting.say(ready=True)
    assert north.start(0, -1)
    assert east.start(0, -1)
    for meeting in (north, east):
        meeting.say(round=5)
    north.control.leave()  # south sees only east, which did not begin the run
    assert south.start(0, -1)
    assert (south.card.round, south.current(1, late=False)) == (0, 1)


def test_who_was_given_up_before_it_saw_the_start_is_late():
    board = Switchboard()
    north, east = (member(board, name, names=NAMES[:2]) for name in NAMES[:2])
    east.say(ready=True)
    assert north.start(0, -1)
    north.say(round=5)
    north.control.missed["east"] = 3
    assert not east.start(0, -1)
    assert east.current(1) == 5


def test_who_comes_back_learns_the_run_and_the_round():
    board = Switchboard()
    meetings = started(board)
    for meeting in meetings:
        meeting.say(round=9)
        meeting.control.missed["south"] = 9
    meetings[2].control.leave()
    back = member(board, "south", session=77)
    assert not back.start(meetings[0].card.run, 4)
    assert back.current(5) == 10  # in round 9 nobody waits for it any more
    for meeting in (*meetings[:2], meetings[3]):
        meeting.control.missed.clear()
    assert back.current(5) == 9


def test_a_folder_of_another_run_is_not_continued_with_this_one():
    board = Switchboard()
    started(board, NAMES[:3])
    back = Meeting(board.end("west"), "west", NAMES, CARD)
    with pytest.raises(CoterieError, match="another run"):
        back.start(12345, 4)


def test_a_number_without_a_state_binds_nobody():
    """Members drew numbers, perhaps in two parts of a network, and were killed before their first checkpoint."""
    board = Switchboard()
    numbers = dict(zip(NAMES[:3], (0, 11, 22), strict=True))
    meetings = [member(board, name, patience=0.5) for name in numbers]
    assert all(together(lambda meeting: meeting.start(numbers[meeting.me], -1), meetings))
    (number,) = {meeting.card.run for meeting in meetings}
    assert number not in (0, 11, 22)
    late = member(board, "west")
    assert not late.start(33, -1)  # the others are in the middle of the run
    assert late.card.run == number
    meetings[1].control.leave()
    with pytest.raises(CoterieError, match="another run"):
        member(board, "east").start(11, 0)  # with a state it does


def test_all_continue_with_the_number_they_had_and_the_latest_round():
    board = Switchboard()
    meetings = [member(board, name) for name in NAMES]
    done = dict(zip(NAMES, (4, 6, 5, 6), strict=True))
    assert all(together(lambda meeting: meeting.start(99, done[meeting.me]), meetings))
    assert {meeting.card.run for meeting in meetings} == {99}
    assert {meeting.card.round for meeting in meetings} == {7}


def test_one_member_alone_cannot_make_the_others_skip_rounds():
    meetings = started(Switchboard())
    for meeting in meetings:
        meeting.say(round=3)
    meetings[3].say(round=2_000_000)
    meetings[3].control.missed |= {"north": 2_000_000, "nobody": -1}
    assert meetings[0].current(3, late=False) == 3
    assert meetings[0].current(3) == 3


def test_who_looks_around_says_whom_it_has_gone_on_without_too():
    """Otherwise a question that comes while a member is asked would hide what its answer says."""
    meetings = started(Switchboard(), NAMES[:2])
    meetings[1].control.missed["north"] = 6
    meetings[1].look_around()
    assert meetings[0].cards["east"].given_up == {"north": 6}


def test_who_was_not_missed_goes_on_with_its_own_round_however_far_the_others_are():
    """In rounds in which nobody hears it, others get ahead: nothing of its rounds is left out for that."""
    meetings = started(Switchboard())
    for meeting in meetings[1:]:
        meeting.say(round=7)
        meeting.control.missed["north"] = 4
    assert meetings[0].current(5, late=False) == 5
    assert meetings[0].current(5) == 7  # it was away
    assert meetings[0].current(4, late=False) == 7  # in round 4 they did not get what it would send
    meetings[2].control.missed["north"] = 7
    meetings[1].control.missed["north"] = meetings[3].control.missed["north"] = 7
    assert meetings[0].current(5, late=False) == 8


def test_a_wrong_newcomer_does_not_stop_those_who_run():
    board = Switchboard()
    meetings = started(board, NAMES[:3])
    intruder = Meeting(board.end("west"), "west", NAMES, CARD._replace(hash="b" * 64))
    intruder.say(started=True, round=50, run=meetings[0].card.run)
    assert meetings[0].current(2) == 2


def test_cards_that_make_no_sense_are_not_used():
    meeting = member(Switchboard(), "north")
    values = ({"north": 2**63}, {"north": 1.5}, {"north": None}, {"north": [1]}, ["north"], "north", 3, None)
    lies = [CARD._replace(given_up=given_up).encode() for given_up in values]
    long = CARD._replace(given_up={f"member-{i}": i for i in range(100_000)}).encode()
    nonsense = (b"", b"{", b"[]", b"[" * 100_000, b'{"hash": 1}', CARD.encode()[:-1] + b', "more": 1}')
    for data in (*nonsense, *lies, long):
        assert Card.decode(data) is None
        assert Card.decode(meeting._hello("east", data)) is not None
    assert meeting.cards == {}


def test_everybody_gets_the_graph_of_one_member():
    """East has missed that south dropped an edge; the first member that is there decides."""
    meetings = started(Switchboard(), NAMES[:3])
    right, wrong = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), Graph.complete(3)
    found = together(lambda m: m.stages.agree(5, wrong if m.me == "east" else right), meetings)
    for graph in found:
        np.testing.assert_array_equal(graph.neighbours, right.neighbours)
        np.testing.assert_array_equal(graph.present, right.present)


def test_the_hub_decides_where_there_is_one():
    board = Switchboard()
    meetings = [member(board, name, names=NAMES[:3], hub="south") for name in NAMES[:3]]
    together(lambda meeting: meeting.start(0, -1), meetings)
    graphs = [Graph.complete(3), Graph.complete(3), Graph.from_edges([0, 1, 2], [1, 2, 0], 3)]
    found = together(lambda m: m.stages.agree(5, graphs[m.names.index(m.me)]), meetings)
    assert [graph.edges() for graph in found] == [3, 3, 3]


def test_who_was_away_asks_for_the_graph():
    meetings = started(Switchboard(), NAMES[:3])
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    for meeting in meetings[:2]:
        meeting.stages.agree(5, graph)
    np.testing.assert_array_equal(meetings[2].stages.graph_after(5).neighbours, graph.neighbours)
    meetings[2].stages.deadline = 0.3
    assert meetings[2].stages.graph_after(8) is None  # nobody has come to the end of that stage


def test_a_run_whose_others_have_ended_is_finished_alone_where_that_is_wanted():
    sentence = "none of east came within 0.2 seconds .* if they have come to the end, finish this run with --alone"
    with pytest.raises(CoterieError, match=sentence):
        member(Switchboard(), "north", names=NAMES[:2], patience=0.2).start(44, 4)
    north = member(Switchboard(), "north", names=NAMES[:2], patience=0.2)
    north.alone = True
    assert north.start(44, 4)
    assert (north.card.run, north.card.round) == (44, 5)
    north.company(5)
    with pytest.raises(CoterieError, match="in this folder none has"):
        north.start(0, -1)


def test_who_is_left_alone_stops_unless_the_others_have_ended():
    board = Switchboard()
    meetings = started(board, NAMES[:2])
    meetings[1].control.leave()
    meetings[0].patience = 0.2
    began = time.monotonic()
    with pytest.raises(CoterieError, match="all other members are gone since round 3"):
        meetings[0].company(4)
    assert time.monotonic() - began < 5
    meetings[0].done.add("east")
    meetings[0].company(4)


def test_who_waits_in_vain_says_so_at_once():
    (meeting,) = started(Switchboard(), NAMES[:1])
    alone = member(Switchboard(), "north")

    def refuse():
        raise CoterieError("the certificate has expired")

    meeting.company(3, refuse)  # nobody to wait for
    with pytest.raises(CoterieError, match="has expired"):
        alone.company(3, refuse)
