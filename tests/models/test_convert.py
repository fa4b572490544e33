"""A user's own Equinox module with its convolutions replaced is the same function, with the same gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from coterie.models import naming, replace_convolutions
from coterie.models.layers import Conv1d, Conv2d


class Mine(eqx.Module):
    """A module such as a user may write: nested layers, pooling, functions, channels first."""

    stem: eqx.nn.Conv2d
    body: eqx.nn.Sequential
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.stem = eqx.nn.Conv2d(3, 4, 3, stride=2, padding="SAME", key=keys[0])
        self.body = eqx.nn.Sequential(
            [
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Conv2d(4, 8, (3, 2), padding=((1, 0), (0, 2)), groups=2, key=keys[1]),
                eqx.nn.MaxPool2d(2, 2),
                eqx.nn.Conv2d(8, 8, 3, padding=1, groups=8, dilation=2, use_bias=False, key=keys[2]),
            ]
        )
        self.head = eqx.nn.Linear(8, 5, key=keys[3])

    def __call__(self, x, key=None):
        return self.head(self.body(self.stem(x)).mean((1, 2)))


def loss_and_gradients(model, x):
    params, static = eqx.partition(model, eqx.is_array)

    def loss(params, x):
        output = eqx.combine(params, static)(x)
        return (output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)).sum(), output

    (_, output), (gradients, to_input) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x)
    return output, {name: np.asarray(leaf) for name, leaf in naming.names(gradients)}, to_input


def assert_same(model, x):
    output, gradients, to_input = loss_and_gradients(model, x)
    ours, our_gradients, our_to_input = loss_and_gradients(replace_convolutions(model), x)
    np.testing.assert_allclose(ours, output, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(our_to_input, to_input, rtol=1e-10, atol=1e-12)
    assert list(our_gradients) == list(gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(our_gradients[name], gradient.reshape(our_gradients[name].shape), 1e-10, 1e-12, name)


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitives(inner)


def test_a_network_agrees_and_has_no_library_convolution():
    with jax.enable_x64(True):
        model = Mine(jax.random.key(0))
        x = jax.random.normal(jax.random.key(1), (3, 19, 16))
        assert_same(model, x)
        converted = replace_convolutions(model)
        assert isinstance(converted.stem, Conv2d)
        assert isinstance(converted.body[1], Conv2d)
        assert converted.stem.bias.shape == (4,)
        assert isinstance(model.stem, eqx.nn.Conv2d)  # a copy: the user's module is as it was
        assert "conv_general_dilated" in set(primitives(jax.make_jaxpr(model)(x).jaxpr))
        assert "conv_general_dilated" not in set(primitives(jax.make_jaxpr(converted)(x).jaxpr))


@pytest.mark.parametrize(
    ("mode", "padding"),
    [("ZEROS", "SAME"), ("ZEROS", ((0, 1), (2, 1))), ("REFLECT", "SAME")]
    + [
        pytest.param(mode, padding, marks=pytest.mark.soak)
        for mode, padding in [("ZEROS", each) for each in ("SAME_LOWER", "VALID", 2, (2, 1))]
        + [("REFLECT", ((0, 1), (2, 1)))]
        + [(mode, padding) for mode in ("REPLICATE", "CIRCULAR") for padding in ("SAME", ((0, 1), (2, 1)))]
    ],
)
def test_every_padding_agrees(mode, padding):
    with jax.enable_x64(True):
        key = jax.random.key(3)
        layer = eqx.nn.Conv2d(2, 3, (3, 2), (2, 1), padding, (1, 2), padding_mode=mode, key=key)
        assert_same(layer, jax.random.normal(key, (2, 7, 6)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": "SAME"},
        {"padding": ((2, 1),), "dilation": 2},
        {"groups": 2, "use_bias": False, "padding": 1},
        {"padding": 2, "padding_mode": "CIRCULAR"},
    ],
)
def test_one_dimension_agrees(options):
    with jax.enable_x64(True):
        layer = eqx.nn.Conv1d(4, 6, 3, key=jax.random.key(0), **options)
        assert isinstance(replace_convolutions(layer), Conv1d)
        assert_same(layer, jax.random.normal(jax.random.key(1), (4, 11)))


def test_what_is_not_a_plain_convolution_is_left_alone():
    class Scaled(eqx.nn.Conv2d):
        def __call__(self, x, *, key=None):
            return 2 * super().__call__(x)

    key = jax.random.key(0)
    layers = [
        Scaled(1, 1, 3, key=key),
        eqx.nn.Conv3d(1, 1, 2, key=key),
        eqx.nn.ConvTranspose2d(1, 1, 3, key=key),
        eqx.nn.Linear(2, 2, key=key),
    ]
    converted = replace_convolutions(layers)
    assert [type(layer) for layer in converted] == [type(layer) for layer in layers]
    assert isinstance(replace_convolutions(eqx.nn.Conv(2, 1, 1, 3, key=key)), Conv2d)
    assert eqx.tree_equal(converted, layers)
