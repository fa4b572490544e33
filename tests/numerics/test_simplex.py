"""The two small quadratic programs against SciPy's solvers, optimality conditions, and cases by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.numerics.simplex import nonnegative_qp, project_simplex

project = jax.jit(project_simplex)
solve = jax.jit(nonnegative_qp)
SIZE = 5  # one shape, one compilation
numbers = st.lists(st.floats(-1e3, 1e3), min_size=SIZE, max_size=SIZE)
flags = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)


def test_projection_by_hand():
    # 1.125 + 0.5 exceeds one by 0.625, half of which is taken from each; (3, 0, -1) exceeds it at the first alone.
    v = jnp.array([[1.125, 0.5, -9.0], [3.0, 0.0, -1.0], [0.2, 0.3, 0.5], [1.0, 1.0, 1.0]])
    expected = [[0.8125, 0.1875, 0], [1, 0, 0], [0.2, 0.3, 0.5], [1 / 3] * 3]
    np.testing.assert_allclose(project(v), expected, atol=1e-7)


def test_projection_of_nothing():
    assert project(jnp.zeros((4, 0))).shape == (4, 0)
    np.testing.assert_array_equal(project(jnp.array([5.0, 2.0]), jnp.array([False, False])), [0, 0])


@settings(max_examples=60, deadline=None)
@given(numbers, flags)
def test_projection_meets_the_conditions_of_optimality(values, mask):
    with jax.enable_x64(True):
        v, mask = np.array(values), np.array(mask)
        x = np.asarray(project(jnp.array(v), jnp.array(mask)))
    assert (x >= 0).all()
    assert not x[~mask].any()
    if not mask.any():
        return
    np.testing.assert_allclose(x.sum(), 1, atol=1e-9)
    # Lagrange: x - v is one constant where x > 0, and at least that constant where x = 0.
    slack = (x - v)[mask]
    constant = slack[x[mask] > 0]
    np.testing.assert_allclose(constant, constant[0], atol=1e-9)
    assert (slack >= constant[0] - 1e-9).all()


def test_projection_agrees_with_scipy():
    random = np.random.default_rng(0)
    for v in random.normal(size=(5, 4)):
        total = {"type": "eq", "fun": lambda x: x.sum() - 1}
        result = scipy.optimize.minimize(
            lambda x, v=v: ((x - v) ** 2).sum(),
            np.full(4, 0.25),
            bounds=[(0, None)] * 4,
            constraints=[total],
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(project(jnp.array(v, jnp.float32)), result.x, atol=1e-5)


def test_projection_keeps_its_precision_far_from_the_origin():
    v = jnp.array([1e6, 1e6 - 0.5, 0.0], jnp.float32)
    np.testing.assert_allclose(project(v), [0.75, 0.25, 0], atol=1e-6)


def test_multipliers_by_hand():
    # One row: u = max(0, -c / Q). Two orthogonal rows are independent; two opposed rows interact.
    np.testing.assert_allclose(solve(jnp.array([[2.0]]), jnp.array([-1.0])), [0.5], rtol=1e-5)
    np.testing.assert_allclose(solve(jnp.array([[2.0]]), jnp.array([1.0])), [0], atol=0)
    np.testing.assert_allclose(solve(jnp.diag(jnp.array([1.0, 4.0])), jnp.array([-2.0, -2.0])), [2, 0.5], rtol=1e-5)
    # G = (1, 0), (-1, 1) and g = (-1, -1): G g = (-1, 0), Q = [[1, -1], [-1, 2]]; both active, u = (2, 1).
    Q = jnp.array([[1.0, -1.0], [-1.0, 2.0]])
    np.testing.assert_allclose(solve(Q, jnp.array([-1.0, 0.0])), [2, 1], rtol=1e-4)


@st.composite
def gradients(draw):
    """Draw rows of neighbours' gradients and a client's own: of any rank, with equal, opposed and zero rows."""
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    rank = draw(st.integers(1, 8))
    G = random.normal(size=(SIZE, rank)) + draw(st.sampled_from([0.0, 1.0, 5.0])) * random.normal(size=rank)
    if draw(st.booleans()):
        G[1] = G[0] * draw(st.sampled_from([1.0, -1.0, 1e-3]))
    if draw(st.booleans()):
        G[2] = 0
    return G, random.normal(size=rank)


@settings(max_examples=60, deadline=None)
@given(gradients(), flags)
def test_combination_is_that_of_scipys_nonnegative_least_squares(case, mask):
    G, g = case
    mask = np.array(mask)
    with jax.enable_x64(True):
        u = np.asarray(solve(jnp.array(G @ G.T), jnp.array(G @ g), jnp.array(mask)))
    assert (u >= 0).all()
    assert not u[~mask].any()
    expected = g.copy()
    if mask.any():
        expected += G[mask].T @ scipy.optimize.nnls(G[mask].T, -g)[0]
    np.testing.assert_allclose(g + G.T @ u, expected, atol=1e-6 * (1 + np.abs(G).max()))


@pytest.mark.parametrize("clients", [1, 20])
def test_many_programs_at_once_in_single_precision(clients):
    random = np.random.default_rng(1)
    G = random.normal(size=(clients, 30, 200)) + random.normal(size=(clients, 1, 200))
    g = -random.normal(size=(clients, 200)) - G.mean(1)
    Q, c = np.einsum("cix,cjx->cij", G, G), np.einsum("cix,cx->ci", G, g)
    result = np.asarray(jax.jit(jax.vmap(nonnegative_qp))(jnp.array(Q, jnp.float32), jnp.array(c, jnp.float32)))
    expected = np.stack([scipy.optimize.nnls(rows.T, -own)[0] for rows, own in zip(G, g, strict=True)])
    assert (expected > 0).any(1).all()
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_rows_of_nan_are_ignored():
    Q = jnp.array([[1.0, jnp.nan], [jnp.nan, jnp.nan]])
    np.testing.assert_allclose(solve(Q, jnp.array([-1.0, jnp.nan])), [1, 0], rtol=1e-5)
    assert solve(jnp.zeros((0, 0)), jnp.zeros(0)).shape == (0,)
