"""Four convolutions with group normalisation, for larger images (the four-layer network of Li et al. 2024).

Group instead of batch normalisation: clients' batches are small and differ, and no statistics need to be sent.
"""

import equinox as eqx
import jax
from jax import Array

from coterie.errors import CoterieError
from coterie.models.cnn import image_shape
from coterie.models.conv import max_pool
from coterie.models.layers import Conv2d, GroupNorm
from coterie.spec import param, spec

__all__ = ["Block", "Cnn4", "Cnn4Network"]


@spec
class Cnn4:
    """Four blocks of 3x3 convolution, group norm, ReLU and (while it is large enough) 2x2 maximum, then the outputs."""

    width: int = param(64, "channels of every convolution", at_least=1)
    groups: int = param(8, "groups of channels that are normalised together", at_least=1)

    def __post_init__(self) -> None:
        if self.width % self.groups:
            raise CoterieError(f"groups must divide width ({self.width}), not be {self.groups}")

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "Cnn4Network":
        """Return a network for channel-first images of this shape."""
        channels, height, width = image_shape("cnn4", shape)
        for _ in range(4):
            if _can_pool(height, width):
                height, width = height // 2, width // 2
        *keys, last = jax.random.split(key, 5)
        blocks = tuple(
            Block(
                Conv2d.create(channels if index == 0 else self.width, self.width, 3, block_key, padding=1),
                GroupNorm.create(self.width, self.groups),
            )
            for index, block_key in enumerate(keys)
        )
        return Cnn4Network(blocks, eqx.nn.Linear(self.width * height * width, outputs, key=last))


def _can_pool(height: int, width: int) -> bool:
    return min(height, width) >= 2


class Block(eqx.Module):
    """One convolution and its normalisation."""

    conv: Conv2d
    norm: GroupNorm

    def __call__(self, x: Array) -> Array:
        """Return the next channel-last image, half the size unless it is too small for that."""
        x = self.norm(self.conv(x))
        return jax.nn.relu(max_pool(x) if _can_pool(*x.shape[:2]) else x)


class Cnn4Network(eqx.Module):
    """Parameters `blocks.0.conv`, `blocks.0.norm`, ..., `fc`, each with `weight` and `bias` in PyTorch's layout."""

    blocks: tuple[Block, ...]
    fc: eqx.nn.Linear

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs for one channel-first image."""
        x = x.transpose(1, 2, 0)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.transpose(2, 0, 1).reshape(-1))
