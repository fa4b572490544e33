"""SPD, D2 and GNSD: their recursions by hand, exact convergence where gossip is biased, and common mistakes.

The wrong versions (a start that loses the first gradient, an annealed difference of gradients, a newly drawn gradient)
are implemented here: the tests show by how much they fail.
"""

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

from coterie.consensus.primal_dual import Memory
from coterie.data.clients import Federation, Split
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import laplacian, lazy_metropolis, weight_matrix
from coterie.graphs.topologies import ErdosRenyi, Ring
from coterie.learning.task import Variables
from coterie.methods import D2, GNSD, SPD, GossipSGD
from coterie.methods.base import method
from coterie.numerics import tree
from support.cases import Weights, run, training
from support.graph_cases import step_size_bound

pytestmark = pytest.mark.usefixtures("x64")

FULL = {"batch_size": 0, "steps": 1}
EXACT = [SPD, D2, GNSD]


def scalars(x, y):
    """One client for each row of x and y `[K, n]`, with one feature: F_i(w) = mean (x w - y)^2 / 2."""
    x, y = np.asarray(x, float)[:, :, None], np.asarray(y, float)
    split = Split(x, y, np.full(len(x), x.shape[1], np.int32))
    return Federation(tuple(f"client-{i}" for i in range(len(x))), split, split, split, kind="regression", classes=1)


def state_at(started, start):
    """Return the state before the first round with the models `start [K]` and the method's memory of them."""
    state, _ = started.init()
    variables = Variables(Weights(jnp.asarray(start, float)[:, None, None]))
    memory = jax.tree.map(jnp.copy, started.method.remember(variables.params))  # buffers are donated, each once
    return state._replace(variables=variables, memory=memory)


@pytest.mark.parametrize(
    ("cls", "second"), [(SPD, [1.23, 1.15]), (D2, [1.294, 1.086]), (GNSD, [1.07, 1.31])], ids=["spd", "d2", "gnsd"]
)
def test_two_rounds_by_hand(device, cls, second):
    """W = [[.6, .4], [.4, .6]], f_i = (x - c_i)^2 / 2, c = (1, 3), x^0 = (0, 2), eta = .1: g^0 = (-1, -1).

    All: x^1 = W x^0 + .1 = (.9, 1.3), where g^1 = (-.1, -1.7) and eta (g^1 - g^0) = (.09, -.07).
    SPD: 2 x^1 - x^0 = (1.8, .6), W of it (1.32, 1.08), minus (.09, -.07): (1.23, 1.15).
    D2: (1.8, .6) - (.09, -.07) = (1.71, .67), W of it (1.294, 1.086).
    GNSD: t^1 = W (-1, -1) + g^1 - g^0 = (-.1, -1.7); x^2 = W x^1 - .1 t^1 = (1.06, 1.14) + (.01, .17) = (1.07, 1.31).
    """
    pair = Graph.from_edges([0, 1], [1, 0], 2)
    started = training(scalars([[1], [1]], [[1], [3]]), cls(lr=0.1, **FULL), device, pair, np.array([[0.4], [0.4]]))
    state, models = run(started, 1, state_at(started, [0, 2]))
    np.testing.assert_allclose(models[:, 0], [0.9, 1.3], rtol=1e-14)
    state, models = run(started, 1, state, 2)
    np.testing.assert_allclose(models[:, 0], second, rtol=1e-14)
    if cls is GNSD:
        np.testing.assert_allclose(state.memory.before.w[:, 0, 0], 0.1 * np.array([-0.1, -1.7]), rtol=1e-14)
    _, models = run(started, 600, state, 3)
    np.testing.assert_allclose(models[:, 0], [2, 2], rtol=1e-12)


class Problem:
    """Eight clients on a ring with quadratics a_i x^2 / 2 - b_i x whose minima are far apart."""

    def __init__(self):
        random = np.random.default_rng(4)
        self.federation = scalars(
            random.uniform(0.5, 1.5, (8, 3)), random.normal(0, 1, (8, 3)) + 8 * np.arange(8)[:, None]
        )
        x, y = self.federation.train.x[:, :, 0], self.federation.train.y
        self.a, self.b = (x * x).mean(1), (x * y).mean(1)
        self.optimum = self.b.sum() / self.a.sum()
        self.graph = Ring(reach=1).build(8, 0)
        self.slots, own = lazy_metropolis(self.graph)
        self.W = weight_matrix(self.slots, own, self.graph).toarray()

    def gradient(self, x):
        return self.a * x - self.b

    def training(self, method, device):
        return training(self.federation, method, device, self.graph, self.slots)

    def spd(self, rounds, step, before):
        """Run the recursion in NumPy: `step(r, x, old)` is subtracted in round r, given x^r and x^{r-1}."""
        x = old = np.zeros(8)
        for r in range(rounds):
            x, old = self.W @ (2 * x - old) - step(r, x, before if r == 0 else old), x
        return x


@pytest.fixture(scope="module")
def problem():
    return Problem()


@pytest.mark.parametrize("cls", EXACT)
def test_corrected_gossip_converges_to_the_minimiser_of_the_sum(problem, device, cls):
    _, models = run(problem.training(cls(lr=0.1, **FULL), device), 3000)
    assert np.abs(models[:, 0] - problem.optimum).max() < 1e-9


def test_plain_gossip_does_not(problem, device):
    _, models = run(problem.training(GossipSGD(lr=0.1, order="mix-and-step", **FULL), device), 3000)
    assert np.abs(models[:, 0] - problem.optimum).max() > 0.5


def test_a_start_with_a_step_that_was_never_taken_converges_elsewhere(problem, device):
    """s^{-1} = s^0 instead of 0 loses the first gradient for ever; the method's memory begins with 0."""
    g, zero = problem.gradient, np.zeros(8)
    wrong = problem.spd(3000, lambda r, x, old: 0.1 * (g(x) - g(old)), before=zero)
    right = problem.spd(3000, lambda r, x, old: 0.1 * (g(x) - (0 if r == 0 else g(old))), before=zero)
    assert np.abs(wrong - problem.optimum).max() > 1
    assert np.abs(right - problem.optimum).max() < 1e-9
    started = problem.training(SPD(lr=0.1, **FULL), device)
    state, _ = started.init()
    lost = Memory(state.memory.before, Weights(jnp.asarray(0.1 * g(zero))[:, None, None]))
    _, models = run(started, 3000, state._replace(memory=lost))
    np.testing.assert_allclose(models[:, 0], wrong, atol=1e-12)  # it stays at its start, where all agree


def test_eliminating_the_multipliers_changes_nothing(device):
    """x^{r+1} = x^r - s^r - (A' lambda^r + rho A'A x^r) / tau with lambda^r = lambda^{r-1} + rho A x^r, lambda^0 = 0:
    the primal-dual method with one multiplier per edge, A the incidence matrix."""
    rho, tau, rate = 0.3, 2.5, 0.08
    graph = ErdosRenyi(probability=0.5).build(7, 3)
    pairs = sorted({tuple(sorted(edge)) for edge in graph.to_networkx().edges})
    A = networkx.incidence_matrix(networkx.Graph(pairs), nodelist=range(7), oriented=True).toarray().T
    assert A.shape == (len(pairs), 7)
    random = np.random.default_rng(0)
    federation = scalars(random.normal(1, 0.3, (7, 4)), random.normal(0, 3, (7, 4)))
    x_data, y_data = federation.train.x[:, :, 0], federation.train.y
    a, b = (x_data**2).mean(1), (x_data * y_data).mean(1)
    start = random.normal(size=7)
    started = training(federation, SPD(lr=rate, **FULL), device, graph, laplacian(graph, step=rho / tau)[0])
    x, multipliers, state = start, np.zeros(len(pairs)), state_at(started, start)
    for r in range(40):
        multipliers = multipliers + (rho * A @ x if r else 0)
        x = x - rate * (a * x - b) - (A.T @ multipliers + rho * A.T @ A @ x) / tau
        state, models = run(started, 1, state, r + 1)
        np.testing.assert_allclose(models[:, 0], x, atol=1e-12)


def growth(started, w):
    """Return the asymptotic growth factor of the disagreement of two clients, when W has the eigenvalue w.

    It obeys u_{r+1} = p u_r + q u_{r-1}; six rounds give p and q, and the factor is the larger root of t^2 = p t + q.
    """
    again = Training(started.engine, started.method, started.graph, np.full((2, 1), (1 - w) / 2), 1)
    state, path = state_at(again, [1, -1]), []
    for r in range(6):
        state, models = run(again, 1, state, r + 1)
        path.append(models[0, 0])
    p, q = np.linalg.solve([[path[3], path[2]], [path[4], path[3]]], path[4:])
    return np.abs(np.roots([1, -p, -q])).max()


@pytest.mark.parametrize("cls", [SPD, D2], ids=["spd", "d2"])
def test_disagreement_grows_with_the_larger_root(device, cls):
    """SPD: t^2 - (2w - a) t + (w - a) = 0; D2: t^2 - w (2 - a) t + w (1 - a) = 0, a = learning rate x curvature."""
    pair = Graph.from_edges([0, 1], [1, 0], 2)
    rate = 0.05
    started = training(scalars([[1], [1]], [[0], [0]]), cls(lr=rate, **FULL), device, pair, np.array([[0.4], [0.4]]))
    for w in (-0.31, -0.4, 0.02, 0.6):
        terms = [1, -(2 * w - rate), w - rate] if cls is SPD else [1, -w * (2 - rate), w * (1 - rate)]
        expected = np.abs(np.roots(terms)).max()
        assert growth(started, w) == pytest.approx(expected, rel=1e-9)
        assert (expected < 1) == (w > -1 / 3 and (cls is D2 or rate < step_size_bound(w)))


def test_without_curvature_minus_a_third_is_the_limit(device):
    """Inputs of zero have no gradient: |t| = .9925 at w = -.33, 1 at -1/3, 1.015 at -.34."""
    pair = Graph.from_edges([0, 1], [1, 0], 2)
    started = training(scalars([[0], [0]], [[0], [0]]), SPD(lr=0.1, **FULL), device, pair, np.array([[0.4], [0.4]]))
    for w, modulus in [(-0.33, 0.9925), (-1 / 3, 1.0), (-0.34, 1.015)]:
        assert growth(started, w) == pytest.approx(modulus, abs=1e-3)


@pytest.mark.soak
def test_annealing_keeps_the_answer(problem, device):
    """eta_r g^r - eta_{r-1} g^{r-1}, not eta_r (g^r - g^{r-1}), which drifts when eta changes."""
    rates = [0.1] * 20 + [0.05] * 4000
    g, zero = problem.gradient, np.zeros(8)
    wrong = problem.spd(4000, lambda r, x, old: rates[r] * (g(x) - (0 if r == 0 else g(old))), before=zero)
    right = problem.spd(4000, lambda r, x, old: rates[r] * g(x) - (0 if r == 0 else rates[r - 1] * g(old)), before=zero)
    assert np.abs(wrong - problem.optimum).max() > 1e-3
    assert np.abs(right - problem.optimum).max() < 1e-9
    annealed = {"decay": 0.5, "decay_after": 20, "decay_every": 10_000, **FULL}
    for cls in EXACT:
        _, models = run(problem.training(cls(lr=0.1, **annealed), device), 4000)
        assert np.abs(models[:, 0] - problem.optimum).max() < 1e-9


@method
class Resampled(SPD):
    """The wrong version: s^{r-1} is computed again, with another minibatch, instead of remembered."""

    def round(self, task, state, peers, clients, key):
        before = state.variables._replace(params=state.memory.before)
        again = peers.each(
            lambda v, c, k: self.train(task, v, c.train, k).variables.params,
            before,
            clients,
            peers.keys(jax.random.fold_in(key, 1)),
        )
        fresh = tree.minus(before.params, again)
        first = jax.tree.leaves(state.memory.step)[0] == 0  # the start is right
        step = jax.tree.map(lambda a: jnp.where(first, 0, a), fresh)
        return super().round(task, state._replace(memory=Memory(state.memory.before, step)), peers, clients, key)


@pytest.mark.soak
def test_the_subtracted_step_is_the_one_that_was_taken(problem, device):
    """With minibatches of one sample the right version stays near the optimum; the wrong one is a random walk."""
    errors = {}
    for cls in (SPD, Resampled):
        started = problem.training(cls(lr=0.02, batch_size=1, steps=1), device)
        state, _ = run(started, 1500)
        distances = []
        for block in range(10):
            state, models = run(started, 150, state, 1501 + 150 * block)
            distances.append(models[:, 0].mean() - problem.optimum)
        errors[cls] = np.sqrt(np.mean(np.square(distances)))
    assert errors[Resampled] / errors[SPD] > 50


def test_several_local_steps_make_one_step_of_their_sum(problem, device):
    """Three full gradient steps per round, against NumPy: s^r is their sum."""
    _, models = run(problem.training(SPD(lr=0.05, batch_size=0, steps=3), device), 12)
    x = old = step = np.zeros(8)
    for _ in range(12):
        after = x
        for _ in range(3):
            after = after - 0.05 * problem.gradient(after)
        x, old, step = problem.W @ (2 * x - old) - ((x - after) - step), x, x - after
    np.testing.assert_allclose(models[:, 0], x, rtol=1e-11)


def test_messages_contain_one_model_and_for_gnsd_two(problem, device):
    """A scalar of 8 bytes after a header of 48."""
    for cls, floats in ((SPD, 1), (D2, 1), (GNSD, 2)):
        started = problem.training(cls(lr=0.1, **FULL), device)
        _, block = started.advance(started.init()[0], 1, 2)
        assert (np.asarray(block.traffic.heard_messages) == problem.graph.present).all()
        assert (np.asarray(block.traffic.heard_bytes) == (48 + 8 * floats) * problem.graph.present).all()
