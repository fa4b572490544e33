"""The mathematics of known clusters (Lyu, Hanzely and Kolar 2022), against minimisation, enumeration and simulation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.methods.shared.known_clusters import count, draw_exchanges, start_counting
from coterie.numerics.cluster_odds import (
    ClusterRounds,
    Odds,
    best_p_between,
    best_p_within,
    best_tau,
    expected_smoothness,
    oracle,
    pull_to_all,
    smallest_smoothness,
)
from coterie.numerics.curvature import extreme_curvature, lanczos

pytestmark = pytest.mark.usefixtures("x64")


def chosen(far, near, smoothness):
    """Return the best probabilities for C_1 = far, B = near `[G]`, L: p_0, p `[G]`, and the constant."""
    near = jnp.asarray(near, float)
    p = best_p_between(far, near.max(), smoothness)
    constant = smallest_smoothness(p, far, near.max(), smoothness)
    return p, best_p_within(p, near, constant), constant


def test_by_hand():
    """C_1 = 1, C_2 = 3, L = 2: V = 6, p_0 = 1/3, p_j = 1/2, tau = 1/3; every term of (3.3) is then 6."""
    p, q, constant = chosen(1.0, [3.0], 2.0)
    np.testing.assert_allclose([p, q[0], constant, best_tau(p, q)[0]], [1 / 3, 1 / 2, 6, 1 / 3], rtol=1e-14)
    np.testing.assert_allclose([2 * 1 / p, 2 * 3 / (p + 2 * (1 - p) / 2), 2 / ((1 - p) / 2)], 6, rtol=1e-14)
    p, q, constant = chosen(3.0, [2.0], 2.0)  # C_2 <= C_1: no cluster iterations
    np.testing.assert_allclose([p, q[0], constant, best_tau(p, q)[0]], [6 / 8, 0, 8, 1], rtol=1e-14)


positive = st.floats(0.05, 20)


@settings(max_examples=40, deadline=None)
@given(positive, st.lists(positive, min_size=1, max_size=3), positive)
def test_the_closed_form_is_the_smallest_constant(far, near, smoothness):
    """No point of a grid of probabilities has a smaller constant (3.3), and the chosen one has the predicted one."""
    with jax.enable_x64(True):
        p, q, constant = chosen(far, near, smoothness)
        promised = 2 * far + smoothness + max(0.0, max(near) - far)
        np.testing.assert_allclose(constant, promised, rtol=1e-12)
        reached = expected_smoothness(p, q, far, jnp.asarray(near), smoothness)
        np.testing.assert_allclose(reached.max(), promised, rtol=1e-12)
        grid = jnp.linspace(0.01, 0.99, 60)
        # Clusters do not interact once p_0 is fixed: the best p_j of each, then the largest over clusters.
        table = expected_smoothness(grid[:, None, None], grid, far, jnp.asarray(near)[:, None], smoothness)
        assert table.min(2).max(1).min() >= promised * (1 - 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 0.99), positive, positive, positive)
def test_the_best_cluster_probability_for_a_given_global_one(p, far, near, smoothness):
    with jax.enable_x64(True):
        constant = smallest_smoothness(p, far, near, smoothness)
        q = best_p_within(p, near, constant)
        np.testing.assert_allclose(expected_smoothness(p, q, far, near, smoothness), constant, rtol=1e-10)
        others = expected_smoothness(p, jnp.linspace(0, 0.999, 500), far, near, smoothness)
        assert others.min() >= constant * (1 - 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_tau_is_the_best_share(p, q):
    """2 tau^2 / p_0 + (1 - tau)^2 / ((1 - p_0) p_j) has its minimum 2 / (p_0 + 2 (1 - p_0) p_j) there."""
    with jax.enable_x64(True):

        def noise(tau):
            return 2 * tau**2 / p + (1 - tau) ** 2 / ((1 - p) * q)

        tau = best_tau(p, q)
        np.testing.assert_allclose(noise(tau), 2 / (p + 2 * (1 - p) * q), rtol=1e-12)
        assert noise(np.linspace(0, 1, 400)).min() >= noise(tau) * (1 - 1e-12)
        # Any other tau gives a larger constant, which the step size depends on.
        for given in (tau, 0.0, 0.3, 1.0):
            np.testing.assert_allclose(expected_smoothness(p, q, 0.0, 5.0, 0.0, given), 5 * noise(given), rtol=1e-12)


class Problem:
    """Quadratics f_i = theta' H_i theta / 2 - b_i' theta of clients in clusters of unequal size, all in NumPy."""

    def __init__(self, label, tie, cluster_tie, dimension=3, seed=0):
        random = np.random.default_rng(seed)
        self.label, self.tie, self.cluster_tie = np.asarray(label), tie, cluster_tie
        self.size = np.bincount(self.label)
        self.to_all = np.asarray(pull_to_all(cluster_tie, tie * self.size))  # a_j
        factor = random.normal(size=(len(label), dimension, dimension))
        self.H, self.b = (
            factor @ factor.transpose(0, 2, 1) + np.eye(dimension),
            random.normal(size=(len(label), dimension)),
        )
        self.theta = random.normal(size=(len(label), dimension))

    def means(self, theta):
        """Return the clusters' means `[G, d]` and the mean over all of them."""
        near = np.stack([theta[self.label == j].mean(0) for j in range(len(self.size))])
        mass = self.to_all * self.tie * self.size
        return near, mass @ near / mass.sum()

    def losses(self, theta):
        return np.einsum("kd,kde,ke->", theta, self.H, theta) / 2 - (self.b * theta).sum()

    def gradients(self, theta):
        return np.einsum("kde,ke->kd", self.H, theta) - self.b

    def penalised(self, theta):
        """Return (2.1)."""
        near, far = self.means(theta)
        a = self.to_all[self.label]
        apart = (1 - a) * ((theta - near[self.label]) ** 2).sum(1) + a * ((theta - far) ** 2).sum(1)
        return self.losses(theta) + self.tie / 2 * apart.sum()

    def hierarchical(self, theta, centres, root):
        """Return (2.3)."""
        ties = self.tie / 2 * ((theta - centres[self.label]) ** 2).sum()
        return self.losses(theta) + ties + self.cluster_tie / 2 * ((centres - root) ** 2).sum()

    def slope(self, theta):
        """Return grad F of (2.1)."""
        near, far = self.means(theta)
        a = self.to_all[self.label][:, None]
        pulls = a * (theta - far) + (1 - a) * (theta - near[self.label])
        return self.gradients(theta) + self.tie * pulls


LABEL = [0, 0, 0, 1, 1, 2]


def test_the_objective_is_the_hierarchical_models_minimum():
    """min over w, wbar of (2.3) is (2.1), at w_j = a_j thb + (1 - a_j) thb_j and wbar = thb, for any theta."""
    problem = Problem(LABEL, tie=0.7, cluster_tie=1.3)
    theta = problem.theta
    near, far = problem.means(theta)
    a = problem.to_all[:, None]
    centres = a * far + (1 - a) * near
    np.testing.assert_allclose(problem.hierarchical(theta, centres, far), problem.penalised(theta), rtol=1e-14)
    # The normal equations of (2.3) in (w, wbar).
    size, tie, lam, groups = problem.size, 0.7, 1.3, len(problem.size)
    matrix = np.zeros((groups + 1, groups + 1))
    matrix[:groups, :groups] = np.diag(tie * size + lam)
    matrix[:groups, groups] = matrix[groups, :groups] = -lam
    matrix[groups, groups] = groups * lam
    right = np.concatenate([tie * size[:, None] * near, np.zeros((1, 3))])
    solved = np.linalg.solve(matrix, right)
    np.testing.assert_allclose(np.concatenate([centres, far[None]]), solved, rtol=1e-12)


def test_the_gradient_of_the_objective():
    """grad_i F = grad f_i + a_j gamma (theta_i - thb) + (1 - a_j) gamma (theta_i - thb_j): a central difference of a
    quadratic is exact up to rounding."""
    problem = Problem(LABEL, tie=0.7, cluster_tie=1.3)
    step = 1e-3
    for k, d in itertools.product(range(6), range(3)):
        shift = np.zeros((6, 3))
        shift[k, d] = step
        change = problem.penalised(problem.theta + shift) - problem.penalised(problem.theta - shift)
        np.testing.assert_allclose(problem.slope(problem.theta)[k, d], change / (2 * step), rtol=1e-9, atol=1e-10)


def outcomes(p, q):
    """Yield every outcome of the random choices: its probability and the kind of iteration of each cluster `[G]`."""
    yield p, np.full(len(q), 2)
    for kinds in itertools.product((0, 1), repeat=len(q)):
        chance = (1 - p) * np.prod([q[j] if alone else 1 - q[j] for j, alone in enumerate(kinds)])
        yield chance, np.array(kinds)


def estimate(problem, odds, kind, theta, printed=False):
    """Return the estimate of grad F at theta for one outcome; as printed in (4.1), a global iteration lacks tau."""
    factors = oracle(odds, problem.tie, jnp.asarray(kind[problem.label]))
    near, far = problem.means(theta)
    to_near = np.asarray(factors.near)[:, None] * (theta - near[problem.label])
    if printed:
        to_near = to_near * (kind[problem.label] == 1)[:, None]
    to_far = np.asarray(factors.far)[:, None] * (theta - far)
    return to_far + to_near + np.asarray(factors.own)[:, None] * problem.gradients(theta)


@pytest.mark.parametrize("q", [(0.5, 0.2, 0.0), (0.3, 0.3, 0.3)])
def test_the_oracle_is_unbiased_and_the_printed_one_is_not(q):
    problem = Problem(LABEL, tie=0.7, cluster_tie=1.3)
    p, label = 0.3, problem.label
    q = np.array(q)
    tau = np.asarray(best_tau(p, q))
    odds = Odds(np.full(6, p), q[label], tau[label], problem.to_all[label])
    result = sum(chance * estimate(problem, odds, kind, problem.theta) for chance, kind in outcomes(p, q))
    np.testing.assert_allclose(result, problem.slope(problem.theta), rtol=1e-12, atol=1e-12)
    printed = sum(chance * estimate(problem, odds, kind, problem.theta, True) for chance, kind in outcomes(p, q))
    assert np.abs(printed - problem.slope(problem.theta)).max() > 0.05


def cluster_rounds(kinds):
    """Count the rounds of every cluster from the `kinds [T, G]` of all iterations (0 local, 1 cluster, 2 global)."""
    before = np.concatenate([np.zeros((1, *kinds.shape[1:])), kinds[:-1]])
    all_clusters, alone = kinds == 2, kinds == 1
    runs = (all_clusters & (before != 2)).sum(0), (alone & (before == 0)).sum(0)
    return ClusterRounds(all_clusters.sum(0), runs[0], alone.sum(0), runs[1])


def expected_rounds(p, q, iterations):
    """Return p_0 T, p_0 + p_0 (1 - p_0)(T - 1), (1 - p_0) p_j T and, for cluster iterations after a local one,
    (1 - p_0) p_j + (1 - p_0)^2 p_j (1 - p_j)(T - 1)."""
    more = iterations - 1
    alone = (1 - p) * q
    return p * iterations, p + p * (1 - p) * more, alone * iterations, alone + (1 - p) * alone * (1 - q) * more


def test_rounds_of_communication():
    """p_0 = .3, p_j = .4 over 200,000 iterations: rates .3, .21, .28 and (1 - p_0)^2 p_j (1 - p_j) = .1176; the
    printed (1 - p_0) p_j (1 - p_j) = .168 is the count after deleting the global iterations."""
    T, p, q = 200_000, 0.3, 0.4
    label = jnp.arange(2)
    odds = Odds(jnp.full(2, p), jnp.full(2, q), None, None)
    keys = jax.vmap(lambda t: jax.random.fold_in(jax.random.key(0), t))(jnp.arange(T))
    everyone, cluster = jax.jit(jax.vmap(lambda key: draw_exchanges(odds, label, key)))(keys)
    kinds = np.where(np.asarray(everyone)[:, None], 2, np.asarray(cluster).astype(int))
    result = np.stack(cluster_rounds(kinds)) / T  # [4, G]
    np.testing.assert_allclose(result, np.array([[0.3], [0.21], [0.28], [0.1176]]) * np.ones(2), atol=0.003)
    np.testing.assert_allclose(result[:, 0], np.stack(expected_rounds(p, q, T)) / T, atol=0.003)
    without = kinds[kinds[:, 0] != 2, :1]
    np.testing.assert_allclose(cluster_rounds(without).within_runs / T, 0.168, atol=0.003)
    # The counters of the methods count the same, iteration by iteration.
    counted = jax.lax.fori_loop(0, 1000, lambda t, c: count(c, jnp.asarray(kinds, jnp.int32)[t]), start_counting(2))
    np.testing.assert_array_equal(np.stack(counted.rounds), np.stack(cluster_rounds(kinds[:1000])))
    assert abs(np.corrcoef(kinds[:, 0] == 1, kinds[:, 1] == 1)[0, 1] - 0.28 * (0.4 - 0.28) / (0.28 * 0.72)) < 0.02


def test_rounds_by_hand():
    """local, cluster, cluster, global, global, cluster, local, global: 3 global in 2 runs; 3 alone, 1 after a local."""
    result = cluster_rounds(np.array([0, 1, 1, 2, 2, 1, 0, 2])[:, None])
    assert result == ClusterRounds([3], [2], [3], [1])


@pytest.mark.parametrize(("rank", "size"), [(12, 12), (4, 12), (1, 1), (0, 5)])
def test_lanczos_finds_both_ends(rank, size):
    """Exact with as many steps as dimensions, also when the space is exhausted before."""
    random = np.random.default_rng(rank)
    vectors = np.linalg.qr(random.normal(size=(size, size)))[0]
    values = np.where(np.arange(size) < rank, random.normal(size=size) * 3, 0)
    matrix = jnp.asarray(vectors * values @ vectors.T)
    low, high = lanczos(lambda v: matrix @ v, jnp.asarray(random.normal(size=size)), size)
    np.testing.assert_allclose([low, high], [values.min(), values.max()], atol=1e-10)


def test_curvature_of_a_least_squares_loss():
    """The Hessian of |A w - y|^2 / 2 is A'A: 40 parameters in two leaves, 20 products with vectors."""
    random = np.random.default_rng(0)
    A, y = random.normal(size=(80, 40)), random.normal(size=80)

    def gradient(w):
        flat = jnp.concatenate([w["a"].ravel(), w["b"]])
        g = A.T @ (A @ flat - y)
        return {"a": g[:30].reshape(5, 6), "b": g[30:]}

    at = {"a": jnp.ones((5, 6)), "b": jnp.zeros(10)}
    low, high = extreme_curvature(gradient, at, jax.random.key(0))
    values = np.linalg.eigvalsh(A.T @ A)
    np.testing.assert_allclose([low, high], values[[0, -1]], rtol=0.05)
    assert values[0] <= low * (1 + 1e-9)
    assert high <= values[-1] * (1 + 1e-9)
