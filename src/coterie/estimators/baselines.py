"""Baselines of the hierarchical model: every group alone, one model for all, one centre for all groups, James-Stein.

These are lt, sm and sc of Table 1 in Lyu, Hanzely and Kolar 2022 (section 6.1), and its (5.1) with corrected weights:
the printed ones are swapped (docs/reference/papers.md).
"""

import abc
from typing import Any

import numpy as np

from coterie.estimators.base import GroupedRegressor, Rows
from coterie.estimators.blocks import Nested
from coterie.estimators.grouping import InvalidData
from coterie.estimators.moments import about, as_they_are, group_moments, merged, own_moments
from coterie.estimators.tree import Effect, Tree
from coterie.estimators.units import Units

__all__ = ["LocalRegression", "PooledRegression", "SingleClusterRegression", "james_stein"]

_RANK = 1e-12  # eigenvalues of X'X, of columns of length one, below this are directions that the rows do not determine
_SPAN = 1e-13  # the same for the rows' span, which is not a square


class _Baseline(GroupedRegressor):
    def __init__(self, groups: Any = None, within: Any = None, fit_intercept: bool = True, offset: Any = None) -> None:
        self.groups = groups
        self.within = within
        self.fit_intercept = fit_intercept
        self.offset = offset

    def _fit(self, rows: Rows) -> None:
        groups = len(self.groups_)
        if self.fit_intercept:
            moments = own_moments(rows.features, rows.response, rows.group, groups, rows.weights)
        else:
            moments = group_moments(rows.features, rows.response, rows.group, groups, False, rows.weights)
        self._set_coefficients(*self._coefficients(moments))

    @abc.abstractmethod
    def _coefficients(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the coefficients of groups, of districts and of all; with an intercept, moments are `own_moments`."""

    def _pooled(self, moments: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the regressions of each district and of all rows together."""
        district = None
        if self.within_ is not None:
            district = self._regress(self._merge(moments, self._factors.district, len(self.within_)))
        return district, self._together(moments)

    def _together(self, moments: np.ndarray) -> np.ndarray:
        """Return the regression of all rows together."""
        return self._regress(self._merge(moments, np.zeros(moments.shape[2], np.intp), 1))[0]

    def _merge(self, moments: np.ndarray, parent: np.ndarray, parents: int) -> np.ndarray:
        if self.fit_intercept:
            return merged(moments, parent, parents)
        answer = np.zeros((*moments.shape[:2], parents))
        np.add.at(np.moveaxis(answer, 2, 0), parent, np.moveaxis(moments, 2, 0))
        return answer

    def _regress(self, moments: np.ndarray) -> np.ndarray:
        """Return least-squares coefficients [units, p]: around the means, where these determine them."""
        if not self.fit_intercept:
            return _regress(moments)[0]
        slopes, kept = _regress(moments[1:, 1:])
        coefficients = np.column_stack([moments[0, -1] - np.einsum("ik,ki->i", slopes, moments[0, 1:-1]), slopes])
        if not kept.all():  # the shortest of all solutions, whose length also counts the intercept
            coefficients[~kept] = _regress(as_they_are(moments[:, :, ~kept]))[0]
        return coefficients


class LocalRegression(_Baseline):
    """Least squares in every group alone (of smallest norm, where a group has fewer rows than coefficients).

    A new group gets the regression of its district, or of all. The arguments are those of
    `HierarchicalLinearRegression`.
    """

    def _coefficients(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        return self._regress(moments), *self._pooled(moments)


class PooledRegression(_Baseline):
    """Least squares on all rows together: the same model for every group."""

    def _coefficients(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        overall = self._together(moments)
        districts = None if self.within_ is None else np.tile(overall, (len(self.within_), 1))
        return np.tile(overall, (len(self.groups_), 1)), districts, overall


class SingleClusterRegression(_Baseline):
    """Least squares in every group, shrunk to one centre c of all: sum |y - X theta_i|^2 + penalty |theta_i - c|^2.

    `within` may be given, but districts are ignored. The arguments are those of `HierarchicalLinearRegression`,
    and `penalty`, the strength with which groups are shrunk to the centre.
    """

    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        penalty: float = 1.0,
        fit_intercept: bool = True,
        offset: Any = None,
    ) -> None:
        super().__init__(groups, within, fit_intercept, offset)
        self.penalty = penalty

    def _coefficients(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        if not (np.isfinite(self.penalty) and self.penalty > 0):
            raise InvalidData(f"penalty: must be positive, not {self.penalty}")
        size, groups = len(moments) - 1, len(self.groups_)
        units = Units(np.zeros(size), np.ones(size), 0.0, self.fit_intercept)
        if self.fit_intercept:
            moments, centre = about(moments)
            units = Units(np.r_[0.0, centre[:-1]], np.ones(size), float(centre[-1]), True)
        effect = units.effect(np.arange(size), given_zero=True)
        if not self.fit_intercept:
            effect = Effect.of_columns(size, np.arange(size))
        magnitude = units.magnitudes(np.arange(size)) if self.fit_intercept else np.ones(size)
        # (5.2) without districts: at its minimum over c the centre is the mean of the groups, which is formula sc.
        solution = Nested(Tree.flat(groups), (effect,)).solve(moments, [np.diag(magnitude**2 / self.penalty)])
        overall = units.totals(solution.beta[:, None])[0]
        districts = None if self.within_ is None else np.tile(overall, (len(self.within_), 1))
        return units.totals(solution.theta), districts, overall


def _regress(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return least-squares coefficients [units, p], of smallest norm, and which units determine them all.

    The rank is decided on columns of length one: X'X of a year, or of an income, has eigenvalues so far apart that
    those of the intercept would look like zero.
    """
    size = len(moments) - 1
    length = np.sqrt(np.einsum("aai->ia", moments[:size, :size]))
    length[length == 0.0] = 1.0
    products = np.moveaxis(moments[:size, :size], 2, 0) / (length[:, :, None] * length[:, None, :])
    values, vectors = np.linalg.eigh(products)
    kept = values > _RANK * size
    along = np.einsum("iak,ia->ik", vectors, moments[:size, size].T / length)
    along = np.where(kept, along / np.where(kept, values, 1.0), 0.0)
    coefficients = np.einsum("iak,ik->ia", vectors, along) / length
    few = np.flatnonzero(~kept.all(axis=1))
    if len(few):  # of all solutions the shortest, which lies in the span of the rows, in the columns' own units
        span = length[few][:, :, None] * vectors[few] * kept[few][:, None, :]
        inside = np.einsum("ika,ia->ik", np.linalg.pinv(span, rcond=_SPAN), coefficients[few])
        coefficients[few] = np.einsum("iak,ik->ia", span, inside)
    return coefficients, np.asarray(kept.all(axis=1))


def james_stein(
    observations: Any, variance: float = 1.0, group_variance: float = 1.0, shrink: bool = True
) -> np.ndarray:
    """Return James-Stein estimates of every group's vector from one noisy observation of each, (5.1) corrected.

    Observations y_i ~ N(theta_i, variance I) of n groups, theta_i ~ N(centre, group_variance I). The best linear
    unbiased estimate is a y_i + b ybar_-i, where ybar_-i is the mean of the others, a = P / (P + variance), b = 1 - a,
    P = group_variance + s2, and s2 = (variance + group_variance) / (n - 1): with unit variances a = (n + 1) / 2n.
    James-Stein multiplies ybar_-i by C = max(0, 1 - (d - 2) s2 / |ybar_-i|^2), better for every centre if d >= 3.

    Args:
        observations: [n, d], two groups or more.
        variance: variance of the noise, in each coordinate.
        group_variance: variance between groups, in each coordinate.
        shrink: False: C = 1, the best linear unbiased estimate.
    """
    y = np.asarray(observations, dtype=np.float64)
    if y.ndim != 2 or len(y) < 2:
        raise InvalidData(f"observations: need a row for each of two groups or more, not shape {y.shape}")
    if not np.isfinite(y).all():
        raise InvalidData("observations: not all numbers are finite; leave those groups out")
    if not (variance > 0 and group_variance >= 0):
        raise InvalidData("variance: must be positive, and group_variance 0 or more")
    groups, width = y.shape
    if shrink and width < 3:
        raise InvalidData(f"observations: James-Stein needs 3 coordinates or more, not {width}; use shrink=False")
    others = (y.sum(axis=0) - y) / (groups - 1)
    s2 = (variance + group_variance) / (groups - 1)
    own = (group_variance + s2) / (group_variance + s2 + variance)
    if shrink:
        lengths = np.maximum(np.einsum("nd,nd->n", others, others), np.finfo(float).tiny)
        others = np.maximum(0.0, 1.0 - (width - 2) * s2 / lengths)[:, None] * others
    return own * y + (1.0 - own) * others
