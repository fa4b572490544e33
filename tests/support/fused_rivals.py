"""References for the fused operator: its optimality conditions, and the ADMM of Zhao et al., corrected and as printed.

`test_prox.py` and `benchmarks/fused_prox.py` use them; the product has an exact and faster operator.
"""

import numpy as np
import scipy.linalg

__all__ = ["differences", "fused_admm", "fused_admm_as_printed", "fused_kkt", "transposed"]


def fused_kkt(g, q, gamma):
    """Return the largest violation by q of the optimality conditions of the fused operator at g.

    With the sums s_i = (g_1 - q_1) + ... + (g_i - q_i) they are |s_i| <= gamma everywhere and s_i = gamma sign(q_i -
    q_{i+1}) wherever these differ, q_{d+1} = 0. Exactly one q meets them. A float32 result meets them up to the
    rounding of its elements, which the sums add up. `g` and `q` are `[d]` or `[N, d]`, `gamma` a number or `[N]`.
    """
    g, q, gamma = np.asarray(g, float), np.asarray(q, float), np.asarray(gamma, float)[..., None]
    assert q.shape == g.shape
    assert np.isfinite(g).all()
    assert np.isfinite(q).all()
    if q.size == 0:
        return 0.0
    sums = np.cumsum(g - q, axis=-1)
    jumps = -np.diff(q, axis=-1, append=0.0)
    outside = np.abs(sums) - gamma
    misplaced = np.where(jumps != 0, np.abs(sums - gamma * np.sign(jumps)), 0.0)
    return float(max(outside.max(), misplaced.max(), 0.0))


def differences(x):
    """Lambda x: x_i - x_{i+1}, and at the end x_d."""
    return x - np.append(x[1:], 0)


def transposed(r):
    """Lambda^T r."""
    return r - np.append(0, r[:-1])


def soft(a, t):
    return np.sign(a) * np.maximum(np.abs(a) - t, 0)


def bands(d, weight):
    """The upper bands of I + weight Lambda^T Lambda, in the format of `scipy.linalg.solveh_banded`."""
    table = np.empty((2, d))
    table[0], table[1] = -weight, 1 + 2 * weight
    table[1, 0] = 1 + weight
    return table


def fused_admm(g, gamma, rho, iterations, x=None, eta=1.0, tolerance=None, truth=None):
    """The corrected Algorithm 4; returns q = (x - y) / eta and the number of iterations.

    With a `truth` it stops as soon as every element is within the tolerance of it.
    """
    x = np.zeros_like(g) if x is None else x
    y, omega, weight = x, np.zeros_like(g), eta * gamma * rho
    factor = scipy.linalg.cholesky_banded(bands(len(g), weight))
    here, target = differences(x), x - eta * g
    taken = 0
    while taken < iterations:
        taken += 1
        r = here + soft(differences(y) - here - omega / rho, 1 / rho)
        y = scipy.linalg.cho_solve_banded((factor, False), target + weight * transposed(r + omega / rho))
        omega = omega + rho * (r - differences(y))
        if truth is not None and np.abs((x - y) / eta - truth).max() <= tolerance:
            break
    return (x - y) / eta, taken


def fused_admm_as_printed(g, gamma, rho, iterations, x, eta):
    """Algorithm 4 as printed: threshold rho, factor 4 / (rho eta gamma), and no Lambda^T before (r + omega / rho)."""
    y, omega, factor = x, np.zeros_like(g), 4 / (rho * eta * gamma)
    table = bands(len(g), factor)
    for _ in range(iterations):
        r = differences(x) + soft(differences(y - x) - omega / rho, rho)
        y = scipy.linalg.solveh_banded(table, x - eta * g + factor * (r + omega / rho), check_finite=False)
        omega = omega + rho * (r - differences(y))
    return (x - y) / eta
