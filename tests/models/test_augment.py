"""Random crops and flips equal padding, cropping and mirroring in NumPy, for every offset."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from coterie.errors import CoterieError
from coterie.models.augment import Augment, take, take_shifted


def reference(image, crop, down, right, mirrored, fill):
    """As torchvision does: pad by `crop`, cut out a window of the old size, mirror it."""
    padded = np.pad(image, ((0, 0), (crop, crop), (crop, crop)), constant_values=fill)
    height, width = image.shape[1:]
    window = padded[:, crop + down : crop + down + height, crop + right : crop + right + width]
    return window[:, :, ::-1] if mirrored else window


def images(dtype, samples=6, shape=(3, 7, 5)):
    return np.random.default_rng(0).integers(1, 200, (samples, *shape)).astype(dtype)


@pytest.mark.parametrize(("dtype", "fill"), [("uint8", 0), ("uint8", 128), ("float32", -1.5), ("int32", -7)])
def test_every_offset_equals_padding_and_cropping(dtype, fill):
    crop = 2
    data = images(dtype)
    cases = list(itertools.product(range(-crop, crop + 1), range(-crop, crop + 1), (False, True)))
    down, right, mirrored = (np.array(values) for values in zip(*cases, strict=True))
    indices = np.arange(len(cases)) % len(data)
    shifted = take_shifted(*map(jnp.asarray, (data, indices, down, right, mirrored)), fill=fill)
    assert shifted.dtype == dtype
    expected = [reference(data[i], crop, *case, fill) for i, case in zip(indices, cases, strict=True)]
    np.testing.assert_array_equal(shifted, np.stack(expected))


def test_a_shift_beyond_the_image_leaves_only_fill():
    data = jnp.asarray(images("uint8"))
    far = jnp.array([7])
    assert (take_shifted(data, jnp.array([1]), far, 0 * far, far < 0, 9) == 9).all()


@pytest.mark.soak
@pytest.mark.parametrize("augment", [Augment(crop=1, flip=True, fill=3), Augment(crop=2), Augment(flip=True)])
def test_draws_are_uniform_over_exactly_the_allowed_changes(augment):
    data = images("uint8", samples=1)
    offsets = range(-augment.crop, augment.crop + 1)
    choices = list(itertools.product(offsets, offsets, (False, True) if augment.flip else (False,)))
    variants = {reference(data[0], augment.crop, *choice, augment.fill).tobytes(): choice for choice in choices}
    assert len(variants) == len(choices)  # the image is irregular: each change is visible
    draws = 400 * len(choices)
    batch = np.asarray(take(jnp.asarray(data), jnp.zeros(draws, int), jax.random.key(4), augment))
    counts = dict.fromkeys(choices, 0)
    for image in batch:
        counts[variants[image.tobytes()]] += 1
    chi_square = sum((count - 400) ** 2 / 400 for count in counts.values())
    freedom = len(choices) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_the_key_alone_decides():
    data = jnp.asarray(images("float32"))
    indices = jnp.arange(6)
    augment = Augment(crop=3, flip=True)
    first = take(data, indices, jax.random.key(0), augment)
    np.testing.assert_array_equal(first, take(data, indices, jax.random.key(0), augment))
    assert not np.array_equal(first, take(data, indices, jax.random.key(1), augment))


@pytest.mark.soak
def test_samples_of_one_batch_are_changed_independently():
    data = jnp.asarray(images("float32", samples=1))
    batch = np.asarray(take(data, jnp.zeros(32, int), jax.random.key(0), Augment(crop=3, flip=True)))
    assert len({image.tobytes() for image in batch}) > 16


@pytest.mark.parametrize("augment", [None, Augment(), Augment(fill=9)])
def test_without_augmentation_samples_are_unchanged(augment):
    data = images("uint8")
    indices = np.array([3, 3, 0])
    np.testing.assert_array_equal(
        take(jnp.asarray(data), jnp.asarray(indices), jax.random.key(0), augment), data[indices]
    )


@pytest.mark.soak
def test_mapped_over_clients_each_gets_what_it_would_get_alone_with_one_gather_of_pixels():
    clients, batch = 4, 5
    data = jnp.asarray(images("uint8", samples=4 * clients)).reshape(clients, 4, 3, 7, 5)
    indices = jax.random.randint(jax.random.key(1), (clients, batch), 0, 4)
    keys = jax.random.split(jax.random.key(2), clients)
    augment = Augment(crop=2, flip=True, fill=1)
    mapped = jax.vmap(lambda *client: take(*client, augment))
    alone = [take(data[c], indices[c], keys[c], augment) for c in range(clients)]
    np.testing.assert_array_equal(mapped(data, indices, keys), np.stack(alone))

    def equations(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in jaxprs_in_params(equation.params):
                yield from equations(inner)

    operations = list(equations(jax.make_jaxpr(mapped)(data, indices, keys).jaxpr))
    images_made = [e for e in operations if e.outvars[0].aval.shape == (clients, batch, 3, 7, 5)]
    assert sum(e.primitive.name == "gather" for e in images_made) == 1
    assert not {e.primitive.name for e in images_made} & {"dynamic_slice", "pad", "concatenate"}


@pytest.mark.parametrize(
    ("data", "augment", "sentence"),
    [
        (np.zeros((4, 9), np.float32), Augment(flip=True), r"augment needs images .* shape \(9,\)"),
        (np.zeros((4, 1, 3, 3), np.uint8), Augment(crop=1, fill=256), r"fill must be a whole number in 0\.\.255"),
        (np.zeros((4, 1, 3, 3), np.uint8), Augment(crop=1, fill=0.5), r"not 0\.5"),
    ],
)
def test_what_cannot_be_augmented_is_refused_in_a_sentence(data, augment, sentence):
    with pytest.raises(CoterieError, match=sentence):
        take(jnp.asarray(data), jnp.zeros(2, int), jax.random.key(0), augment)


def test_a_negative_crop_is_refused():
    with pytest.raises(CoterieError, match="crop must be at least 0"):
        Augment(crop=-1)
