"""Push-sum over random and scheduled networks: conservation, limits, and distance from the minimum."""

from functools import partial

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.consensus import pushsum
from coterie.consensus.pushsum import Mass
from coterie.graphs.directed import RandomDirected, expected_weights, perron
from coterie.graphs.graph import Graph
from coterie.peers.base import Arrivals
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables

pytestmark = pytest.mark.usefixtures("x64")
K = 6


def lossy(graph, chance, steps, mode="exact", seed=0):
    """Return the verbs on a graph with random losses, and which messages arrive, `[T, K, D]`."""
    edges = np.random.default_rng(seed).random((steps, *graph.present.shape)) < chance
    always = np.ones((steps, graph.clients), bool)
    tables = make_tables(graph, np.zeros(graph.present.shape), dtype=np.float64)
    return LocalPeers(
        jax.tree.map(jnp.asarray, tables), Plan(mode), Arrivals(jnp.asarray(edges), always, always)
    ), edges


def dense(graph, to, edges=None):
    """Return P of one step, in NumPy: `to[j, l]` says whom j tries to reach, `edges[i, k]` what arrives."""
    tried, matrix = np.zeros((2, graph.clients, graph.clients))
    listeners, listening = graph.listeners
    for j, place in zip(*np.nonzero(listening & np.asarray(to)), strict=True):
        tried[listeners[j, place], j] = 1
    parts = 1 + tried.sum(0)
    for i, k in zip(*np.nonzero(graph.present), strict=True):
        j = graph.neighbours[i, k]
        matrix[i, j] = (1 if edges is None else edges[i, k]) * tried[i, j] / parts[j]
    return matrix + np.diag(1 - matrix.sum(0))


# -- one step -------------------------------------------------------------------------------------------------------


def test_one_step_by_hand():
    # 0 reaches 1 and 2 and keeps a third; 1 reaches 0; 2 reaches nobody. The message from 0 to 2 is lost: 0 keeps it.
    graph = Graph.from_adjacency([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    peers, _ = lossy(graph, 1.0, 1)
    edges = jnp.array([[True, True], [True, False], [False, False]])[None]
    peers._arrivals = peers._arrivals._replace(edges=edges)
    to = jnp.array([[True, True], [True, False], [False, False]])
    mass, arrived = pushsum.push_step(peers, pushsum.start(peers, jnp.array([6.0, 4.0, 10.0])), to)
    np.testing.assert_allclose(mass.value, [2 + 2 + 2, 2 + 2, 10])
    np.testing.assert_allclose(mass.weight, [1 / 3 + 1 / 3 + 1 / 2, 1 / 2 + 1 / 3, 1])
    np.testing.assert_array_equal(arrived, [[True, False], [True, False], [False, False]])


@partial(jax.jit, static_argnums=0)
def _four_steps(mode, tables, edges, value, key):
    always = jnp.ones(edges.shape[:2], bool)
    peers = LocalPeers(tables, Plan(mode), Arrivals(edges, always, always))
    mass, tried = pushsum.start(peers, {"a": value, "none": None}), []
    for t in range(4):
        tried.append(peers.links(jax.random.fold_in(key, t)))
        mass, _ = pushsum.push_step(peers, mass, tried[-1])
    return mass, tried


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1.0), st.sampled_from(["exact", "fast"]))
def test_steps_equal_dense_matrices_and_lose_no_mass(seed, chance, mode):
    with jax.enable_x64(True):
        random = np.random.default_rng(seed)
        graph = Graph.from_probabilities(random.uniform(0.2, 1, (K, K)))
        tables = make_tables(graph, np.zeros(graph.present.shape), dtype=np.float64)
        edges, value = random.random((4, *graph.present.shape)) < chance, random.normal(size=(K, 2, 3))
        mass, tried = _four_steps(mode, tables, edges, value, jax.random.key(seed))
        expected, weight = value, np.ones(K)
        for to, arrives in zip(tried, edges, strict=True):
            P = dense(graph, to, arrives)
            expected, weight = np.tensordot(P, expected, 1), P @ weight
        np.testing.assert_allclose(mass.value["a"], expected, atol=1e-14)
        np.testing.assert_allclose(mass.weight, weight, atol=1e-14)
        np.testing.assert_allclose(mass.value["a"].sum(0), value.sum(0), atol=1e-13)


def test_mass_is_conserved_to_the_last_bit():
    """On a directed ring a client splits its mass in two or not at all: halving whole numbers is exact."""
    circle = Graph.from_networkx(networkx.cycle_graph(K, create_using=networkx.DiGraph))
    graph = Graph(circle.neighbours, circle.present, probability=np.full((K, 1), 0.7))
    peers, _ = lossy(graph, 0.6, 20)
    value = jnp.asarray(np.random.default_rng(0).integers(-1000, 1000, (K, 5)), float)
    mass = pushsum.start(peers, value)
    mass = peers.loop(20, lambda t, m: _step(peers, m, t), mass)
    np.testing.assert_array_equal(mass.value.sum(0), value.sum(0))
    assert mass.weight.sum() == K
    assert len(np.unique(mass.weight)) > 1


def _step(peers, mass, t, key=0):
    return pushsum.push_step(peers, mass, peers.links(jax.random.fold_in(jax.random.key(key), t), t))[0]


# -- averaging ------------------------------------------------------------------------------------------------------


def _changing(steps=5):
    """Return a schedule in which no single step is connected: in step t only client t receives, from the next one."""
    links = np.zeros((K, K, K))
    for t in range(K):
        links[t, t, (t + 1) % K] = 1
    return Graph.from_schedule(links)


@pytest.mark.parametrize(
    ("graph", "chance", "steps", "error"),
    [
        (RandomDirected().build(K, 0), 1.0, 60, 1e-12),
        (RandomDirected().build(K, 0), 0.5, 150, 1e-12),
        (_changing(), 1.0, 1200, 1e-12),
        (Graph.from_networkx(networkx.cycle_graph(K, create_using=networkx.DiGraph)), 1.0, 400, 1e-12),
    ],
    ids=["random", "random-and-lossy", "one-link-per-step", "directed-ring"],
)
def test_push_sum_averages(graph, chance, steps, error):
    peers, _ = lossy(graph, chance, steps, "fast")
    x = {"a": np.random.default_rng(1).normal(size=(K, 3)), "b": np.arange(K, dtype=float)}
    result = jax.jit(partial(pushsum.average, peers, steps=steps))(x, jax.random.key(3))
    np.testing.assert_allclose(result["a"], np.tile(x["a"].mean(0), (K, 1)), atol=error)
    np.testing.assert_allclose(result["b"], np.full(K, (K - 1) / 2), atol=error)


@pytest.mark.soak
def test_frequencies_tend_to_the_expected_weights():
    graph, steps = RandomDirected().build(5, 2), 4000
    peers = pushsum.network(graph, jnp.float64)
    expected = expected_weights(graph)

    def step(t, carry):
        return pushsum.observe_push(peers, carry[1], carry[0], peers.links(jax.random.fold_in(jax.random.key(0), t), t))

    begin = (pushsum.start(peers, jnp.zeros(5)), pushsum.nothing_seen(peers))
    result = pushsum.frequencies(jax.jit(lambda: peers.loop(steps, step, begin))()[1])
    near = 4.5 * 0.5 / np.sqrt(steps)  # the standard deviation of a number in [0, 1] is at most one half
    np.testing.assert_allclose(result.kept, expected.own, atol=near)
    np.testing.assert_allclose(np.asarray(result.sent)[graph.neighbours, graph.back], expected.slots, atol=near)
    np.testing.assert_allclose(result.heard, graph.probability, atol=near)
    np.testing.assert_allclose(result.kept + result.sent.sum(1), 1, atol=1e-12)
    # Weights of consecutive steps are correlated, but only over a few steps on this network.
    np.testing.assert_allclose(result.weight, perron(expected.matrix()), atol=3 * near)


def test_frequencies_count_what_stays_after_loss():
    graph = Graph.from_probabilities([[0, 1], [1, 0]])
    peers, edges = lossy(graph, 0.5, 40)

    def step(t, carry):
        return pushsum.observe_push(peers, carry[1], carry[0], peers.links(jax.random.key(0), t))

    begin = (pushsum.start(peers, jnp.ones(2)), pushsum.nothing_seen(peers))
    result = pushsum.frequencies(peers.loop(40, step, begin)[1])
    np.testing.assert_allclose(result.heard[:, 0], edges[:, :, 0].mean(0))
    np.testing.assert_allclose(result.sent[:, 0], edges[:, ::-1, 0].mean(0) / 2)  # an arrival at 1 is half of 0's mass


# -- stochastic gradient push ---------------------------------------------------------------------------------------


class Quadratics:
    """Clients with different losses x' H_i x / 2 - b_i' x, and the minimum of their sum."""

    def __init__(self, clients=5, size=3, seed=0, flat=False):
        random = np.random.default_rng(seed)
        turns = [np.linalg.qr(random.normal(size=(size, size)))[0] for _ in range(clients)]
        curvatures = random.uniform(0.5, 2, (clients, size))
        if flat:
            turns, curvatures[:, 0] = [turns[0]] * clients, 0.0
        self.H = np.stack([Q @ np.diag(c) @ Q.T for Q, c in zip(turns, curvatures, strict=True)])
        self.b = random.normal(size=(clients, size))
        self.minimum = None if flat else np.linalg.solve(self.H.sum(0), self.b.sum(0))

    def gradient(self, x, step=0):
        return jnp.einsum("iab,ib->ia", self.H, x) - self.b


def _lossy_ring(clients=8):
    """Return a directed ring on which every other client is rarely reached, but reaches the next one in most steps."""
    circle = Graph.from_networkx(networkx.cycle_graph(clients, create_using=networkx.DiGraph))
    chance = np.where(np.arange(clients) % 2, 0.9, 0.2)[:, None]
    return Graph(circle.neighbours, circle.present, probability=chance)


@partial(jax.jit, static_argnums=1)
def _on_the_lossy_ring(least, steps=4000):
    """Return models, weights, and the least weight on the way, of gradient push with lr 0.1, falling at the end."""
    problem, graph = Quadratics(8), _lossy_ring()
    peers = pushsum.network(graph, jnp.float64)

    def step(t, carry):
        mass, low = carry
        to = pushsum.enough(mass, peers.links(jax.random.fold_in(jax.random.key(0), t), t), least)
        rate = 0.1 * jnp.where(t < steps / 2, 1.0, 0.01)
        mass, _ = pushsum.gradient_step(peers, mass, lambda x: -rate * problem.gradient(x), to, "before")
        return mass, jnp.minimum(low, mass.weight.min())

    mass, low = peers.loop(steps, step, (pushsum.start(peers, jnp.zeros((8, 3))), jnp.inf))
    return pushsum.ratio(mass), mass.weight, low


def test_a_tiny_weight_blows_gradient_push_up_unless_its_owner_waits():
    """As published the step lr / w explodes; waiting bounds w by least / 2 on a ring, and finds the same minimum."""
    models, _, low = _on_the_lossy_ring(0.0)
    assert low < 1e-4  # it sinks until the numbers are too large for a message
    assert not np.isfinite(models).all()
    models, weight, low = _on_the_lossy_ring(pushsum.LEAST_WEIGHT)
    assert low >= pushsum.LEAST_WEIGHT / 2
    np.testing.assert_allclose(weight.sum(), 8, rtol=1e-12)
    problem = Quadratics(8)
    alone = np.stack([np.linalg.solve(H, b) for H, b in zip(problem.H, problem.b, strict=True)])
    apart = np.abs(alone - problem.minimum).max()
    assert np.abs(models - problem.minimum).max() < 0.05 * apart


def _network(seed=4, clients=5):
    """Return a directed graph with certain links, its P, and the Perron vector of P."""
    random = np.random.default_rng(seed)
    hears = random.random((clients, clients)) < 0.4
    hears[np.arange(clients), (np.arange(clients) + 1) % clients] = True
    graph = Graph.from_adjacency(hears)
    P = expected_weights(graph).matrix()
    return graph, P, perron(P)


def _sequence(problem, graph, weight, order, lr):
    """Return the Jacobian of one step (an affine map of z `[n d]`) at the limit weights, its fixed point and model."""
    peers = pushsum.network(graph, jnp.float64)
    move = lambda x: -lr * problem.gradient(x)  # noqa: E731

    @jax.jit
    def step(z):
        mass = Mass(z.reshape(problem.b.shape), jnp.asarray(weight))
        mass, model = pushsum.gradient_step(peers, mass, move, peers.tables.listening, order)
        return mass.value.ravel(), (mass.weight, model)

    shift = np.asarray(step(jnp.zeros(problem.b.size))[0])
    J = np.asarray(jax.vmap(lambda z: step(z)[0])(jnp.eye(len(shift)))).T - shift[:, None]  # of an affine map
    fixed = np.linalg.solve(np.eye(len(J)) - J, shift)
    new_weight, model = step(jnp.asarray(fixed))[1]
    np.testing.assert_allclose(new_weight, weight, atol=1e-12)  # w* is a fixed point
    return J, fixed, np.asarray(model)


def radius(J):
    return abs(np.linalg.eigvals(J)).max()


def test_two_clients_in_expectation():
    """By hand: E[P], w*, the fixed point of the mean step and its spectral radius (h = 1, 3; b = 2; lr .1)."""
    graph = Graph.from_probabilities([[0, 0.5], [0.5, 0]])
    P, lr, h, b = expected_weights(graph).matrix(), 0.1, np.array([1.0, 3.0]), 2.0
    np.testing.assert_allclose(P, [[0.75, 0.25], [0.25, 0.75]], atol=1e-15)
    np.testing.assert_allclose(perron(P), [1, 1])
    J = P @ np.diag(1 - lr * h)
    fixed = np.linalg.solve(np.eye(2) - J, P @ np.full(2, lr * b))
    np.testing.assert_allclose(fixed, [1.13043478, 0.95652174], atol=5e-9)
    assert radius(J) == pytest.approx(0.812132, abs=5e-7)
    # The mean of the program's own step over the four cases of two links is the fixed point again.
    peers, total = pushsum.network(graph, jnp.float64), 0.0
    for there in (True, False):
        for back in (True, False):
            mass = pushsum.start(peers, jnp.asarray(fixed))
            to = jnp.array([[there], [back]])
            mass, _ = pushsum.gradient_step(peers, mass, lambda x: -lr * (h * x - b), to, "before")
            total = total + np.asarray(mass.value) / 4
    np.testing.assert_allclose(total, fixed, atol=1e-14)


def test_jacobians_of_the_three_orders():
    problem, (graph, P, weight), lr = Quadratics(), _network(), 0.3
    n, d = problem.b.shape
    inner = np.zeros((n * d, n * d))  # block diagonal: (lr / w_i) H_i
    for i in range(n):
        inner[i * d : (i + 1) * d, i * d : (i + 1) * d] = lr / weight[i] * problem.H[i]
    mixing, one = np.kron(P, np.eye(d)), np.eye(n * d)
    for order, expected in [
        ("before", mixing @ (one - inner)),
        ("after", (one - inner) @ mixing),
        ("authors", mixing - inner),
    ]:
        np.testing.assert_allclose(_sequence(problem, graph, weight, order, lr)[0], expected, atol=1e-13)


def test_before_and_after_are_one_sequence_and_the_authors_order_is_less_stable():
    problem, (graph, _, weight) = Quadratics(), _network()
    lr = 1.9 * (weight / np.linalg.eigvalsh(problem.H)[:, -1]).min()  # just within the bound for "before"
    spectra = {}
    for order in ("before", "after", "authors"):
        J, _, _ = _sequence(problem, graph, weight, order, lr)
        spectra[order] = np.sort(abs(np.linalg.eigvals(J)))
    np.testing.assert_allclose(spectra["before"], spectra["after"], atol=1e-10)
    assert abs(spectra["before"] - spectra["authors"]).max() > 0.1
    assert spectra["before"][-1] < 1 < spectra["authors"][-1]
    # Shifted by half a step: with one more push "before" becomes "after".
    peers, x = pushsum.network(graph, jnp.float64), jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)))
    move, to = (lambda x: -0.1 * problem.gradient(x)), peers.tables.listening
    ahead, _ = pushsum.push_step(peers, pushsum.start(peers, x), to)
    after = pushsum.start(peers, x)
    np.testing.assert_allclose(pushsum.gradient_step(peers, after, move, to, "after")[1], pushsum.ratio(ahead))
    for _ in range(3):
        after, _ = pushsum.gradient_step(peers, after, move, to, "after")
        ahead, model = pushsum.gradient_step(peers, ahead, move, to, "before")
        np.testing.assert_allclose(pushsum.push_step(peers, after, to)[0].value, ahead.value, atol=1e-14)
        np.testing.assert_allclose(pushsum.ratio(pushsum.push_step(peers, after, to)[0]), model, atol=1e-14)


@pytest.mark.soak
@pytest.mark.parametrize("order", ["before", "after", "authors"])
def test_models_are_biased_by_the_learning_rate(order):
    problem, (graph, _, weight) = Quadratics(), _network()
    errors = {}
    for lr in (0.1, 0.05, 0.025):
        _, _, model = _sequence(problem, graph, weight, order, lr)
        np.testing.assert_allclose(sum(problem.gradient(model)), 0, atol=1e-10)  # their mean gradient is zero
        errors[lr] = np.linalg.norm(model - problem.minimum)
    assert 1.8 < errors[0.1] / errors[0.05] < 2.3
    assert 1.8 < errors[0.05] / errors[0.025] < 2.3


def test_gradient_push_reaches_its_fixed_point():
    problem, (graph, _, weight) = Quadratics(), _network()
    peers, x, models = pushsum.network(graph, jnp.float64), jnp.ones((5, 3)), {}
    for order in ("before", "after", "authors"):
        run = partial(pushsum.gradient_push, peers, x, problem.gradient, 0.1, jax.random.key(0), 400, order)
        models[order] = jax.jit(run)()
        _, fixed, model = _sequence(problem, graph, weight, order, 0.1)
        np.testing.assert_allclose(models[order], model, atol=1e-9)
        if order == "after":  # its mass after the second half is no model: clients differ by their own gradients
            apart = np.linalg.norm(fixed.reshape(5, 3) / weight[:, None] - problem.minimum)
            assert apart > 1.5 * np.linalg.norm(model - problem.minimum)
    np.testing.assert_allclose(models["before"], models["after"], atol=1e-9)
    assert abs(models["before"] - models["authors"]).max() > 1e-3


def test_a_falling_learning_rate_removes_the_bias():
    problem, (graph, _, _) = Quadratics(), _network()
    peers, steps = pushsum.network(graph, jnp.float64), 400
    rate = lambda t: jnp.where(t < steps - 200, 0.2, jnp.where(t < steps - 100, 0.02, 0.002))  # noqa: E731
    run = partial(pushsum.gradient_push, peers, jnp.zeros((5, 3)), problem.gradient, steps=steps, key=jax.random.key(0))
    errors = [np.linalg.norm(jax.jit(partial(run, lr=lr))() - problem.minimum) for lr in (0.2, rate)]
    assert errors[1] < errors[0] / 5


# -- contraction ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.99))
def test_the_mean_step_contracts_in_the_weighted_norm(seed, part):
    """|J| < 1 in max_i |z_i| / w_i* for any learning rate below 2 min_j w_j* / L_j, if all losses are convex enough."""
    with jax.enable_x64(True):
        problem = Quadratics(seed=seed % 1000)
        P = expected_weights(RandomDirected(low=0.1, high=1.0).build(5, seed % 1000)).matrix()
        weight = perron(P)
        lr = part * 2 * (weight / np.linalg.eigvalsh(problem.H)[:, -1]).min()
        shrunk = [np.linalg.norm(np.eye(3) - lr / w * H, 2) for w, H in zip(weight, problem.H, strict=True)]
        norm = max(sum(P[i, j] * weight[j] * shrunk[j] for j in range(5)) / weight[i] for i in range(5))
        assert norm < 1
        steps = [np.eye(3) - lr / w * H for w, H in zip(weight, problem.H, strict=True)]
        J = np.block([[P[i, j] * steps[j] for j in range(5)] for i in range(5)])
        assert radius(J) <= norm + 1e-12


def test_a_direction_that_is_flat_for_everyone_does_not_contract():
    graph, _, weight = _network()
    problem = Quadratics(flat=True)
    peers = pushsum.network(graph, jnp.float64)

    def step(z):
        mass = Mass(z.reshape(5, 3), jnp.asarray(weight))
        move = lambda x: -0.1 * problem.gradient(x)  # noqa: E731
        return pushsum.gradient_step(peers, mass, move, peers.tables.listening, "before")[0].value.ravel()

    assert radius(np.asarray(jax.jacobian(step)(jnp.zeros(15)))) == pytest.approx(1, abs=1e-9)


# -- push-DIGing ----------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(
    ("graph", "chance"),
    [(RandomDirected().build(5, 0), 1.0), (RandomDirected().build(5, 1), 0.8), (_network()[0], 1.0)],
    ids=["random", "random-and-lossy", "directed"],
)
def test_push_diging_finds_the_minimum_of_the_sum(graph, chance):
    problem, steps = Quadratics(), 300
    peers, _ = lossy(graph, chance, steps, "fast")
    x, key = jnp.asarray(np.random.default_rng(2).normal(size=(5, 3))), jax.random.key(7)
    exact = jax.jit(lambda: pushsum.push_diging(peers, x, problem.gradient, 0.1, key, steps))()
    np.testing.assert_allclose(exact, np.tile(problem.minimum, (5, 1)), atol=1e-8)
    peers, _ = lossy(graph, chance, steps, "fast")
    biased = jax.jit(lambda: pushsum.gradient_push(peers, x, problem.gradient, 0.1, key, steps))()
    assert np.linalg.norm(biased - problem.minimum) > 1e-3
