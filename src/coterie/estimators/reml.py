"""Variances by restricted maximum likelihood (REML), from the moments of the groups.

Minus twice the restricted log-likelihood is, up to a constant,

    log det V + log det X' V^-1 X + (n - p) log s2 + y' P y / s2

and each evaluation, with its gradient, is one pass over the groups (`blocks.py`). The free parameters are standard
deviations relative to the residual one, as in lme4, so that a variance of zero is as easy to reach as any other; the
residual variance is profiled out unless another variance is fixed, which makes it one more parameter, log s2. With many
groups the search (`search.py`) runs on a few thousand of them first, and then needs only a few steps with all.
"""

import contextlib
from dataclasses import dataclass

import numpy as np

from coterie.estimators.blocks import Solution, Tree, solve
from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Levels
from coterie.estimators.search import search

__all__ = ["Problem", "Variances", "restricted_likelihood"]

_FEW = 4000  # groups that the first search uses


@dataclass(frozen=True)
class Variances:
    """Variances in the units of the moments: residual, and [random] between groups and between districts."""

    residual: float
    group: np.ndarray
    within: np.ndarray


@dataclass(frozen=True)
class Problem:
    """The moments and the given variances (None: to be estimated).

    `scale` [random] is for the isotropic model, with one parameter per level: the standard deviations are its
    multiples. None is the diagonal model, with one parameter per coefficient.
    """

    moments: np.ndarray  # [p + 1, p + 1, groups], in the tree's order
    counts: np.ndarray  # [groups]
    tree: Tree
    random: np.ndarray
    residual: float | None
    group: np.ndarray | None
    within: np.ndarray | None
    scale: np.ndarray | None

    def part(self, groups: int) -> "Problem":
        """Return the problem of about so many of the groups, evenly spread."""
        kept, tree = self.tree.every(max(1, len(self.counts) // groups))
        return Problem(
            np.ascontiguousarray(self.moments[:, :, kept][:, :, tree.order]),
            self.counts[kept][tree.order],
            Tree(np.arange(len(kept)), tree.district, tree.starts),
            self.random,
            self.residual,
            self.group,
            self.within,
            self.scale,
        )

    @property
    def freedom(self) -> float:
        """Rows minus coefficients."""
        return float(self.counts.sum()) - (len(self.moments) - 1)


def restricted_likelihood(problem: Problem) -> tuple[Variances, Solution, float | None]:
    """Estimate what is not given; return variances, the solution at them, and the log-likelihood (None: all given)."""
    given = (problem.residual, problem.group, problem.within)
    if problem.residual is not None and problem.group is not None and problem.within is not None:
        variances = Variances(problem.residual, problem.group, problem.within)
        return variances, _solve(problem, variances), None
    if problem.residual is None and problem.freedom <= 0:
        raise InvalidData(
            f"X: {int(problem.counts.sum())} rows cannot estimate {len(problem.moments) - 1} coefficients and the "
            "residual variance; add rows or remove features"
        )
    free = sum(x is None for x in given[1:])
    if free and problem.residual is None and problem.counts.max() == 1 and _varies_with_rows(problem):
        raise InvalidData(
            "groups: every group has a single row, which leaves its variance and the residual one indistinguishable; "
            "give residual_variance or use wider groups"
        )
    start = np.full(_Criterion(problem).size, 0.5)
    if _Criterion(problem).explicit:
        start[-1] = np.log(max(_Criterion(problem).pooled_variance(), np.finfo(float).tiny))
    criterion = _Criterion(problem)
    parameters = _from_few(criterion, start) if len(problem.counts) > 2 * _FEW else search(criterion, start)
    variances, solution, value = criterion.at(parameters)
    constant = problem.freedom * np.log(2.0 * np.pi)
    return variances, solution, -0.5 * (value + constant)


def _from_few(criterion: "_Criterion", start: np.ndarray) -> np.ndarray:
    """Search with a few of the groups, and then with all, to a thousandth of the parameters' standard errors."""
    with contextlib.suppress(InvalidData):  # if these few do not determine the coefficients, begin with all
        nearby = search(_Criterion(criterion.problem.part(_FEW)), start)
        return search(criterion, nearby, (1e-3,))
    return search(criterion, start)


def _varies_with_rows(problem: Problem) -> bool:
    """Whether a coefficient of a column of ones is random: only then it is confounded with the residual one."""
    return bool((problem.moments[problem.random, problem.random] == problem.counts).all(axis=-1).any())


def _solve(problem: Problem, variances: Variances) -> Solution:
    group, within = variances.group / variances.residual, variances.within / variances.residual
    return solve(problem.moments, problem.tree, problem.random, group, within)


class _Criterion:
    """The criterion and its gradient at a vector of parameters."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.levels = Levels(len(problem.random), problem.scale, problem.group, problem.within)
        fixed = [v for v in (problem.group, problem.within) if v is not None]
        self.explicit = problem.residual is None and any(v.any() for v in fixed)
        self.deviations = self.levels.deviations
        self.size = self.deviations + int(self.explicit)
        total = problem.moments[-1, -1].sum()
        self.floor = max(float(total) * np.finfo(float).eps / max(problem.freedom, 1.0), np.finfo(float).tiny)
        self.information, self.slopes = np.ones(self.size), np.zeros(self.size)
        self._last: tuple[bytes, float, np.ndarray] | None = None
        self._solved: tuple[bytes, tuple[Variances, Solution, float]] | None = None

    def pooled_variance(self) -> float:
        """Return the residual variance of one regression for all."""
        zero = np.zeros(len(self.problem.random))
        squares = solve(self.problem.moments, self.problem.tree, self.problem.random, zero, zero).squares
        return max(squares / self.problem.freedom, self.floor)

    def at(self, parameters: np.ndarray) -> tuple[Variances, Solution, float]:
        """Return variances, solution and criterion; the last ones are cached, since a search asks for them again."""
        if self._solved is not None and self._solved[0] == parameters.tobytes():
            return self._solved[1]
        problem = self.problem
        variance = float(np.exp(parameters[-1])) if self.explicit else problem.residual
        group, within = self.levels.variances(parameters, 1.0 if variance is None else variance)
        solution = solve(problem.moments, problem.tree, problem.random, group, within)
        if variance is None:
            variance = max(solution.squares / problem.freedom, self.floor)
        value = solution.log_determinant + problem.freedom * np.log(variance) + solution.squares / variance
        solved = Variances(variance, variance * group, variance * within), solution, float(value)
        self._solved = parameters.tobytes(), solved
        return solved

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the criterion and its gradient; stores the information about the parameters and the ratios' slopes."""
        if self._last is not None and self._last[0] == parameters.tobytes():
            return self._last[1], self._last[2]
        variances, solution, value = self.at(parameters)
        variance = variances.residual
        group, within, group_square, within_square = solution.slopes(variance)
        gradient, information, slopes = np.zeros(self.size), np.ones(self.size), np.zeros(self.size)
        part = slice(self.deviations)
        gradient[part], information[part], slopes[part] = self.levels.derivatives(
            parameters, (group, within), (group_square, within_square)
        )
        if self.explicit:
            gradient[-1] = self.problem.freedom - solution.squares / variance
            for given, slope, level in (
                (self.problem.group, group, variances.group),
                (self.problem.within, within, variances.within),
            ):
                if given is not None:
                    gradient[-1] -= float(level / variance @ slope)
            information[-1] = self.problem.freedom / 2.0
        self.information, self.slopes = information, slopes
        self._last = parameters.tobytes(), value, gradient
        return value, gradient
