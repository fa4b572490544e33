"""Our convolution equals the library's, up to rounding, also in gradients, and stays a matrix product when mapped."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxprs_in_params

from coterie.errors import CoterieError
from coterie.models.cnn import Cnn
from coterie.models.conv import conv2d, max_pool


@st.composite
def convolutions(draw):
    small, sides = st.integers(1, 3), st.integers(1, 9)
    kernel, dilation = [draw(st.tuples(small, small)) for _ in range(2)]
    groups, channels, outputs = draw(small), draw(small), draw(small)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = draw(
        st.one_of(
            st.sampled_from(["SAME", "VALID", "SAME_LOWER", "same"]),
            st.integers(0, 2),
            st.tuples(st.integers(0, 2), st.integers(0, 2)),
            st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2),
        )
    )
    size = [r - 1 + draw(sides) for r in reach]
    options = {"stride": draw(st.tuples(small, small)), "padding": padding, "dilation": dilation, "groups": groups}
    return size, kernel, channels * groups, outputs * groups, options, draw(st.integers(0, 2**31))


def library(x, weight, bias, *, stride, padding, dilation, groups):
    if isinstance(padding, str):
        padding = padding.upper()
    elif isinstance(padding, int):
        padding = [(padding, padding)] * 2
    else:
        padding = [(p, p) if isinstance(p, int) else p for p in padding]
    layout = ("NHWC", "OIHW", "NHWC")
    result = lax.conv_general_dilated(
        x[None], weight, stride, padding, None, dilation, layout, feature_group_count=groups, precision="highest"
    )
    return result[0] + bias


@pytest.mark.parametrize(
    ("wide", "tolerance", "examples"), [(False, 1e-5, 8), pytest.param(True, 1e-12, 16, marks=pytest.mark.soak)]
)
def test_agrees_with_the_library_in_values_and_gradients(wide, tolerance, examples):
    @settings(max_examples=examples, deadline=None)
    @given(convolutions())
    def check(case):
        size, kernel, channels, outputs, options, seed = case
        random = np.random.default_rng(seed)
        arguments = [
            jnp.asarray(random.normal(size=shape))
            for shape in ((*size, channels), (outputs, channels // options["groups"], *kernel), (outputs,))
        ]

        @functools.partial(jax.jit, static_argnums=0)
        def both(function, arguments, probe):
            value, backward = jax.vjp(functools.partial(function, **options), *arguments)
            return value, backward(probe)

        shape = jax.eval_shape(functools.partial(library, **options), *arguments).shape
        probe = jnp.asarray(random.normal(size=shape))
        ours, theirs = both(conv2d, arguments, probe), both(library, arguments, probe)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert a.shape == b.shape
            assert a.dtype == (jnp.float64 if wide else jnp.float32)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max(initial=0)))

    with jax.enable_x64(wide):
        check()


def test_a_convolution_done_by_hand():
    x = jnp.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])[..., None]
    weight = jnp.array([[[[1.0, 0], [3, -2]]]])  # top left + 3 bottom left - 2 bottom right
    assert conv2d(x, weight, jnp.array([100.0]))[..., 0].tolist() == [[103, 105], [109, 111]]
    assert conv2d(x, weight, padding=1, stride=2)[..., 0].tolist() == [[-2, 0], [-14, 11]]


def test_a_kernel_larger_than_the_image_is_refused_in_a_sentence():
    with pytest.raises(CoterieError, match=r"5x5 does not fit an image of 4x9 .*padding 'same'"):
        conv2d(jnp.zeros((4, 9, 1)), jnp.zeros((1, 1, 5, 5)))


def test_max_pool_by_hand_with_an_odd_row_and_its_gradient():
    x = jnp.array([[1.0, 9, 3, 4], [5, 6, 7, 8], [99, 99, 99, 99]])
    image = jnp.stack([x, -x], -1)
    assert max_pool(image).tolist() == [[[9, -1], [8, -3]]]
    gradient = jax.grad(lambda image: max_pool(image)[0, 0, 0] * 2 + max_pool(image)[0, 1, 1] * 3)(image)
    assert gradient[..., 0].tolist() == [[0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert gradient[..., 1].tolist() == [[0, 0, 3, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_mapped_over_clients_the_training_step_is_matrix_products_without_moving_activations():
    clients, batch = 3, 7
    model = Cnn().build((3, 32, 32), 10, jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    params = jax.tree.map(lambda a: jnp.stack([a] * clients), params)

    def loss(params, x):
        return jax.vmap(eqx.combine(params, static))(x).sum()

    x = jnp.zeros((clients, batch, 3, 32, 32))
    operations = list(equations(jax.make_jaxpr(jax.vmap(jax.grad(loss)))(params, x).jaxpr))
    kinds = {equation.primitive.name for equation in operations}
    slow = {
        "conv_general_dilated",
        "reduce_window",
        "reduce_window_max",
        "select_and_scatter_add",
        "gather",
        "scatter-add",
    }
    assert not kinds & slow
    # Forward, gradient of the weights, gradient of the inputs of four layers; the images themselves need no gradient.
    assert sum(equation.primitive.name == "dot_general" for equation in operations) == 4 * 3 - 1
    # Batches are moved to channel-last at entry, back before the linear layers, and that once more in the gradient.
    moved = [
        e.invars[0].aval for e in operations if e.primitive.name == "transpose" and batch in e.invars[0].aval.shape
    ]
    big = [aval.shape for aval in moved if aval.ndim > 3]
    assert big == [(clients, batch, 3, 32, 32), (clients, batch, 5, 5, 64), (clients, batch, 64, 5, 5)]
