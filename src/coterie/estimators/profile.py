"""Where a profile likelihood has fallen so far that the interval ends."""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

__all__ = ["crossing"]

_STEPS = 12
_CLOSE = 1e-5  # of the standard error


def crossing(fall: Callable[[float], float], at: float, error: float, level: float) -> float:
    """Return the value on one side of the maximum where minus twice the log-likelihood has risen enough.

    Args:
        fall: the rise of minus twice the profile log-likelihood at a value.
        at: the maximum.
        error: the standard error, negative for the lower end.
        level: of the interval; the rise is the square of the normal quantile.
    """
    goal = float(ndtri(0.5 + level / 2.0))
    # The root of the rise is nearly linear: secants find the crossing in a few steps.
    known, value = [(0.0, at)], at + goal * error
    for _ in range(_STEPS):
        root = float(np.sqrt(max(fall(value), 0.0)))
        if root <= 0.0:
            value = at + 2.0 * (value - at)
            continue
        known.append((root, value))
        known.sort(key=lambda pair: abs(pair[0] - goal))
        (r0, v0), (r1, v1) = known[:2]
        new = v0 + (goal - r0) * (v1 - v0) / (r1 - r0) if r1 != r0 else v0
        # Not farther than twice the present reach, and on the same side.
        reach = 2.0 * abs(v0 - at) + abs(error)
        new = at + float(np.clip((new - at) * np.sign(error), 1e-3 * abs(error), reach)) * float(np.sign(error))
        if abs(new - v0) < _CLOSE * abs(error):
            return new
        value = new
    return value
