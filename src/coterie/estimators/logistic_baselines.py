"""Baselines of the hierarchical classifier: a logistic regression in every group alone, and one for all.

Both run Newton's method for all units at once, each with its own step length; no Python loop runs over the groups.
"""

import abc
import warnings
from typing import Any

import numpy as np

from coterie.estimators.base import Rows
from coterie.estimators.bernoulli import Bernoulli
from coterie.estimators.classifier import GroupedClassifier, SeparationWarning
from coterie.estimators.grouped_rows import Answer
from coterie.estimators.grouping import InvalidData
from coterie.estimators.logistic import units_of
from coterie.estimators.newton import WEAK
from coterie.estimators.units import Units

__all__ = ["LocalLogisticRegression", "PooledLogisticRegression", "ridge_logistic"]

_STEPS = 200
_HALVINGS = 30
_CONVERGED = 1e-14  # squared Newton decrement of a unit
_RANK = 1e-12  # eigenvalues below this share of the largest are directions that the rows do not determine
_UNBOUNDED = 1e7  # a coefficient with a larger variance than this is not bounded by the likelihood


class _Baseline(GroupedClassifier):
    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        penalty: float = 0.0,
        fit_intercept: bool = True,
        offset: Any = None,
    ) -> None:
        self.groups = groups
        self.within = within
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.offset = offset

    def _fit(self, rows: Rows) -> None:
        if not (np.isfinite(self.penalty) and self.penalty >= 0):
            raise InvalidData(f"penalty: must be 0 or more, not {self.penalty}")
        self._fit_rows(rows, units_of(rows, self._coefficient_names()))

    @abc.abstractmethod
    def _fit_rows(self, rows: Rows, scale: Units) -> None:
        """Set the coefficients; columns are centred and divided by their deviations first."""

    def _regress(self, rows: Rows, unit: np.ndarray, units: int, scale: Units) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients [units, p] of a regression in each unit, and which units are separated."""
        assert rows.target is not None
        features = scale.design(rows.features)[:, int(self.fit_intercept) :]
        data = Bernoulli(features, rows.target, unit, units, self.fit_intercept, rows.offset, rows.weights)
        penalty = np.full(units, float(self.penalty))
        theta, unbounded = ridge_logistic(data, penalty)
        if unbounded.any():
            theta, _ = ridge_logistic(data, np.where(unbounded, WEAK, penalty))
        return scale.totals(theta), unbounded | data.separated(theta, self.fit_intercept)


class LocalLogisticRegression(_Baseline):
    """Logistic regression in every group alone, with a small ridge, as a group may be of one class or separated.

    A new group gets the regression of its district, or of all.

    Args:
        penalty: the ridge: sum of losses + penalty / 2 |theta_i|^2, theta_i being the coefficients (also the
            intercept) of features around their means and in units of their deviations, so that neither a feature's unit
            nor its zero matters. With 0, a group without a finite solution gets 0.01.
        groups, within, fit_intercept, offset: as in `HierarchicalLogisticRegression`.

    `separated_` has the labels of the perfectly separated groups; there is one warning for all of them.
    """

    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        penalty: float = 1e-3,
        fit_intercept: bool = True,
        offset: Any = None,
    ) -> None:
        super().__init__(groups, within, penalty, fit_intercept, offset)

    def _fit_rows(self, rows: Rows, scale: Units) -> None:
        group, separated = self._regress(rows, rows.group, len(self.groups_), scale)
        district = None
        if self.within_ is not None:
            district, _ = self._regress(rows, rows.district, len(self.within_), scale)
        overall, _ = self._regress(rows, np.zeros_like(rows.group), 1, scale)
        self._set_coefficients(group, district, overall[0])
        self.separated_ = self.groups_[separated]
        if separated.any():
            warnings.warn(
                f"groups: {len(self.separated_):,} of {len(self.groups_):,} groups are perfectly separated or of one "
                "class; only the penalty makes their coefficients finite",
                SeparationWarning,
                stacklevel=4,
            )


class PooledLogisticRegression(_Baseline):
    """Logistic regression on all rows together: the same model for every group.

    Args:
        penalty: a ridge as in `LocalLogisticRegression`; 0: none, unless all rows are separated (with a warning).
        groups, within, fit_intercept, offset: as in `HierarchicalLogisticRegression`.
    """

    def _fit_rows(self, rows: Rows, scale: Units) -> None:
        overall, separated = self._regress(rows, np.zeros_like(rows.group), 1, scale)
        districts = None if self.within_ is None else np.tile(overall, (len(self.within_), 1))
        self._set_coefficients(np.tile(overall, (len(self.groups_), 1)), districts, overall[0])
        if separated.any():
            warnings.warn(
                "X: the features separate the two classes; only a penalty makes the coefficients finite",
                SeparationWarning,
                stacklevel=4,
            )


def ridge_logistic(data: Bernoulli, penalty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients [p, units] of a logistic regression in every unit with its ridge [units].

    Also returns which units had no ridge and have no finite solution without one. With a ridge of 0 a unit whose rows
    do not determine its coefficients gets those of smallest norm.
    """
    answer = data.at(np.zeros((data.size, data.groups)))
    value = _value(answer, penalty)
    active = np.ones(data.groups, dtype=bool)
    for _ in range(_STEPS):
        step, fall = _newton(answer, penalty)
        active = fall > _CONVERGED
        if not active.any():
            break
        length = np.where(active, 1.0, 0.0)
        rounding = 8.0 * np.finfo(float).eps * np.maximum(1.0, np.abs(value))
        for _ in range(_HALVINGS):
            trial = data.at(answer.theta + length * step)
            new = _value(trial, penalty)
            short = new > value - 1e-4 * length * fall + rounding
            if not short.any():
                break
            length[short] /= 2.0
        else:
            length[short] = 0.0
            trial = data.at(answer.theta + length * step)
            new = _value(trial, penalty)
        answer, value = trial, new
    rank = np.linalg.matrix_rank(np.moveaxis(data.bound(), 2, 0), rtol=_RANK, hermitian=True)
    values = np.linalg.eigvalsh(_information(answer, penalty))
    smallest = values[np.arange(data.groups), data.size - rank]  # of the directions that the features determine
    return answer.theta + _newton(answer, penalty)[0], (penalty == 0.0) & (active | (smallest < 1.0 / _UNBOUNDED))


def _value(answer: Answer, penalty: np.ndarray) -> np.ndarray:
    return answer.loss + 0.5 * penalty * np.sum(answer.theta**2, axis=0)


def _information(answer: Answer, penalty: np.ndarray) -> np.ndarray:
    information = np.moveaxis(answer.moments[:-1, :-1], 2, 0)
    return information + penalty[:, None, None] * np.eye(information.shape[1])


def _newton(answer: Answer, penalty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Newton's step [p, units] and how fast each unit's objective falls along it."""
    slope = (answer.gradient - penalty * answer.theta).T
    information = _information(answer, penalty)
    if (penalty > 0.0).all():
        step = np.linalg.solve(information, slope[:, :, None])[:, :, 0]
    else:
        step = np.einsum("iab,ib->ia", np.linalg.pinv(information, rcond=_RANK, hermitian=True), slope)
    return step.T, np.einsum("ia,ia->i", step, slope)
