"""Hyper-gradients of one client's own bilevel problem, against finite differences, dense algebra and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.bilevel.implicit import hypergradient, solve
from coterie.errors import CoterieError

pytestmark = pytest.mark.usefixtures("x64")


def test_by_hand():
    """g = (y - 2 x)^2 + y^2: y* = x. f = x^2 + 3 y: F = x^2 + 3 x, F' = 2 x + 3. Without the term it would be 2 x."""
    outer = lambda x, y: x**2 + 3 * y  # noqa: E731
    inner = lambda x, y: (y - 2 * x) ** 2 + y**2  # noqa: E731
    gradient, solved = hypergradient(outer, inner, jnp.asarray(1.5), jnp.asarray(1.5))
    assert gradient == pytest.approx(6.0, abs=1e-12)
    assert solved.iterations == 1
    assert solved.curvature == pytest.approx(4.0)
    assert hypergradient(outer, inner, jnp.asarray(1.5), jnp.asarray(1.5), solver="none")[0] == pytest.approx(3.0)


@pytest.fixture(scope="module")
def logistic():
    """Shared features x (a matrix and a shift), a personal logistic head y with an L2 penalty; f on test samples."""
    random = np.random.default_rng(0)
    train, test = random.normal(size=(2, 30, 4))
    labels, test_labels = (train[:, 0] > 0).astype(float), (test[:, 1] > 0).astype(float)
    x = {"matrix": random.normal(size=(4, 3)), "shift": random.normal(size=3)}

    def loss(x, y, data, labels):
        score = jnp.tanh(data @ x["matrix"] + x["shift"]) @ y[0] + y[1]
        return jnp.mean(jnp.logaddexp(0, score) - labels * score)

    def inner(x, y):
        return loss(x, y, train, labels) + 0.05 * (y[0] @ y[0] + y[1] ** 2)

    @jax.jit
    def newton(x):
        flat = lambda v: inner(x, (v[:3], v[3]))  # noqa: E731
        step = lambda _, v: v - jnp.linalg.solve(jax.hessian(flat)(v), jax.grad(flat)(v))  # noqa: E731
        v = jax.lax.fori_loop(0, 15, step, jnp.zeros(4))
        return (v[:3], v[3]), jnp.abs(jax.grad(flat)(v)).max()

    def lower_level(x):
        """Return the minimiser in y, by Newton steps with a dense Hessian."""
        y, slope = newton(x)
        assert slope < 1e-14
        return y

    return x, inner, lambda x, y: loss(x, y, test, test_labels), lower_level


def test_against_finite_differences_of_a_problem_that_is_solved_anew(logistic):
    x, inner, outer, lower_level = logistic
    estimated = jax.jit(lambda x, y: hypergradient(outer, inner, x, y, tolerance=1e-14))
    gradient, solved = estimated(x, lower_level(x))
    assert solved.residual < 1e-13
    dropped, _ = hypergradient(outer, inner, x, lower_level(x), solver="none")
    cost = jax.jit(outer)
    random, size, gaps = np.random.default_rng(1), 1e-4, []
    for _ in range(3):
        direction = {key: random.normal(size=value.shape) for key, value in x.items()}
        at = lambda t, direction=direction: {key: x[key] + t * direction[key] for key in x}  # noqa: E731
        values = {t: float(cost(at(t * size), lower_level(at(t * size)))) for t in (-2, -1, 1, 2)}
        slope = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * size)
        assert sum(np.vdot(gradient[key], direction[key]) for key in x) == pytest.approx(slope, abs=1e-8)
        gaps.append(abs(sum(np.vdot(dropped[key], direction[key]) for key in x) - slope))
    assert max(gaps) > 1e-3  # the omitted term is not small


def dense(size, smallest, seed):
    """Return a symmetric matrix with eigenvalues from `smallest` to 2, and a vector."""
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(size, size)))
    return turn @ np.diag(np.linspace(smallest, 2, size)) @ turn.T, random.normal(size=size)


solved_in_jit = jax.jit(lambda H, b: solve(lambda v: H @ v, b, terms=200, tolerance=1e-12))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([1, 4, 11]), st.floats(1e-3, 1.9), st.integers(0, 10**6))
def test_conjugate_gradients_solve_what_is_positive_definite(size, smallest, seed):
    with jax.enable_x64(True):
        H, b = dense(size, smallest, seed)
        v, solved = solved_in_jit(H, b)
        np.testing.assert_allclose(H @ v, b, atol=1e-9)
        assert solved.residual <= 1e-12
        assert solved.curvature >= smallest * (1 - 1e-9)
        assert not solved.singular


@pytest.mark.parametrize("terms", [1, 5, 50])
def test_a_neumann_series_is_its_partial_sum(terms):
    H, b = dense(6, 0.1, 3)
    step = 0.4
    powers = [np.linalg.matrix_power(np.eye(6) - step * H, q) @ b for q in range(terms)]
    v, solved = solve(lambda v: H @ v, jnp.asarray(b), solver="neumann", terms=terms, step=step)
    np.testing.assert_allclose(v, step * np.sum(powers, 0), rtol=1e-12)
    assert solved.residual == pytest.approx(np.linalg.norm(b - H @ v) / np.linalg.norm(b), rel=1e-9)
    assert not solved.singular


def test_a_neumann_series_finds_a_step_that_converges():
    H, b = dense(6, 0.1, 3)
    v, solved = solve(lambda v: 1000 * H @ v, jnp.asarray(b), solver="neumann", terms=600)
    np.testing.assert_allclose(v, np.linalg.solve(1000 * H, b), rtol=1e-6)
    assert solved.residual < 1e-6


def flat(x, y):
    """An inner loss that does not depend on its second coordinate."""
    return (y[0] - x) ** 2


@pytest.mark.parametrize("solver", ["cg", "neumann"])
@pytest.mark.parametrize("curved", [0.0, -0.5])
def test_a_singular_inner_hessian_is_refused_when_it_can_be_seen_and_flagged_when_not(solver, curved):
    """f has a slope in a direction in which g is flat (or concave): there is no solution to differentiate."""
    outer = lambda x, y: x * y[0] + y[1]  # noqa: E731
    inner = lambda x, y: flat(x, y) + curved * y[1] ** 2  # noqa: E731
    x, y = jnp.asarray(1.0), jnp.asarray([1.0, 0.0])
    options = {"solver": solver, "terms": 30, "step": 0.3 if solver == "neumann" else None}
    gradient, solved = jax.jit(lambda x, y: hypergradient(outer, inner, x, y, **options))(x, y)
    assert np.isfinite(gradient)
    if solver == "neumann" and curved == 0:
        # A series of a few terms cannot distinguish a flat direction from a slow one; the residual's curvature can.
        assert solved.residual > 0.5
        assert solved.curvature == pytest.approx(0, abs=1e-12)
        return
    assert solved.singular
    with pytest.raises(CoterieError, match="the inner Hessian is singular or not positive definite"):
        hypergradient(outer, inner, x, y, **options)


def test_damping_makes_a_singular_problem_solvable():
    """H = diag(2, 0) + d: v = (x / (2 + d), 1 / d); d2_xy g = (-2, 0), so that F' = y_0 + 2 x / (2 + d)."""
    outer = lambda x, y: x * y[0] + y[1]  # noqa: E731
    gradient, solved = hypergradient(outer, flat, jnp.asarray(3.0), jnp.asarray([3.0, 0.0]), damping=0.5)
    assert gradient == pytest.approx(3 + 6 / 2.5, rel=1e-12)
    assert solved.curvature >= 0.5


def test_a_flat_direction_without_slope_does_no_harm():
    outer = lambda x, y: x * y[0]  # noqa: E731
    gradient, solved = hypergradient(outer, flat, jnp.asarray(3.0), jnp.asarray([3.0, 0.0]))
    assert gradient == pytest.approx(6.0)  # F = x^2
    assert not solved.singular


def test_nothing_to_solve_for():
    """grad_y f = 0: the term is zero, without dividing by zero."""
    for solver in ("cg", "neumann"):
        gradient, solved = hypergradient(
            lambda x, y: x**2, lambda x, y: (y - x) ** 2, jnp.asarray(3.0), jnp.asarray(3.0), solver=solver
        )
        assert gradient == 6.0
        assert solved.residual == 0


def test_bad_input():
    H, b = dense(3, 0.5, 0)
    with pytest.raises(CoterieError, match="solver must be cg, neumann or none, not 'newton'"):
        solve(lambda v: H @ v, jnp.asarray(b), solver="newton")
    with pytest.raises(CoterieError, match="terms must be at least 1, not 0"):
        solve(lambda v: H @ v, jnp.asarray(b), terms=0)
