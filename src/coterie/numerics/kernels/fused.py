"""The fused operator, compiled by Numba; called by `numerics/prox.py`. Importing it needs Numba."""

from typing import Any

import numpy as np
from numba import float32, float64, int64, njit, types, uint64, void

__all__ = ["solve", "workspace"]

ONE = np.uint64(1)  # unsigned, so that Numba does not check every index for being negative


def workspace(d: int) -> tuple[np.ndarray, ...]:
    """Return the arrays that `solve` uses for rows of d elements; they can be reused."""
    return np.empty(2 * d + 2), np.empty(2 * d + 2, np.int64), np.empty((d + 1, 2)), np.empty((d, 2))


@njit(cache=True, nogil=True, error_model="numpy")
def _solve_row(g: Any, gamma: float, q: Any, bend: Any, piece: Any, sums: Any, bounds: Any) -> None:
    """Solve one row; see `solve`."""
    d = g.shape[0]
    total, rest = np.float64(g[0]), 0.0
    sums[0, 0], sums[0, 1] = 0.0, 0.0
    sums[1, 0], sums[1, 1] = total, rest
    left, right = uint64(d) - ONE, uint64(d)
    piece[left] = 0
    bend[left], bend[right] = total - gamma, total + gamma
    bounds[0, 0], bounds[0, 1] = bend[left], bend[right]
    for k in range(1, d):
        x = np.float64(g[k])
        longer = total + x
        gained = longer - total
        rest += (total - (longer - gained)) + (x - gained)
        total = longer
        sums[k + 1, 0], sums[k + 1, 1] = total, rest
        i, j = left - ONE, right
        piece[i], piece[j] = -k, k  # the flat ends become pieces of slope 1, which are -gamma and gamma at g_k
        low = high = x
        while i < right and bend[i + ONE] <= low:  # piece i ends before it reaches -gamma
            i += ONE
            began = abs(piece[i])
            jump = 0.0 if piece[i] < 0 else (gamma if piece[i] == 0 else 2 * gamma)
            low = ((total - sums[uint64(began), 0]) + (rest - sums[uint64(began), 1]) - jump) / (k + 1 - began)
        while j > i and bend[j] >= high:  # piece j begins after it has reached gamma
            j -= ONE
            began = abs(piece[j])
            jump = 0.0 if piece[j] > 0 else (gamma if piece[j] == 0 else 2 * gamma)
            high = ((total - sums[uint64(began), 0]) + (rest - sums[uint64(began), 1]) + jump) / (k + 1 - began)
        left, right = i, j + ONE
        bend[left], bend[right] = low, high
        bounds[k, 0], bounds[k, 1] = low, high
    if not np.isfinite(total + rest):
        q[:] = np.nan
        return
    value = 0.0  # q_{d+1}
    for k in range(d - 1, -1, -1):
        value = min(max(value, bounds[k, 0]), bounds[k, 1])
        q[k] = value


def _signature(real: Any) -> Any:
    given = types.Array(real, 2, "C", readonly=True), types.Array(float64, 1, "C", readonly=True)
    return void(*given, real[:, ::1], float64[::1], int64[::1], float64[:, ::1], float64[:, ::1])


# Compiled (or read from the cache) at import: nothing is left to compile inside a program.
@njit([_signature(float32), _signature(float64)], cache=True, nogil=True, error_model="numpy")
def solve(g: Any, gamma: Any, q: Any, bend: Any, piece: Any, sums: Any, bounds: Any) -> None:
    """Write argmin_q 1/2 |q - g|^2 + gamma (sum_{i<d} |q_i - q_{i+1}| + |q_d|) into `q`, for every row.

    Johnson's dynamic program (2013). After k elements, the least cost of all choices of q_1, ..., q_{k-1} is a convex
    function of q_k, and the next element depends only on its derivative, clipped to -gamma and gamma. This derivative
    is piecewise linear:

    - `bend[left..right]` are the points where its pieces meet; before the first it is -gamma, after the last gamma.
    - Piece i lies between bend i and bend i + 1. It began as a flat end after j = |piece[i]| elements (at -gamma where
      piece[i] is negative, at gamma where it is positive, at 0 at the start), and every element since then has added
      q - g to it. With the sums G_j = g_1 + ... + g_j it is (k - j) q - (G_k - G_j) + its first height: it is computed
      from the sums whenever it is needed, so that no error accumulates.
    - `bounds[k]` is where it reaches -gamma and gamma: the best q_k for a given q_{k+1} is q_{k+1} clipped to these.

    Every element adds one piece at either end, and a piece is passed once: the time is proportional to d. The sums have
    twice the usual digits (`sums[:, 1]` is the rounding error of `sums[:, 0]`), since small differences of large sums
    are needed. Everything is computed in float64 and rounded at the end; the values of a segment are copies. A gamma
    that is negative or not finite, and a row that is not finite, give NaN: errors cannot be raised inside a program.
    """
    for row in range(g.shape[0]):
        if gamma[row] == 0 and np.isfinite(g[row]).all():
            q[row] = g[row]
        elif gamma[row] > 0 and gamma[row] < np.inf:
            _solve_row(g[row], gamma[row], q[row], bend, piece, sums, bounds)
        else:
            q[row] = np.nan
