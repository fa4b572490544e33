"""Variances by restricted or marginal maximum likelihood (REML, ML), from the moments of the groups.

Minus twice the restricted log-likelihood is, up to a constant,

    log det V + log det X' V^-1 X + (n - p) log s2 + y' P y / s2

and each evaluation, with its gradient, is one pass over the groups (`blocks.py`). The marginal one has no second
determinant, and n in place of n - p. The free parameters are those of the covariances relative to the residual
variance, as in lme4, so that a variance of zero is as easy to reach as any other; the residual variance is profiled out
unless another variance is fixed, which makes it one more parameter, log s2. With many groups the search (`search.py`)
runs on a few thousand of them first, and then needs only a few steps with all. With many parameters it starts from
several points, and the best end counts.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Covariances, Shape
from coterie.estimators.search import LARGEST, PASSES, search

__all__ = ["Criterion", "Estimate", "Problem", "estimate"]

_FEW = 4000  # groups that the first search uses
_MANY = 3  # parameters from which on a search may end at another minimum than the best
_STARTS = (0.5, 0.1, 2.0)
_APART = 0.2  # relative distance of parameters from which on they may belong to another minimum
_CLOSE = 0.02  # how much a rough search may miss of its minimum


@dataclass(frozen=True)
class Problem:
    """The moments and the given variances (None: to be estimated)."""

    moments: np.ndarray  # [p + 1, p + 1, units], in the structure's order
    counts: np.ndarray  # [units]
    structure: Any  # Nested or Crossed
    shapes: tuple[Shape, ...]
    residual: float | None
    given: tuple[np.ndarray | None, ...]  # [k, k] of every level
    marginal: bool = False
    fixed: tuple[np.ndarray, float] | None = None  # a, b: under the constraint a' beta = b
    centred: bool = False  # the first column is one

    def part(self, groups: int) -> "Problem":
        """Return the problem of about so many of the groups, evenly spread."""
        kept, structure = self.structure.part(max(1, len(self.counts) // groups))
        moments = np.ascontiguousarray(self.moments[:, :, kept])
        return replace(self, moments=moments, counts=self.counts[kept], structure=structure)

    @property
    def rows(self) -> float:
        """The number of rows."""
        return float(self.counts.sum())

    @property
    def freedom(self) -> float:
        """Rows, minus coefficients unless the likelihood is marginal."""
        return self.rows - (0 if self.marginal else len(self.moments) - 1)

    def solve(self, ratios: list[np.ndarray]) -> Any:
        """Return the solution at these ratios."""
        return self.structure.solve(self.moments, ratios, marginal=self.marginal, fixed=self.fixed)


@dataclass(frozen=True)
class Estimate:
    """Variances in working units, the solution at them, and how the search ended."""

    residual: float
    covariances: tuple[np.ndarray, ...]  # [k, k] of every level
    solution: Any
    log_likelihood: float | None  # None: everything was given
    parameters: np.ndarray
    slope: float = 0.0  # the largest derivative left, in units of the information
    starts: int = 0

    @property
    def converged(self) -> bool:
        """Whether the search ended at a minimum."""
        return self.slope < 1e-2


def estimate(problem: Problem, start: np.ndarray | None = None) -> Estimate:
    """Estimate what is not given; a search that starts from given parameters is the only one."""
    if problem.residual is not None and all(matrix is not None for matrix in problem.given):
        covariances = tuple(matrix for matrix in problem.given if matrix is not None)
        solution = problem.solve([matrix / problem.residual for matrix in covariances])
        return Estimate(problem.residual, covariances, solution, None, np.zeros(0))
    _refuse_undetermined(problem)
    criterion = Criterion(problem)
    starts = criterion.starts() if start is None else [start]
    many = len(problem.counts) > 2 * _FEW and start is None
    parameters = _from_few(criterion, starts[0]) if many else search(criterion, starts[0])
    best = criterion(parameters)[0]
    for begin in starts[1:]:
        # Another start is followed roughly, and to its end only if that may be another and a better one.
        rough = search(criterion, begin, PASSES[:1])
        apart = np.abs(rough - parameters).max() > _APART * max(1.0, float(np.abs(parameters).max()))
        if criterion(rough)[0] < best + (_CLOSE if apart else -_CLOSE):
            end = search(criterion, rough, PASSES[1:])
            if criterion(end)[0] < best:
                best, parameters = criterion(end)[0], end
    _, slope = criterion(parameters)
    residual, solution, value = criterion.at(parameters)
    scaled = float(np.max(np.abs(slope) / np.sqrt(np.maximum(criterion.information, 1.0)), initial=0.0))
    covariances = tuple(residual * level.ratio for level in solution.levels)
    constant = problem.freedom * np.log(2.0 * np.pi)
    return Estimate(residual, covariances, solution, -0.5 * (value + constant), parameters, scaled, len(starts))


def _refuse_undetermined(problem: Problem) -> None:
    if problem.residual is None and problem.freedom <= 0:
        raise InvalidData(
            f"X: {int(problem.rows)} rows cannot estimate {len(problem.moments) - 1} coefficients and the "
            "residual variance; add rows or remove features"
        )
    free = [level for level, matrix in enumerate(problem.given) if matrix is None]
    if problem.residual is not None or not free or problem.counts.max() > 1:
        return
    # A single row per unit: an intercept that varies between units is confounded with the residual.
    effect = problem.structure.effects[0]
    ones = np.einsum("ak,abn,bk->kn", effect.basis, problem.moments[:-1, :-1], effect.basis, optimize=True)
    if len(problem.counts) == problem.structure.sizes[0] and (ones == problem.counts).all(axis=1).any():
        raise InvalidData(
            "groups: every group has a single row, which leaves its variance and the residual one indistinguishable; "
            "give residual_variance or use wider groups"
        )


def _from_few(criterion: "Criterion", start: np.ndarray) -> np.ndarray:
    """Search with a few of the groups, and then with all, to a thousandth of the parameters' standard errors."""
    with contextlib.suppress(InvalidData):  # if these few do not determine the coefficients, begin with all
        nearby = search(Criterion(criterion.problem.part(_FEW)), start)
        return search(criterion, nearby, (1e-3,))
    return search(criterion, start)


class Criterion:
    """The criterion and its gradient at a vector of parameters."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.covariances = Covariances(problem.shapes, problem.given)
        fixed = [matrix for matrix in problem.given if matrix is not None]
        self.explicit = problem.residual is None and any(matrix.any() for matrix in fixed)
        self.size = self.covariances.size + int(self.explicit)
        self.deviations = np.r_[self.covariances.deviations, np.zeros(int(self.explicit), dtype=bool)].astype(bool)
        total = problem.moments[-1, -1].sum()
        self.floor = max(float(total) * np.finfo(float).eps / max(problem.freedom, 1.0), np.finfo(float).tiny)
        self.information = np.ones(self.size)
        self._last: tuple[bytes, float, np.ndarray, np.ndarray] | None = None
        self._solved: tuple[bytes, tuple[float, Any, float]] | None = None

    def starts(self) -> list[np.ndarray]:
        """Return the points from which searches begin: one, or several where there are many parameters."""
        starts = []
        several = self.covariances.size >= _MANY and len(self.problem.counts) <= _FEW
        for deviation in _STARTS if several else _STARTS[:1]:
            start = np.where(self.deviations, deviation, 0.0)
            if self.explicit:
                start[-1] = np.log(max(self._pooled_variance(), np.finfo(float).tiny))
            starts.append(start)
        return starts

    def canonical(self, parameters: np.ndarray) -> np.ndarray:
        """Return the same covariances with no negative standard deviation."""
        count = self.covariances.size
        return np.r_[self.covariances.canonical(parameters[:count], LARGEST), parameters[count:]]

    def _pooled_variance(self) -> float:
        """Return the residual variance of one regression for all."""
        zero = [np.zeros((shape.size, shape.size)) for shape in self.problem.shapes]
        return max(self.problem.solve(zero).squares / self.problem.freedom, self.floor)

    def at(self, parameters: np.ndarray) -> tuple[float, Any, float]:
        """Return residual variance, solution and criterion; the last is cached, since a search asks for it again."""
        if self._solved is not None and self._solved[0] == parameters.tobytes():
            return self._solved[1]
        problem = self.problem
        variance = float(np.exp(parameters[-1])) if self.explicit else problem.residual
        solution = problem.solve(self.covariances.matrices(parameters, 1.0 if variance is None else variance))
        if variance is None:
            variance = max(solution.squares / problem.freedom, self.floor)
        value = solution.log_determinant + problem.freedom * np.log(variance) + solution.squares / variance
        self._solved = parameters.tobytes(), (variance, solution, float(value))
        return self._solved[1]

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the criterion and its gradient; stores the information about the parameters."""
        if self._last is not None and self._last[0] == parameters.tobytes():
            self.information = self._last[3]
            return self._last[1], self._last[2]
        variance, solution, value = self.at(parameters)
        slopes, squares = solution.slopes(variance)
        gradient, information = np.zeros(self.size), np.ones(self.size)
        count = self.covariances.size
        gradient[:count], information[:count] = self.covariances.derivatives(parameters[:count], slopes, squares)
        if self.explicit:
            gradient[-1] = self.problem.freedom - solution.squares / variance
            for given, slope, level in zip(self.problem.given, slopes, solution.levels, strict=True):
                if given is not None:
                    gradient[-1] -= float(np.sum(level.ratio * slope))
            information[-1] = self.problem.freedom / 2.0
        self.information = information
        self._last = parameters.tobytes(), value, gradient, information
        return value, gradient
