"""Logistic regression with a model for every group, each borrowing strength from its district and from all.

The objective is (2.3) of Lyu, Hanzely and Kolar 2022 with the logistic loss, gamma = 1 / variance between groups and
lambda = 1 / variance between districts, minimised to machine precision by Newton's method with the blocks of the linear
model (`newton.py`). Variances are given, or estimated by maximising Laplace's
approximation of the likelihood (`laplace.py`); or penalties are cross-validated (`logistic_cv.py`).
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from coterie.estimators.base import Rows
from coterie.estimators.bernoulli import Bernoulli
from coterie.estimators.blocks import Tree
from coterie.estimators.classifier import GroupedClassifier, SeparationWarning
from coterie.estimators.grouping import InvalidData
from coterie.estimators.hierarchy import Hierarchical, Variance
from coterie.estimators.laplace import LARGEST, Fit, Problem, laplace
from coterie.estimators.summary import Summary, summarise

__all__ = ["HierarchicalLogisticRegression"]


class HierarchicalLogisticRegression(Hierarchical, GroupedClassifier):
    """Logistic regression of two classes for rows in groups (shops), which may lie in districts.

    The log-odds of a row are x' theta_i with theta_i = w_j + u_i for group i in district j, and w_j = beta + v_j; u_i
    and v_j are normal. The coefficients are the most probable ones given the variances.

    Args:
        groups: column of X with each row's group; None: the array `groups` of `fit` (none there: one group).
        within: column of X with each row's district; None: the array `within` of `fit` (none there: no districts).
        random: which coefficients vary: "all", "intercept", or a list of names such as ["intercept", "age"].
        covariance: "diagonal": each coefficient has its own variance at each level, so that a feature's unit does not
            matter; "isotropic": one variance per level for all coefficients.
        fit_intercept: whether there is an intercept.
        group_variance: variance of the log-odds' coefficients between the groups of a district: a number, one for each
            random coefficient, or a mapping from their names; None: estimated by Laplace's approximation.
        within_variance: variance between districts, likewise.
        likelihood: which likelihood is maximised: "restricted", with the global coefficients integrated out as in REML,
            or "marginal", maximised over them as by lme4's glmer with nAGQ = 1.
        offset: column of X that is added to the log-odds, such as those of another model's out-of-fold prediction;
            None: the array `offset` of `fit` (none there: none).
        federated: keep a ledger of the groups' messages, from which all fits are computed. First a group sends X'X;
            then loss, gradient and information, p(p+1)/2 + p + 1 numbers per Newton step for p coefficients; finally,
            whether its coefficients separate it.

    Groups that their own coefficients separate perfectly (also those of one class) and global coefficients that
    separate all rows get a finite answer and a `SeparationWarning`; in the latter case a weak normal prior (standard
    deviation 10 in units of a feature's root mean square) bounds the global coefficients.

    Attributes:
        classes_: the two labels; probabilities and log-odds are those of the second.
        groups_, within_: labels of groups and districts; `group_within_` is the position of each group's district.
        coef_, intercept_: [groups, features] and [groups].
        within_coef_, within_intercept_: the same for districts, or None.
        global_coef_, global_intercept_: beta; `global_covariance_` is its covariance, given the variances.
        variance_components_: "group" and "within" as mappings from the names of coefficients.
        separated_: labels of the groups that the random coefficients separate perfectly.
        log_likelihood_: the approximate likelihood at its maximum; None where all variances were given.
        statistics_: the groups' last messages: information (upper triangle) and gradient, at the solution.
        ledger_: with `federated`, rounds and bytes; otherwise None.

    Example:
        >>> from coterie.estimators import HierarchicalLogisticRegression
        >>> X, y = [[0.0], [1.0], [2.0], [3.0], [0.0], [1.0], [2.0], [3.0]], list("nnyynyny")
        >>> model = HierarchicalLogisticRegression(random="intercept", group_variance=1.0)
        >>> model.fit(X, y, groups=list("aaaabbbb")).predict([[0.0], [3.0]], groups=["a", "new"]).tolist()
        ['n', 'y']
    """

    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        random: str | Sequence[str] = "all",
        covariance: str = "diagonal",
        fit_intercept: bool = True,
        group_variance: Variance = None,
        within_variance: Variance = None,
        likelihood: str = "restricted",
        offset: Any = None,
        federated: bool = False,
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

    def _fit(self, rows: Rows) -> None:
        random = self._random_columns()
        self._check_covariance()
        if self.likelihood not in ("restricted", "marginal"):
            raise InvalidData(f'likelihood: must be "restricted" or "marginal", not {self.likelihood!r}')
        tree = Tree.of(self._nesting.district)
        scale = self._scale(rows)
        data = self._data(rows, tree, scale)
        squared = scale[random] ** 2
        problem = Problem(
            data,
            tree,
            random,
            self._given("group_variance", random, squared, len(self.groups_)),
            self._given("within_variance", random, squared, len(tree.starts)),
            scale[random] / scale.max() if self.covariance == "isotropic" else None,
            self.likelihood == "marginal",
        )
        fit = self._estimate(problem, scale, rows)
        self._keep(fit, data, scale)
        self._warn(fit)

    def summary(self, level: float = 0.95) -> Summary:
        """Return global coefficients with standard errors and intervals, variances, and intraclass correlations.

        The intraclass correlation is that of the log-odds with logistic noise, whose variance is pi^2 / 3.
        """
        check_is_fitted(self)
        return summarise(self, level)

    def plot_shrinkage(self, coefficient: str | None = None) -> Any:
        """Return a Plotly figure: each group's own estimate of a coefficient against the shrunk one.

        A group's own estimate is one Newton step without the penalty, from its last message; separated groups
        have none.
        """
        from coterie.estimators.plot import plot_shrinkage

        check_is_fitted(self)
        return plot_shrinkage(self, coefficient)

    def _estimate(self, problem: Problem, scale: np.ndarray, rows: Rows) -> Fit:
        """Return variances and the mode at them; cross-validation also needs the rows."""
        return laplace(problem)

    def _scale(self, rows: Rows) -> np.ndarray:
        """Return each column's root mean square, the unit of the search; refuse columns that depend on each other."""
        design = rows.design
        total = design.T @ design
        self._refuse_dependent(np.pad(total, (0, 1)))
        return np.sqrt(np.diag(total) / len(design))

    def _data(self, rows: Rows, tree: Tree, scale: np.ndarray) -> Bernoulli:
        """Return the rows in units of the scale, their groups in the order of the tree."""
        assert rows.target is not None
        position = np.empty(len(tree.order), np.intp)
        position[tree.order] = np.arange(len(tree.order))
        features = rows.features / scale[int(self.fit_intercept) :]
        groups = len(self.groups_)
        return Bernoulli(features, rows.target, position[rows.group], groups, self.fit_intercept, rows.offset)

    def _keep(self, fit: Fit, data: Bernoulli, scale: np.ndarray) -> None:
        """Store the results, in the features' own units."""
        solution, order, size = fit.mode.solution, fit.penalty.tree.order, len(scale)
        theta = np.empty_like(solution.theta)
        theta[:, order] = solution.theta
        column = scale[:, None]
        self._set_coefficients((theta / column).T, (solution.within / column).T, solution.beta / scale)
        # Under the marginal likelihood beta is given, and the solution has no covariance of it: solve for beta, too.
        joint = fit.penalty.solve(fit.mode.answer.quadratic())
        self.global_covariance_ = joint.covariance / np.outer(scale, scale)
        names = np.array(self._coefficient_names(), dtype=object)[solution.random]
        squared = scale[solution.random] ** 2
        self.variance_components_ = {"group": dict(zip(names, (fit.penalty.group / squared).tolist(), strict=True))}
        if self.within_ is not None:
            self.variance_components_["within"] = dict(zip(names, (fit.penalty.within / squared).tolist(), strict=True))
        restricted = 0.0 if self.likelihood == "marginal" else float(np.log(scale).sum())
        self.log_likelihood_ = None if fit.log_likelihood is None else fit.log_likelihood - restricted
        self._separated = np.zeros(data.groups, dtype=bool)
        varying = solution.random[fit.penalty.group + fit.penalty.within > 0.0]
        self._separated[order] = data.separated(solution.theta, varying)
        self.separated_ = self.groups_[self._separated]
        information = np.empty((size, size, data.groups))
        gradient = np.empty((size, data.groups))
        information[:, :, order] = fit.mode.answer.moments[:size, :size] * np.outer(scale, scale)[:, :, None]
        gradient[:, order] = fit.mode.answer.gradient * column
        self.statistics_ = np.concatenate([information[np.triu_indices(size)], gradient]).T.copy()
        self.ledger_ = data.traffic.ledger() if self.federated else None

    def _warn(self, fit: Fit) -> None:
        """Warn where the solution is finite only because of a penalty."""
        if fit.weak:
            warnings.warn(
                "X: the features separate the two classes, so the global coefficients have no finite maximum; a weak "
                "penalty holds them (leave features out, or add rows)",
                SeparationWarning,
                stacklevel=4,
            )
        if len(self.separated_) and len(self.groups_) > 1:
            largest = max([0.0, *fit.penalty.group, *fit.penalty.within])
            unbounded = largest > LARGEST**2 and fit.log_likelihood is not None
            advice = ", and the rows do not bound a variance: give group_variance and within_variance"
            warnings.warn(
                f"groups: {len(self.separated_):,} of {len(self.groups_):,} groups are perfectly separated or of one "
                "class; only the variances make their coefficients finite" + (advice if unbounded else ""),
                SeparationWarning,
                stacklevel=4,
            )

    def _alone(self) -> np.ndarray:
        """Return each group's own estimate [groups, random] by a Newton step without penalty; NaN where separated."""
        random, size = self._random_columns(), len(self._table[-1])
        count = size * (size + 1) // 2
        information = np.empty((len(self.groups_), size, size))
        upper, lower = np.triu_indices(size)
        information[:, upper, lower] = information[:, lower, upper] = self.statistics_[:, :count]
        gradient = self.statistics_[:, count:][:, random]
        block = information[:, random[:, None], random]
        estimates = np.full((len(block), len(random)), np.nan)
        full = ~self._separated & (np.linalg.matrix_rank(block, hermitian=True) == len(random))
        step = np.linalg.solve(block[full], gradient[full][:, :, None])[:, :, 0]
        estimates[full] = self._table[: len(block)][full][:, random] + step
        return estimates
