"""Logistic regression with a model for every group, each borrowing strength from its district and from all.

The objective is (2.3) of Lyu, Hanzely and Kolar 2022 with the logistic loss, gamma = 1 / variance between groups and
lambda = 1 / variance between districts, minimised to machine precision by Newton's method with the blocks of the linear
model (`newton.py`). Variances are given, or estimated by maximising Laplace's
approximation of the likelihood (`laplace.py`); or penalties are cross-validated (`logistic_cv.py`).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.estimators.base import Rows
from coterie.estimators.bernoulli import Bernoulli
from coterie.estimators.classifier import GroupedClassifier, SeparationWarning
from coterie.estimators.grouping import UNSEEN, InvalidData
from coterie.estimators.hierarchy import Hierarchical, Layout, Variance
from coterie.estimators.laplace import LARGEST, Fit, Problem, laplace
from coterie.estimators.levels import Shape
from coterie.estimators.logistic_inference import LogisticInference
from coterie.estimators.model import HierarchicalModel
from coterie.estimators.multinomial import Multinomial
from coterie.estimators.units import ClassUnits, Units

__all__ = ["HierarchicalLogisticRegression"]


class HierarchicalLogisticRegression(LogisticInference, HierarchicalModel, Hierarchical, GroupedClassifier):
    """Logistic regression for rows in groups (shops), which may lie in districts.

    The log-odds of a row are x' theta_i with theta_i = w_j + u_i for group i in district j, and w_j = beta + v_j; u_i
    and v_j are normal. The coefficients are the most probable ones given the variances. Of three classes or more each
    has log-odds of its own against the first, with coefficients and random effects of their own.

    Args:
        groups: column of X with each row's group; None: the array `groups` of `fit` (none there: one group).
        within: column of X with each row's district; None: the array `within` of `fit` (none there: no districts). A
            list names further levels: districts, regions, countries.
        random: which coefficients vary: "all", "intercept", or a list of names such as ["intercept", "age"]; a mapping
            from the levels' names gives each level its own.
        covariance: "full": the random coefficients of a level (and class) are correlated; "diagonal": each has its own
            variance, so that a feature's unit does not matter, but its zero does; "isotropic": one per level for all.
        fit_intercept: whether there is an intercept.
        group_variance: variance of the log-odds' coefficients between the groups of a district: a number, one for each
            random coefficient, a mapping from their names, or a matrix; None: estimated by Laplace's approximation.
        within_variance: variance between districts, likewise.
        likelihood: which likelihood is maximised: "marginal", over the global coefficients too, as by lme4's glmer with
            nAGQ = 1, or "restricted", with them integrated out as in REML.
        offset: column of X that is added to the log-odds, such as those of another model's out-of-fold prediction;
            None: the array `offset` of `fit` (none there: none).
        federated: keep a ledger of the groups' messages, from which all fits are computed. First a group sends X'X;
            then loss, gradient and information, p(p+1)/2 + p + 1 numbers per Newton step for p coefficients; finally,
            whether its coefficients separate it. Standard errors, when asked for, cost two more rounds per parameter.
        crossed: columns of X with levels that cross the groups; their intercepts vary, unless `random` says more.
        weights: column of X with weights of the rows: a row of weight 2 counts as two.
        missing: "raise" an error where a value is missing, or "drop" the row (a probability is NaN there).
        formula: a formula such as "gave ~ age + (1 | region/branch)"; see `from_formula`.

    Groups that their own coefficients separate perfectly (also those of one class) and global coefficients that
    separate all rows get a finite answer and a `SeparationWarning`; in the latter case a weak normal prior (standard
    deviation 10 in units of a feature's) bounds the global coefficients.

    Attributes:
        classes_: the labels; the log-odds of two classes are those of the second.
        groups_, within_: labels of groups and districts; `group_within_` is the position of each group's district.
        coef_, intercept_: [groups, features] and [groups]; of K > 2 classes [groups, K - 1, features].
        within_coef_, within_intercept_: the same for districts, or None.
        global_coef_, global_intercept_: beta; `global_covariance_` is its covariance, given the variances.
        bse_, pvalues_: standard errors, from the full Hessian of the likelihood, and p-values of beta.
        random_effects_: for each level a table of the deviations of its units, with standard errors.
        variance_components_: "group" and "within" as mappings from the names of coefficients.
        covariances_: the covariance of the random coefficients of each level, by its name.
        separated_: labels of the groups that the random coefficients separate perfectly.
        log_likelihood_, aic_, bic_: of the approximate likelihood; None where all variances were given.
        converged_: whether the search for the variances ended at a maximum.
        n_dropped_: rows left out because of missing values.
        statistics_: the groups' last messages: information (upper triangle) and gradient, at the solution.
        ledger_: with `federated`, rounds and bytes; otherwise None.

    Example:
        >>> from coterie.estimators import HierarchicalLogisticRegression
        >>> X, y = [[0.0], [1.0], [2.0], [3.0], [0.0], [1.0], [2.0], [3.0]], list("nnyynyny")
        >>> model = HierarchicalLogisticRegression(random="intercept", group_variance=1.0)
        >>> model.fit(X, y, groups=list("aaaabbbb")).predict([[0.0], [3.0]], groups=["a", "new"]).tolist()
        ['n', 'y']
    """

    _multiclass = True
    _title, _approximation = "Hierarchical logistic regression", " (Laplace)"

    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        random: str | Sequence[str] | Mapping[str, Any] = "all",
        covariance: str | Mapping[str, str] = "full",
        fit_intercept: bool = True,
        group_variance: Variance = None,
        within_variance: Variance = None,
        likelihood: str = "marginal",
        offset: Any = None,
        federated: bool = False,
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
        self.group_variance = group_variance
        self.within_variance = within_variance
        self.likelihood = likelihood
        self.offset = offset
        self.federated = federated
        self.crossed = crossed
        self.weights = weights
        self.missing = missing
        self.formula = formula

    @property
    def _odds(self) -> int:
        """How many log-odds there are: one, or K - 1 of K > 2 classes."""
        return len(self.classes_) - 1

    def _fit(self, rows: Rows) -> None:
        self._check_covariance()
        if self.likelihood not in ("restricted", "marginal"):
            raise InvalidData(f'likelihood: must be "restricted" or "marginal", not {self.likelihood!r}')
        if self._odds > 1 and rows.offset is not None:
            raise InvalidData("offset: there is none for three classes or more; leave it out")
        self._remember(rows)
        layout = self._layout(rows)
        one = self._units_of(rows)
        units: Any = one if self._odds == 1 else ClassUnits(one, self._odds)
        effects, shapes, given = self._levels(one, layout)
        if self._odds > 1:
            effects = tuple(units.repeated(effect) for effect in effects)
            shapes = tuple(_repeated(shape, self._odds) for shape in shapes)
            given = tuple(None if matrix is None else np.kron(np.eye(self._odds), matrix) for matrix in given)
        structure = layout.structure(effects)
        data = self._data(rows, layout, one)
        problem = Problem(data, structure, shapes, given, self.likelihood == "marginal")
        fit = self._estimate(problem, units, rows, layout)
        self._layout_ = replace(layout, unit=np.zeros(0, np.intp))
        self._keep(fit, problem, units)
        self._warn(fit)

    def _estimate(self, problem: Problem, units: Any, rows: Rows, layout: Layout) -> Fit:
        """Return variances and the mode at them; cross-validation also needs the rows."""
        return laplace(problem)

    def _units_of(self, rows: Rows) -> Units:
        """Return each column's mean and deviation; refuse columns that depend on each other."""
        units = units_of(rows, self._coefficient_names())
        design = units.design(rows.features)
        self._refuse_dependent(np.pad(design.T @ design, (0, 1)))
        return units

    def _data(self, rows: Rows, layout: Layout, units: Units) -> Any:
        """Return the rows in working units, their groups in the order of the structure."""
        assert rows.target is not None
        position = np.empty(layout.units, np.intp)
        position[layout.order] = np.arange(layout.units)
        features = units.design(rows.features)[:, int(self.fit_intercept) :]
        arguments = features, rows.target, position[layout.unit], layout.units, self.fit_intercept
        if self._odds > 1:
            return Multinomial(*arguments, len(self.classes_), rows.offset, rows.weights)
        return Bernoulli(*arguments, rows.offset, rows.weights)

    def _keep(self, fit: Fit, problem: Problem, units: Any) -> None:
        """Store the results, in the features' own units."""
        solution, data, order = fit.mode.solution, problem.data, self._layout_.order
        self._keep_levels(solution.beta, solution, problem.structure, units)
        # Under the marginal likelihood beta is given, and the solution has no covariance of it: solve for beta, too.
        self._quadratic_, self._penalty_, self._units_ = fit.mode.answer.quadratic(), fit.penalty, units
        joint = fit.penalty.solve(self._quadratic_)
        back = units.back
        self.global_covariance_ = back @ joint.covariance @ back.T
        self._keep_variances(fit.penalty.covariances, problem.structure, units)
        restricted = 0.0 if self.likelihood == "marginal" else float(np.log(units.scale).sum())
        self.log_likelihood_ = None if fit.log_likelihood is None else fit.log_likelihood - restricted
        self.converged_ = fit.converged
        self._separated = np.zeros(len(self.groups_), dtype=bool)
        if not self._factors.crossed:
            varying = np.zeros(len(back), dtype=bool)
            for effect, matrix in zip(problem.structure.effects, fit.penalty.covariances, strict=True):
                varying[effect.own[np.diag(matrix) > 0.0]] = True
            kept = np.where(varying[:, None], back @ solution.theta, 0.0)
            intercepts = bool(self.fit_intercept and varying[0])
            self._separated[order] = data.separated(np.linalg.solve(back, kept), intercepts)
        self.separated_ = self.groups_[self._separated]
        self._keep_messages(fit, units)
        self.ledger_ = data.traffic.ledger() if self.federated else None
        self._count_parameters(problem.shapes, problem.given, extra=0)
        self._fit_ = fit

    def _keep_messages(self, fit: Fit, units: Any) -> None:
        """Store the units' last messages in the columns' own units: theta = back theta_w, so X = X_w back^-1."""
        size, order = len(units.back), self._layout_.order
        forth = np.linalg.inv(units.back)
        answer = fit.mode.answer
        information, gradient = np.empty((size, size, len(order))), np.empty((size, len(order)))
        information[:, :, order] = np.einsum(
            "ba,bci,cd->adi", forth, answer.moments[:size, :size], forth, optimize=True
        )
        gradient[:, order] = forth.T @ answer.gradient
        self.statistics_ = np.concatenate([information[np.triu_indices(size)], gradient]).T.copy()

    def _warn(self, fit: Fit) -> None:
        """Warn where the solution is finite only because of a penalty."""
        if fit.weak:
            warnings.warn(
                "X: the features separate the classes, so the global coefficients have no finite maximum; a weak "
                "penalty holds them (leave features out, or add rows)",
                SeparationWarning,
                stacklevel=4,
            )
        if len(self.separated_) and len(self.groups_) > 1:
            largest = max([0.0, *(float(np.diag(matrix).max(initial=0.0)) for matrix in fit.penalty.covariances)])
            unbounded = largest > LARGEST**2 and fit.log_likelihood is not None
            advice = ", and the rows do not bound a variance: give group_variance and within_variance"
            warnings.warn(
                f"groups: {len(self.separated_):,} of {len(self.groups_):,} groups are perfectly separated or of one "
                "class; only the variances make their coefficients finite" + (advice if unbounded else ""),
                SeparationWarning,
                stacklevel=4,
            )

    # -- several classes --------------------------------------------------------------------------------------------

    def _linear(self, rows: Rows) -> np.ndarray:
        """Return the log-odds [n] of every row; of several classes [n, K - 1]."""
        if self._odds == 1:
            return super()._linear(rows)
        width, design = len(self._coefficient_names()), rows.design
        tables = [self._table[self._narrowest(rows)]]
        for codes, table in zip(rows.crossed, self._crossed_tables, strict=True):
            tables.append(np.where((codes == UNSEEN)[:, None], 0.0, table[codes]))
        whole = sum(tables).reshape(len(design), self._odds, width)
        value = np.einsum("nd,ncd->nc", design, whole)
        return value if rows.missing is None else np.where(rows.missing[:, None], np.nan, value)

    def _coefficient_labels(self) -> list[str]:
        names = self._coefficient_names()
        if self._odds == 1:
            return names
        return [f"{label}: {name}" for label in self.classes_.tolist()[1:] for name in names]

    def _level_coefficients(self, level: int) -> np.ndarray:
        columns, width = self._random_columns(level), len(self._coefficient_names())
        return np.concatenate([columns + c * width for c in range(self._odds)])

    def _split(self, table: np.ndarray) -> tuple[np.ndarray, Any]:
        if self._odds == 1:
            return super()._split(table)
        whole = table.reshape(*table.shape[:-1], self._odds, -1)
        if self.fit_intercept:
            return whole[..., 1:].copy(), whole[..., 0].copy()
        return whole.copy(), np.zeros(whole.shape[:-1])


def units_of(rows: Rows, names: list[str]) -> Units:
    """Return the means and deviations of the columns of rows (without an intercept, their root mean squares)."""
    first, size = int(rows.intercept), len(names)
    weights = np.ones(len(rows.features)) if rows.weights is None else rows.weights
    total, centre, scale = float(weights.sum()), np.zeros(size), np.ones(size)
    if rows.intercept:
        shift = rows.features[0]
        centre[1:] = shift + weights @ (rows.features - shift) / total
    scale[first:] = np.sqrt(weights @ (rows.features - centre[first:]) ** 2 / total)
    near = scale <= 1e-13 * np.abs(centre)
    if near.any():
        raise InvalidData(
            f"X: feature {names[int(np.flatnonzero(near)[0])]!r} is constant up to rounding; subtract a number"
        )
    return Units(centre, scale, 0.0, rows.intercept)


def _repeated(shape: Shape, odds: int) -> Shape:
    """Return the shape of the same covariance for each of several log-odds, uncorrelated with each other."""
    if shape.scale is not None:
        return Shape.isotropic(np.tile(shape.scale, odds))
    blocks = tuple(tuple(k + c * shape.size for k in block) for c in range(odds) for block in shape.blocks)
    return Shape(shape.size * odds, blocks)
