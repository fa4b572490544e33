"""`component` and `network-lasso`: against CVXPY, with weak and strong ties, lost messages, private layers.

    min  sum_n f_n(x, z_n)  +  lam sum_edges |z_i - z_j|_p

with f_n the mean of half the squared errors of client n. Everything in 64 bits, with full gradients.
"""

import dataclasses

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.data.clients import Federation, Split, stack
from coterie.errors import CoterieError
from coterie.experiment.cluster_path import clusters_of
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis
from coterie.graphs.similarity import Similarity
from coterie.methods import Component, Local, NetworkLasso
from coterie.peers.base import Arrivals
from support.cases import own, run, slope, training
from support.lasso_cases import penalty, solved

pytestmark = pytest.mark.usefixtures("x64")

FULL = {"batch_size": 0, "steps": 1, "lr": 0.5}
EXACT = {"server": {"iterations": 300, "tolerance": 1e-15}, "peers": {"iterations": 30}}
# Two triangles of similar clients, and two edges between them.
EDGES = np.array([(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (2, 3), (1, 4)])
CLIENTS, FEATURES, SHARED = 6, 5, 2


class Parts(eqx.Module):
    """A linear law in three parts: shared, tied to the neighbours', and (if it has any inputs) never sent."""

    x: jax.Array
    z: jax.Array
    secret: jax.Array

    def __call__(self, inputs):
        return jnp.concatenate([self.x, self.z, self.secret], axis=1) @ inputs


def parts(shared=SHARED, secret=0):
    return Parts(jnp.zeros((1, shared)), jnp.zeros((1, FEATURES - shared - secret)), jnp.zeros((1, secret)))


@pytest.fixture(scope="module")
def alike():
    """Clients in two groups, with the same law within a group."""
    random = np.random.default_rng(4)
    laws = random.normal(size=(2, FEATURES))[np.arange(CLIENTS) // 3]
    data = []
    for law, size in zip(laws, (20, 26, 22, 30, 24, 20), strict=True):
        x = random.normal(size=(size, FEATURES))
        data.append((x, x @ law + 0.3 * random.normal(size=size)))
    split = stack(data)
    return Federation(tuple("abcdef"), split, split, split, kind="regression", classes=1)


def network(edges=EDGES, clients=CLIENTS, strength=None):
    adjacency = np.zeros((clients, clients))
    adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 1
    graph = Graph.from_adjacency(adjacency)
    if strength is None:
        return graph
    ties = np.zeros((clients, clients))
    ties[edges[:, 0], edges[:, 1]] = ties[edges[:, 1], edges[:, 0]] = strength
    by_slot = np.take_along_axis(ties, graph.neighbours, axis=1)
    return dataclasses.replace(graph, strength=np.where(graph.present, by_slot, 0))


def started(federation, method, device, graph=None, **options):
    graph = graph or network()
    return training(federation, method, device, graph, metropolis(graph)[0], **options)


def labels_of(graph, block):
    return clusters_of({"neighbours": graph.neighbours, "present": graph.present, "weights": block.weights})


def by_cvxpy(federation, lam, p, shared, edges, weight):
    """Return x, Z and the least value of the whole problem."""
    x, Z = cp.Variable(max(shared, 1)), cp.Variable((CLIENTS, FEATURES - shared))
    loss = 0 * cp.sum(x)
    for i in range(CLIENTS):
        inputs, y = own(federation, i)
        common = inputs[:, :shared] @ x if shared else 0
        loss += cp.sum_squares(common + inputs[:, shared:] @ Z[i] - y) / (2 * len(y))
    value = solved(cp.Problem(cp.Minimize(loss + penalty(Z, lam, p, weight, edges, CLIENTS))))
    return x.value[:shared], Z.value, value


def objective(federation, x, Z, lam, p, edges, weight):
    total = 0.0
    for i in range(CLIENTS):
        inputs, y = own(federation, i)
        total += ((inputs @ np.concatenate([x[i], Z[i]]) - y) ** 2).sum() / (2 * len(y))
    order = {"1": 1, "2": 2, "inf": np.inf}[p]
    lengths = np.linalg.norm(Z[edges[:, 0]] - Z[edges[:, 1]], order, axis=1)
    return total + lam * (weight * lengths).sum()


EVERYBODY = np.array([(i, j) for j in range(CLIENTS) for i in range(j)])
CASES = [
    (Component, "server", "1", EDGES),
    (Component, "server", "2", EDGES),
    (Component, "server", "inf", EDGES),
    (Component, "peers", "2", EVERYBODY),  # on a complete graph gossip averages in one step
    (NetworkLasso, "server", "2", EDGES),
    (NetworkLasso, "peers", "1", EDGES),
    (NetworkLasso, "peers", "2", EDGES),
    (NetworkLasso, "peers", "inf", EDGES),
]


@pytest.mark.parametrize(
    ("cls", "form", "p", "edges"),
    [pytest.param(*case, marks=() if case[2] == "2" else pytest.mark.soak) for case in CASES],
    ids=[f"{c[0].__name__}-{c[1]}-{c[2]}" for c in CASES],
)
def test_converges_to_the_optimum_of_the_whole_problem(cls, form, p, edges, alike, device):
    """The objective and the solution agree with CVXPY's, with edges of unequal strength."""
    lam = {"1": 0.1, "2": 0.2, "inf": 0.3}[p]
    weight = np.random.default_rng(0).uniform(0.5, 1.5, len(edges))
    shared = SHARED if cls is Component else 0
    chosen = {"personal": ("z",)} if shared else {}
    method = cls(lam=lam, norm=p, form=form, **chosen, **FULL, **EXACT[form])
    begun = started(alike, method, device, network(edges, strength=weight), model=parts(shared))
    state, rounds = begun.advance(begun.init()[0], 1, 200)
    params = method.models(state).params
    x, Z = np.asarray(params.x)[:, 0], np.asarray(params.z)[:, 0]
    best_x, best_Z, best = by_cvxpy(alike, lam, {"1": 1, "2": 2}.get(p, p), shared, edges, weight)
    assert abs(objective(alike, x, Z, lam, p, edges, weight) - best) < 1e-9
    np.testing.assert_allclose(Z, best_Z, atol=2e-6)  # as exact as the solver
    np.testing.assert_allclose(x, np.broadcast_to(best_x, x.shape), atol=2e-6)
    # Clients that are equal at the optimum, to the solver's accuracy, are one cluster; with a hub exactly equal.
    near = np.abs(best_Z[:, None] - best_Z[None]).max(2) < 1e-5
    if p != "1":  # the 1-norm makes single numbers equal, not whole components
        assert near.sum() > CLIENTS
    labels = labels_of(begun.graph, rounds)
    assert ((labels[:, None] == labels[None]) == near).all()
    if form == "server":
        assert ((Z[:, None] == Z[None]).all(2) == near).all()


@pytest.mark.parametrize("form", ["server", "peers"])
def test_two_clients_on_paper(form, device):
    """f_i(z) = (z - c_i)^2 / 2 with c = (1, 3), from zero.

    One round with lr = 1/2: U = (.5, 1.5), and each end is pulled by lr lam = .2 towards the other: (.7, 1.3).
    At the optimum z_i - c_i = +-lam: (1.4, 2.6) with lam = .4, and with lam = 1.2 both are at the mean of c.
    """
    split = Split(np.ones((2, 1, 1)), np.array([[1.0], [3.0]]), np.ones(2, np.int32))
    pair = Federation(("one", "other"), split, split, split, kind="regression", classes=1)
    graph = network(np.array([(0, 1)]), 2)
    begun = started(pair, NetworkLasso(lam=0.4, form=form, **FULL, **EXACT[form]), device, graph)
    state, models = run(begun, 1)
    np.testing.assert_allclose(models[:, 0], [0.7, 1.3], rtol=1e-7)
    _, models = run(begun, 60, state, 2)
    np.testing.assert_allclose(models[:, 0], [1.4, 2.6], rtol=1e-7)
    _, models = run(started(pair, NetworkLasso(lam=1.2, form=form, **FULL, **EXACT[form]), device, graph), 60)
    np.testing.assert_allclose(models[:, 0], [2, 2], rtol=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize("form", ["server", "peers"])
def test_without_a_tie_it_is_training_alone(form, alike, device):
    _, models = run(started(alike, NetworkLasso(lam=0.0, form=form, **FULL), device), 3)
    _, alone = run(started(alike, Local(**FULL), device), 3)
    np.testing.assert_allclose(models, alone, rtol=1e-13)


@pytest.mark.parametrize("form", ["server", "peers"])
def test_with_a_very_strong_tie_it_is_one_model(form, alike, device):
    """All equal: z <- z - lr mean_n grad f_n(z), gradient descent on the sum, on any connected network."""
    settings = {"server": EXACT["server"], "peers": {"iterations": 500}}[form]
    _, models = run(started(alike, NetworkLasso(lam=1e3, form=form, **FULL, **settings), device), 3)
    w = np.zeros(FEATURES)
    for _ in range(3):
        w = w - 0.5 * np.mean([slope(w, *own(alike, i)) for i in range(CLIENTS)], axis=0)
    np.testing.assert_allclose(models, np.tile(w, (CLIENTS, 1)), atol=1e-9)
    if form == "server":
        assert (models == models[0]).all()


# -- lost messages ---------------------------------------------------------------------------------------------------


def opposite(duals, graph):
    """How far the duals at the two ends of an edge are from opposite values."""
    gaps = [0.0]
    for i, k in zip(*np.nonzero(graph.present), strict=True):
        j = graph.neighbours[i, k]
        back = int(np.flatnonzero(graph.present[j] & (graph.neighbours[j] == i))[0])
        gaps.append(np.abs(duals[i, k] + duals[j, back]).max())
    return max(gaps)


@pytest.mark.soak
def test_peers_recover_from_a_lost_message(alike, device):
    """One direction of an edge fails for a round: its ends disagree, take the mean, and reach the same solution."""
    method, graph = NetworkLasso(lam=0.2, form="peers", iterations=4, **FULL), network()
    begun = started(alike, method, device, graph)
    edges = np.ones((1, 5, *graph.present.shape), bool)  # an exchange of duals and four of z
    edges[0, 1:, 0, 0] = False
    state, _ = begun.advance(begun.init()[0], 1, 1, Arrivals(edges, *[np.ones((1, 5, CLIENTS), bool)] * 2))
    assert opposite(np.asarray(state.held), graph) > 1e-3
    state, _ = begun.advance(state, 2, 1)
    assert opposite(np.asarray(state.held), graph) == 0
    _, models = run(begun, 300, state, 3)
    _, undisturbed = run(begun, 302)
    np.testing.assert_allclose(models, undisturbed, atol=1e-10)


def test_hub_and_clients_recover_from_lost_messages(alike, device):
    """A client without an answer keeps its model; one whose message is lost is moved by its neighbours alone."""
    method = Component(lam=0.2, personal=("z",), **FULL, **EXACT["server"])
    begun = started(alike, method, device, model=parts())
    up, down = np.ones((2, 1, 1, CLIENTS), bool)
    up[0, 0, 1] = down[0, 0, 4] = False
    edges = np.ones((1, 1, *begun.graph.present.shape), bool)
    state, _ = begun.advance(begun.init()[0], 1, 1, Arrivals(edges, up, down))
    params = method.models(state).params
    slopes = np.array([slope(np.zeros(FEATURES), *own(alike, i)) for i in range(CLIENTS)])
    received = np.arange(CLIENTS) != 1
    np.testing.assert_allclose(params.x[0, 0], -0.5 * slopes[received, :SHARED].mean(0), rtol=1e-12)
    assert (np.asarray(params.x)[4] == 0).all()
    assert (np.asarray(params.z)[4] == 0).all()
    assert (np.asarray(state.held.personal)[4] != 0).all()  # the hub has it
    state, _ = begun.advance(state, 2, 300)
    straight, _ = begun.advance(begun.init()[0], 1, 300)
    params, straight = method.models(state).params, method.models(straight).params
    np.testing.assert_allclose(params.z, straight.z, atol=1e-9)
    np.testing.assert_allclose(params.x, straight.x, atol=1e-9)


# -- private layers, and what cannot be trained -----------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("form", ["server", "peers"])
def test_private_layers_are_never_sent_and_tied_ones_are(form, alike, device):
    """With `model.personal` the tied part is equal for all, and the rest is trained as if the client were alone."""
    method = NetworkLasso(lam=1e3, form=form, **FULL, **EXACT[form])
    begun = started(alike, method, device, model=parts(secret=2), personal=("secret",))
    state, rounds = begun.advance(begun.init()[0], 1, 1)
    params = method.models(state).params
    slopes = np.array([slope(np.zeros(FEATURES), *own(alike, i)) for i in range(CLIENTS)])
    np.testing.assert_allclose(np.asarray(params.secret)[:, 0], -0.5 * slopes[:, 3:], rtol=1e-12)
    common = np.concatenate([np.asarray(params.x)[:, 0], np.asarray(params.z)[:, 0]], axis=1)
    if form == "server":
        np.testing.assert_allclose(common, np.tile(-0.5 * slopes[:, :3].mean(0), (CLIENTS, 1)), atol=1e-9)
    wider = started(alike, method, device, model=parts(secret=3), personal=("secret",))
    _, fewer = wider.advance(wider.init()[0], 1, 1)
    for name in ("heard_bytes", "up_bytes", "down_bytes"):
        sent, less = (getattr(traffic, name).sum() for traffic in (rounds.traffic, fewer.traffic))
        assert (less < sent) == (sent > 0)  # one number fewer is tied, one more is secret


def refusal(federation, method, model="linear", **options):
    with pytest.raises(CoterieError) as error:
        ct.run(federation, model, method, rounds=1, device="cpu", **options)
    return str(error.value)


def test_a_choice_of_the_personal_component_that_makes_no_sense_is_refused():
    federation = ct.load("planted-groups", clients=8, groups=2)
    assert "one layer only" in refusal(federation, Component())
    assert "method.personal" in refusal(federation, Component())
    assert "network-lasso" in refusal(federation, Component(personal=("weight", "bias")))
    assert "biass" in refusal(federation, Component(personal=("biass",)))
    assert "nothing else is left to tie" in refusal(federation, Component(personal=("bias",)), personal=("bias",))
    assert "nothing else is left to tie" in refusal(federation, "network-lasso", personal=("weight", "bias"))
    assert "layers.1" in refusal(federation, Component(personal=("layers.7",)), "mlp")


def test_a_network_that_makes_no_sense_is_refused():
    federation = ct.load("planted-groups", clients=8, groups=2, train_size=50)
    assert "graph.k must be less than the number of clients, 8" in refusal(
        federation, "network-lasso", graph=Similarity(k=8)
    )
    assert "falls into" in refusal(federation, "component", "mlp", graph=Similarity(k=2))
    circle = Graph.from_edges(np.arange(8), (np.arange(8) + 1) % 8, 8)
    assert "both directions" in refusal(federation, "network-lasso", graph=circle)
    pairs = Graph.from_edges(np.arange(8), np.arange(8) ^ 1, 8)
    assert "needs a connected graph" in refusal(federation, "network-lasso", graph=pairs)


# -- the path --------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_planted_groups_are_recovered_exactly_along_the_path(device):
    """Five draws in one run: without edges between them they are five independent problems.

    The path goes from one cluster of all to single clients, with exactly the planted groups in between.
    """
    draws = [ct.load("planted-groups", train_size=50, seed=seed) for seed in range(5)]
    count, truth = len(draws[0]), draws[0].groups
    edges = np.concatenate([Similarity().build_from(draw).edges + count * k for k, draw in enumerate(draws)])
    splits = {
        name: Split(*map(np.concatenate, zip(*(getattr(draw, name) for draw in draws), strict=True)))
        for name in ("train", "validation", "test")
    }
    names = tuple(f"{k}/{name}" for k, draw in enumerate(draws) for name in draw.names)
    together = Federation(names, **splits, kind="classification", classes=draws[0].classes)
    method = NetworkLasso(lam=2.0, path_factor=0.75, path_every=20, **FULL)
    model = lambda key: eqx.nn.Linear(10, 4, key=key)  # noqa: E731
    begun = started(together, method, device, network(edges, len(names)), model=model)
    state, lams = begun.init()[0], []
    labels_along = [[] for _ in draws]
    for first in range(1, 14 * 20, 20):
        state, block = begun.advance(state, first, 20)
        labels = labels_of(begun.graph, block).reshape(5, count)
        lams.append(float(block.counts["lam"][0]))
        for k, own_labels in enumerate(labels):
            labels_along[k].append(own_labels)
        models = np.asarray(method.models(state).params.weight).reshape(5, count, -1)
        equal = (models[:, :, None] == models[:, None]).all(3)
        assert (equal == (labels[:, :, None] == labels[:, None])).all()
    np.testing.assert_allclose(lams, 2 * 0.75 ** np.arange(14))
    same = truth[:, None] == truth[None]
    for along in labels_along:
        assert len(set(along[0])) == 1
        assert len(set(along[-1])) == count
        assert any(((labels[:, None] == labels[None]) == same).all() for labels in along)
