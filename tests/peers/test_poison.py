"""One of eight clients sends what no honest one would: the others' models are those of a run in which it was absent."""

import struct

import jax
import numpy as np
import pytest

from coterie.codecs.frame import HEADER, Header, encode, read_header
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Ring
from coterie.testing.case import SEED, Case
from coterie.testing.small import small_federation
from coterie.testing.two_processes import Site, SplitRun

CLIENTS, BAD, ROUNDS = 8, 2, 3
SEEDS = (SEED, SEED + 1, SEED + 2)


class Poisoned:
    """All clients live here; `spoil` changes what one of them sends, None for "not at all"."""

    hub = True

    def __init__(self, spoil):
        self.spoil = spoil

    def exchange(self, number, exchange, frames, outgoing, incoming):
        changed = {pair: self.spoil(frame) if pair[0] == BAD else frame for pair, frame in frames.items()}
        return {pair: frame for pair, frame in changed.items() if frame is not None}


def number_at(place, value):
    """Return how to write another number at a place of the arrays of a frame."""

    def spoil(frame):
        start = HEADER + place if place >= 0 else len(frame) + place
        return frame[:start] + struct.pack("<f", value) + frame[start + 4 :]

    return spoil


def shorter(frame):
    """Return a whole frame with one number less."""
    body = frame[HEADER:-4]
    return frame[: HEADER - 8] + struct.pack("<Q", len(body)) + body


def of_another(frame):
    """Return the frame with another client as its sender."""
    sender = HEADER - 8 - 8 - 8
    return frame[:sender] + struct.pack("<I", 1) + frame[sender + 4 :]


POISON = {
    "not a number": number_at(0, np.nan),
    "infinite": number_at(8, -np.inf),
    "1e30": number_at(4, 1e30),
    "another shape": shorter,
    "another sender": of_another,
    "cut": lambda frame: frame[:-1],
}


@pytest.mark.parametrize("method", ["gossip-sgd", "fedavg"])
def test_a_poisoned_message_is_as_good_as_none(method):
    graph, federation = Ring(reach=2).build(CLIENTS, 0), small_federation(CLIENTS)
    case = Case(method)
    what = SplitRun(case.method, federation, case.model, graph, metropolis(graph)[0], ROUNDS, SEED)
    site = Site(what, np.arange(CLIENTS))
    poison = dict(POISON)
    if method == "fedavg":  # the weight in the mean is the last number
        poison |= {"weight -1": number_at(-4, -1.0), "weight 0": number_at(-4, 0.0)}

    def others(spoil):
        models = site.run(Poisoned(spoil), 1).models
        return [np.delete(leaf, BAD, axis=0) for leaf in jax.tree.leaves(models)]

    for seed in SEEDS:
        site.what = what._replace(seed=seed)
        honest, absent = others(lambda frame: frame), others(lambda frame: None)
        assert any((a != b).any() for a, b in zip(honest, absent, strict=True))
        for name, spoil in poison.items():
            for a, b in zip(absent, others(spoil), strict=True):
                np.testing.assert_array_equal(a, b, err_msg=name)
            if not name.startswith("weight"):
                assert sum(site.line.counts.refused.values()) >= ROUNDS, name


def test_the_poison_is_what_it_says():
    frame = encode(Header(0, 5, 6, 7, BAD, 0), [np.zeros(3, np.float32)])
    assert read_header(of_another(frame)) == Header(0, 5, 6, 7, 1, 0)
    assert read_header(shorter(frame)) == Header(0, 5, 6, 7, BAD, 0)
    assert len(shorter(frame)) == len(frame) - 4
