"""Half precision: every number as a float16, half the bytes of float32 at three significant digits."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.base import UNFIT, Codec, bits_of, by_rows, hidden_zero, host_bits
from coterie.codecs.bits import Broken, Reader
from coterie.spec import param
from coterie.traced import traced

__all__ = ["Half"]

LARGEST = 65504.0  # of float16
HALF = np.dtype(np.float16)


# Layout 1: the numbers as float16.


@traced
class Half(Codec):
    """Numbers are rounded to the nearest float16; what is larger than 65504 becomes 65504."""

    name: ClassVar[str] = "float16"

    feedback: bool = param(False, "add what was not sent to the next message (error feedback)")

    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Round."""
        rounded = by_rows(lambda row: _rounded(jnp.clip(row, -LARGEST, LARGEST)), x)
        return jnp.where(jnp.isfinite(x), rounded, x)  # a model that diverges must be seen to

    def sizes(self, x: jax.Array) -> list:
        """Two bytes a number, if all of them are float16 numbers."""
        fit = jnp.all(jnp.isfinite(x) & (bits_of(_rounded(x)) == bits_of(x)))
        return [jnp.where(fit, np.uint32(len(x) * HALF.itemsize), UNFIT)]

    def sizes_on_host(self, x: np.ndarray) -> list[int]:
        """As `sizes`."""
        with np.errstate(all="ignore"):
            back = x.astype(HALF).astype(x.dtype)
        fit = np.isfinite(x).all() and np.array_equal(host_bits(back), host_bits(x))
        return [len(x) * HALF.itemsize if fit else int(UNFIT)]

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """As float16."""
        return x.astype("<f2").tobytes()

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """From float16."""
        if layout != 1:
            raise Broken("its layout is unknown")
        return reader.values(count, HALF).astype(dtype)


def _rounded(x: jax.Array) -> jax.Array:
    """Round to float16 and back. As it stands the compiler would leave both out, to be more exact than it was told."""
    half = lax.bitcast_convert_type(x.astype(jnp.float16), jnp.uint16)
    half = half + hidden_zero(x).astype(jnp.uint16)  # see `seal`
    return lax.bitcast_convert_type(half, jnp.float16).astype(x.dtype)
