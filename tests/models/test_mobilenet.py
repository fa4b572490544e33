"""MobileNet-v2: the published size and names, and a block against XLA's own convolution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from coterie.errors import CoterieError
from coterie.models.mobilenet import MobileNet
from coterie.models.naming import names


def shapes(spec, outputs, image=(3, 32, 32)):
    return dict(names(jax.eval_shape(lambda: spec.build(image, outputs, jax.random.key(0)))))


def test_it_has_the_published_number_of_parameters():
    """torchvision: mobilenet_v2 has 3,504,872 parameters for 1,000 classes, and 2,236,682 for ten."""
    assert sum(leaf.size for leaf in shapes(MobileNet(), 1000).values()) == 3_504_872
    assert sum(leaf.size for leaf in shapes(MobileNet(), 10).values()) == 2_236_682


def test_names_and_layouts_are_torchvisions():
    parameters = shapes(MobileNet(), 10)
    assert parameters["features.0.0.weight"].shape == (32, 3, 3, 3)
    assert parameters["features.1.conv.0.0.weight"].shape == (32, 1, 3, 3)  # the first block does not widen
    assert parameters["features.1.conv.1.weight"].shape == (16, 32, 1, 1)
    assert parameters["features.2.conv.0.0.weight"].shape == (96, 16, 1, 1)
    assert parameters["features.2.conv.1.0.weight"].shape == (96, 1, 3, 3)
    assert parameters["features.2.conv.2.weight"].shape == (24, 96, 1, 1)
    assert parameters["features.2.conv.3.bias"].shape == (24,)
    assert parameters["features.18.0.weight"].shape == (1280, 320, 1, 1)
    assert parameters["classifier.1.weight"].shape == (10, 1280)


def test_channels_are_rounded_as_published():
    """With width 0.35 torchvision has 16 channels in the stem, 8, 8, 16, 24, 32, 56, 112 in the stages."""
    parameters = shapes(MobileNet(width=0.35), 10)
    assert parameters["features.0.0.weight"].shape[0] == 16
    ends = {1: 8, 3: 8, 6: 16, 10: 24, 13: 32, 16: 56, 17: 112}
    for block, channels in ends.items():
        last = "features.1.conv.1.weight" if block == 1 else f"features.{block}.conv.2.weight"
        assert parameters[last].shape[0] == channels


@pytest.mark.soak
def test_a_block_against_xlas_convolution():
    network = MobileNet(width=0.5).build((3, 16, 16), 5, jax.random.key(1))
    block = network.features[4]  # widens, halves the image, narrows: nothing is added
    inputs = block.conv[0][0].weight.shape[1]
    x = jax.random.normal(jax.random.key(2), (8, 8, inputs))

    def convolve(x, layer, stride, groups):
        return lax.conv_general_dilated(
            x[None], layer.weight, (stride, stride), [(layer.weight.shape[2] // 2,) * 2] * 2,
            dimension_numbers=("NHWC", "OIHW", "NHWC"), feature_group_count=groups,
        )[0]  # fmt: skip

    def normalise(x, layer):
        grouped = np.asarray(x).reshape(*x.shape[:2], layer.groups, -1)
        mean, variance = grouped.mean((0, 1, 3), keepdims=True), grouped.var((0, 1, 3), keepdims=True)
        return jnp.asarray(((grouped - mean) / np.sqrt(variance + layer.eps)).reshape(x.shape))

    hidden = block.conv[1][0].weight.shape[0]
    y = jnp.clip(normalise(convolve(x, block.conv[0][0], 1, 1), block.conv[0][1]), 0, 6)
    y = jnp.clip(normalise(convolve(y, block.conv[1][0], 2, hidden), block.conv[1][1]), 0, 6)
    y = normalise(convolve(y, block.conv[2], 1, 1), block.conv[3])
    np.testing.assert_allclose(block(x), y, atol=2e-5)
    assert not block.residual


@pytest.mark.parametrize(("strides", "kept"), [("small", 4), ("imagenet", 1)])
def test_how_many_pixels_reach_the_end(strides, kept):
    network = jax.eval_shape(lambda: MobileNet(width=0.25, strides=strides).build((3, 32, 32), 5, jax.random.key(0)))
    size = 32
    first = network.features[0][0].stride
    size //= first
    for block in network.features[1:-1]:
        size //= block.conv[-3][0].stride
    assert size == kept


@pytest.mark.soak
def test_an_image_goes_through():
    network = MobileNet(width=0.25).build((1, 12, 12), 5, jax.random.key(0))
    assert np.isfinite(eqx.filter_jit(network)(jnp.ones((1, 12, 12)))).all()


def test_bad_settings():
    with pytest.raises(CoterieError, match="groups must divide"):
        MobileNet(groups=3)
