"""What the inbox takes: parcels that are damaged, replayed, early, late, or of somebody else, against a model of it."""

import os
import struct

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.codecs.frame import HEADER, Header, encode, read_header
from coterie.peers.counts import Counts
from coterie.peers.inbox import LARGE, WINDOW, Answer, Inbox
from coterie.peers.line import ORDINARY
from coterie.peers.parcel import pack_parcel

RUN, LARGEST, ROUND = 5, HEADER + 64, 3
LIVING = {"here": frozenset({0, 1}), "there": frozenset({2, 3}), "else": frozenset({4})}
EXAMPLES = 20_000 if os.environ.get("COTERIE_FULL") else 300
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def inbox(run=RUN, me="here", number=ROUND):
    box = Inbox(run, LIVING, me, LARGEST, Counts())
    box.start_round(number)
    return box


def parcel(number=ROUND, exchange=0, run=RUN, senders=(2, 3), receivers=(0, 1), silent=(), numbers=16):
    """Return note and body of a good parcel."""
    values = [np.arange(numbers, dtype=np.float32)]
    pairs = [(sender, receiver) for sender in senders for receiver in receivers]
    frames = {pair: encode(Header(ORDINARY, run, number, exchange, *pair), values) for pair in pairs}
    return pack_parcel(run, number, exchange, frames | dict.fromkeys(silent))


def test_a_good_parcel_is_taken_once_and_its_frames_come_out():
    box = inbox()
    note, body = parcel(silent=[(2, 1)])
    assert box.offer("there", note, body) == Answer.TAKEN
    assert box.offer("there", note, body) == Answer.TAKEN  # an acknowledgement got lost
    assert box._counts.duplicate == {"there": 1}
    assert box.has(ROUND, 0, "there")
    found = box.take(ROUND, 0)
    assert found["there"].keys() == {(2, 0), (3, 0), (3, 1)}
    assert all(read_header(frame)[4:] == pair for pair, frame in found["there"].items())
    assert box.take(ROUND, 0) == {}
    assert box.offer("there", note, body) == Answer.TAKEN  # known still: its sender need not send it again
    assert box.take(ROUND, 0) == {}
    assert not box._counts.refused


def test_early_and_late_parcels_are_not_kept():
    box = inbox()
    assert box.offer("there", *parcel(ROUND + 1)) == Answer.TAKEN
    assert box.offer("there", *parcel(ROUND + 2)) == Answer.EARLY
    assert box.offer("there", *parcel(ROUND - 1)) == Answer.LATE
    box.begin(ROUND, 2)
    assert box.offer("there", *parcel(exchange=1)) == Answer.LATE
    assert box.offer("there", *parcel(exchange=2)) == Answer.TAKEN
    box.start_round(ROUND + 2)
    assert box.take(ROUND + 1, 0) == {}
    assert box.offer("there", *parcel(ROUND + 1)) == Answer.TAKEN  # it was taken, though nobody used it
    assert box.rounds == {"there": ROUND + 2}
    assert box._counts.late == {"there": 2}


def test_captured_parcels_are_worth_nothing_elsewhere():
    """In another run, for another member, from another member, in another round: none is taken."""
    captured = [parcel(number, exchange) for number in (1, 2, 3) for exchange in (0, 1, 2)]
    boxes = {
        "another run": (inbox(run=RUN + 1), "there"),
        "for somebody else": (inbox(me="else"), "there"),
        "another's name": (inbox(), "else"),
    }
    for why, (box, sender) in boxes.items():
        for note, body in captured:
            assert box.offer(sender, note, body) == Answer.REFUSED
        assert box._counts.refused[sender, why] + box._counts.refused[sender, "a note that makes no sense"] == 9
        assert not box._waiting
    box = inbox(number=9)
    assert {box.offer("there", *each) for each in captured} == {Answer.LATE}
    # With another round written on the note, the frames say otherwise.
    for note, body in captured:
        forged = note[:8] + struct.pack("<II", 9, 0) + note[16:]
        assert box.offer("there", forged, body) == Answer.REFUSED
    assert box._counts.refused == {("there", "a frame with a wrong header"): 9}


def test_what_waits_is_bounded():
    """A member sends as much as it can, in every place of the run that is open."""
    box = inbox()
    for exchange in range(1000):
        box.offer("there", *parcel(ROUND + exchange % 2, exchange))
    sizes = [sum(map(len, frames.values())) for frames in box._waiting.values()]
    assert sum(sizes) <= (LARGE + 1) * 4 * LARGEST
    small = inbox()
    for exchange in range(1000):
        small.offer("there", *parcel(exchange=exchange, senders=[2], receivers=[0], numbers=0))
    assert len(small._waiting) <= WINDOW
    small.begin(ROUND, 900)
    assert small.offer("there", *parcel(exchange=900, numbers=0)) == Answer.TAKEN  # what is waited for has room


def mutations():
    """Ways to spoil a parcel: other values in its note and headers, cut, longer, bytes changed, parts exchanged."""
    number = st.one_of(st.integers(0, 6), st.sampled_from([2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
    spot = st.integers(0, 400)
    return st.lists(
        st.one_of(
            st.tuples(st.just("note"), st.sampled_from(["<Q", "<I", "<H"]), spot, number),
            st.tuples(st.just("body"), st.sampled_from(["<Q", "<I", "<H"]), spot, number),
            st.tuples(st.just("cut note"), st.just(""), spot, number),
            st.tuples(st.just("cut body"), st.just(""), spot, number),
            st.tuples(st.just("longer"), st.just(""), spot, number),
            st.tuples(st.just("swap"), st.just(""), spot, number),
        ),
        min_size=1,
        max_size=4,
    )


def spoiled(note, body, changes):
    parts = {"note": bytearray(note), "body": bytearray(body)}
    for what, form, spot, number in changes:
        if form:
            size, part = struct.calcsize(form), parts[what]
            if len(part) >= size:
                struct.pack_into(form, part, spot % (len(part) - size + 1), number % 256**size)
        elif what.startswith("cut"):
            part = parts[what.split()[1]]
            del part[spot % (len(part) + 1) :]
        elif what == "longer":
            parts["body" if spot % 2 else "note"].extend(bytes(number % 5000))
        else:
            parts["note"], parts["body"] = parts["body"], parts["note"]
    return bytes(parts["note"]), bytes(parts["body"])


@many
@given(mutations(), st.sampled_from(["there", "else"]), st.lists(st.sampled_from([(2, 0), (2, 1), (3, 1)]), max_size=2))
def test_whatever_is_sent_only_what_is_right_is_kept(changes, sender, silent):
    """A spoiled parcel is refused and counted, or what is kept of it is from its sender, to us, here and now."""
    box = inbox()
    answer = box.offer(sender, *spoiled(*parcel(silent=silent), changes))
    assert sum(box._counts.refused.values()) == (answer == Answer.REFUSED)
    for (number, exchange, member), frames in box._waiting.items():
        assert answer == Answer.TAKEN
        assert member == sender
        assert ROUND <= number <= ROUND + 1
        for (start, end), frame in frames.items():
            assert read_header(frame)[1:] == (RUN, number, exchange, start, end)
            assert start in LIVING[sender]
            assert end in LIVING["here"]
            assert HEADER <= len(frame) <= LARGEST
    assert box.offer("there", *parcel(exchange=7)) == Answer.TAKEN  # and the next good one is taken
