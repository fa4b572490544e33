"""The verbs with all clients here, against dense NumPy in id space: any graph, any storage order, any recorded loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.graphs.graph import Graph
from coterie.peers.base import Arrivals, blend, on_host
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from support.graph_cases import row_weights

K = 5
MODES = ("exact", "fast")


class Setting:
    """A graph, where its clients are stored, what gets lost, and values for every verb; all drawn by Hypothesis."""

    def __init__(self, hears, order, seed, lossy):
        np.fill_diagonal(hears, False)
        self.hears, self.order = hears, np.array(order)
        random = np.random.default_rng(seed)
        slots = [np.flatnonzero(row) for row in hears]
        table = np.repeat(np.arange(K)[:, None], K - 1, 1)
        present = np.zeros((K, K - 1), bool)
        for i, found in enumerate(slots):
            table[i, : len(found)], present[i, : len(found)] = found, True
        self.graph = Graph(table, present)
        self.listeners = [np.flatnonzero(column) for column in hears.T]
        width = self.graph.listeners[0].shape[1]
        self.weights = random.normal(size=(K, K - 1))
        self.x, self.own = random.normal(size=(K, 2)), random.normal(size=(K, 3))
        self.small = random.normal(size=(K, K - 1, 2))
        self.to = random.random((K, width)) < 0.7
        self.weight = np.where(random.random(K) < 0.3, 0.0, random.random(K))
        self.label = random.integers(0, 3, K)
        chance = 0.6 if lossy else 1.0
        self.edges = random.random((K, K - 1)) < chance
        self.up, self.down = random.random((2, K)) < chance
        self.arrived = present & self.edges

    def stored(self, *values):
        return tuple(np.asarray(v)[self.order] for v in values)

    def neighbours(self):
        """Yield (client, slot, neighbour) for the slots in use."""
        for i in range(K):
            for k, j in enumerate(np.flatnonzero(self.hears[i])):
                yield i, k, j


@st.composite
def settings_of(draw):
    hears = draw(arrays(bool, (K, K)))
    hears[:, draw(st.integers(0, K - 1))] = True  # so that tables have one shape and few programs are compiled
    kind = draw(st.sampled_from(["any", "any", "any", "complete", "ring", "none"]))
    if kind != "any":
        ring = np.roll(np.eye(K, dtype=bool), 1, 1)
        hears = {"complete": np.ones((K, K), bool), "ring": ring | ring.T, "none": np.zeros((K, K), bool)}[kind]
    order, seed = draw(st.permutations(range(K))), draw(st.integers(0, 2**32 - 1))
    return Setting(hears, order, seed, draw(st.booleans()))


@partial(jax.jit, static_argnums=0)
def _all_verbs(mode, tables, arrivals, v):
    def fresh():
        return LocalPeers(tables, Plan(mode), arrivals)

    def question(x, own):
        return {"product": x[0] * own, "norm": (x * x).sum() + own[0]}

    x, own, small, to, weight, label = v
    return {
        "mix": fresh().mix({"x": x}, tables.weights),
        "blend": blend(fresh(), x, tables.weights),
        "push": fresh().push(x),
        "push to": fresh().push(x, to),
        "swap": fresh().swap(small),
        "ask": fresh().ask(question, x, own),
        "ask sum": fresh().ask(question, x, own, tables.weights),
        "mean": fresh().mean(x, weight),
        "mean of groups": fresh().mean(x, weight, (label, 3)),
        "share": fresh().share({"x": x, "own": own}),
        "centres": fresh().centres(x, weight, (label, 3)),
        "centres across": fresh().centres({"x": x}, weight, (label, 3), across=own[:, 0] ** 2),
        "centres certain": fresh().centres((), weight, (label, 3), certain=True),
        "most": fresh().most({"x": x, "own": own}),
    }


def verbs(mode, s):
    """Every verb's result, its rows in id order."""
    with jax.enable_x64(True):
        tables = jax.tree.map(jnp.asarray, make_tables(s.graph, s.weights, s.order, np.float64))
        edges, up, down = s.stored(s.edges, s.up, s.down)
        arrivals = Arrivals(edges[None], up[None], down[None])
        values = jax.tree.map(jnp.asarray, s.stored(s.x, s.own, s.small, s.to, s.weight, s.label))
        found = jax.tree.map(np.asarray, _all_verbs(mode, tables, arrivals, values))
    back = np.argsort(s.order)
    return {name: value if name == "share" else jax.tree.map(lambda a: a[back], value) for name, value in found.items()}


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(settings_of(), st.sampled_from(MODES))
def test_every_verb_equals_dense_numpy(s, mode):
    found = verbs(mode, s)
    check_mix(s, found)
    check_push(s, found)
    check_swap(s, found)
    check_ask(s, found)
    check_mean(s, found)
    check_share(s, found)
    check_centres(s, found)
    assert (found["most"]["own"] == s.own.max(0)).all()


def check_mix(s, found):
    matrix = np.zeros((K, K))
    for i in range(K):
        for k in range(K - 1):
            source = s.graph.neighbours[i, k] if s.arrived[i, k] else i
            matrix[i, source] += s.weights[i, k]
    mixed, arrived = found["mix"]
    close(mixed["x"], matrix @ s.x)
    assert (arrived == s.arrived).all()
    close(found["blend"], (matrix + np.diag(1 - s.weights.sum(1))) @ s.x)


def check_push(s, found):
    for name, to in (("push", np.ones_like(s.to)), ("push to", s.to)):
        total, arrived, acked = found[name]
        got, delivered, heard = np.zeros((K, 2)), np.zeros((K, K - 1), bool), np.zeros_like(s.to)
        for i, k, j in s.neighbours():
            place = list(s.listeners[j]).index(i)
            if to[j, place] and s.edges[i, k]:
                got[i] += s.x[j]
                delivered[i, k] = heard[j, place] = True
        close(total, got)
        assert (arrived == delivered).all()
        assert (acked == heard).all()
        # Mass is conserved: whoever was sent to and did not acknowledge is served by the sender itself.
        sent = np.array([(to[j, : len(s.listeners[j])]).sum() for j in range(K)])
        kept = sent - acked.sum(1)
        close(total.sum(0) + kept @ s.x, sent @ s.x)


def check_swap(s, found):
    expected, delivered = np.zeros((K, K - 1, 2)), np.zeros((K, K - 1), bool)
    for i, k, j in s.neighbours():
        if s.hears[j, i] and s.edges[i, k]:
            expected[i, k] = s.small[j, list(np.flatnonzero(s.hears[j])).index(i)]
            delivered[i, k] = True
    theirs, arrived = found["swap"]
    assert (theirs == expected).all()
    assert (arrived == delivered).all()


def check_ask(s, found):
    product, norm = np.zeros((K, K - 1, 3)), np.zeros((K, K - 1))
    for i, k, j in s.neighbours():
        if s.edges[i, k]:
            product[i, k], norm[i, k] = s.x[i, 0] * s.own[j], s.x[i] @ s.x[i] + s.own[j, 0]
    answers, arrived = found["ask"]
    close(answers["product"], product)
    close(answers["norm"], norm)
    assert (arrived == s.arrived).all()
    folded, _ = found["ask sum"]
    close(folded["product"], np.einsum("ik,iko->io", s.weights, product))
    close(folded["norm"], (s.weights * norm).sum(1))


def check_mean(s, found):
    for name, label in (("mean", np.zeros(K, int)), ("mean of groups", s.label)):
        expected, delivered = s.x.copy(), np.zeros(K, bool)
        for i in range(K):
            weight = np.where((label == label[i]) & s.up, s.weight, 0)
            if s.down[i] and weight.sum() > 0:
                expected[i], delivered[i] = weight @ s.x / weight.sum(), True
        value, arrived = found[name]
        close(value, expected)
        assert (arrived == delivered).all()


def check_share(s, found):
    table, arrived = found["share"]
    assert (arrived == s.up).all()
    assert (table["x"] == np.where(s.up[:, None], s.x, 0)).all()
    assert (table["own"] == np.where(s.up[:, None], s.own, 0)).all()


def check_centres(s, found):
    """Who takes no part, or was not heard, gets nothing; the others get their cluster's mean, and everybody's."""
    (near, near_weight, far, far_weight), arrived = found["centres across"]
    (alone, _, _, _), _ = found["centres"]
    sent = (s.weight > 0) & s.up
    expected = {"near": s.x.copy(), "far": s.x.copy(), "near_weight": np.zeros(K), "far_weight": np.zeros(K)}
    for i in np.flatnonzero(sent & s.down):
        for level, weight in (("near", s.weight * (s.label == s.label[i])), ("far", s.own[:, 0] ** 2)):
            weight = np.where(sent, weight, 0)
            expected[level][i], expected[f"{level}_weight"][i] = weight @ s.x / weight.sum(), weight.sum()
    assert (arrived == (sent & s.down)).all()
    close(near["x"], expected["near"])
    close(alone, expected["near"])
    close(far["x"], expected["far"])
    close(near_weight, expected["near_weight"])
    close(far_weight, expected["far_weight"])
    certain, all_arrived = found["centres certain"]
    same = s.label[:, None] == s.label
    close(certain.near_weight, np.where(s.weight > 0, same @ s.weight, 0))
    assert (all_arrived == (s.weight > 0)).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_branch_counts_only_what_runs(mode):
    """Two clients of three take part in a mean when the coin falls: 48 bytes of header, two numbers of 4 bytes."""
    tables = jax.tree.map(jnp.asarray, make_tables(Graph.empty(3), np.zeros((3, 0))))

    @jax.jit
    def program(coin):
        peers = LocalPeers(tables, Plan(mode))
        weight = jnp.array([1.0, 0.0, 3.0])
        x = peers.choose(coin, lambda x: peers.mean(x, weight)[0], lambda x: x, jnp.array([2.0, 5.0, 6.0]))
        once = lambda t, x: peers.choose(t == 0, lambda x: peers.mean(x, weight)[0], lambda x: x, x)  # noqa: E731
        return peers.loop(2, once, x), peers.traffic()

    for coin, value, times in ((True, 5.0, 2), (False, 5.0, 1)):
        x, traffic = program(coin)
        np.testing.assert_allclose(x, value)
        assert on_host(traffic).up_bytes.tolist() == [56 * times, 0, 56 * times]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_is_not_finite_counts_only_if_it_was_asked_for(mode):
    """Two clients hear each other, the third nobody; a client that asks itself would divide by a distance of zero."""
    graph = Graph.from_edges([0, 1], [1, 0], 3)
    peers = LocalPeers(jax.tree.map(jnp.asarray, make_tables(graph, np.ones((3, 1)))), Plan(mode))
    x = jnp.array([1.0, 3.0, 5.0])
    found, _ = peers.ask(lambda mine, theirs: 1 / (mine - theirs), x, x, peers.weights)
    assert found.tolist() == [-0.5, 0.5, 0.0]


def test_push_on_paper():
    """0 -> 1, 0 -> 2, 1 -> 2 (0 is heard by 1 and 2). 0 holds 6, 1 holds 4; the message 0 -> 2 is lost.

    0 sends 6 / 3 = 2 to each listener, 1 sends 4 / 2 = 2. Arrived: 1 gets 2, 2 gets 2 (from 1). Client 0 is left with
    its own third and the lost one: 4. Together 4 + (2 + 2) + (2 + 0) = 10.
    """
    graph = Graph.from_edges([1, 2, 2], [0, 0, 1], 3)
    edges = jnp.array([[True, True], [True, True], [False, True]])  # client 2 hears 0 in slot 0, 1 in slot 1
    everything = jnp.ones((1, 3), bool)
    tables = jax.tree.map(jnp.asarray, make_tables(graph, row_weights(graph)))
    peers = LocalPeers(tables, Plan("exact"), Arrivals(edges[None], everything, everything))
    got, arrived, acked = peers.push(jnp.array([2.0, 2.0, 0.0]))
    assert got.tolist() == [0, 2, 2]
    assert arrived.tolist() == [[False, False], [True, False], [False, True]]
    assert acked.tolist() == [[True, False], [True, False], [False, False]]
