"""Linear regression with a model for every group, each borrowing strength from its district and from all.

The model is (5.2) of Lyu, Hanzely and Kolar 2022. Its solution is that of the mixed model of statistics for any design,
although the paper says they differ in general (docs/reference/papers.md). It is computed exactly, in one round, from
each group's sums of products. Variances are given, or estimated by REML or maximum likelihood; the results then agree
with lme4's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.estimators.base import GroupedRegressor, Rows
from coterie.estimators.grouping import UNSEEN, InvalidData
from coterie.estimators.hierarchy import Hierarchical, Layout, Variance
from coterie.estimators.linear_inference import LinearInference
from coterie.estimators.model import HierarchicalModel
from coterie.estimators.moments import about, group_moments, message_size, own_moments, pack, rescaled, unpack
from coterie.estimators.reml import Estimate, Problem, estimate
from coterie.estimators.units import Units

__all__ = ["HierarchicalLinearRegression"]

_ROWS = 4096  # rows at a time, where every row has its own covariance


class HierarchicalLinearRegression(LinearInference, HierarchicalModel, Hierarchical, GroupedRegressor):
    """Linear regression for rows in groups (schools), which may lie in districts.

    The coefficients of a group are theta_i = w_j + u_i and those of its district w_j = beta + v_j. The
    variances of u_i and v_j say how far a group is shrunk to its district, and a district to the global coefficients.

    Args:
        groups: column of X with each row's group; None: the array `groups` of `fit` (none there: one group).
        within: column of X with each row's district; None: the array `within` of `fit` (none there: no districts). A
            list names further levels: districts, regions, countries.
        random: which coefficients vary: "all", "intercept", or a list of names such as ["intercept", "age"]; a mapping
            from the levels' names gives each level its own.
        covariance: "full": the random coefficients of a level are correlated; "diagonal": each has its own variance, so
            that a feature's unit does not matter, but its zero does; "isotropic": one variance per level for all.
        fit_intercept: whether there is an intercept.
        residual_variance: variance of the noise; None: estimated.
        group_variance: variance between the groups of a district: a number, one for each random coefficient, a
            mapping from their names, or a matrix; None: estimated.
        within_variance: variance between districts, likewise.
        offset: column of X that is added to the linear predictor with coefficient 1, such as another model's
            out-of-fold prediction; None: the array `offset` of `fit` (none there: none).
        federated: fit from the groups' messages alone, which are p(p+1)/2 + p numbers (and y'y, where a variance is
            estimated) for p coefficients. The result is the same; `ledger_` lists the bytes.
        likelihood: which one is maximised: "restricted" (REML) or "marginal" (ML).
        crossed: columns of X with levels that cross the groups (neighbourhoods and schools); their intercepts vary,
            unless `random` says more.
        weights: column of X with weights: the noise of a row has the residual variance divided by its weight.
        missing: "raise" an error where a value is missing, or "drop" the row (a prediction is NaN there).
        formula: a formula such as "score ~ age + (1 + age | district/school)"; see `from_formula`.

    Attributes:
        groups_, within_: labels of groups and districts; `group_within_` is the position of each group's district.
        coef_, intercept_: [groups, features] and [groups].
        within_coef_, within_intercept_: the same for districts, or None.
        global_coef_, global_intercept_: beta; `global_covariance_` is its covariance, given the variances.
        bse_, pvalues_: standard errors and p-values of beta.
        random_effects_: for each level a table of the deviations of its units, with standard errors.
        variance_components_: "residual", and "group" and "within" as mappings from the names of coefficients.
        covariances_: the covariance of the random coefficients of each level, by its name.
        log_likelihood_, aic_, bic_: None where all variances were given.
        converged_: whether the search for the variances ended at a maximum.
        n_dropped_: rows left out because of missing values.
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
        random: str | Sequence[str] | Mapping[str, Any] = "all",
        covariance: str | Mapping[str, str] = "full",
        fit_intercept: bool = True,
        residual_variance: float | None = None,
        group_variance: Variance = None,
        within_variance: Variance = None,
        offset: Any = None,
        federated: bool = False,
        likelihood: str = "restricted",
        crossed: Any = None,
        weights: Any = None,
        missing: str = "raise",
        formula: str | None = None,
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
        self.likelihood = likelihood
        self.crossed = crossed
        self.weights = weights
        self.missing = missing
        self.formula = formula

    _title, _approximation = "Hierarchical linear regression", ""

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

    # -- from rows to statistics ------------------------------------------------------------------------------------

    def _statistics(self, rows: Rows, layout: Layout) -> None:
        """Keep the units' messages, from which alone everything else is computed, and the ledger."""
        estimated, weighted = self._estimated(), rows.weights is not None
        if self.fit_intercept:
            moments = own_moments(rows.features, rows.response, layout.unit, layout.units, rows.weights)
        else:
            moments = group_moments(rows.features, rows.response, layout.unit, layout.units, False, rows.weights)
        counts = np.bincount(layout.unit, minlength=layout.units).astype(np.float64)
        logarithms = None
        if rows.weights is not None:
            logarithms = np.bincount(layout.unit, np.log(rows.weights), layout.units)
        self._weighted = weighted
        self._remember(rows)
        self.statistics_ = pack(moments, counts, estimated, self.fit_intercept, logarithms)
        self.ledger_ = None
        if self.federated:
            width, item = len(moments) - 1, self.statistics_.itemsize
            up, down = message_size(width, estimated, self.fit_intercept, weighted) * item, width * item
            total = {"bytes_up": up * layout.units, "bytes_down": down * layout.units}
            self.ledger_ = {"rounds": 1, "bytes_up_per_group": up, "bytes_down_per_group": down, **total}

    def _estimated(self) -> bool:
        given = [self.residual_variance, self.group_variance]
        deeper = len(self._factors.nested) > 2 or len(self._factors.crossed) > 0
        if self._factors.within is not None:
            given.append(self.within_variance)
        return deeper or any(variance is None for variance in given)

    def _moments(self) -> tuple[np.ndarray, np.ndarray, Units]:
        """Return moments in working units, in the caller's order, the numbers of rows, and the units."""
        width, first = self.n_features_in_ + int(self.fit_intercept), int(self.fit_intercept)
        moments, counts = unpack(self.statistics_, width, self._estimated(), self.fit_intercept, self._weighted)
        centre, response = np.zeros(width), 0.0
        if self.fit_intercept:
            moments, found = about(moments)
            centre[1:], response = found[:-1], float(found[-1])
        squares = np.einsum("aai->a", moments)[:-1]
        weight = moments[0, 0].sum() if first else counts.sum() if self._estimated() else squares.max()
        scale = np.sqrt(squares / weight)
        near = scale <= 1e-13 * np.abs(centre)
        if near.any():
            name = self._coefficient_names()[int(np.flatnonzero(near)[0])]
            raise InvalidData(f"X: feature {name!r} is constant up to rounding; subtract a constant from it")
        return rescaled(moments, scale), counts, Units(centre, scale, response, self.fit_intercept)

    # -- from statistics to coefficients ----------------------------------------------------------------------------

    def _fit(self, rows: Rows) -> None:
        self._check_covariance()
        if self.likelihood not in ("restricted", "marginal"):
            raise InvalidData(f'likelihood: must be "restricted" or "marginal", not {self.likelihood!r}')
        layout = self._layout(rows)
        self._statistics(rows, layout)
        self._layout_ = replace(layout, unit=np.zeros(0, np.intp))
        problem, units = self._problem()
        found = self._solve(problem, units, rows)
        scaling = 0.0 if problem.marginal else float(np.log(units.scale).sum())
        weighting = 0.5 * float(self.statistics_[:, -1].sum()) if self._weighted and self._estimated() else 0.0
        self._scaling_ = weighting - scaling
        self.log_likelihood_ = None if found.log_likelihood is None else found.log_likelihood + self._scaling_
        self._keep(found, problem, units)

    def _problem(self, marginal: bool | None = None) -> tuple[Problem, Units]:
        """Return the problem, from the messages, and its units."""
        moments, counts, units = self._moments()
        self._refuse_dependent(moments.sum(axis=2))
        order = self._layout_.order
        effects, shapes, given = self._levels(units, self._layout_)
        marginal = self.likelihood == "marginal" if marginal is None else marginal
        structure, residual = self._layout_.structure(effects), self._residual()
        return Problem(moments[:, :, order], counts[order], structure, shapes, residual, given, marginal), units

    def _solve(self, problem: Problem, units: Units, rows: Rows) -> Estimate:
        """Return variances, the solution at them, and the log-likelihood; cross-validation also needs the rows."""
        return estimate(problem)

    def _keep(self, found: Estimate, problem: Problem, units: Units) -> None:
        """Store the results, in the features' own units."""
        solution, structure = found.solution, problem.structure
        self._keep_levels(solution.beta, solution, structure, units)
        self._residual_, self._matrices_, self._parameters_ = found.residual, found.covariances, found.parameters
        self.converged_ = found.converged
        self.global_covariance_ = found.residual * units.back @ solution.covariance @ units.back.T
        self._keep_variances(found.covariances, structure, units)
        self.variance_components_ = {"residual": float(found.residual), **self.variance_components_}
        self._count_parameters(problem.shapes, problem.given, extra=int(self.residual_variance is None))

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

    # -- uncertainty ------------------------------------------------------------------------------------------------

    def _resolve(self) -> tuple[Any, Any, Units]:
        """Solve again, from the stored messages and variances, as under the restricted likelihood."""
        problem, units = self._problem(marginal=False)
        return problem.solve([matrix / self._residual_ for matrix in self._matrices_]), problem.structure, units

    def _variance(self, rows: Rows) -> np.ndarray:
        """Return the variance of a new observation in each row."""
        solution, structure, units = self._resolve()
        nested, total = len(self._factors.nested), len(structure.effects)
        codes = [rows.group, rows.district, *rows.outer][:nested] + list(rows.crossed)
        positions = []
        for level in range(total):
            place = np.empty(structure.sizes[level] + 1, np.intp)
            place[structure.unit_codes[level]] = np.arange(structure.sizes[level])
            place[UNSEEN] = UNSEEN
            positions.append(place[codes[level]])
        design = units.design(rows.features)
        variance = np.empty(len(design))
        for start in range(0, len(design), _ROWS):
            block = slice(start, start + _ROWS)
            x, here = design[block], [place[block] for place in positions]
            variance[block] = np.einsum("na,abn,nb->n", x, _covariances(solution, here, total), x)
            for level, place in enumerate(here):
                new, there = place == UNSEEN, solution.levels[level]
                z = x[new] @ there.effect.basis
                variance[block][new] += np.einsum("nk,kj,nj->n", z, there.ratio, z)
        return self._residual_ * (1.0 + np.maximum(variance, 0.0))


def _covariances(solution: Any, codes: list[np.ndarray], levels: int) -> np.ndarray:
    """Return the covariance [p, p, n] of the coefficients of rows with these units; UNSEEN: without that effect."""
    if hasattr(solution, "cell_covariance"):
        return solution.cell_covariance(tuple(codes))
    answer = np.repeat(solution.covariance[:, :, None], len(codes[0]), axis=2)
    for level in reversed(range(levels)):  # the narrowest known level counts
        seen = codes[level] != UNSEEN
        distinct, inverse = np.unique(codes[level][seen], return_inverse=True)
        if len(distinct):
            answer[:, :, seen] = solution.level_covariance(level, distinct)[:, :, inverse]
    return answer
