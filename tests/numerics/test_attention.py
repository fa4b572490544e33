"""The attention prior against the numbers of the paper's corrected equations and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.numerics import attention

E = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
ELL = -np.array([[0.1, 1.0, 2.0], [1.0, 0.1, 2.0], [2.0, 2.0, 0.1]])
NEIGHBOURS = np.array([[1, 2], [0, 2], [0, 1]])


def rows(own: str):
    """Return weights and prior of the three clients as square matrices, from the functions under test."""
    scores = E @ E.T
    take = lambda m: np.take_along_axis(m, NEIGHBOURS, 1)  # noqa: E731
    present = np.ones((3, 2), bool)
    log_p, own_log_p = attention.prior(jnp.asarray(take(scores)), jnp.asarray(np.diag(scores)), present)
    own_ell = np.zeros(3) if own == "apart" else np.diag(ELL)
    weights, own_weight = attention.posterior(take(ELL), own_ell, log_p, own_log_p)

    def square(slots, diagonal):
        matrix = np.diag(np.asarray(diagonal))
        matrix[np.arange(3)[:, None], NEIGHBOURS] = slots
        return matrix

    return square(weights, own_weight), square(np.exp(log_p), np.exp(own_log_p))


def test_weights_of_both_versions():
    with jax.enable_x64(True):
        np.testing.assert_allclose(rows("apart")[0][0], [0.78698604, 0.10650698, 0.10650698], atol=1e-8)
        np.testing.assert_allclose(rows("competes")[0][0], [0.76974162, 0.11512919, 0.11512919], atol=1e-8)


def test_gradient_in_the_embeddings():
    with jax.enable_x64(True):
        w, p = rows("apart")
        result = attention.embedding_gradient(jnp.asarray(w), jnp.asarray(p), jnp.asarray(E))
    expected = [[0.24685961, -0.58018573], [-0.58018573, 0.24685961], [0.18417735, 0.18417735]]
    np.testing.assert_allclose(result, expected, atol=1e-8)


def objective(embeddings, w):
    """S = sum_ij w_ij log p_ij, written from the definition."""
    scores = embeddings @ embeddings.T
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return float((w * log_p).sum())


def test_full_gradient_is_the_slope_of_s_and_a_single_row_is_not():
    random = np.random.default_rng(0)
    e, w = random.normal(size=(5, 3)), random.dirichlet(np.ones(5), 5)
    scores = np.exp(e @ e.T)
    p = scores / scores.sum(1, keepdims=True)
    slope = np.zeros_like(e)
    for i, k in np.ndindex(*e.shape):
        step = np.zeros_like(e)
        step[i, k] = 1e-6
        slope[i, k] = (objective(e + step, w) - objective(e - step, w)) / 2e-6
    with jax.enable_x64(True):
        full = attention.embedding_gradient(jnp.asarray(w), jnp.asarray(p), jnp.asarray(e))
    np.testing.assert_allclose(full, slope, atol=1e-8)
    row_only = (w - p) @ e  # a client as query alone, as printed
    assert np.abs(row_only - slope).max() > 0.1 * np.abs(slope).max()


def test_gradients_in_model_and_encoder_by_finite_differences():
    with jax.enable_x64(True):
        key = jax.random.key(0)
        moved = {"weight": jax.random.normal(key, (3, 4)), "bias": jnp.array([0.3, -0.2, 0.1])}
        encoder = attention.start_encoder(moved, (10, 5), key)
        cotangent = jax.random.normal(jax.random.key(1), (6 * 5,))
        value = lambda e, m: jnp.vdot(attention.embed(e, m), cotangent)  # noqa: E731
        slopes = jax.grad(value, argnums=(0, 1))(encoder, moved)
        directions = jax.tree.map(lambda a: jax.random.normal(jax.random.key(2), a.shape), (encoder, moved))
        shifted = [
            value(*jax.tree.map(lambda a, d, s=sign: a + s * 1e-6 * d, (encoder, moved), directions))
            for sign in (1, -1)
        ]
        expected = (shifted[0] - shifted[1]) / 2e-6
        result = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(directions), strict=True))
    assert float(result) == pytest.approx(float(expected), abs=1e-8)


def test_inner_product_is_the_mean_over_tensors_and_rows():
    key = jax.random.key(3)
    a, b = ({"w": jax.random.normal(k, (2, 3)), "b": jax.random.normal(k, (4,))} for k in jax.random.split(key))
    encoder = attention.start_encoder(a, (4, 2), key)

    def codes(moved, name):
        length = np.sqrt(sum(np.sum(np.asarray(v) ** 2) for v in moved.values()))
        x = np.asarray(moved[name]).reshape(len(moved[name]), -1) / length
        hidden = np.tanh(x @ np.asarray(encoder.first[name]))
        return np.tanh(hidden @ np.asarray(encoder.second[name]))

    expected = np.mean([np.mean((codes(a, name) * codes(b, name)).sum(1)) for name in ("w", "b")])
    result = float(attention.embed(encoder, a) @ attention.embed(encoder, b))
    assert result == pytest.approx(float(expected), rel=1e-5)


def test_a_model_that_did_not_move_has_a_finite_embedding_and_gradient():
    still = {"w": jnp.zeros((2, 3))}
    encoder = attention.start_encoder(still, (4, 2), jax.random.key(0))
    slope = jax.grad(lambda moved: attention.embed(encoder, moved).sum())(still)
    assert np.isfinite(attention.embed(encoder, still)).all()
    assert np.isfinite(slope["w"]).all()


def test_absent_slots_get_no_weight():
    log_p, own = attention.prior(jnp.zeros((1, 3)), jnp.zeros(1), jnp.array([[True, False, True]]))
    weights, own_weight = attention.posterior(jnp.zeros((1, 3)), jnp.zeros(1), log_p, own, 1.0)
    np.testing.assert_allclose(weights, [[1 / 3, 0, 1 / 3]], rtol=1e-6)
    assert float(own_weight[0]) == pytest.approx(1 / 3)
