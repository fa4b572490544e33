"""Random crops and flips inside the compiled program, as index arithmetic in the gather that fetches the minibatch.

A step with augmentation then costs as much as one without; slicing each image at its own offset
(`vmap` of `dynamic_slice`) made a step four times slower.
"""

import jax
import jax.numpy as jnp
from jax import Array

from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Augment", "take", "take_shifted"]


@spec
class Augment:
    """Random changes of the training images, drawn anew for each sample and step."""

    crop: int = param(
        0, "largest shift of an image in pixels, in each direction (the crop's padding)", at_least=0, at_most=1000
    )
    flip: bool = param(False, "mirror an image left to right with probability 1/2")
    fill: float = param(0.0, "value of pixels from outside the image, in the units of the stored data")


def take(data: Array, indices: Array, key: Array, augment: Augment | None = None) -> Array:
    """Fetch a minibatch of channel-first images, each shifted and mirrored at random.

    Args:
        data: `[samples, channels, height, width]`.
        indices: `[batch]` which samples.
        key: random key of the shifts; the same key gives the same minibatch.
        augment: the settings; None, or all of them off, fetches the samples unchanged.

    Returns:
        `[batch, channels, height, width]` of the data's type.
    """
    if augment is None or not (augment.crop or augment.flip):
        return data[indices]
    if data.ndim != 4:
        raise CoterieError(
            f"augment needs images of shape (channels, height, width), but a sample has shape {data.shape[1:]}; set "
            "crop to 0 and flip to false"
        )
    # One draw per sample encodes all three choices.
    offsets = 2 * augment.crop + 1
    code = jax.random.randint(key, indices.shape, 0, offsets * offsets * (2 if augment.flip else 1))
    down, code = code % offsets - augment.crop, code // offsets
    right, mirrored = code % offsets - augment.crop, code // offsets == 1
    return take_shifted(data, indices, down, right, mirrored, augment.fill)


def take_shifted(data: Array, indices: Array, down: Array, right: Array, mirrored: Array, fill: float = 0.0) -> Array:
    """Fetch images through a window that is moved by (down, right) pixels, mirrored where `mirrored` is true.

    Args:
        data: `[samples, channels, height, width]`.
        indices, down, right, mirrored: `[batch]`, one value per fetched image.
        fill: value of pixels outside an image; for integer data it must be an integer.
    """
    if jnp.issubdtype(data.dtype, jnp.integer):
        limits = jnp.iinfo(data.dtype)
        if fill != int(fill) or not limits.min <= fill <= limits.max:
            raise CoterieError(
                f"fill must be a whole number in {limits.min}..{limits.max} for these data, not {fill:g}"
            )
    _, channels, height, width = data.shape
    across = jnp.arange(width)
    row = jnp.arange(height) + down[:, None]
    column = jnp.where(mirrored[:, None], width - 1 - across, across) + right[:, None]
    inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
    row, column = jnp.clip(row, 0, height - 1), jnp.clip(column, 0, width - 1)
    place = (
        indices[:, None, None, None],
        jnp.arange(channels)[:, None, None],
        row[:, None, :, None],
        column[:, None, None, :],
    )
    # Clipped above: the gather's own handling of indices that are out of range is ten times slower.
    pixels = data.at[place].get(mode="promise_in_bounds")
    return jnp.where(inside[:, None], pixels, jnp.asarray(fill, data.dtype))
