"""Variances of the hierarchical logistic model by Laplace's approximation of its likelihood.

The integral over the coefficients of exp(-objective) is replaced by that of the normal density with the same mode and
curvature at the mode. Minus twice its logarithm is, up to a constant,

    2 objective(mode) + log det V + log det X' V^-1 X

with V and both determinants those of the linear model at the mode (`blocks.py`): the restricted likelihood, in which
beta is integrated out, too, as in REML. "marginal" leaves out the last determinant and maximises over beta as well, as
lme4's glmer does (nAGQ = 1). The gradient is exact: the mode depends on the variances, and the weights on the mode; one
more solution with the same blocks accounts for that. Parameters are those of a triangular factor, so that a variance of
zero is as easy to reach as any other. With many groups the search runs on a few thousand of them first.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.estimators.grouped_rows import Answer
from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Covariances, Shape
from coterie.estimators.newton import WEAK, Mode, Penalty, find_bounded_mode, find_mode
from coterie.estimators.search import LARGEST as LARGEST_DEVIATION
from coterie.estimators.search import PASSES, search

__all__ = ["LARGEST", "Criterion", "Fit", "Problem", "laplace"]

_FEW = 4000  # groups that the first search uses
LARGEST = 100.0  # the rows do not bound a standard deviation of log-odds that exceeds this


@dataclass(frozen=True)
class Problem:
    """The rows and the given covariances (None: to be estimated)."""

    data: Any  # Bernoulli or Multinomial
    structure: Any  # Nested or Crossed
    shapes: tuple[Shape, ...]
    given: tuple[np.ndarray | None, ...]  # [k, k] of every level
    marginal: bool = False
    ridge: float = 0.0

    def part(self, groups: int) -> "Problem":
        """Return the problem of about so many of the groups, evenly spread."""
        kept, structure = self.structure.part(max(1, self.data.groups // groups))
        return replace(self, data=self.data.part(kept), structure=structure)


@dataclass(frozen=True)
class Fit:
    """The mode at the estimated variances, and whether beta needed the weak prior."""

    mode: Mode
    penalty: Penalty
    log_likelihood: float | None  # None: nothing was estimated
    weak: bool
    criterion: Any = None  # with which inference goes on
    parameters: np.ndarray | None = None
    slope: float = 0.0  # the largest derivative left, in units of the information

    @property
    def converged(self) -> bool:
        """Whether the search ended at a maximum of the likelihood, and Newton's method at the mode."""
        return self.mode.converged and self.slope < 1e-2


def laplace(problem: Problem) -> Fit:
    """Estimate what is not given, and return the mode there."""
    count = Criterion(problem).covariances.size
    passes: tuple[float, ...] = PASSES
    start = np.where(Criterion(problem).covariances.deviations, 0.5, 0.0)
    if count and problem.data.groups > 2 * _FEW:
        with contextlib.suppress(InvalidData):  # if these few do not determine beta, begin with all
            criterion, parameters, _, _ = _search(problem.part(_FEW), start, PASSES)
            start, passes = parameters[:count], PASSES[1:]
    criterion, parameters, mode, weak = _search(problem, start, passes)
    if not count:
        penalty = criterion.penalty(parameters)
        return Fit(mode, penalty, None, weak, criterion, parameters)
    value, slope = criterion(parameters)
    scaled = float(np.max(np.abs(slope) / np.sqrt(np.maximum(criterion.information, 1.0)), initial=0.0))
    constant = 0.0 if problem.marginal else problem.data.size * np.log(2.0 * np.pi)
    found = -0.5 * (value - constant)
    return Fit(criterion.mode(parameters), criterion.penalty(parameters), found, weak, criterion, parameters, scaled)


def _search(
    problem: Problem, start: np.ndarray, passes: tuple[float, ...]
) -> tuple["Criterion", np.ndarray, Mode, bool]:
    """Return the criterion, the parameters at its minimum, its initial mode, and whether that needed a prior."""
    criterion = Criterion(problem)
    mode, weak = find_bounded_mode(problem.data, criterion.penalty(start))
    if weak:
        criterion = Criterion(replace(problem, ridge=WEAK))
    criterion.begin(mode)
    whole = np.r_[start, np.zeros(criterion.size - len(start))]
    return criterion, search(criterion, whole, passes) if len(start) else whole, mode, weak


class Criterion:
    """Minus twice the logarithm of the approximate likelihood, with its gradient, at a vector of parameters.

    The parameters are those of the covariances and, for the marginal likelihood, beta in units of its standard errors
    at
    the initial mode.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.covariances = Covariances(problem.shapes, problem.given)
        self._beta(np.zeros(problem.data.size), np.eye(problem.data.size))
        self._nearby: Answer | None = None
        self._mode: tuple[bytes, Mode] | None = None
        self._last: tuple[bytes, float, np.ndarray, np.ndarray] | None = None

    def _beta(self, centre: np.ndarray, unit: np.ndarray) -> None:
        """Let beta be centre + unit z, z being the last parameters of the marginal likelihood."""
        self.centre, self.unit = centre, unit
        count, more = self.covariances.size, unit.shape[1] if self.problem.marginal else 0
        self.size, self.information = count + more, np.ones(count + more)
        self.deviations = np.r_[self.covariances.deviations, np.zeros(more, dtype=bool)].astype(bool)

    def begin(self, mode: Mode) -> None:
        """Start the search for further modes from this one."""
        self._nearby = mode.answer
        self._beta(mode.solution.beta, np.linalg.cholesky(mode.solution.covariance))

    def constrain(self, contrast: np.ndarray, value: float, beta: np.ndarray, spread: np.ndarray) -> None:
        """Search under contrast' beta = value, from the nearest such beta, spread being its covariance."""
        along = spread @ contrast / float(contrast @ spread @ contrast)
        root = np.linalg.cholesky(spread)
        free = np.linalg.svd((contrast @ root)[None])[2][1:].T
        self._beta(beta - along * (float(contrast @ beta) - value), root @ free)
        self._mode = self._last = None

    def canonical(self, parameters: np.ndarray) -> np.ndarray:
        """Return the same covariances with no negative standard deviation."""
        count = self.covariances.size
        return np.r_[self.covariances.canonical(parameters[:count], LARGEST_DEVIATION), parameters[count:]]

    def penalty(self, parameters: np.ndarray) -> Penalty:
        """Return the covariances that the parameters stand for."""
        matrices = self.covariances.matrices(parameters)
        return Penalty(self.problem.structure, tuple(matrices), self.problem.ridge)

    def beta(self, parameters: np.ndarray) -> np.ndarray | None:
        """Return beta, which is a parameter of the marginal likelihood only."""
        return self.centre + self.unit @ parameters[self.covariances.size :] if self.problem.marginal else None

    def mode(self, parameters: np.ndarray) -> Mode:
        """Return the mode at these parameters; the last one is cached, since a search asks for it again."""
        if self._mode is None or self._mode[0] != parameters.tobytes():
            mode = find_mode(self.problem.data, self.penalty(parameters), self._nearby, self.beta(parameters))
            self._nearby, self._mode = mode.answer, (parameters.tobytes(), mode)
        return self._mode[1]

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the criterion and its gradient; stores the information about parameters."""
        if self._last is not None and self._last[0] == parameters.tobytes():
            self.information = self._last[3]
            return self._last[1], self._last[2]
        mode = self.mode(parameters)
        slopes, squares, beta = self.slopes(mode, self.penalty(parameters))
        gradient, information = np.zeros(self.size), np.ones(self.size)
        count = self.covariances.size
        gradient[:count], information[:count] = self.covariances.derivatives(parameters[:count], slopes, squares)
        if self.problem.marginal:
            gradient[count:] = self.unit.T @ beta
        value = 2.0 * mode.value + mode.solution.log_determinant
        self.information = information
        self._last = parameters.tobytes(), value, gradient, information
        return value, gradient

    def slopes(self, mode: Mode, penalty: Penalty) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Return the criterion's derivatives by every level's covariance, their scale, and the one by a given beta."""
        solution, answer = mode.solution, mode.answer
        slopes, squares = solution.slopes(1.0)
        # The weights depend on the mode, which depends on the variances. `skew` is the derivative of the determinant
        # for theta; its product with the derivative of the mode for a variance is a product of two scores.
        skew = self.problem.data.skew(answer.theta, solution.unit_covariance())
        moments = answer.moments.copy()
        moments[:-1, -1] = moments[-1, :-1] = skew
        moved = penalty.solve(moments, np.zeros(len(skew)) if self.problem.marginal else None)
        for level, (one, other) in enumerate(zip(moved.levels, solution.levels, strict=True)):
            product = one.residual @ other.residual.T
            slopes[level] = slopes[level] + (product + product.T) / 2.0
        beta = 2.0 * (penalty.ridge * solution.beta - answer.gradient.sum(axis=1)) + skew.sum(axis=1)
        beta = beta - np.einsum("abi,bi->a", answer.moments[:-1, :-1], moved.theta)
        return slopes, squares, beta
