"""Variances of the hierarchical logistic model by Laplace's approximation of its likelihood.

The integral over the coefficients of exp(-objective) is replaced by that of the normal density with the same mode and
curvature at the mode. Minus twice its logarithm is, up to a constant,

    2 objective(mode) + log det V + log det X' V^-1 X

with V and both determinants those of the linear model at the mode (`blocks.py`): the restricted likelihood, in which
beta is integrated out, too, as in REML. "marginal" leaves out the last determinant and maximises over beta as well, as
lme4's glmer does (nAGQ = 1). The gradient is exact: the mode depends on the variances, and the weights on the mode; one
more solution with the same blocks accounts for that. Parameters are standard deviations, so that a variance of zero is
as easy to reach as any other. With many groups the search runs on a few thousand of them first.
"""

import contextlib
from dataclasses import dataclass, replace

import numpy as np

from coterie.estimators.bernoulli import Answer, Bernoulli
from coterie.estimators.blocks import Tree
from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Levels
from coterie.estimators.newton import WEAK, Mode, Penalty, find_bounded_mode, find_mode
from coterie.estimators.search import PASSES, search

__all__ = ["LARGEST", "Criterion", "Fit", "Problem", "laplace"]

_FEW = 4000  # groups that the first search uses
LARGEST = 100.0  # the rows do not bound a standard deviation of log-odds that exceeds this


@dataclass(frozen=True)
class Problem:
    """The rows and the given variances (None: to be estimated).

    `scale` [random] is for the isotropic model, with one parameter per level: the standard deviations are its
    multiples.
    """

    data: Bernoulli
    tree: Tree
    random: np.ndarray
    group: np.ndarray | None
    within: np.ndarray | None
    scale: np.ndarray | None = None
    marginal: bool = False
    ridge: float = 0.0

    def part(self, groups: int) -> "Problem":
        """Return the problem of about so many of the groups, evenly spread."""
        kept, tree = self.tree.every(max(1, self.data.groups // groups))
        ordered = Tree(np.arange(len(kept)), tree.district, tree.starts)
        return replace(self, data=self.data.part(kept, tree.order), tree=ordered)


@dataclass(frozen=True)
class Fit:
    """The mode at the estimated variances, and whether beta needed the weak prior."""

    mode: Mode
    penalty: Penalty
    log_likelihood: float | None  # None: nothing was estimated
    weak: bool


def laplace(problem: Problem) -> Fit:
    """Estimate what is not given, and return the mode there."""
    count = Criterion(problem).deviations
    passes: tuple[float, ...] = PASSES
    deviations = np.full(count, 0.5)
    if count and problem.data.groups > 2 * _FEW:
        with contextlib.suppress(InvalidData):  # if these few do not determine beta, begin with all
            criterion, parameters, _, _ = _search(problem.part(_FEW), deviations, PASSES)
            deviations, passes = parameters[:count], PASSES[1:]
    criterion, parameters, mode, weak = _search(problem, deviations, passes)
    if not count:
        return Fit(mode, criterion.penalty(parameters), None, weak)
    value, _ = criterion(parameters)
    constant = 0.0 if problem.marginal else problem.data.size * np.log(2.0 * np.pi)
    return Fit(criterion.mode(parameters), criterion.penalty(parameters), -0.5 * (value - constant), weak)


def _search(
    problem: Problem, deviations: np.ndarray, passes: tuple[float, ...]
) -> tuple["Criterion", np.ndarray, Mode, bool]:
    """Return the criterion, the parameters at its minimum, its initial mode, and whether that needed a prior."""
    criterion = Criterion(problem)
    mode, weak = find_bounded_mode(problem.data, criterion.penalty(deviations))
    if weak:
        criterion = Criterion(replace(problem, ridge=WEAK))
    criterion.begin(mode)
    start = np.r_[deviations, np.zeros(criterion.size - len(deviations))]
    return criterion, search(criterion, start, passes) if len(deviations) else start, mode, weak


class Criterion:
    """Minus twice the logarithm of the approximate likelihood, with its gradient, at a vector of parameters.

    The parameters are standard deviations and, for the marginal likelihood, beta in units of its standard errors at the
    initial mode.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.levels = Levels(len(problem.random), problem.scale, problem.group, problem.within)
        self.deviations = self.levels.deviations
        self.size = self.deviations + (problem.data.size if problem.marginal else 0)
        self.information, self.slopes = np.ones(self.size), np.zeros(self.deviations)
        self.centre, self.unit = np.zeros(problem.data.size), np.eye(problem.data.size)
        self._nearby: Answer | None = None
        self._mode: tuple[bytes, Mode] | None = None
        self._last: tuple[bytes, float, np.ndarray] | None = None

    def begin(self, mode: Mode) -> None:
        """Start the search for further modes from this one."""
        self._nearby = mode.answer
        self.centre, self.unit = mode.solution.beta, np.linalg.cholesky(mode.solution.covariance)

    def penalty(self, parameters: np.ndarray) -> Penalty:
        """Return the variances that the parameters stand for."""
        group, within = self.levels.variances(parameters)
        return Penalty(self.problem.tree, self.problem.random, group, within, self.problem.ridge)

    def mode(self, parameters: np.ndarray) -> Mode:
        """Return the mode at these parameters; the last one is cached, since a search asks for it again."""
        if self._mode is None or self._mode[0] != parameters.tobytes():
            beta = self.centre + self.unit @ parameters[self.deviations :] if self.problem.marginal else None
            mode = find_mode(self.problem.data, self.penalty(parameters), self._nearby, beta)
            self._nearby, self._mode = mode.answer, (parameters.tobytes(), mode)
        return self._mode[1]

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the criterion and its gradient; stores the information about parameters and the variances' slopes."""
        if self._last is not None and self._last[0] == parameters.tobytes():
            return self._last[1], self._last[2]
        penalty, mode = self.penalty(parameters), self.mode(parameters)
        solution, answer = mode.solution, mode.answer
        value = 2.0 * mode.value + solution.log_determinant
        group, within, group_square, within_square = solution.slopes(1.0)
        # The weights depend on the mode, which depends on the variances. `skew` is the derivative of the determinant
        # for theta; its product with the derivative of the mode for a variance is a product of two scores.
        skew = self.problem.data.skew(answer.theta, solution.group_covariance(np.arange(self.problem.data.groups)))
        moments = answer.moments.copy()
        moments[:-1, -1] = moments[-1, :-1] = skew
        moved = penalty.solve(moments, np.zeros(len(skew)) if self.problem.marginal else None)
        group = group + np.sum(moved.groups.residual * solution.groups.residual, axis=1)
        within = within + np.sum(moved.districts.residual * solution.districts.residual, axis=1)
        gradient, information = np.zeros(self.size), np.ones(self.size)
        part = slice(self.deviations)
        gradient[part], information[part], slopes = self.levels.derivatives(
            parameters, (group, within), (group_square, within_square)
        )
        if self.problem.marginal:
            beta = 2.0 * (penalty.ridge * solution.beta - answer.gradient.sum(axis=1)) + skew.sum(axis=1)
            beta -= np.einsum("abi,bi->a", answer.moments[:-1, :-1], moved.theta)
            gradient[self.deviations :] = self.unit.T @ beta
        self.information, self.slopes = information, slopes
        self._last = parameters.tobytes(), value, gradient
        return value, gradient
