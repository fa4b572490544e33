"""Random draws that a program and its host make alike: a small hash in 32-bit arithmetic, for NumPy and JAX arrays.

A fault is drawn from what it befalls (seed, kind, sender, receiver, round, exchange) and from nothing else. So a
carrier that draws on the host and a simulation that draws inside a compiled program lose the same messages.
"""

from typing import Any

import numpy as np

__all__ = ["ALWAYS", "draw", "threshold"]

ALWAYS = 1 << 31  # draws are below this

STEP, FIRST, SECOND = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


def draw(*words: Any) -> Any:
    """Return a number in [0, 2^31) for each entry of some arrays of 32-bit words, which broadcast.

    The words are mixed one after another with the last step of MurmurHash3 (Appleby, public domain).
    """
    value: Any = np.zeros(1, np.uint32)  # an array: sums and products of NumPy's single numbers warn when they wrap
    for word in words:
        value = _scrambled((value + STEP) ^ word.astype(np.uint32))
    return value >> np.uint32(1)


def _scrambled(value: Any) -> Any:
    value = (value ^ (value >> np.uint32(16))) * FIRST
    value = (value ^ (value >> np.uint32(13))) * SECOND
    return value ^ (value >> np.uint32(16))


def threshold(chance: float) -> int:
    """Return the number that a draw is below with this probability."""
    return round(chance * ALWAYS)
