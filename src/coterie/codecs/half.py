"""Half precision: every number as a float16, half the bytes of float32 at three significant digits."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.base import Codec, by_rows, hidden_zero, if_fits
from coterie.codecs.bits import Broken, Reader, array_module, bits_of
from coterie.spec import param
from coterie.traced import traced

__all__ = ["Half"]

LARGEST = 65504.0  # of float16
HALF = np.dtype(np.float16)


# Layout 1: the numbers as float16.


@traced
class Half(Codec):
    """Rounds numbers to the nearest float16; those above 65504 become 65504."""

    name: ClassVar[str] = "float16"

    feedback: bool = param(False, "add the error of a message to the next one (error feedback)")

    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Round to float16, within its range."""
        rounded = by_rows(lambda row: _rounded(jnp.clip(row, -LARGEST, LARGEST)), x)
        return jnp.where(jnp.isfinite(x), rounded, x)  # so that a diverging model is noticed

    def sizes(self, x: Any) -> list:
        """Two bytes per number, if all of them are float16 numbers."""
        xp = array_module(x)
        fit = xp.all(xp.isfinite(x) & (bits_of(_rounded(x)) == bits_of(x)))
        return [if_fits(fit, len(x) * HALF.itemsize)]

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Write the numbers as float16."""
        return x.astype("<f2").tobytes()

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """Read float16."""
        if layout != 1:
            raise Broken("its layout is unknown")
        return reader.values(count, HALF).astype(dtype)


def _rounded(x: Any) -> Any:
    """Round to float16 and back, for NumPy and JAX."""
    if array_module(x) is np:
        with np.errstate(all="ignore"):
            return x.astype(HALF).astype(x.dtype)
    # The compiler would remove both conversions, to be more exact than asked for.
    half = lax.bitcast_convert_type(x.astype(jnp.float16), jnp.uint16)
    half = half + hidden_zero(x).astype(jnp.uint16)  # see `seal`
    return lax.bitcast_convert_type(half, jnp.float16).astype(x.dtype)
