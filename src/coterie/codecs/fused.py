"""Fused (Zhao et al.): replaces a gradient by a nearby piecewise constant one, sent as runs of equal numbers.

In place of x we send argmin_q 1/2 |q - x|^2 + gamma (sum_i |q_i - q_{i+1}| + |q_d|), which is constant over long runs
(`prox.fused`, exact). With `centres` its numbers are then reduced to that many by exact k-means (`codebook.py`).

A gradient shrinks while a model learns, so gamma is a multiple of the vector's mean absolute value, unless `absolute`.
With constant gamma training does not converge to the optimum (the paper claims that it does), hence the schedule
gamma_t = gamma / (1 + (t - 1) / settle) over the rounds t = 1, 2, ...
"""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.base import Codec, if_fits
from coterie.codecs.bits import Broken, Reader, array_module, bits_of, pack, total, unpack, whole_bytes
from coterie.codecs.indices import indices_bytes, pack_indices, unpack_indices
from coterie.codecs.numbers import SHORT, fit_short, pack_numbers, pack_short, shortened, unpack_short
from coterie.codecs.places import counter_bytes, pack_places, places_bytes, unpack_places
from coterie.spec import param
from coterie.traced import changed, is_off, traced

__all__ = ["Fused"]

LAYOUTS = 3
FOLD = 128  # numbers that are added one after another; see `_mean_absolute`


# Layout 1: ends of the runs (`places.py`) | a bit for each run, 1 if its number is zero | the other numbers.
# Layout 2: ends of the runs | codebook | an index for each run (`indices.py`).
# Layout 3: codebook | an index for each number.
# Layouts 4, 5 and 6 are these with numbers of 16 bits (`numbers.py`).
# A codebook is the number of distinct numbers (`counter_bytes(d)` bytes) and these numbers, the most frequent first
# (counting runs in layout 2, elements in layout 3); ties are ordered by the bits, as unsigned integers.
# Layouts 2 and 3 are for at most `centres` distinct numbers: without centres hardly any two runs are equal but zeros.


@traced
class Fused(Codec):
    """Runs of equal numbers, by the exact proximal operator of the fused term; optionally with a codebook."""

    name: ClassVar[str] = "fused"

    gamma: float = param(0.3, "penalty of a jump, in units of the mean absolute value; 0: none", at_least=0)
    absolute: bool = param(False, "gamma is absolute, not relative to the mean absolute value")
    settle: float = param(20.0, "rounds after which gamma has halved (1/3 after twice as many); 0 keeps it", at_least=0)
    centres: int = param(16, "number of distinct values, chosen by k-means; 0 keeps all", at_least=0, at_most=256)
    short: bool = param(True, "send numbers as bfloat16, with an error of at most 0.2 %")
    feedback: bool = param(False, "add the error of a message to the next one (error feedback)")

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the codec with the gamma of a round."""
        if is_off(self.settle) or is_off(self.gamma):
            return self
        return changed(self, gamma=self.gamma / (1 + (number - 1) / self.settle))

    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Apply the proximal operator, and round to the centres."""
        if x.size == 0:
            return x
        if not is_off(self.gamma):
            from coterie.numerics.prox import fused_in_program

            unit = jnp.ones(x.shape[0], x.dtype) if self.absolute else _mean_absolute(x)
            gamma = jnp.asarray(self.gamma, x.dtype) * unit
            x = fused_in_program(x, jnp.minimum(gamma, jnp.finfo(x.dtype).max))  # gamma may overflow
        x = shortened(x) if self.short else x  # leaves fewer distinct numbers, which makes k-means fast
        if self.centres:
            from coterie.numerics.codebook import codebook_in_program

            x = codebook_in_program(x, self.centres)
            x = shortened(x) if self.short else x
        return jnp.where(x == 0, 0, x)  # -0.0 would count as another number

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def sizes(self, x: Any) -> list:
        """Runs; and with centres runs with a codebook, and a codebook alone."""
        bits = bits_of(x)
        ends = _run_ends(bits)
        runs, zeros = total(ends), total(ends & (bits == 0))
        places, fit = places_bytes(ends), array_module(x).all(fit_short(bits))
        indices: list[Any] = [0, 0]
        distinct: Any = 1
        if self.centres:
            count = _frequencies if array_module(x) is np else self._frequencies_in_program
            in_runs, in_all, distinct = count(bits, ends)
            indices = [indices_bytes(each, distinct) for each in (in_runs, in_all)]
        sizes = []
        for item, fits in ((x.dtype.itemsize, True), (SHORT, fit)):
            book, coded = counter_bytes(x.size) + distinct * item, fits & (distinct <= self.centres)
            sizes.append(if_fits(fits, places + whole_bytes(runs) + (runs - zeros) * item))
            sizes.append(if_fits(coded, places + book + indices[0]))
            sizes.append(if_fits(coded, book + indices[1]))
        return sizes

    def _frequencies_in_program(self, bits: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return what `_frequencies` does, padded with zeros to `[centres]`, since shapes cannot depend on values.

        Takes one distinct number after the other, from the smallest bits on: for few centres that takes a fraction of
        the time of sorting. After `centres` numbers all others count as one.
        """

        def more(carry: tuple) -> jax.Array:
            distinct, _, numbers, _ = carry
            return (distinct < self.centres) & (jnp.sum(numbers) < bits.size)

        def count(carry: tuple) -> tuple:
            distinct, least, numbers, runs = carry
            number = jnp.min(jnp.where(bits >= least, bits, ~jnp.zeros((), bits.dtype)))
            equal = bits == number
            numbers = numbers.at[distinct].set(total(equal))
            runs = runs.at[distinct].set(total(equal & ends))
            return distinct + 1, number + 1, numbers, runs

        none = jnp.zeros(self.centres, jnp.uint32)
        first = jnp.uint32(0), jnp.zeros((), bits.dtype), none, none
        distinct, _, numbers, runs = lax.while_loop(more, count, first)
        runs, numbers = (jnp.sort(counts, descending=True) for counts in (runs, numbers))
        return runs, numbers, distinct + (jnp.sum(numbers) < bits.size)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Write those of runs, codebook and indices that the layout has."""
        kind, written = (layout, pack_numbers) if layout <= LAYOUTS else (layout - LAYOUTS, pack_short)
        ends = np.flatnonzero(_run_ends(bits_of(x)))
        numbers, lengths = bits_of(x)[ends], np.diff(ends, prepend=-1)
        places = b"" if kind == 3 else pack_places(ends, len(x))
        if kind == 1:
            return places + pack(numbers == 0, 1) + written(x[ends][numbers != 0])
        distinct, counts, index = _counted(numbers, lengths if kind == 3 else None)
        codebook = len(distinct).to_bytes(counter_bytes(len(x)), "little") + written(distinct.view(x.dtype))
        return places + codebook + pack_indices(np.repeat(index, lengths) if kind == 3 else index, counts)

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """Repeat the number of each run."""
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
            nonzero = int(other.sum())
            numbers[other] = unpack_short(reader, nonzero, dtype) if short else reader.values(nonzero, dtype)
            return np.repeat(numbers, lengths)
        distinct = reader.number(counter_bytes(count))
        codebook = unpack_short(reader, distinct, dtype) if short else reader.values(distinct, dtype)
        index = unpack_indices(reader, len(lengths), distinct)
        return np.repeat(codebook[index], lengths) if kind == 2 else codebook[index]


def _run_ends(bits: Any) -> Any:
    """Return which elements of `bits [d]` are the last of a run of equal ones, for NumPy and JAX."""
    return array_module(bits).append(bits[1:] != bits[:-1], True)


def _frequencies(bits: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return how many runs and how many elements each distinct number has, descending, and the number of these."""
    places = np.flatnonzero(ends)
    runs, numbers = (_counted(bits[places], each)[1] for each in (None, np.diff(places, prepend=-1)))
    return runs, numbers, len(runs)


def _counted(bits: np.ndarray, multiplicity: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct numbers, the most frequent first, their frequencies, and the index of every number.

    `multiplicity` says how often each number of `bits` counts; default: once.
    """
    distinct = np.unique(bits)
    index = np.searchsorted(distinct, bits)
    counts = np.bincount(index, multiplicity).astype(np.int64)  # weighted counts are floats, exact up to 2**53
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], counts[order], rank[index]


def _mean_absolute(x: jax.Array) -> jax.Array:
    """Return the mean absolute value of each row of `x [C, d]`, summed in an order that does not depend on C.

    The order of the compiler's own sum may, and with it the last bit of gamma, and then all results. So that the sum
    cannot overflow, the numbers are first divided by the largest power of two below them, which is exact.
    """
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    exponent = np.array(np.inf, x.dtype).view(f"u{x.dtype.itemsize}")  # its exponent bits are all ones
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
