"""What methods declare, what tracing finds and what is really sent: the same, for every method."""

import collections
import struct

import numpy as np
import pytest

from coterie import registry
from coterie.codecs.frame import layout_digest
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.methods.base import Solved
from coterie.names import METHODS
from coterie.peers.line import Line
from coterie.peers.local import Plan
from coterie.peers.remote import Remote
from coterie.sites.tracing import traced_messages
from coterie.testing.case import Case
from support.verb_methods import EveryVerb

PERSONAL = {name: {"personal": ("bias",)} for name in ("fedbn", "fedper", "fedrep", "spdb", "component")}
SMALL = {  # fewer passes of the loops that send, and a stage that ends
    "l2gd": {"iterations": 2, "p": 0.9},
    "async-l2gd": {"iterations": 2},
    "async-al2sgd+": {"iterations": 2},
    "pdbo-mtl": {"pushes": 2, "estimator": "neumann", "depth": 2, "gossip": 2},
    "dada": {"graph_steps": 2},
    **{name: {"sparsify_after": 1} for name in ("scool-sbm", "scool-mmsbm", "scool-attention")},
}
NAMES = [row.name for row in METHODS if not issubclass(registry.load("methods", row.name), Solved)]
# settings with which a method sends in another way, so that everything it declares is sent by one of them
OTHERS = [
    ("component", {"form": "peers", "personal": ("bias",), "iterations": 2}),
    ("network-lasso", {"form": "peers", "iterations": 2}),
    ("scool-sbm", {"m_step": "exact", "exact_steps": 2, "sparsify_after": 0}),
    ("pdbo-mtl", {"pushes": 2, "depth": 2, "estimator": "hgp"}),
    ("l2gd", {"iterations": 2}),
]


def settings_of(name):
    return {**PERSONAL.get(name, {}), **SMALL.get(name, {})}


FOUND = {}


def traced(name, settings):
    """Return what tracing finds, once for all tests."""
    key = str(name), repr(settings)
    if key not in FOUND:
        case = Case(name, **settings)
        own = case.federation.select([2])
        FOUND[key] = traced_messages(case.method, case.task, own, 2, case.graph, case.weights)
    return FOUND[key]


class Everywhere:
    """A carrier for clients that all live here: frames are written down and handed back."""

    hub = True

    def __init__(self):
        self.frames = []  # (exchange, pair, layout digest, size)

    def exchange(self, number, exchange, frames, outgoing, incoming):
        for pair, frame in frames.items():
            digest = struct.unpack_from("<4sHHQIIII8sQ", frame)[8]
            self.frames.append((exchange, pair, digest, len(frame)))
        return frames


def sent_frames(case):
    """Run a round of each stage over a real line; returns its frames by phase and first round of the stage."""
    carrier, line, everyone = Everywhere(), Line(), np.arange(len(case.federation))
    line.connect(carrier)
    engine = Engine(case.task, case.federation, case.device, Plan("exact"))
    training = Training(engine, case.method, case.graph, case.weights, 0, ids=everyone, peers=Remote(line))
    frames = {}

    def take(*phase):
        frames[phase], carrier.frames = carrier.frames, []

    state, _ = training.init()
    take("start", 1)
    state, _ = training.advance(state, 1, 1)
    take("round", 1)
    if case.method.stages():
        state, _ = training.next_stage(state, 1)
        take("stage", 2)
        state, _ = training.advance(state, 2, 1)
        take("round", 2)
    return frames


ROWS = [(name, settings_of(name)) for name in NAMES] + OTHERS


@pytest.mark.parametrize(("name", "settings"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_declared_is_what_is_traced(name, settings):
    verbs = {sent.verb for sent in traced(name, settings) if sent.phase != "stage"} - {"receipt"}
    method = registry.load("methods", name)
    assert verbs <= set(method.sends), "a verb sends what the method does not declare"
    assert bool(verbs) == (method.topology != "none")


def test_nothing_is_declared_that_is_never_sent():
    sent = collections.defaultdict(set)
    for name, settings in ROWS:
        sent[name] |= {message.verb for message in traced(name, settings) if message.phase != "stage"}
    for name in NAMES:
        declared = set(registry.load("methods", name).sends)
        assert declared == sent[name] - {"receipt"}, name


# Compiling them all takes minutes; `EveryVerb` sends with every verb there is, in loops and branches.
SENT = [(EveryVerb, {}), *(pytest.param(*row, marks=pytest.mark.soak) for row in ROWS)]


@pytest.mark.parametrize(("name", "settings"), SENT, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_traced_is_what_is_sent(name, settings):
    case = Case(name, **settings)
    frames, found = sent_frames(case), collections.defaultdict(list)
    for message in traced(name, settings):
        found[message.phase, message.first].append(message)
    assert set(found) <= set(frames)
    for phase, sent in frames.items():
        keys = [(layout_digest(message.layout), message.size) for message in found[phase]]
        exchanges = collections.Counter(key for key, _ in {(frame[2:], frame[0]) for frame in sent})
        assert set(exchanges) <= set(keys), "a frame was sent that was not traced"
        for key in keys:
            same = [message for message, other in zip(found[phase], keys, strict=True) if other == key]
            if not any(message.sometimes for message in same):
                assert exchanges[key] == sum(message.times for message in same), "sent another number of times"
