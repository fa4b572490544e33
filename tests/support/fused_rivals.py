"""Algorithm 4 of P2, by which the paper approximates the fused operator: corrected, and as printed.

It stands here and not in the product, which has an exact and faster operator; `test_prox.py` and
`benchmarks/fused_prox.py` use it.
"""

import numpy as np
import scipy.linalg

__all__ = ["differences", "fused_admm", "fused_admm_as_printed", "transposed"]


def differences(x):
    """Lambda x: x_i - x_{i+1}, and at the end x_d."""
    return x - np.append(x[1:], 0)


def transposed(r):
    """Lambda^T r."""
    return r - np.append(0, r[:-1])


def soft(a, t):
    return np.sign(a) * np.maximum(np.abs(a) - t, 0)


def bands(d, weight):
    """The upper bands of I + weight Lambda^T Lambda, as `scipy.linalg.solveh_banded` wants them."""
    table = np.empty((2, d))
    table[0], table[1] = -weight, 1 + 2 * weight
    table[1, 0] = 1 + weight
    return table


def fused_admm(g, gamma, rho, iterations, x=None, eta=1.0, tolerance=None, truth=None):
    """The corrected Algorithm 4; returns q = (x - y) / eta, and the iterations it took.

    With a `truth` it ends as soon as no element is further from it than the tolerance.
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
