"""What leaves a site is written down first; what cannot be written down does not leave."""

import json

import numpy as np
import pytest

from coterie.codecs.frame import Header, encode
from coterie.errors import CoterieError
from coterie.peers.line import ORDINARY
from coterie.sites.recording import FILE, RecordingCarrier

NAMES = ("north", "east", "south")


class Inner:
    """A carrier that notes what it is given, and hands back what lives here."""

    hub = False

    def __init__(self):
        self.given = []

    def exchange(self, number, exchange, frames, outgoing, incoming):
        """See `Carrier.exchange`."""
        self.given.append(set(frames))
        return {pair: frame for pair, frame in frames.items() if pair[1] == 0}


def frames(number):
    return {
        pair: encode(Header(ORDINARY, 7, number, 0, *pair), [np.ones(3, np.float32)])
        for pair in ((0, 0), (0, 1), (0, 2))
    }


def test_every_message_is_a_line(tmp_path):
    carrier = RecordingCarrier(Inner(), NAMES, (0,), tmp_path)
    carrier.exchange(1, 0, frames(1), [(0, 1), (0, 2)], [])
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(line["round"], line["sender"], line["receiver"]) for line in lines] == [
        (1, "north", "east"),
        (1, "north", "south"),
    ]
    assert carrier.failure is None


def test_what_cannot_be_written_down_does_not_leave(tmp_path):
    """The program calls it, so it raises nothing; who runs the program looks at `failure` after the round."""
    inner = Inner()
    carrier = RecordingCarrier(inner, NAMES, (0,), tmp_path)
    (tmp_path / FILE).mkdir()  # as good as a full disk: the file cannot be written
    got = carrier.exchange(1, 0, frames(1), [(0, 1), (0, 2)], [])
    (tmp_path / FILE).rmdir()
    carrier.exchange(1, 1, frames(1), [(0, 1), (0, 2)], [])  # the record has a hole: nothing more, either
    assert set(got) == {(0, 0)}
    assert inner.given == [{(0, 0)}] * 2
    assert not (tmp_path / FILE).exists()
    assert carrier.frames(1, 1)["sent_messages"].tolist() == [[0]]
    with pytest.raises(CoterieError, match="cannot be written"):
        raise carrier.failure
