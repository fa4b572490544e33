"""The most probable coefficients of the hierarchical logistic model: Newton's method with the blocks of the linear one.

    minimise  sum_i loss_i(theta_i) + 1/2 sum_i u_i' G^-1 u_i + 1/2 sum_j v_j' W^-1 v_j

over beta, v_j and u_i with theta_i = beta + v_j + u_i, G and W the covariances of groups and districts; one may be
singular or zero, and there may be more levels, also crossing ones. A Newton step is the linear model's solution
(`blocks.py`) for the weighted moments of the groups,
so it costs one message of every group and time linear in their number. Steps are halved until the objective falls
enough; if that fails, a step uses the bound X'X / 4 on the information, which always descends.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.estimators.grouped_rows import Answer
from coterie.estimators.grouping import InvalidData

__all__ = ["WEAK", "Mode", "Penalty", "find_bounded_mode", "find_mode"]

WEAK = 1e-2  # precision of the prior on beta (in units of a feature's standard deviation) where nothing else bounds it
_STEPS = 200
_HALVINGS = 30
_CONVERGED = 1e-20  # squared Newton decrement: the last step is about 1e-10 standard errors
_UNBOUNDED = 1e7  # beta with a larger variance than this is not bounded by the likelihood


@dataclass(frozen=True)
class Penalty:
    """The penalty on coefficients: the covariance [k, k] of every level, and the precision of the prior on beta."""

    structure: Any  # Nested or Crossed
    covariances: tuple[np.ndarray, ...]
    ridge: float = 0.0

    def solve(self, moments: np.ndarray, beta: np.ndarray | None = None) -> Any:
        """Return the solution of the linear model with these moments."""
        return self.structure.solve(moments, self.covariances, self.ridge, beta)


@dataclass(frozen=True)
class Point:
    """Coefficients as beta and the scores s of each level: the effects are G s, so that a variance may be zero."""

    beta: np.ndarray  # [p]
    scores: tuple[np.ndarray, ...]  # [k, units] of every level

    @classmethod
    def of(cls, solution: Any) -> "Point":
        return cls(solution.beta, tuple(level.residual for level in solution.levels))

    def toward(self, other: "Point", step: float) -> "Point":
        """Return the point at this share of the way to another."""
        scores = (a + step * (b - a) for a, b in zip(self.scores, other.scores, strict=True))
        return Point(self.beta + step * (other.beta - self.beta), tuple(scores))

    def theta(self, penalty: Penalty) -> np.ndarray:
        """Return the coefficients of every group [p, groups]."""
        effects = [matrix @ scores for matrix, scores in zip(penalty.covariances, self.scores, strict=True)]
        return penalty.structure.theta(self.beta, effects)

    def product(self, other: "Point", penalty: Penalty) -> float:
        """Return the penalty's inner product of two points; half that of one with itself is its penalty."""
        pairs = zip(penalty.covariances, self.scores, other.scores, strict=True)
        levels = sum(float(np.sum((matrix @ a) * b)) for matrix, a, b in pairs)
        return float(levels + penalty.ridge * self.beta @ other.beta)


@dataclass(frozen=True)
class Mode:
    """The minimum, and the linear model's solution at it, which has the covariances and determinants."""

    solution: Any
    answer: Answer
    value: float  # the objective
    converged: bool

    @property
    def unbounded(self) -> bool:
        """Whether beta grows without bound: the features separate the classes."""
        spread = max([1.0, *(float(np.trace(level.ratio)) for level in self.solution.levels)])
        return not self.converged or float(np.linalg.eigvalsh(self.solution.covariance)[-1]) > _UNBOUNDED * spread


def find_mode(data: Any, penalty: Penalty, start: Answer | None = None, beta: np.ndarray | None = None) -> Mode:
    """Return the minimum, searched from the groups' messages elsewhere if given; over beta, too, unless it is given."""
    sizes = zip(penalty.covariances, penalty.structure.sizes, strict=True)
    scores = tuple(np.zeros((len(matrix), units)) for matrix, units in sizes)
    point = Point(data.start() if beta is None else beta, scores)
    if start is not None:
        point = Point.of(penalty.solve(start.quadratic(), beta))
    answer = data.at(point.theta(penalty))
    value = _value(answer, point, penalty)
    if start is not None and not value <= data.null_loss():  # worse than the default start: begin there
        return find_mode(data, penalty, None, beta)
    solution = penalty.solve(answer.quadratic(), beta)
    for _ in range(_STEPS):
        decrement = _fall(answer, point, solution, penalty)
        if decrement <= _CONVERGED:
            return Mode(solution, answer, value, True)
        moved = _search(data, penalty, point, answer, value, solution, decrement)
        if moved is None:
            slow = penalty.solve(answer.quadratic(data.bound()), beta)
            moved = _search(data, penalty, point, answer, value, slow, _fall(answer, point, slow, penalty))
        if moved is None:  # the objective is minimal up to rounding
            return Mode(solution, answer, value, decrement < 1e-6 * max(1.0, abs(value)))
        point, answer, value = moved
        solution = penalty.solve(answer.quadratic(), beta)
    return Mode(solution, answer, value, False)


def find_bounded_mode(data: Any, penalty: Penalty, start: Answer | None = None) -> tuple[Mode, bool]:
    """Return the minimum and whether beta was unbounded, in which case it got the weak prior."""
    with contextlib.suppress(InvalidData):  # weights so small that beta is not determined
        mode = find_mode(data, penalty, start)
        if not mode.unbounded:
            return mode, False
    return find_mode(data, replace(penalty, ridge=WEAK)), True


def _value(answer: Answer, point: Point, penalty: Penalty) -> float:
    return float(answer.loss.sum()) + 0.5 * point.product(point, penalty)


def _fall(answer: Answer, point: Point, solution: Any, penalty: Penalty) -> float:
    """Return the slope of descent towards a solution; for Newton's this is the squared decrement."""
    goal = Point.of(solution)
    scores = tuple(b - a for a, b in zip(point.scores, goal.scores, strict=True))
    direction = Point(goal.beta - point.beta, scores)
    return float(np.sum(answer.gradient * direction.theta(penalty))) - point.product(direction, penalty)


def _search(
    data: Any, penalty: Penalty, point: Point, answer: Answer, value: float, solution: Any, fall: float
) -> tuple[Point, Answer, float] | None:
    """Halve the step towards the solution until the objective has fallen enough; None if it never does."""
    rounding = 8.0 * np.finfo(float).eps * max(1.0, abs(value))
    step, goal = 1.0, Point.of(solution)
    for _ in range(_HALVINGS):
        trial = point.toward(goal, step)
        trial_answer = data.at(trial.theta(penalty))
        new = _value(trial_answer, trial, penalty)
        if new <= value - 1e-4 * step * fall + rounding:
            return trial, trial_answer, new
        step /= 2.0
    return None
