"""The search for variances: SciPy's L-BFGS-B in units in which the information about each parameter is about one."""

from typing import Protocol

import numpy as np
from scipy.optimize import minimize

__all__ = ["PASSES", "Criterion", "search"]

PASSES: tuple[float, ...] = (
    1e-1,
    1e-5,
)  # tolerance of the gradient, in units of the information: first roughly, then finely
_LARGEST = 1e4  # the data do not bound a relative standard deviation that exceeds this
_SMALL = 1e-3  # one below this may be zero
_AWAY = 0.05  # initial value of one that was zero


class Criterion(Protocol):
    """A function to minimise. Its first `deviations` parameters are standard deviations, in whose sign it is even."""

    deviations: int
    information: np.ndarray  # [parameters] approximate second derivative, where the criterion was last evaluated
    slopes: np.ndarray  # [at least deviations] the derivatives by the squares of standard deviations there

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient."""
        ...


def search(criterion: Criterion, start: np.ndarray, passes: tuple[float, ...] = PASSES) -> np.ndarray:
    """Return the parameters at the minimum; each pass works in better units than the one before it.

    The sign of a standard deviation is ignored, so that the search needs no bound. With a bound at zero, a step that
    ends on it would stay there: the gradient by a standard deviation of zero is zero, even if the criterion falls from
    there.
    """
    if not len(start):
        return start
    # A start at zero (from a search with fewer groups) would never be left, for the same reason.
    parameters = start.copy()
    parameters[: criterion.deviations] = np.maximum(np.abs(start[: criterion.deviations]), _AWAY)
    for tolerance in passes:
        value, _ = criterion(parameters)
        floor = 1e-6 * max(1.0, float(criterion.information.max()))
        unit = 1.0 / np.sqrt(np.maximum(criterion.information, floor))

        def scaled(x: np.ndarray, unit: np.ndarray = unit, zero: float = value) -> tuple[float, np.ndarray]:
            value, gradient = criterion(x * unit)
            return value - zero, gradient * unit

        options = {"gtol": tolerance, "ftol": 0.0, "maxiter": 300}
        parameters = minimize(scaled, parameters / unit, jac=True, method="L-BFGS-B", options=options).x * unit
    deviations = slice(criterion.deviations)
    parameters[deviations] = np.minimum(np.abs(parameters[deviations]), _LARGEST)
    return _at_zero(criterion, parameters)


def _at_zero(criterion: Criterion, parameters: np.ndarray) -> np.ndarray:
    """Set standard deviations that are nearly zero to zero, if the criterion does not rise."""
    value, _ = criterion(parameters)
    deviations, candidate = criterion.deviations, parameters.copy()
    zero = (parameters[:deviations] < _SMALL) & (criterion.slopes[:deviations] > 0)
    candidate[:deviations][zero] = 0.0
    return candidate if zero.any() and criterion(candidate)[0] <= value + 1e-9 * abs(value) else parameters
