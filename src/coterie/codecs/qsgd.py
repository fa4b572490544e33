"""QSGD (Alistarh et al. 2017): rounds numbers to a few levels, up or down at random, without bias.

In each bucket of numbers the largest absolute value m sets the scale: x is rounded to one of the levels 0, m/s, 2m/s,
..., m, with s = 2^(bits-1) - 1, and keeps its sign. It is rounded up with the probability that makes E[x'] = x.

The paper's analysis takes the 2-norm of the bucket as scale, its experiments the largest value, as we do: no number
exceeds the last level, so that the same number of bits gives finer levels. m itself is always among the levels sent,
and so the scale can be computed from what `reduce` returned. A bucket whose levels would be denormal is sent as zeros.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.base import Codec, by_rows, if_fits, seal
from coterie.codecs.bits import Broken, Reader, array_module, bits_of, pack, total, unpack, whole_bytes
from coterie.codecs.places import gamma_bytes, pack_gamma, pack_places, places_bytes, unpack_gamma, unpack_places
from coterie.spec import param
from coterie.traced import traced

__all__ = ["QSGD"]


# Layout 1: scale of each bucket | sign and level of each number in `bits` bits (the sign is the highest).
# Layout 2: scale of each bucket | places of the nonzero numbers (`places.py`) | signs, a bit each | levels in Elias
# gamma code (absent with 2 bits, where the level is 1). The code of the paper, shorter where most numbers are zero.


@traced
class QSGD(Codec):
    """Stochastic rounding to a few levels; unbiased."""

    name: ClassVar[str] = "qsgd"

    bits: int = param(4, "bits per number, including its sign", at_least=2, at_most=8)
    bucket: int = param(512, "numbers that share a scale", at_least=1)
    feedback: bool = param(False, "add the error of a message to the next one (error feedback)")

    @property
    def levels(self) -> int:
        """The number of levels above zero."""
        return 2 ** (self.bits - 1) - 1

    def settings(self) -> tuple[int, ...]:
        """Return the settings on which both ends must agree."""
        return self.bits, self.bucket

    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Round up or down at random."""
        return by_rows(self._rounded, x, keys)

    def _rounded(self, x: jax.Array, key: jax.Array) -> jax.Array:
        size = x.size
        if size == 0:
            return x
        chance = self._buckets(jax.random.uniform(key, (size,), x.dtype), jnp)
        x = self._buckets(x, jnp)
        largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
        known = largest >= self._smallest(x.dtype)
        position = self._position(jnp.abs(x), jnp.where(known, largest, 1), jnp)
        lower = jnp.floor(position)
        level = jnp.minimum(lower + (chance < position - lower), self.levels)
        level = jnp.where(jnp.abs(x) >= largest, self.levels, level)
        value = jnp.where(known | jnp.isnan(largest), self._value(level, largest, jnp), 0)
        return seal(jnp.where((x < 0) & (value > 0), -value, value).reshape(-1)[:size])

    def sizes(self, x: Any) -> list:
        """All numbers, or only the nonzero ones."""
        level, scale, fit = self._decomposed(x)
        sent, scales = level > 0, np.uint32(scale.size * x.dtype.itemsize)
        levels = gamma_bytes(level, sent) if self.levels > 1 else 0
        dense = scales + np.uint32(whole_bytes(x.size * self.bits))
        sparse = scales + places_bytes(sent) + whole_bytes(total(sent)) + levels
        return [if_fits(fit, dense), if_fits(fit, sparse)]

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Scales, signs and levels."""
        level, scale, _ = self._decomposed(x)
        scales = scale.astype(x.dtype.newbyteorder("<")).tobytes()
        if layout == 1:
            return scales + pack(level | ((x < 0).astype(np.uint32) << (self.bits - 1)), self.bits)
        places = np.flatnonzero(level)
        levels = pack_gamma(level[places].astype(np.int64)) if self.levels > 1 else b""
        return scales + pack_places(places, len(x)) + pack(x[places] < 0, 1) + levels

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """Multiply levels and scales."""
        scale = reader.values(-(-count // self.bucket), dtype)
        level, negative = np.zeros(count, np.int64), np.zeros(count, bool)
        if layout == 1:
            codes = unpack(reader, count, self.bits)
            level[:], negative[:] = codes & self.levels, codes > self.levels
        elif layout == 2:
            places = unpack_places(reader, count)
            negative[places] = unpack(reader, len(places), 1) == 1
            level[places] = unpack_gamma(reader, len(places), self.bits * len(places)) if self.levels > 1 else 1
        else:
            raise Broken("its layout is unknown")
        if not np.isfinite(scale).all() or level.max(initial=0) > self.levels:
            raise Broken("it holds a number that is too large")
        largest = scale.reshape(-1, 1)
        value = self._value(self._buckets(level.astype(dtype), np), largest, np).reshape(-1)[:count]
        return np.where(negative, -value, value)

    def _decomposed(self, x: Any) -> tuple[Any, Any, Any]:
        """Return level `[d]` and scale `[buckets]` of a vector from `reduce`, and whether it can be one."""
        xp, bits = array_module(x), bits_of(x)
        magnitude = self._buckets(xp.abs(x), xp)
        # The largest by its bits: a processor may treat denormal numbers as zero.
        highest = xp.max(self._buckets(bits & ~_sign(bits.dtype), xp), axis=1, keepdims=True)
        largest = lax.bitcast_convert_type(highest, x.dtype) if xp is jnp else highest.view(x.dtype)
        known = (highest == 0) | ((largest >= self._smallest(x.dtype)) & xp.isfinite(largest))
        scale = xp.where(known & (highest > 0), largest, 1)
        level = xp.rint(self._position(xp.where(known, magnitude, 0), scale, xp))
        value = self._value(level, scale, xp)
        level, value = (a.reshape(-1)[: x.size] for a in (level, value))
        fit = xp.all(known) & xp.all(xp.where(level > 0, bits_of(value) == (bits & ~_sign(bits.dtype)), bits == 0))
        return level.astype(np.uint32), xp.where(highest > 0, largest, 0).reshape(-1), fit

    def _position(self, magnitude: Any, largest: Any, xp: Any) -> Any:
        """Return where numbers lie between the levels, from 0 to `levels`.

        A compiler may divide by multiplying with the inverse, or not, depending on the surrounding code, so the inverse
        is explicit. That of a huge number would be denormal: huge numbers are scaled down first, which is exact.
        """
        shrink = xp.where(largest > 2.0**64, 2.0**-64, 1).astype(largest.dtype)
        inverse = 1 / (self._step(largest, xp) * shrink)
        if xp is jnp:
            return seal(magnitude * shrink * seal(inverse))
        return magnitude * shrink * inverse

    def _value(self, level: Any, largest: Any, xp: Any) -> Any:
        """Return the absolute value of a level; the highest is exactly the scale."""
        return xp.where(level == self.levels, largest, level * self._step(largest, xp))

    def _step(self, largest: Any, xp: Any) -> Any:
        step = largest * xp.asarray(1 / self.levels, dtype=largest.dtype)
        return seal(step) if xp is jnp else step

    def _smallest(self, dtype: Any) -> float:
        """Return the smallest scale: below it levels would be denormal, which some processors treat as zero."""
        return 2 * self.levels * float(np.finfo(dtype).tiny)

    def _buckets(self, x: Any, xp: Any) -> Any:
        """Return `[d]` as `[buckets, bucket]`, padded with zeros."""
        bucket = min(self.bucket, x.size)
        count = -(-x.size // bucket)
        return xp.pad(x, (0, count * bucket - x.size)).reshape(count, bucket)


def _sign(dtype: Any) -> Any:
    """Return the highest bit of an unsigned type, which is the sign of a floating-point number."""
    return np.dtype(dtype).type(1 << (8 * np.dtype(dtype).itemsize - 1))
