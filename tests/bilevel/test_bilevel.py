"""Hyper-gradients over networks, against finite differences, enumeration of all links, and numbers computed by hand.

For quadratic f_i = x' H_i x / 2 - b_i' x + lambda_i' C_i x everything has a closed form (NumPy); one problem is
not quadratic.
"""

import doctest
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.bilevel import Problem, expected_statistics, gossip_steps, hypergradient
from coterie.bilevel import problem as bilevel
from coterie.bilevel.checks import check_curvature
from coterie.bilevel.hypergradients import Settings, estimate, products, safe_damping
from coterie.consensus.pushsum import frequencies, network, nothing_seen, observe_push, start
from coterie.errors import CoterieError
from coterie.graphs.directed import RandomDirected
from coterie.graphs.graph import Graph
from coterie.peers.base import on_host
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.unmetered import Unmetered

pytestmark = pytest.mark.usefixtures("x64")


def quadratic_inner(x, lam, data, key):
    return 0.5 * x @ data["H"] @ x - data["b"] @ x + lam @ data["C"] @ x


def quadratic_outer(x, lam, data):
    return 0.5 * ((x - data["goal"]) ** 2).sum() + 0.5 * (lam**2).sum()


QUADRATIC = Problem(quadratic_inner, quadratic_outer)


class Quadratic:
    """K clients with x in R^d and lambda in R^2, solved by NumPy."""

    def __init__(self, clients=5, d=3, seed=0, ridge=0.5):
        random = np.random.default_rng(seed)
        root = random.normal(size=(clients, d, d))
        self.H = root @ root.transpose(0, 2, 1) / d + ridge * np.eye(d)
        self.b, self.goal = random.normal(size=(2, clients, d))
        self.C = random.normal(size=(clients, 2, d))
        self.lam = 0.3 * random.normal(size=(clients, 2))
        self.clients = clients

    @property
    def data(self):
        return {"H": self.H, "b": self.b, "C": self.C, "goal": self.goal}

    def minimum(self, lam):
        """Return the x that minimises the sum of the inner losses."""
        return np.linalg.solve(self.H.sum(0), (self.b - np.einsum("il,ild->id", lam, self.C)).sum(0))

    def solution(self, lam):
        return np.tile(self.minimum(lam), (self.clients, 1))

    def cost(self, x, lam):
        return 0.5 * ((x - self.goal) ** 2).sum() + 0.5 * (lam**2).sum()

    def true(self, lam):
        q = np.linalg.solve(self.H.sum(0), (self.solution(lam) - self.goal).sum(0))
        return lam - self.C @ q

    def gradients(self, x, lam):
        return np.einsum("ide,ie->id", self.H, x) - self.b + np.einsum("il,ild->id", lam, self.C)


def random_network(clients, seed=0, low=0.4, high=0.8):
    chance = np.random.default_rng(seed).uniform(low, high, (clients, clients))
    return Graph.from_probabilities(chance)


def slope(function, at, h=1e-3):
    """Return the gradient of a function of an array by differences of fourth order."""
    result = np.zeros_like(at)
    for place in np.ndindex(at.shape):

        def moved(step, place=place):
            point = at.copy()
            point[place] += step
            return function(point)

        result[place] = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    return result


def error(result, true):
    return np.linalg.norm(np.asarray(result) - true) / np.linalg.norm(true)


# -- by hand --------------------------------------------------------------------------------------------------------


def pair(network, **settings):
    """Two clients, f_i = h_i x^2 / 2 - 2 x + lambda_i x with h = (1, 3), F = x^2 / 2, at a given x."""
    problem = Problem(
        lambda x, lam, data, key: 0.5 * data * x**2 - 2 * x + lam * x,
        lambda x, lam, data: 0.5 * x**2,
    )
    x = jnp.asarray(settings.pop("x", [1.0, 1.0]))
    return hypergradient(problem, x, jnp.zeros(2), jnp.array([1.0, 3.0]), network, **settings).value


@pytest.mark.parametrize(("depth", "expected"), [(1, -0.25), (2, -0.375), (10, -0.499512)])
def test_neumann_by_hand_with_exact_averages(depth, expected):
    # Each keeps half of its mass and gets half of the other's: the average, in one step. Hbar = 2, so that
    # I - Hbar / 4 halves: q = 1/4 (1 + 1/2 + ...).
    result = pair(Graph.complete(2), estimator="neumann", damping=0.25, depth=depth, gossip=1, check=False)
    np.testing.assert_allclose(result, [expected, expected], atol=5e-7)


def test_docstring():
    assert doctest.testmod(bilevel).failed == 0


def test_tracking_by_hand():
    np.testing.assert_allclose(pair(Graph.complete(2)), [-0.5, -0.5], atol=1e-10)


def in_the_mean(statistics):
    """Return statistics with which certain links send what random ones send on average: HGP without noise."""
    return statistics._replace(heard=jnp.ones_like(statistics.heard))


def test_fixed_point_gradient_by_hand():
    net = Graph.from_probabilities([[0, 0.5], [0.5, 0]])
    statistics = expected_statistics(net, jnp.float64)
    np.testing.assert_allclose(statistics.kept, [0.75, 0.75])
    np.testing.assert_allclose(statistics.sent, [[0.25], [0.25]])
    np.testing.assert_allclose(statistics.weight, [1, 1])
    P, h = np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([1.0, 3.0])
    z = np.linalg.solve(np.eye(2) - P @ np.diag(1 - 0.1 * h), P @ np.full(2, 0.2))  # z = P (z - .1 (h z - 2))
    np.testing.assert_allclose(z, [1.13043478, 0.95652174], atol=1e-8)
    settings = {"estimator": "hgp", "damping": 0.1, "statistics": in_the_mean(statistics)}
    result = pair(Graph.complete(2), x=z, depth=200, **settings)
    np.testing.assert_allclose(result, [-0.60113422, -0.4952741], atol=1e-8)


def test_unequal_links_by_hand():
    # The first reaches the second with .4, the second the first with .8: w* = 2 (.8, .4) / 1.2.
    net = Graph.from_probabilities([[0, 0.8], [0.4, 0]])
    np.testing.assert_allclose(expected_statistics(net, jnp.float64).weight, [4 / 3, 2 / 3])


# -- against finite differences -------------------------------------------------------------------------------------


def test_one_vjp_gives_both_products():
    def inner(x, lam, data, key):
        return jnp.sin(x["a"] @ x["a"]) * lam[0] + jnp.exp(lam[1] * x["b"]).sum() + data * x["a"].sum() * x["b"][0]

    random = np.random.default_rng(0)
    x, a = ({"a": jnp.asarray(random.normal(size=2)), "b": jnp.asarray(random.normal(size=3))} for _ in range(2))
    lam = (jnp.array(0.7), jnp.array(-0.4))
    curved, crossed = jax.jit(partial(products, inner))(x, lam, jnp.array(2.0), None, a)
    whole = jax.jit(jax.hessian(inner))(x, lam, jnp.array(2.0), None)
    for row in ("a", "b"):
        expected = sum(whole[row][column] @ a[column] for column in ("a", "b"))
        np.testing.assert_allclose(curved[row], expected, rtol=1e-12)
    mixed = jax.jit(jax.jacobian(jax.grad(inner, 1)))(x, lam, jnp.array(2.0), None)
    for k in range(2):
        np.testing.assert_allclose(crossed[k], sum(mixed[k][c] @ a[c] for c in ("a", "b")), rtol=1e-12)


def test_hypergradient_is_that_of_the_cost():
    """On losses that are not quadratic: logistic regression with a penalty weight exp(lambda_i) per client."""
    random = np.random.default_rng(3)
    inputs, targets = random.normal(size=(4, 6, 3)), random.normal(size=(4, 6))

    def inner(x, lam, data, key):
        return jnp.logaddexp(0, -data[1] * (data[0] @ x)).mean() + 0.5 * jnp.exp(lam) * x @ x

    def outer(x, lam, data):
        return ((data[0] @ x - data[1]) ** 2).mean() + 0.1 * lam**2

    data = (jnp.asarray(inputs), jnp.asarray(targets))
    total = jax.jit(lambda x, lam: jax.vmap(lambda lam, data: inner(x, lam, data, None))(lam, data).sum())

    @jax.jit
    def solve(lam):
        def newton(_, x):
            return x - jnp.linalg.solve(jax.hessian(total)(x, lam), jax.grad(total)(x, lam))

        return jax.lax.fori_loop(0, 12, newton, jnp.zeros(3))

    def cost(lam):
        return float(jax.vmap(outer, (None, 0, 0))(solve(jnp.asarray(lam)), jnp.asarray(lam), data).sum())

    lam = random.normal(size=4)
    x = jnp.tile(solve(jnp.asarray(lam)), (4, 1))
    expected = slope(cost, lam)
    result = hypergradient(Problem(inner, outer), x, lam, data, random_network(4), depth=300)
    np.testing.assert_allclose(result.value, expected, atol=1e-8)
    assert (
        error(hypergradient(Problem(inner, outer), x, lam, data, random_network(4), estimator="local").value, expected)
        > 0.05
    )


def fixed_point(q, P, w, rate, order, lam):
    """Return x* = z* / w* of gradient push with the mean weights: z* is the fixed point of one (linear) step."""
    w = w[:, None]

    def step(flat):
        z = flat.reshape(q.b.shape)
        if order == "before":
            return (P @ (z - rate * q.gradients(z / w, lam))).ravel()
        if order == "after":
            return (P @ z - rate * q.gradients(P @ z / w, lam)).ravel()
        return (P @ z - rate * q.gradients(z / w, lam)).ravel()

    fixed = step(np.zeros(q.b.size))
    matrix = np.stack([step(unit) - fixed for unit in np.eye(q.b.size)], 1)
    z = np.linalg.solve(np.eye(q.b.size) - matrix, fixed).reshape(q.b.shape)
    return (P @ z if order == "after" else z) / w


def mean_matrix(net, statistics):
    P = np.diag(np.asarray(statistics.kept))
    for i, k in np.argwhere(net.present):
        P[net.neighbours[i, k], i] = statistics.sent[i, k]
    np.testing.assert_allclose(P.sum(0), 1)
    return P


@pytest.mark.parametrize("order", ["before", "after", "authors"])
def test_hgp_is_the_gradient_of_the_fixed_point(order):
    """Equation (8) with its 1 / w_i*, on a network where clients' shares differ."""
    q, net, rate = Quadratic(), random_network(5, low=0.2, high=1.0), 0.1
    statistics = expected_statistics(net, jnp.float64)
    w = np.asarray(statistics.weight)
    assert w.std() > 0.1
    P = mean_matrix(net, statistics)
    x = fixed_point(q, P, w, rate, order, q.lam)
    expected = slope(lambda lam: q.cost(fixed_point(q, P, w, rate, order, lam), lam), q.lam, h=0.1)  # a quadratic
    settings = {"estimator": "hgp", "order": order, "damping": rate, "statistics": in_the_mean(statistics)}
    result = hypergradient(QUADRATIC, x, q.lam, q.data, Graph.complete(5), depth=600, **settings).value
    np.testing.assert_allclose(result, expected, atol=1e-8)
    forgotten = settings["statistics"]._replace(weight=jnp.ones(5))
    without = hypergradient(
        QUADRATIC, x, q.lam, q.data, Graph.complete(5), depth=600, **settings | {"statistics": forgotten}
    )
    assert error(without.value, expected) > 1e-2


def test_bias_of_hgp_shrinks_with_the_rate():
    q, net = Quadratic(), random_network(5)
    statistics = expected_statistics(net, jnp.float64)
    P, w = mean_matrix(net, statistics), np.asarray(statistics.weight)
    errors = []
    for rate in (0.02, 0.01):
        x = fixed_point(q, P, w, rate, "before", q.lam)
        settings = {"estimator": "hgp", "damping": rate, "statistics": in_the_mean(statistics)}
        result = hypergradient(QUADRATIC, x, q.lam, q.data, Graph.complete(5), depth=4000, **settings).value
        errors.append(error(result, q.true(q.lam)))
    assert 1.8 < errors[0] / errors[1] < 2.3


# -- random links ---------------------------------------------------------------------------------------------------


class GivenLinks(Unmetered):
    """The verbs on a network whose links are given, step by step."""

    def __init__(self, tables, live):
        super().__init__(tables)
        self.live = live  # [M, C, L]

    def links(self, key, step=0):
        return self.live[step]


@pytest.mark.parametrize("order", ["before", "authors"])
@pytest.mark.parametrize(("clients", "depth"), [(3, 2), (2, 4)])
def test_hgp_is_unbiased_over_all_links(order, clients, depth):
    """The mean over all sequences of links is the series of expected Jacobians; both Jacobians use the same links."""
    q, net, rate = Quadratic(clients, d=2, seed=1), random_network(clients, seed=2), 0.3
    statistics = expected_statistics(net, jnp.float64)
    tables = network(net, jnp.float64).tables
    chance = np.asarray(tables.chance)
    one_step = np.array(list(itertools.product([False, True], repeat=chance.size))).reshape(-1, *chance.shape)
    odds = np.where(one_step, chance, 1 - chance).prod((1, 2))
    runs = np.array(list(itertools.product(range(len(one_step)), repeat=depth)))
    weights = odds[runs].prod(1)
    np.testing.assert_allclose(weights.sum(), 1)

    x = jnp.asarray(np.random.default_rng(5).normal(size=q.b.shape))
    settings = Settings("hgp", depth, rate, order=order)

    @jax.jit
    @jax.vmap
    def run(live):
        peers = GivenLinks(tables, live)
        key = jax.random.key(0)
        return estimate(
            peers,
            quadratic_inner,
            quadratic_outer,
            x,
            jnp.asarray(q.lam),
            jax.tree.map(jnp.asarray, q.data),
            key,
            settings,
            statistics,
        ).value

    values = np.asarray(run(jnp.asarray(one_step[runs])))
    mean = np.tensordot(weights, values, 1)

    P, w, d = mean_matrix(net, statistics), np.asarray(statistics.weight), 2
    u = (np.asarray(x) - q.goal) / w[:, None]
    expected = q.lam.copy()
    for _ in range(depth):
        a = P.T @ u  # P[j, i] = E p_{i->j}
        at = a if order == "before" else u
        expected -= rate * np.einsum("ild,id->il", q.C, at)
        u = a - rate / w[:, None] * np.einsum("ide,ie->id", q.H, at)
    assert d == q.b.shape[1]
    np.testing.assert_allclose(mean, expected, atol=1e-12)
    assert np.abs(values - expected).max() > 0.1  # a single run is noisy


def test_observed_frequencies_converge_to_the_expectations():
    """What clients count over many steps can replace the expectations."""
    net = random_network(3, seed=4)
    peers, exact = network(net, jnp.float64), expected_statistics(net, jnp.float64)

    @jax.jit
    def watch(key):
        def step(t, carry):
            mass, seen = carry
            return observe_push(peers, seen, mass, peers.links(jax.random.fold_in(key, t), t))

        return frequencies(peers.loop(20_000, step, (start(peers, jnp.zeros(3)), nothing_seen(peers)))[1])

    for counted, expected in zip(watch(jax.random.key(1)), exact, strict=True):
        np.testing.assert_allclose(counted, expected, atol=0.02)


def test_neumann_converges_geometrically_with_exact_averages():
    q = Quadratic()
    x = q.solution(q.lam)
    run = partial(hypergradient, QUADRATIC, x, q.lam, q.data, Graph.complete(5), estimator="neumann", damping=0.4)
    errors = [error(run(depth=depth, gossip=1, check=False).value, q.true(q.lam)) for depth in (5, 10, 15, 20)]
    rate = max(abs(1 - 0.4 * np.linalg.eigvalsh(q.H.mean(0)))) ** 5
    for before, after in itertools.pairwise(errors):
        assert after < 1.01 * rate * before


def test_neumann_on_a_random_network():
    """As exact as its averages; one step of gossip is not enough."""
    q = Quadratic()
    run = partial(hypergradient, QUADRATIC, q.solution(q.lam), q.lam, q.data, random_network(5), estimator="neumann")
    few, many = (error(run(damping=0.1, depth=100, gossip=s).value, q.true(q.lam)) for s in (1, 10))
    assert many < 1e-3
    assert few > 0.05


def test_tracking_is_exact_on_a_random_network():
    """One push per iteration, with new random links each time."""
    q = Quadratic(ridge=1.0)
    run = partial(hypergradient, QUADRATIC, q.solution(q.lam), q.lam, q.data, random_network(5))
    assert error(run(damping=0.2, depth=100, gossip=1).value, q.true(q.lam)) < 1e-8


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["directed ring", "schedule", "ring"])
def test_defaults_suit_sparse_networks(kind):
    q = Quadratic(6, ridge=1.0)
    forward = np.roll(np.eye(6), 1, 1)
    net = {
        "directed ring": Graph.from_probabilities(0.6 * forward),
        "schedule": Graph.from_schedule(np.stack([forward, forward.T])),
        "ring": Graph.from_adjacency(forward + forward.T),
    }[kind]
    result = hypergradient(QUADRATIC, q.solution(q.lam), q.lam, q.data, net, depth=200)
    assert error(result.value, q.true(q.lam)) < 1e-8
    assert gossip_steps(net, "tracking") > 1
    # With a single push the same damping is too much for the directed ring.
    if kind == "directed ring":
        with pytest.raises(CoterieError, match="grows"):
            hypergradient(QUADRATIC, q.solution(q.lam), q.lam, q.data, net, depth=200, gossip=1)


@pytest.mark.soak
def test_order_of_the_estimators_end_to_end():
    """Descend on lambda by each estimate; the outer cost reached: true = Neumann, S=5 < HGP, Neumann S=1 < local."""
    q, net, rate = Quadratic(seed=7), random_network(5), 0.1
    statistics = expected_statistics(net, jnp.float64)
    P, w = mean_matrix(net, statistics), np.asarray(statistics.weight)
    data = jax.tree.map(jnp.asarray, q.data)
    peers = network(net, jnp.float64)

    def reached(settings):
        @jax.jit
        def estimated(x, lam, key):
            return estimate(peers, quadratic_inner, quadratic_outer, x, lam, data, key, settings, statistics).value

        lam = np.zeros_like(q.lam)
        for step in range(40):
            if settings is None:
                v = q.true(lam)
            else:
                hgp = settings.estimator == "hgp"
                x = fixed_point(q, P, w, rate, "before", lam) if hgp else q.solution(lam)
                v = np.asarray(estimated(jnp.asarray(x), jnp.asarray(lam), jax.random.key(step)))
            lam = lam - 0.1 * v
        return q.cost(q.solution(lam), lam)

    costs = {
        "true": reached(None),
        "neumann 5": reached(Settings("neumann", 40, 0.3, 5)),
        "neumann 1": reached(Settings("neumann", 40, 0.3, 1)),
        "hgp": reached(Settings("hgp", 100, rate)),
        "local": reached(Settings("local", 0, 0.0)),
    }
    start_cost = q.cost(q.solution(0 * q.lam), 0 * q.lam)
    gain = start_cost - costs["true"]
    assert abs(costs["neumann 5"] - costs["true"]) < 0.01 * gain
    for rough in ("hgp", "neumann 1"):
        assert costs["neumann 5"] < costs[rough] < costs["local"]


# -- the cost of an iteration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "passes"), [("hgp", 6), ("neumann", 6), ("tracking", 6), ("local", 0)])
def test_one_hessian_vector_product_per_iteration(estimator, passes):
    """Count how often a client's inner loss is evaluated in a run: once per iteration."""
    q, calls = Quadratic(4), []

    def counted(x, lam, data, key):
        jax.debug.callback(lambda _: calls.append(1), data["b"])
        return quadratic_inner(x, lam, data, key)

    peers = network(Graph.complete(4), jnp.float64)
    statistics = expected_statistics(Graph.complete(4), jnp.float64)
    x, lam, data = jax.tree.map(jnp.asarray, (q.solution(q.lam), q.lam, q.data))
    settings = Settings(estimator, 6, 0.1, 2)

    @jax.jit
    def run(x, lam, data):
        return estimate(peers, counted, quadratic_outer, x, lam, data, jax.random.key(0), settings, statistics).value

    jax.block_until_ready(run(x, lam, data))
    jax.effects_barrier()
    assert len(calls) == passes * 4


@pytest.mark.parametrize(("estimator", "messages", "floats"), [("hgp", 1, 3), ("neumann", 5, 4), ("tracking", 2, 7)])
def test_messages_are_counted(estimator, messages, floats):
    """HGP sends d floats per link and iteration, push-sum d + 1, tracking 2 d + 1."""
    q, graph, depth = Quadratic(), Graph.complete(5), 3
    statistics = expected_statistics(graph, jnp.float64)
    tables = network(graph, jnp.float64).tables
    x, lam, data = jax.tree.map(jnp.asarray, (q.solution(q.lam), q.lam, q.data))
    settings = Settings(estimator, depth, 0.1, messages)

    @jax.jit
    def run(key):
        peers = LocalPeers(tables, Plan("exact"))
        value = estimate(peers, quadratic_inner, quadratic_outer, x, lam, data, key, settings, statistics).value
        return value, peers.traffic()

    value, traffic = run(jax.random.key(0))
    sent = on_host(traffic)
    assert (sent.heard_messages == depth * messages).all()
    frame = sent.heard_bytes / sent.heard_messages - 8 * floats
    assert (frame == frame[0, 0]).all()  # the header and the shapes
    assert 0 < frame[0, 0] < 100
    fast = hypergradient(
        QUADRATIC, x, lam, data, graph, estimator=estimator, depth=depth, damping=0.1, gossip=messages, check=False
    )
    np.testing.assert_allclose(value, fast.value, rtol=1e-9)


def test_every_iteration_has_a_new_minibatch():
    """With random Hessians 0 or 2 the mean over keys is that of their mean, 1, only if every draw is new."""
    problem = Problem(
        lambda x, lam, data, key: jnp.where(jax.random.bernoulli(key), 1.0, 0.0) * x**2 + lam * x,
        lambda x, lam, data: x,
    )
    peers = network(Graph.complete(2), jnp.float64)
    settings = Settings("neumann", 6, 0.5, 1)

    @jax.jit
    @jax.vmap
    def run(key):
        return estimate(peers, problem.inner, problem.outer, jnp.ones(2), jnp.zeros(2), (), key, settings).value

    result = np.asarray(run(jax.random.split(jax.random.key(0), 20_000)))
    assert result.std() > 0.1
    np.testing.assert_allclose(result.mean(0), -(1 - 0.5**6), atol=5 * result.std() / np.sqrt(20_000))


def test_safe_damping_is_that_of_the_most_curved():
    q = Quadratic(4, seed=2)
    peers = network(Graph.complete(4), jnp.float64)
    x, lam, data = jax.tree.map(jnp.asarray, (q.solution(q.lam), q.lam, q.data))
    result = safe_damping(peers, quadratic_inner, x, lam, data, jax.random.key(0))
    np.testing.assert_allclose(1 / result, np.linalg.eigvalsh(q.H).max(), rtol=0.05)


# -- bad input ------------------------------------------------------------------------------------------------------


def asked(q=None, net=None, problem=QUADRATIC, **settings):
    q = q or Quadratic()
    x = settings.pop("x") if "x" in settings else q.solution(q.lam)
    lam = settings.pop("lam", q.lam)
    return hypergradient(problem, x, lam, q.data, net or Graph.complete(q.clients), **settings)


def test_curvature_of_the_average():
    q = Quadratic()
    values = np.linalg.eigvalsh(q.H.mean(0))
    x, lam, data = jax.tree.map(jnp.asarray, (q.solution(q.lam), q.lam, q.data))
    result = check_curvature(quadratic_inner, x, lam, data, jax.random.key(0))
    np.testing.assert_allclose(result, values[[0, -1]], rtol=1e-9)


@pytest.mark.parametrize("estimator", ["tracking", "neumann", "hgp"])
def test_flat_direction(estimator):
    q = Quadratic()
    q.H[:, 2, :] = q.H[:, :, 2] = 0  # no loss depends on the third parameter
    with pytest.raises(CoterieError, match=r"singular.*flat in some direction.*add weight decay"):
        asked(q, x=np.zeros((5, 3)), estimator=estimator, damping=0.1)


def test_losses_that_are_linear_are_flat_everywhere():
    q = Quadratic()
    q.H[:] = 0
    with pytest.raises(CoterieError, match=r"singular \(its smallest eigenvalue is 0, its largest 0\)"):
        asked(q, x=np.zeros((5, 3)))


def test_flat_for_some_is_no_error():
    q = Quadratic()
    q.H[0] = 0
    assert error(asked(q, depth=300).value, q.true(q.lam)) < 1e-8


def test_indefinite_hessian_names_the_client():
    q = Quadratic()
    q.H[3] -= 20 * np.eye(3)
    with pytest.raises(CoterieError, match=r"indefinite.*client 3.*weight decay"):
        asked(q)


def test_a_series_that_has_not_converged():
    q = Quadratic()
    with pytest.raises(CoterieError, match=r"after depth = 2 iterations the residual .* of its start"):
        asked(q, depth=2, damping=0.01)
    assert np.isfinite(asked(q, depth=2, damping=0.01, check=False).value).all()


def test_client_without_listener():
    hears = np.ones((5, 5))
    hears[:, 2] = 0
    with pytest.raises(CoterieError, match="client 2 has no listener"):
        asked(net=Graph.from_adjacency(hears))


def test_two_components():
    apart = np.kron(np.eye(2), np.ones((2, 2)))
    with pytest.raises(CoterieError, match="2 components"):
        asked(Quadratic(4), net=Graph.from_adjacency(apart))


def test_hgp_needs_links_both_ways():
    ring = Graph.from_adjacency(np.roll(np.eye(5), 1, 1))
    with pytest.raises(CoterieError, match="hgp also sends against the direction of links"):
        asked(net=ring, estimator="hgp", damping=0.1)
    with pytest.raises(CoterieError, match="hgp also sends against the direction of links"):
        expected_statistics(ring)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"damping": 5.0}, "damping must lie between 0 and 2 / .*Lanczos.*not 5"),
        ({"damping": -1.0}, "damping must be 'auto' or a number greater than 0"),
        ({"damping": "big"}, "damping must be 'auto'"),
        ({"damping": None}, "damping must be 'auto'"),
        ({"net": RandomDirected()}, r"network must be a Graph, such as RandomDirected\(\)\.build\(clients\)"),
        ({"estimator": "hgp"}, "hgp needs damping: give the learning rate"),
        ({"estimator": "hgp", "damping": 50.0}, "the hgp iteration grows"),
        ({"estimator": "magic"}, "estimator must be one of hgp, neumann"),
        ({"order": "first"}, "order must be one of before, after, authors"),
        ({"depth": -1}, "depth must be an integer of at least 0"),
        ({"gossip": 0}, "gossip must be an integer of at least 1"),
        ({"x": np.zeros((4, 3))}, "x must have one row for each of 5 clients"),
        ({"lam": np.zeros((5, 2), int)}, "lam must hold floating-point numbers"),
        ({"lam": ()}, "lam must contain at least one array"),
        ({"problem": Problem(lambda x, lam, data, key: x, quadratic_outer)}, "inner.* must return one number"),
        ({"problem": Problem(quadratic_inner, lambda x, lam, data: x)}, "outer.* must return one number"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(CoterieError, match=words):
        asked(**settings)


def test_hessian_that_is_not_finite():
    problem = Problem(lambda x, lam, data, key: jnp.sqrt(x @ x) + lam @ data["C"] @ x, quadratic_outer)
    with pytest.raises(CoterieError, match="not finite at x"):
        asked(problem=problem, x=np.zeros((5, 3)))


def test_reverse_mode_only():
    @jax.custom_vjp
    def norm(x):
        return x @ x

    norm.defvjp(lambda x: (x @ x, x), lambda x, g: (2 * g * x,))
    problem = Problem(lambda x, lam, data, key: norm(x) + lam @ data["C"] @ x, quadratic_outer)
    with pytest.raises(CoterieError, match="differentiable in forward mode"):
        asked(problem=problem)
