"""Shared codecs and vectors of the tests of codecs."""

import functools

import jax
import numpy as np
from hypothesis import strategies as st

from coterie.codecs import QSGD, Fused, Half, Raw, TopK

CODECS = {
    "none": Raw(),
    "float16": Half(),
    "qsgd": QSGD(bucket=5),
    "qsgd-2-bits": QSGD(bits=2, bucket=64),
    "top-k": TopK(fraction=0.3, short=False),
    "top-k-short": TopK(fraction=0.05),
    "fused": Fused(gamma=1.0, centres=0, short=False),
    "fused-centres": Fused(gamma=0.5, centres=6),
}
LENGTHS = {np.float32: (1, 2, 7, 1000), np.float64: (7, 1000)}
TYPES = tuple(LENGTHS)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@functools.cache
def compiled(name):
    """Return a program for the reduced vector of x, its size, and the size of x; compiled once per type and length."""
    codec = CODECS[name]

    def program(x, keys):
        sent = codec.reduce(x, keys)
        return sent, codec.size(sent), codec.size(x)

    return jax.jit(program)


def keys(count, seed=0):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(np.arange(count))


def numbers(dtype, anything):
    """Draw numbers that are difficult for codecs; `anything` adds infinities and NaN."""
    info = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, 1.5, -2.0, 65504.0, 65505.0, 1e-7, info.max, -info.max, info.tiny, -info.tiny]
    special += [info.smallest_subnormal, info.tiny / 4, info.max / 3, 3.1e38]
    special += [np.inf, -np.inf, np.nan] if anything else []
    width = 8 * np.dtype(dtype).itemsize
    return st.sampled_from(special) | st.floats(width=width, allow_nan=anything, allow_infinity=anything)


@st.composite
def vectors(draw, dtype, anything=True):
    """Draw vectors of one of the lengths, as repeated runs of equal numbers."""
    size = draw(st.sampled_from(LENGTHS[dtype]))
    runs = draw(st.lists(st.tuples(numbers(dtype, anything), st.integers(1, 20)), min_size=1, max_size=12))
    run = np.concatenate([np.full(times, value, dtype) for value, times in runs])
    return np.resize(run, size)
