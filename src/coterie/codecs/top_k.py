"""Top-k: sends only the largest numbers and their positions.

The rest is remembered and added to the next message (error feedback: Stich, Cordonnier and Jaggi 2018; Karimireddy et
al. 2019). Without it small numbers would never be sent, and training would not converge to the optimum.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.base import Codec, by_rows, if_fits
from coterie.codecs.bits import Broken, Reader, array_module, bits_of, total
from coterie.codecs.numbers import SHORT, fit_short, pack_numbers, pack_short, shortened, unpack_short
from coterie.codecs.places import pack_places, places_bytes, unpack_places
from coterie.spec import param
from coterie.traced import traced

__all__ = ["TopK"]


# Layout 1: places of the nonzero numbers (`places.py`), then these numbers.
# Layout 2: the same with numbers of 16 bits (`numbers.py`).


@traced
class TopK(Codec):
    """Sends the largest numbers by absolute value; of equal ones the first."""

    name: ClassVar[str] = "top-k"

    fraction: float = param(0.01, "share of the numbers to send; at least one is sent", above=0, at_most=1, static=True)
    short: bool = param(True, "send numbers as bfloat16, with an error of at most 0.2 %")
    feedback: bool = param(True, "add the error of a message to the next one (error feedback)")

    def kept(self, size: int) -> int:
        """Return how many of `size` numbers are sent."""
        return min(size, max(1, round(self.fraction * size)))

    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Keep the largest."""
        largest = by_rows(lambda row: _largest(row, self.kept(len(row))), x)
        return shortened(largest) if self.short else largest

    def sizes(self, x: Any) -> list:
        """Places and numbers."""
        bits = bits_of(x)
        sent = bits != 0
        places, count = places_bytes(sent), total(sent)
        short = if_fits(array_module(x).all(fit_short(bits)), places + count * SHORT)
        return [places + count * x.dtype.itemsize, short]

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Places and numbers."""
        places = np.flatnonzero(bits_of(x))
        return pack_places(places, len(x)) + (pack_numbers if layout == 1 else pack_short)(x[places])

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """Put the numbers at their places."""
        if layout not in (1, 2):
            raise Broken("its layout is unknown")
        places = unpack_places(reader, count)
        x = np.zeros(count, dtype)
        x[places] = reader.values(len(places), dtype) if layout == 1 else unpack_short(reader, len(places), dtype)
        return x


def _largest(x: jax.Array, count: int) -> jax.Array:
    """Keep the `count` largest of `x [d]`.

    Without the sign, the bits of floating-point numbers are ordered as the numbers are. So the threshold is determined
    bit by bit, from the highest, in as many passes as a number has bits: far cheaper than sorting, also on a GPU.
    """
    if count >= x.size:
        return x
    bits = bits_of(jnp.abs(x))

    def refine(step: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold | (jnp.ones((), bits.dtype) << (width - 1 - step).astype(bits.dtype))
        return jnp.where(jnp.sum(bits >= higher, dtype=jnp.int32) >= count, higher, threshold)

    width = 8 * x.dtype.itemsize - 1
    threshold = lax.fori_loop(0, width, refine, jnp.zeros((), bits.dtype))
    equal = bits == threshold
    room = count - jnp.sum(bits > threshold, dtype=jnp.int32)
    chosen = (bits > threshold) | (equal & (jnp.cumsum(equal, dtype=jnp.int32) <= room))
    return jnp.where(chosen & (bits != 0), x, 0)
