"""What a fitted hierarchical model says about itself: tables, errors, tests, intervals, plots; and its formula."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit
from sklearn.utils.validation import check_is_fitted

from coterie.estimators.columns import need_pandas
from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Shape
from coterie.estimators.rows import Parts, take_parts
from coterie.estimators.summary import Summary, summarise

__all__ = ["HierarchicalModel"]


class HierarchicalModel:
    """The questions that both hierarchical models answer; a model provides `_inference()` and `_profile(level)`."""

    @classmethod
    def from_formula(cls, formula: str, **settings: Any) -> Self:
        """Return a model of this formula; `fit(frame)` then takes everything, y included, from the frame.

        Args:
            formula: such as "score ~ age + C(sex) + (1 + age | district/school)": the fixed part is read by formulaic
                (`pip install 'coterie[formula]'`); a term in brackets says which coefficients vary between which
                groups. `a/b` is b within a, several terms may cross, `||` leaves out correlations.
            settings: further settings of the model, such as `missing="drop"`.
        """
        from coterie.estimators.formula import has_intercept

        settings.setdefault("fit_intercept", has_intercept(formula))
        return cls(formula=formula, **settings)  # type: ignore[call-arg]

    def _parts(self: Any, X: Any, y: Any, given: dict[str, Any], fitting: bool) -> Parts:
        """Take rows apart, by the formula if there is one."""
        if self.formula is None:
            self._formula_settings: dict[str, Any] = {}
            return take_parts(self, X, y, given)
        from coterie.estimators.formula import formula_parts

        return formula_parts(self, X, y, given, fitting)

    # -- tables -----------------------------------------------------------------------------------------------------

    def summary(self: Any, level: float = 0.95) -> Summary:
        """Return coefficients with errors, tests and intervals, variances, correlations, and how the fit went."""
        check_is_fitted(self)
        return summarise(self, level)

    @property
    def bse_(self: Any) -> Any:
        """The standard errors of the global coefficients, by name."""
        check_is_fitted(self)
        errors = np.sqrt(np.diag(self._inference().covariance))
        return need_pandas("bse_").Series(errors, index=self._coefficient_labels(), name="standard error")

    @property
    def pvalues_(self: Any) -> Any:
        """The two-sided p-values of the global coefficients, by name, of t; of z where variances are known or zero."""
        check_is_fitted(self)
        inference = self._inference()
        ratio = np.abs(self._coefficients() / np.sqrt(np.diag(inference.covariance)))
        normal = np.isinf(inference.freedom)
        student = stdtr(np.where(normal, 1.0, inference.freedom), -ratio)
        values = 2.0 * np.where(normal, ndtr(-ratio), student)
        return need_pandas("pvalues_").Series(values, index=self._coefficient_labels(), name="p")

    def conf_int(self: Any, level: float = 0.95, method: str = "wald") -> Any:
        """Return intervals of the global coefficients as a DataFrame with the columns lower and upper.

        Args:
            level: the probability that an interval covers the truth.
            method: "wald": estimate and standard error, with quantiles of t (Satterthwaite's degrees of freedom);
                "profile": where the profile of the marginal likelihood has fallen by the quantile of chi-square.
        """
        check_is_fitted(self)
        pd = need_pandas("conf_int")
        if not 0.0 < level < 1.0:
            raise InvalidData(f"level: must lie between 0 and 1, not {level}")
        if method == "profile":
            ends = self._profile(level)
        elif method == "wald":
            inference, estimate = self._inference(), self._coefficients()
            reach = quantiles(inference.freedom, level) * np.sqrt(np.diag(inference.covariance))
            ends = np.column_stack([estimate - reach, estimate + reach])
        else:
            raise InvalidData(f'method: must be "wald" or "profile", not {method!r}')
        return pd.DataFrame(ends, index=self._coefficient_labels(), columns=["lower", "upper"])

    @property
    def random_effects_(self: Any) -> dict[str, Any]:
        """For each level a DataFrame: the deviations of its units, and their standard errors given the variances."""
        check_is_fitted(self)
        pd, names, tables = need_pandas("random_effects_"), self._coefficient_labels(), {}
        solution, structure, units = self._resolve()
        variance = getattr(self, "_residual_", 1.0)
        labels = [*self._factors.nested, *self._factors.crossed]
        for level, (there, codes) in enumerate(zip(solution.levels, structure.unit_codes, strict=True)):
            own, ratio = there.effect.own, there.ratio
            way = units.way(there.effect)
            left = ratio[:, :, None] - np.einsum(
                "ik,kjn,jl->iln", ratio, solution.information(level), ratio, optimize=True
            )
            squares = variance * np.einsum("ik,kjn,ij->in", way, left, way, optimize=True)
            errors = np.empty((len(codes), len(own)))
            errors[codes] = np.sqrt(np.maximum(squares, 0.0)).T
            columns = {}
            for k, column in enumerate(own):
                columns[names[column]] = self._deviations[level][:, column]
                columns[f"{names[column]} error"] = errors[:, k]
            name = self._factors.names[level]
            tables[name] = pd.DataFrame(columns, index=pd.Index(labels[level], name=name))
        return tables

    @property
    def aic_(self: Any) -> float | None:
        """Akaike's criterion, from the likelihood that was maximised."""
        return None if self.log_likelihood_ is None else -2.0 * self.log_likelihood_ + 2.0 * self.n_parameters_

    @property
    def bic_(self: Any) -> float | None:
        """Schwarz's criterion, likewise, with the number of rows."""
        if self.log_likelihood_ is None:
            return None
        return -2.0 * self.log_likelihood_ + float(np.log(self._n_rows)) * self.n_parameters_

    def compare(self: Any, other: Any) -> Any:
        """Test two nested models of the same rows by their likelihood ratio; return a DataFrame with a row for each.

        Linear models that differ in their global coefficients are compared by their marginal likelihoods (they are
        fitted again, from the groups' sums, if REML had been asked for). Where the smaller model says that a variance
        is zero, the truth lies on the boundary, and the p-value is too large.
        """
        from coterie.estimators.compare import compare

        return compare(self, other)

    # -- plots ------------------------------------------------------------------------------------------------------

    def plot_shrinkage(self: Any, coefficient: str | None = None) -> Any:
        """Return a Plotly figure: each group's own estimate of a coefficient against the shrunk one."""
        from coterie.estimators.plot import plot_shrinkage

        check_is_fitted(self)
        return plot_shrinkage(self, coefficient)

    def plot_effects(
        self: Any, coefficient: str | None = None, level: str | None = None, interval: float = 0.95
    ) -> Any:
        """Return a Plotly figure of the units' deviations, in order, with intervals (a caterpillar plot)."""
        from coterie.estimators.plot_effects import plot_effects

        check_is_fitted(self)
        return plot_effects(self, coefficient, level, interval)

    def plot_residuals(self: Any, X: Any, y: Any = None, **arrays: Any) -> Any:
        """Return a Plotly figure of the residuals of these rows against their fitted values."""
        from coterie.estimators.plot_residuals import plot_residuals

        check_is_fitted(self)
        return plot_residuals(self, X, y, arrays)

    def plot_quantiles(self: Any, X: Any, y: Any = None, **arrays: Any) -> Any:
        """Return a Plotly figure of the residuals' quantiles against normal ones (a Q-Q plot)."""
        from coterie.estimators.plot_residuals import plot_quantiles

        check_is_fitted(self)
        return plot_quantiles(self, X, y, arrays)

    # -- what the models keep ---------------------------------------------------------------------------------------

    def _coefficients(self: Any) -> np.ndarray:
        """Return the global coefficients [p]."""
        return self._table[-1]

    def _level_coefficients(self: Any, level: int) -> np.ndarray:
        """Return which of the labelled coefficients vary at a level."""
        return self._random_columns(level)  # several classes have some for each

    def _remember(self: Any, rows: Any) -> None:
        """Store how many rows there were, by level, and a mark by which other rows and weights are recognised."""
        self._n_rows = len(rows.features)
        levels = [rows.group, rows.district, *rows.outer][: len(self._factors.nested)] + list(rows.crossed)
        sizes = [*self._factors.sizes, *(len(labels) for labels in self._factors.crossed)]
        self._level_sizes = [np.bincount(codes, minlength=size) for codes, size in zip(levels, sizes, strict=True)]
        target, place = rows.target - rows.target[0], np.arange(len(rows.target))
        weights = np.ones(len(target)) if rows.weights is None else rows.weights
        marks = [target.sum(), np.square(target).sum(), target @ place, weights.sum(), weights @ place]
        self._target_mark = np.array(marks, dtype=float)

    def _count_parameters(self: Any, shapes: Sequence[Shape], given: Sequence[Any], extra: int) -> None:
        """Store how many parameters were estimated: global coefficients, covariances, and `extra`."""
        free = sum(shape.parameters for shape, fixed in zip(shapes, given, strict=True) if fixed is None)
        self.n_parameters_ = len(self._coefficient_labels()) + free + extra
        self.__dict__.pop("_inference_", None)


def quantiles(freedom: np.ndarray, level: float) -> np.ndarray:
    """Return the quantiles that an interval of this level reaches to, in standard errors."""
    normal = np.isinf(freedom)
    student = stdtrit(np.where(normal, 1.0, freedom), 0.5 + level / 2.0)
    return np.where(normal, ndtri(0.5 + level / 2.0), student)
