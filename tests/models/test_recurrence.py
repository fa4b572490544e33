"""The written derivative of the LSTM's loop against JAX's own of the plain loop, in every mode the product uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.models.recurrence import recur


def plain(inputs, weights):
    """Compute the outputs step by step, for JAX to differentiate."""
    hidden = cell = jnp.zeros(weights.shape[1], inputs.dtype)
    outputs = []
    for at in inputs:
        i, f, g, o = jnp.split(at + weights @ hidden, 4)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        outputs.append(hidden)
    return jnp.stack(outputs)


def loss_with(layer):
    """Make the loss of a batch of texts through two layers."""

    def loss(inputs, first, between, second):
        outputs = jax.vmap(lambda text: layer(layer(text, first) @ between.T, second))(inputs)
        return (outputs**3).sum()

    return loss


MODES = {
    "value": lambda loss, at, along: loss(*at),
    "gradient": lambda loss, at, along: jax.grad(loss, (0, 1, 2, 3))(*at),
    "along a direction": lambda loss, at, along: jax.jvp(loss, at, along)[1],
    "forward over reverse": lambda loss, at, along: jax.jvp(jax.grad(loss, (0, 1, 2, 3)), at, along)[1],
    "reverse over forward": lambda loss, at, along: jax.grad(lambda *at: jax.jvp(loss, at, along)[1], (0, 1, 2, 3))(
        *at
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_the_loop(mode):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        shapes = ((2, 3, 8), (8, 2), (8, 2), (8, 2))  # texts, length, four gates of two units
        at = tuple(jnp.asarray(random.normal(size=shape)) for shape in shapes)
        along = tuple(jnp.asarray(random.normal(size=shape)) for shape in shapes)
        got, wanted = (
            jax.jit(lambda layer=layer: MODES[mode](loss_with(layer), at, along))() for layer in (recur, plain)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), got, wanted)
