"""Fused (Zhao et al.): a gradient is replaced by one near it with few jumps, and sent as runs of equal numbers.

What is sent for x is argmin_q 1/2 |q - x|^2 + gamma (sum_i |q_i - q_{i+1}| + |q_d|), which is constant over long runs
(`prox.fused`, exact). With `centres` its numbers are then replaced by so many, by exact k-means (`codebook.py`).

A gradient shrinks while a model learns, so gamma is a multiple of the vector's mean absolute value, unless `absolute`.
With constant gamma training ends beside the optimum (the paper claims that it does not), hence the schedule
gamma_t = gamma / (1 + (t - 1) / settle) over the rounds t = 1, 2, ...
"""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.base import UNFIT, Codec, bits_of, host_bits
from coterie.codecs.bits import Broken, Reader, pack, unpack
from coterie.codecs.numbers import SHORT, fit_short, pack_numbers, pack_short, shortened, unpack_short
from coterie.codecs.places import (
    bit_length,
    counter_bytes,
    pack_places,
    places_bytes,
    places_bytes_on_host,
    unpack_places,
    whole_bytes,
)
from coterie.spec import param
from coterie.traced import changed, is_off, traced

__all__ = ["Fused"]

LAYOUTS = 3
FOLD = 128  # numbers that are added one after another; see `_mean_size`


# Layout 1: ends of the runs (`places.py`) | a bit for each run, 1 if its number is zero | the other numbers.
# Layout 2: ends of the runs | codebook | an index for each run.
# Layout 3: codebook | an index for each number.
# A codebook is the number of distinct numbers n (`counter_bytes(d)` bytes) and these numbers, sorted by their bits as
# unsigned integers; an index has ceil(log2 n) bits. Layouts 2 and 3 are considered with `centres` only: without, runs
# hardly ever have equal numbers but zeros, and to count the distinct ones would take more time than everything else.
# Layouts 4, 5 and 6 are these with numbers of 16 bits (`numbers.py`).


@traced
class Fused(Codec):
    """Runs of equal numbers, by the exact proximal operator of the fused term; optionally with a codebook."""

    name: ClassVar[str] = "fused"

    gamma: float = param(1.0, "price of a jump, in units of the mean absolute value; 0: all are kept", at_least=0)
    absolute: bool = param(False, "take gamma as it is, not relative to the vector")
    settle: float = param(20.0, "rounds after which gamma has halved (1/3 after twice as many); 0 keeps it", at_least=0)
    centres: int = param(0, "distinct numbers that are left, chosen by k-means; 0 leaves all", at_least=0)
    short: bool = param(True, "send numbers with 16 bits, to 0.2 % exact (bfloat16)")
    feedback: bool = param(False, "add what was not sent to the next message (error feedback)")

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the codec with the gamma of a round."""
        if is_off(self.settle) or is_off(self.gamma):
            return self
        return changed(self, gamma=self.gamma / (1 + (number - 1) / self.settle))

    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Even out, and round to the centres."""
        if x.size == 0:
            return x
        if not is_off(self.gamma):
            from coterie.prox import fused_in_program

            unit = jnp.ones(x.shape[0], x.dtype) if self.absolute else _mean_size(x)
            gamma = jnp.asarray(self.gamma, x.dtype) * unit
            x = fused_in_program(x, jnp.minimum(gamma, jnp.finfo(x.dtype).max))  # large numbers may make it infinite
        if self.centres:
            from coterie.codebook import codebook_in_program

            x = codebook_in_program(x, self.centres)
        if self.short:
            x = shortened(x)
        return jnp.where(x == 0, 0, x)  # -0.0 would be a number of its own

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def sizes(self, x: jax.Array) -> list:
        """Runs; and with centres runs with a codebook, and a codebook alone."""
        bits = bits_of(x)
        ends = jnp.append(bits[1:] != bits[:-1], True)
        runs, zeros = (jnp.sum(a, dtype=jnp.uint32) for a in (ends, ends & (bits == 0)))
        distinct: Any = 0
        if self.centres:
            ordered = lax.sort(bits)
            distinct = 1 + jnp.sum(ordered[1:] != ordered[:-1], dtype=jnp.uint32)
        full, short = (
            self._layout_sizes(x.size, item, places_bytes(ends), runs, zeros, distinct, bit_length)
            for item in (x.dtype.itemsize, SHORT)
        )
        fit = jnp.all(fit_short(bits))
        return full + [jnp.where(fit, size, UNFIT) for size in short]

    def sizes_on_host(self, x: np.ndarray) -> list[int]:
        """As `sizes`."""
        ends = _run_ends(x)
        numbers = host_bits(x)[ends]
        distinct = len(np.unique(numbers)) if self.centres else 0
        places, zeros = places_bytes_on_host(ends, len(x)), int((numbers == 0).sum())
        full, short = (
            self._layout_sizes(x.size, item, places, len(ends), zeros, distinct, int.bit_length)
            for item in (x.itemsize, SHORT)
        )
        return full + (short if fit_short(numbers).all() else [int(UNFIT)] * LAYOUTS)

    def _layout_sizes(
        self, size: int, item: int, places: Any, runs: Any, zeros: Any, distinct: Any, bit_length: Any
    ) -> list:
        """Return the sizes from what was counted, with numbers of `item` bytes; on the host and in a program."""
        plain = places + whole_bytes(runs) + (runs - zeros) * item
        if not self.centres:
            return [plain, UNFIT, UNFIT]
        codebook, width = counter_bytes(size) + distinct * item, bit_length(distinct - 1)
        return [plain, places + codebook + whole_bytes(runs * width), codebook + whole_bytes(size * width)]

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Runs, codebook, indices: what the layout has of them."""
        kind, written = (layout, pack_numbers) if layout <= LAYOUTS else (layout - LAYOUTS, pack_short)
        ends = _run_ends(x)
        places = b"" if kind == 3 else pack_places(ends, len(x))
        numbers = x if kind == 3 else x[ends]
        if kind == 1:
            zero = host_bits(numbers) == 0
            return places + pack(zero, 1) + written(numbers[~zero])
        distinct, index = np.unique(host_bits(numbers), return_inverse=True)
        codebook = len(distinct).to_bytes(counter_bytes(len(x)), "little") + written(distinct.view(x.dtype))
        return places + codebook + pack(index, (len(distinct) - 1).bit_length())

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """Put runs and numbers together."""
        if not 1 <= layout <= 2 * LAYOUTS:
            raise Broken("its layout is unknown")
        kind, short = (layout, False) if layout <= LAYOUTS else (layout - LAYOUTS, True)
        lengths = np.ones(count, np.int64)
        if kind != 3:
            ends = unpack_places(reader, count)
            if len(ends) == 0 or ends[-1] != count - 1:
                raise Broken("its runs do not end where it does")
            lengths = np.diff(ends, prepend=-1)
        if kind == 1:
            numbers = np.zeros(len(lengths), dtype)
            other = unpack(reader, len(lengths), 1) == 0
            many = int(other.sum())
            numbers[other] = unpack_short(reader, many, dtype) if short else reader.values(many, dtype)
            return np.repeat(numbers, lengths)
        distinct = reader.number(counter_bytes(count))
        codebook = unpack_short(reader, distinct, dtype) if short else reader.values(distinct, dtype)
        index = unpack(reader, len(lengths), max(0, distinct - 1).bit_length())
        if index.max(initial=0) >= distinct:
            raise Broken("it names a number that it does not hold")
        return np.repeat(codebook[index], lengths) if kind == 2 else codebook[index]


def _run_ends(x: np.ndarray) -> np.ndarray:
    bits = host_bits(x)
    return np.append(np.flatnonzero(bits[1:] != bits[:-1]), len(x) - 1)


def _mean_size(x: jax.Array) -> jax.Array:
    """Return the mean absolute value of each row of `x [C, d]`, added in an order that does not depend on C.

    The order of a compiler's own sum may, and with it the last bit of gamma and then of everything. So that the sum
    cannot overflow, the numbers are divided by a power of two before, which is exact: the one below the largest.
    """
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    exponent = np.array(np.inf, x.dtype).view(f"u{x.dtype.itemsize}")  # infinity is a one in every bit of it
    power = jnp.clip(lax.bitcast_convert_type(bits_of(largest) & exponent, x.dtype), 2.0**-100, 2.0**100)
    total = jnp.abs(x) * (1 / power)
    while total.shape[1] > 1:
        parts = min(FOLD, total.shape[1])
        width = -(-total.shape[1] // parts)
        rows = jnp.pad(total, ((0, 0), (0, parts * width - total.shape[1]))).reshape(-1, parts, width)
        total = _added(rows)
    return total[:, 0] * jnp.asarray(1 / x.shape[1], x.dtype) * power[:, 0]


def _added(rows: jax.Array) -> jax.Array:
    start = jnp.zeros((rows.shape[0], rows.shape[2]), rows.dtype)
    return lax.fori_loop(0, rows.shape[1], lambda part, total: total + rows[:, part], start)
