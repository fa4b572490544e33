"""The search for variances: SciPy's L-BFGS-B in units in which the information about each parameter is about one."""

from typing import Protocol

import numpy as np

__all__ = ["PASSES", "Criterion", "search"]

PASSES: tuple[float, ...] = (
    1e-1,
    1e-5,
)  # tolerance of the gradient, in units of the information: first roughly, then finely
LARGEST = 1e4  # the data do not bound a relative standard deviation that exceeds this
_SMALL = 1e-3  # one below this may be zero
_AWAY = 0.05  # initial value of one that was zero
_FLAT = 2e-13  # relative change of the criterion per step, below which a search near zero is at its end


class Criterion(Protocol):
    """A function to minimise. It is even in its `deviations`: the standard deviations among its parameters."""

    deviations: np.ndarray  # [parameters] bool
    information: np.ndarray  # [parameters] approximate second derivative, where the criterion was last evaluated

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient."""
        ...

    def canonical(self, parameters: np.ndarray) -> np.ndarray:
        """Return equivalent parameters without negative standard deviations."""
        ...


def search(criterion: Criterion, start: np.ndarray, passes: tuple[float, ...] = PASSES) -> np.ndarray:
    """Return the parameters at the minimum; each pass works in better units than the one before it.

    The sign of a standard deviation is ignored, so that the search needs no bound. With a bound at zero, a step that
    ends on it would stay there: the gradient by a standard deviation of zero is zero, even if the criterion falls from
    there.
    """
    from scipy.optimize import minimize

    if not len(start):
        return start
    # A start at zero (from a search with fewer groups) would never be left, for the same reason.
    parameters, spread = start.copy(), criterion.deviations
    parameters[spread] = np.maximum(np.abs(start[spread]), _AWAY)
    for tolerance in passes:
        value, _ = criterion(parameters)
        floor = 1e-6 * max(1.0, float(criterion.information.max()))
        unit = 1.0 / np.sqrt(np.maximum(criterion.information, floor))

        def scaled(x: np.ndarray, unit: np.ndarray = unit, zero: float = value) -> tuple[float, np.ndarray]:
            value, gradient = criterion(x * unit)
            return value - zero, gradient * unit

        options = {"gtol": tolerance, "ftol": 0.0, "maxiter": 300}
        stop = _Stall(max(1.0, abs(value)))
        found = minimize(scaled, parameters / unit, jac=True, method="L-BFGS-B", options=options, callback=stop)
        parameters = criterion.canonical(found.x * unit)
    return _at_zero(criterion, parameters)


class _Stall:
    """Ends a search whose last steps changed the criterion by rounding errors only, as they do where it is flat."""

    def __init__(self, size: float) -> None:
        self.size, self.best, self.quiet = size, np.inf, 0

    def __call__(self, intermediate_result: object) -> None:
        value = float(intermediate_result.fun)  # type: ignore[attr-defined]
        self.quiet = self.quiet + 1 if value > self.best - _FLAT * self.size else 0
        self.best = min(self.best, value)
        if self.quiet >= 3:
            raise StopIteration


def _at_zero(criterion: Criterion, parameters: np.ndarray) -> np.ndarray:
    """Set standard deviations that are nearly zero to zero, one by one, if the criterion does not rise."""
    value, _ = criterion(parameters)
    limit = value + 1e-9 * abs(value)
    for k in np.flatnonzero(criterion.deviations & (parameters < _SMALL) & (parameters != 0.0)):
        candidate = parameters.copy()
        candidate[k] = 0.0
        if criterion(candidate)[0] <= limit:
            parameters = candidate
    criterion(parameters)
    return parameters
