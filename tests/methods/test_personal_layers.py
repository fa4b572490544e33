"""Personal layers never leave their client: every message of every method is inspected.

Two ways. Frames that are really sent are opened, and no number in them is one of a personal layer. And for every
registered method the sizes of all messages must be the same when the personal layers get larger, which also finds what
was changed before it was sent (a difference, a long vector of everything).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie import registry
from coterie.codecs.frame import HEADER
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import lazy_metropolis
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods import GossipSGD
from coterie.methods.base import Solved, method
from coterie.peers import base
from coterie.peers.base import blend
from coterie.peers.line import Line
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.remote import RemotePeers
from coterie.peers.tables import make_tables
from coterie.testing.small import small_federation

CLIENTS, ROUNDS = 5, 2
SPLITTING = ("spdb", "fedper", "fedrep", "fedbn", "fedbabu")


class Network(eqx.Module):
    """A shared body and a personal head with a hidden layer of its own, whose width may vary."""

    body: eqx.nn.Linear
    head: tuple[eqx.nn.Linear, eqx.nn.Linear]

    def __call__(self, x):
        return self.head[1](jnp.tanh(self.head[0](jnp.tanh(self.body(x)))))


def network(width):
    def build(key):
        a, b, c = jax.random.split(key, 3)
        head = eqx.nn.Linear(4, width, key=b), eqx.nn.Linear(width, 3, key=c)
        return Network(eqx.nn.Linear(6, 4, key=a), head)

    return build


def setting(name, width):
    """A method whose personal part is the head, its task, its data and its graph."""
    federation = small_federation(CLIENTS)
    cls = registry.load("methods", name)
    own_choice = {"personal": ("head",)} if name in SPLITTING else {}
    chosen = cls(**(own_choice or ({"personal": ("body.bias",)} if name == "component" else {})))  # tied, not kept
    task = Task.of(federation, network(width), personal=() if own_choice else ("head",))
    graph = Ring(reach=1).build(CLIENTS, 0) if chosen.topology == "graph" else Graph.empty(CLIENTS)
    weights = lazy_metropolis(graph)[0] if chosen.topology == "graph" else np.zeros((CLIENTS, 0))
    return chosen, chosen.adapt(task), federation, graph, weights


class Listener:
    """A carrier between clients of one process that keeps every frame it was given."""

    hub = True

    def __init__(self):
        self.frames = []

    def exchange(self, number, exchange, frames, outgoing, incoming):
        self.frames += frames.values()
        return frames


def floats(frame):
    """Return every four bytes behind the header as a number's bits."""
    return set(np.frombuffer(frame[HEADER : HEADER + (len(frame) - HEADER) // 4 * 4], np.uint32).tolist())


def overheard(method, task, federation, graph, weights):
    """Run two rounds over frames; returns the numbers in them, and all values of personal layers between rounds."""
    listener, tables = Listener(), make_tables(graph, weights, np.arange(CLIENTS))
    line = Line()
    line.connect(listener)
    line.tables = tables
    data, tables = jax.tree.map(jnp.asarray, (federation.arrays(), tables))

    @jax.jit
    def init(tables, data, key):
        return method.init(task, RemotePeers(tables, line), data, key)

    @jax.jit
    def one(tables, data, key, state):
        return method.round(task, state, RemotePeers(tables, line), data, key)

    def personal(state):
        leaves = jax.tree.leaves(task.own(method.models(state).params))
        return set(np.concatenate([np.asarray(leaf).view(np.uint32).ravel() for leaf in leaves]).tolist())

    key = jax.random.key(0)
    line.start_round(0)
    state = jax.block_until_ready(init(tables, data, key))
    secret = personal(state)
    for number in range(1, ROUNDS + 1):
        line.start_round(number)
        state, _ = jax.block_until_ready(one(tables, data, jax.random.fold_in(key, number), state))
        secret |= personal(state)
    assert len(secret) > CLIENTS * 40  # heads differ between clients and rounds
    assert len(listener.frames) >= ROUNDS * CLIENTS
    return set().union(*map(floats, listener.frames)), secret


HEARD = ("spdb", "fedper", "fedrep", "spd", "gnsd", "gossip-sgd", "sgp", "fedavg", "component", "network-lasso")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("spdb", "fedper", "sgp", "component") else pytest.param(name, marks=pytest.mark.soak)
        for name in HEARD
    ],
)
def test_no_frame_holds_a_number_of_a_personal_layer(name):
    sent, secret = overheard(*setting(name, 5))
    assert len(sent) > 28  # at least one body was sent
    assert not sent & secret


@method
class Leaky(GossipSGD):
    """Sends the whole model, and does not use the personal part."""

    def round(self, task, state, peers, clients, key):
        state, info = super().round(task, state, peers, clients, key)
        leaked = blend(peers, state.variables.params, peers.weights)
        return state, info._replace(loss=info.loss + 0 * jax.tree.leaves(leaked)[0].sum())


def test_a_leak_would_be_detected():
    _, *rest = setting("gossip-sgd", 5)
    sent, secret = overheard(Leaky(), *rest)
    assert sent & secret


def messages(name, width, monkeypatch):
    """The sizes of all messages of a start and a round, from the trace alone."""
    method, task, federation, graph, weights = setting(name, width)
    sizes = []
    monkeypatch.setattr(base.Peers, "_charge", lambda self, link, sent, size: sizes.append((link, size)))
    tables = jax.tree.map(jnp.asarray, make_tables(graph, weights))
    data, key = jax.tree.map(jnp.asarray, federation.arrays()), jax.random.key(0)
    state = jax.eval_shape(lambda t, d, k: method.init(task, LocalPeers(t, Plan()), d, k), tables, data, key)
    jax.eval_shape(
        lambda t, d, k, s: method.at_round(1).round(task, s, LocalPeers(t, Plan()), d, k), tables, data, key, state
    )
    return sizes


def talks(name):
    """Methods that train in rounds and send messages; not `pooled`, which sends all data and says so."""
    return name not in ("local", "pooled") and not issubclass(registry.load("methods", name), Solved)


SAMPLE = ("cga", "component", "ditto", "fedrep", "pdbo-mtl", "scool-attention", "sgp", "spdb")  # others: `make soak`


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(row.name, marks=() if row.name in SAMPLE else pytest.mark.soak)
        for row in registry.KINDS["methods"].rows
        if talks(row.name)
    ],
)
def test_messages_do_not_grow_with_the_personal_layers(name, monkeypatch):
    try:
        small = messages(name, 5, monkeypatch)
    except CoterieError as refused:  # a method may refuse personal layers; it may not send them
        if "personal" not in str(refused):
            raise
        return
    assert small
    assert messages(name, 50, monkeypatch) == small
