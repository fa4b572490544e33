"""Linear regression with a model for every group, each borrowing strength from its district and from all.

The model is (5.2) of Lyu, Hanzely and Kolar 2022. Its solution is that of the mixed model of statistics for any design,
although the paper says they differ in general (docs/reference/papers.md). It is computed exactly, in one round, from
each group's sums of products. Variances are given, or estimated by REML; the results then agree with lme4's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from coterie.estimators.base import GroupedRegressor, Rows
from coterie.estimators.blocks import Solution, Tree, solve
from coterie.estimators.grouping import UNSEEN, InvalidData
from coterie.estimators.hierarchy import Hierarchical, Variance
from coterie.estimators.moments import group_moments, message_size, pack, rescaled, unpack
from coterie.estimators.reml import Problem, Variances, restricted_likelihood
from coterie.estimators.summary import Summary, summarise

__all__ = ["HierarchicalLinearRegression"]

_DISTANT = 1e6  # standard deviations between the mean and 0
_ROWS = 4096  # rows at a time, where every row has its own covariance


class HierarchicalLinearRegression(Hierarchical, GroupedRegressor):
    """Linear regression for rows in groups (schools), which may lie in districts.

    The coefficients of a group are theta_i = w_j + u_i and those of its district w_j = beta + v_j. The
    variances of u_i and v_j say how far a group is shrunk to its district, and a district to the global coefficients.

    Args:
        groups: column of X with each row's group; None: the array `groups` of `fit` (none there: one group).
        within: column of X with each row's district; None: the array `within` of `fit` (none there: no districts).
        random: which coefficients vary: "all", "intercept", or a list of names such as ["intercept", "age"].
        covariance: "diagonal": each coefficient has its own variance at each level, so that a feature's unit does not
            matter; "isotropic": one variance per level for all coefficients.
        fit_intercept: whether there is an intercept.
        residual_variance: variance of the noise; None: estimated by REML.
        group_variance: variance between the groups of a district: a number, one for each random coefficient, or a
            mapping from their names; None: estimated by REML.
        within_variance: variance between districts, likewise.
        offset: column of X that is added to the linear predictor with coefficient 1, such as another model's
            out-of-fold prediction; None: the array `offset` of `fit` (none there: none).
        federated: fit from the groups' messages alone, which are p(p+1)/2 + p numbers (and y'y, where a variance is
            estimated) for p coefficients. The result is the same; `ledger_` lists the bytes.

    Attributes:
        groups_, within_: labels of groups and districts; `group_within_` is the position of each group's district.
        coef_, intercept_: [groups, features] and [groups].
        within_coef_, within_intercept_: the same for districts, or None.
        global_coef_, global_intercept_: beta.
        variance_components_: "residual", and "group" and "within" as mappings from the names of coefficients.
        log_likelihood_: the restricted one; None where all variances were given.
        statistics_: the groups' messages.
        ledger_: with `federated`, the bytes sent; otherwise None.

    Example:
        >>> from coterie.estimators import HierarchicalLinearRegression
        >>> X, y = [[1.0], [1.0], [1.0], [1.0]], [1.0, 2.0, 5.0, 8.0]
        >>> model = HierarchicalLinearRegression(
        ...     fit_intercept=False, residual_variance=1, group_variance=1, within_variance=1
        ... )
        >>> model.fit(X, y, groups=["a", "b", "c", "d"], within=[1, 1, 2, 2]).coef_.ravel().round(3).tolist()
        [1.875, 2.375, 5.125, 6.625]
    """

    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        random: str | Sequence[str] = "all",
        covariance: str = "diagonal",
        fit_intercept: bool = True,
        residual_variance: float | None = None,
        group_variance: Variance = None,
        within_variance: Variance = None,
        offset: Any = None,
        federated: bool = False,
    ) -> None:
        self.groups = groups
        self.within = within
        self.random = random
        self.covariance = covariance
        self.fit_intercept = fit_intercept
        self.residual_variance = residual_variance
        self.group_variance = group_variance
        self.within_variance = within_variance
        self.offset = offset
        self.federated = federated

    def predict(
        self, X: Any, groups: Any = None, within: Any = None, offset: Any = None, return_std: bool = False
    ) -> Any:
        """Return predictions; a new group gets its district's model, or the global one.

        With return_std, also the standard deviation of a new observation, given the variances: that of the
        coefficients, of the noise, and of the deviation of a new group or district.
        """
        rows = self._read_predict(X, groups, within, offset)
        predicted = self._linear(rows)
        return (predicted, np.sqrt(self._variance(rows))) if return_std else predicted

    def summary(self, level: float = 0.95) -> Summary:
        """Return global coefficients with standard errors and intervals, variances, and intraclass correlations."""
        check_is_fitted(self)
        return summarise(self, level)

    def plot_shrinkage(self, coefficient: str | None = None) -> Any:
        """Return a Plotly figure: each group's own estimate of a coefficient against the shrunk one."""
        from coterie.estimators.plot import plot_shrinkage

        check_is_fitted(self)
        return plot_shrinkage(self, coefficient)

    # -- from rows to statistics ------------------------------------------------------------------------------------

    def _statistics(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the groups' moments and numbers of rows; if federated, as read from their messages."""
        response = rows.response
        self._refuse_distant(response)
        groups = len(self.groups_)
        moments = group_moments(rows.features, response, rows.group, groups, self.fit_intercept)
        counts = np.bincount(rows.group, minlength=groups).astype(np.float64)
        estimated = self._estimated()
        self.statistics_ = pack(moments, counts, estimated, self.fit_intercept)
        self.ledger_ = None
        if self.federated:
            width = len(moments) - 1
            moments, counts = unpack(self.statistics_, width, estimated, self.fit_intercept)
            up = message_size(width, estimated, self.fit_intercept) * self.statistics_.itemsize
            down = width * self.statistics_.itemsize  # its coefficients
            self.ledger_ = {
                "rounds": 1,
                "bytes_up_per_group": up,
                "bytes_down_per_group": down,
                "bytes_up": up * groups,
                "bytes_down": down * groups,
            }
        return moments, counts

    def _refuse_distant(self, response: np.ndarray) -> None:
        """Refuse a target whose squares leave too few digits for its spread, as features are refused."""
        mean, spread = abs(float(response.mean())), float(response.std())
        if self.fit_intercept and 16 * mean * np.finfo(float).eps < spread < mean / _DISTANT:
            raise InvalidData(
                f"y: its mean is {mean / spread:.0e} times its spread, which leaves too few digits; subtract a constant"
            )

    def _estimated(self) -> bool:
        given = [self.residual_variance, self.group_variance]
        return any(
            variance is None for variance in [*given, *([self.within_variance] if self.within_ is not None else [])]
        )

    # -- from statistics to coefficients ----------------------------------------------------------------------------

    def _fit(self, rows: Rows) -> None:
        moments, counts = self._statistics(rows)
        random = self._random_columns()
        self._check_covariance()
        tree = Tree.of(self._nesting.district)
        scale = self._scale(moments, counts)
        moments = rescaled(moments[:, :, tree.order], scale)
        self._refuse_dependent(moments.sum(axis=2))
        squared = scale[random] ** 2
        problem = Problem(
            moments,
            counts[tree.order],
            tree,
            random,
            self._residual(),
            self._given("group_variance", random, squared, len(self.groups_)),
            self._given("within_variance", random, squared, len(tree.starts)),
            scale[random] / scale.max() if self.covariance == "isotropic" else None,
        )
        variances, solution, likelihood = self._solve(problem, scale, rows)
        self.log_likelihood_ = None if likelihood is None else likelihood - float(np.log(scale).sum())
        self._keep(solution, variances, scale)

    def _solve(self, problem: Problem, scale: np.ndarray, rows: Rows) -> tuple[Variances, Solution, float | None]:
        """Return variances, the solution at them, and the log-likelihood; cross-validation also needs the rows."""
        return restricted_likelihood(problem)

    def _keep(self, solution: Solution, variances: Variances, scale: np.ndarray) -> None:
        """Store the results, in the features' own units."""
        theta = np.empty_like(solution.theta)
        theta[:, solution.tree.order] = solution.theta
        column = scale[:, None]
        self._set_coefficients((theta / column).T, (solution.within / column).T, solution.beta / scale)
        self._scale_, self._variances_ = scale, variances
        self.global_covariance_ = variances.residual * solution.covariance / np.outer(scale, scale)
        names = np.array(self._coefficient_names(), dtype=object)[solution.random]
        squared = scale[solution.random] ** 2
        self.variance_components_: dict[str, Any] = {
            "residual": float(variances.residual),
            "group": dict(zip(names, (variances.group / squared).tolist(), strict=True)),
        }
        if self.within_ is not None:
            self.variance_components_["within"] = dict(zip(names, (variances.within / squared).tolist(), strict=True))

    def _scale(self, moments: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return each column's root mean square, the unit of the search; up to a factor where rows were not counted."""
        squares = np.einsum("aai->a", moments)[:-1]
        rows = counts.sum() if self._estimated() else squares.max()
        return np.sqrt(squares / rows)

    def _residual(self) -> float | None:
        if self.residual_variance is None:
            return None
        try:
            value = float(self.residual_variance)
        except (TypeError, ValueError):
            value = np.nan
        if not (np.isfinite(value) and value > 0):
            raise InvalidData(f"residual_variance: must be positive, not {self.residual_variance!r}")
        return value

    # -- uncertainty ---------------------------------------------------------------------------------------------------

    def _resolve(self) -> Solution:
        """Solve again, from the stored statistics and variances."""
        moments, _ = unpack(self.statistics_, len(self._scale_), self._estimated(), self.fit_intercept)
        tree, v = Tree.of(self._nesting.district), self._variances_
        moments = rescaled(moments[:, :, tree.order], self._scale_)
        return solve(moments, tree, self._random_columns(), v.group / v.residual, v.within / v.residual)

    def _variance(self, rows: Rows) -> np.ndarray:
        """Return the variance of a new observation in each row."""
        solution, v = self._resolve(), self._variances_
        position = np.empty(len(self.groups_), np.intp)
        position[solution.tree.order] = np.arange(len(self.groups_))
        random = solution.random
        new_group, new_district = np.zeros(len(self._scale_)), np.zeros(len(self._scale_))
        new_group[random], new_district[random] = v.group / v.residual, v.within / v.residual
        districts = solution.district_covariance()
        design = rows.design / self._scale_
        variance = np.empty(len(design))
        for start in range(0, len(design), _ROWS):
            block = slice(start, start + _ROWS)
            x, group, district = design[block], rows.group[block], rows.district[block]
            seen, known = group != UNSEEN, district != UNSEEN
            spread = np.where(known[:, None], 0.0, new_district) + np.where(seen[:, None], 0.0, new_group)
            cov = np.where(known, districts[:, :, district], solution.covariance[:, :, None])
            distinct, inverse = np.unique(group[seen], return_inverse=True)
            cov[:, :, seen] = solution.group_covariance(position[distinct])[:, :, inverse]
            variance[block] = np.einsum("na,abn,nb->n", x, cov, x) + np.einsum("na,na->n", x**2, spread)
        return v.residual * (1.0 + np.maximum(variance, 0.0))
