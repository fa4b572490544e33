"""Base class of the estimators for grouped data: reads rows, groups and districts; falls back for new groups.

An estimator derives from `GroupedRegressor` or `GroupedClassifier` and

- stores at least `groups`, `within`, `offset`, `fit_intercept` in its constructor (names of columns of X, or None);
- implements `_fit(rows)`, which `fit` calls after it has checked everything and set `groups_`, `within_`,
  `group_within_`, `n_features_in_`, `feature_names_in_` and `_factors`;
- there calls `self._set_coefficients(group, district, overall)` with arrays of p columns (the intercept, if any, then
  the features). That sets `coef_`, `intercept_`, `within_coef_`, `within_intercept_`, `global_coef_`,
  `global_intercept_`; `rows.design` has the same columns.

Predictions use `rows = self._read_predict(X, ...)` and `self._linear(rows)`: the linear predictor, offset included,
from the group's coefficients, or its district's where the group is new, or the global ones where both are new.

`Rows` (`rows.py`) holds `features [n, d]`, `target [n]` (None at predict), `group [n]`, `district [n]` (codes; -1
unseen), `offset [n]` and `weights [n]` (None: none). `self._coefficient_names()` lists the p names, "intercept" first;
`self._positions(choice)` turns a choice of names into positions among them. `moments.py` computes the sufficient
statistics of the groups,
weighted or not, and `blocks.py` solves for the coefficients from them with Schur complements; a Newton step of a
generalised linear model is the same solution with the working weights and the working response.
"""

import abc
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from coterie.errors import CoterieWarning
from coterie.estimators.columns import need_pandas, refuse_text, refuse_unknown, refuse_words
from coterie.estimators.grouping import UNSEEN, Factors, InvalidData, lookup
from coterie.estimators.rows import Parts, Rows, drop_missing, read_numbers, take_parts
from coterie.spec import nearest

__all__ = ["INTERCEPT", "PER_ROW", "GroupedEstimator", "GroupedRegressor", "Rows", "UngroupedWarning"]

INTERCEPT = "intercept"
PER_ROW = {"groups": True, "within": True, "offset": True}


class UngroupedWarning(CoterieWarning):
    """A model of groups was fitted without groups: it is one model for all rows."""


class GroupedEstimator(BaseEstimator, abc.ABC):
    """Base of the estimators; see the module's docstring."""

    # scikit-learn's metadata routing passes these on by default: only these estimators use them.
    __metadata_request__fit = PER_ROW | {"weights": True}
    __metadata_request__predict = PER_ROW
    __metadata_request__score = PER_ROW

    _needs_groups = False  # whether a fit without groups is likely a mistake

    def fit(
        self, X: Any, y: Any = None, groups: Any = None, within: Any = None, offset: Any = None, weights: Any = None
    ) -> Self:
        """Fit to rows X [n, features] and y [n].

        Args:
            X: a DataFrame or an array; with a formula, a DataFrame with all columns that it names.
            y: the target; with a formula, None.
            groups, within, offset, weights: arrays of n, where the model's settings do not name columns of X for them.
        """
        self._fit(self._read_fit(X, y, groups, within, offset, weights))
        return self

    @abc.abstractmethod
    def _fit(self, rows: Rows) -> None:
        """Set the coefficients."""

    def _parts(self, X: Any, y: Any, given: dict[str, Any], fitting: bool) -> Parts:
        """Take rows apart into features, target and levels; a formula does it in its own way."""
        return take_parts(self, X, y, given)

    def _read_fit(
        self, X: Any, y: Any, groups: Any, within: Any, offset: Any, weights: Any = None, labels: bool = False
    ) -> Rows:
        """Check the rows and learn the groups; with `labels` the target is a class label and is returned unchanged."""
        given = {"groups": groups, "within": within, "offset": offset, "weights": weights}
        parts = self._parts(X, y, given, fitting=True)
        self.n_dropped_ = 0
        if self._missing() == "drop":
            parts, missing = drop_missing(parts)
            self.n_dropped_ = int(missing.sum()) + int(getattr(self, "_formula_dropped", 0))
        refuse_text(parts.features)
        if not labels:
            refuse_words(parts.target)
        features, target = validate_data(
            self,
            parts.features,
            parts.target,
            dtype=np.float64,
            y_numeric=not labels,
            ensure_min_samples=2,
            ensure_min_features=self._fewest_features,
            ensure_all_finite=False,
            order="C",
        )
        self._refuse_missing(features)
        rows = len(features)
        if not labels:
            target = np.asarray(target, dtype=np.float64)
        sample_weight = read_numbers(parts.weights, rows, "weights")
        if sample_weight is not None and not (sample_weight > 0).any():
            raise InvalidData("weights: every weight is zero; give some rows a positive one")
        counted = slice(None) if sample_weight is None else sample_weight > 0
        self._refuse_constant(features[counted])
        if parts.groups is None and parts.within:
            raise InvalidData("groups: districts need groups; pass groups= too, or only groups=")
        self._grouped = parts.groups is not None
        if not self._grouped and self._needs_groups:
            warnings.warn(
                "groups: the model was fitted without groups, as one regression for all rows; name their column with "
                "groups=, or pass the array groups= to fit (scikit-learn's cross_val_score does so only with metadata "
                "routing)",
                UngroupedWarning,
                stacklevel=4,
            )
        self._factors = Factors.of(parts.groups, parts.within, parts.crossed, rows, parts.names)
        self.groups_, self.within_ = self._factors.groups, self._factors.within
        self.group_within_ = None if self.within_ is None else self._factors.district
        group, district, outer, crossed = self._factors.codes
        read = Rows(features, target, group, district, read_numbers(parts.offset, rows, "offset"), self.fit_intercept,
                    sample_weight, outer, crossed)  # fmt: skip
        return (
            read if sample_weight is None or (sample_weight > 0).all() else read.part(np.flatnonzero(sample_weight > 0))
        )

    @property
    def _fewest_features(self) -> int:
        """How many features a fit needs: a formula may have an intercept alone."""
        return 0 if getattr(self, "formula", None) is not None else 1

    def _missing(self) -> str:
        """Return what to do with rows that have missing values: "drop" or "raise"."""
        choice = getattr(self, "missing", "raise")
        if choice not in ("drop", "raise"):
            raise InvalidData(f'missing: must be "drop" or "raise", not {choice!r}')
        return str(choice)

    def _read_predict(self, X: Any, groups: Any, within: Any, offset: Any) -> Rows:
        """Check the rows and look up their groups; a new group or district gets UNSEEN."""
        check_is_fitted(self)
        parts = self._parts(X, None, {"groups": groups, "within": within, "offset": offset}, fitting=False)
        refuse_unknown(parts.features, getattr(self, "feature_names_in_", None))
        missing = None
        if self._missing() == "drop":
            parts, missing = drop_missing(parts)
        refuse_text(parts.features)
        features = validate_data(
            self,
            parts.features,
            dtype=np.float64,
            reset=False,
            ensure_min_features=self._fewest_features,
            ensure_all_finite=False,
            order="C",
        )
        self._refuse_missing(features)
        rows, factors = len(features), self._factors
        if parts.groups is None:
            if self._grouped and len(self.groups_) > 1:
                raise InvalidData(
                    f"groups: the model was fitted with {len(self.groups_)} groups; pass groups= here too "
                    "(an unknown label gets the model of its district, or the global one)"
                )
            group = np.zeros(rows, np.intp)
        else:
            group = lookup(parts.groups, self.groups_, rows, "groups") if self._grouped else np.zeros(rows, np.intp)
        levels = factors.above(group, parts.within, rows)
        crossed = tuple(
            lookup(column, labels, rows, "crossed")
            for column, labels in zip(parts.crossed, factors.crossed, strict=True)
        )
        known = Rows(features, None, group, levels[0], read_numbers(parts.offset, rows, "offset"), self.fit_intercept,
                     outer=levels[1:], crossed=crossed)  # fmt: skip
        return known if missing is None or not missing.any() else _spread(known, missing)

    def _linear(self, rows: Rows) -> np.ndarray:
        """Return the linear predictor of every row, from the narrowest model that was fitted for it."""
        row, first = self._narrowest(rows), int(self.fit_intercept)
        value = np.einsum("nd,nd->n", rows.features, self._table[row, first:])
        if self.fit_intercept:
            value += self._table[row, 0]
        for codes, table in zip(rows.crossed, self._crossed_tables, strict=True):
            seen = codes != UNSEEN
            value[seen] += np.einsum("nd,nd->n", rows.design[seen], table[codes[seen]])
        if rows.offset is not None:
            value += rows.offset
        return value if rows.missing is None else np.where(rows.missing, np.nan, value)

    def _narrowest(self, rows: Rows) -> np.ndarray:
        """Return each row's position in the table of groups, then of the levels above them, then the global model."""
        sizes = self._factors.sizes
        starts = np.cumsum([0, *sizes])
        row = np.full(len(rows.group), starts[-1])
        levels = (rows.group, rows.district, *rows.outer)[: len(sizes)]
        for start, codes in reversed(list(zip(starts, levels, strict=False))):
            row = np.where(codes == UNSEEN, row, start + codes)
        return row

    def _set_coefficients(
        self,
        group: np.ndarray,
        district: np.ndarray | None,
        overall: np.ndarray,
        outer: tuple[np.ndarray, ...] = (),
        crossed: tuple[np.ndarray, ...] = (),
    ) -> None:
        """Store coefficients: group [groups, p], district [districts, p] (ignored without districts), overall [p].

        `outer` has tables of the levels above the districts, `crossed` the deviations at levels that cross.
        """
        self.coef_, self.intercept_ = self._split(group)
        self.global_coef_, self.global_intercept_ = self._split(overall)
        self.within_coef_, self.within_intercept_ = None, None
        tables = [group]
        if self.within_ is not None and district is not None:
            self.within_coef_, self.within_intercept_ = self._split(district)
            tables += [district, *outer]
        self._table = np.concatenate([*tables, overall[None]])
        self._crossed_tables = crossed

    def _split(self, table: np.ndarray) -> tuple[np.ndarray, Any]:
        if self.fit_intercept:
            return table[..., 1:].copy(), table[..., 0].copy() if table.ndim > 1 else float(table[0])
        return table.copy(), np.zeros(table.shape[:-1]) if table.ndim > 1 else 0.0

    def coef_frame(self) -> Any:
        """Return the coefficients as a pandas DataFrame: one row per group, with its district if there are any."""
        check_is_fitted(self)
        pd, groups = need_pandas("coef_frame"), len(self.groups_)
        frame = pd.DataFrame(
            self._table[:groups],
            columns=self._coefficient_labels(),
            index=pd.Index(self.groups_, name=self._factors.names[0]),
        )
        if self.within_ is not None:
            frame.insert(0, self._factors.names[1], np.asarray(self.within_)[self._factors.district])
        return frame

    def _coefficient_names(self) -> list[str]:
        features = getattr(self, "feature_names_in_", None)
        names = [f"x{i}" for i in range(self.n_features_in_)] if features is None else [str(name) for name in features]
        return [INTERCEPT, *names] if self.fit_intercept else names

    def _coefficient_labels(self) -> list[str]:
        """Return the names of the columns of `_table`; several classes have some for each."""
        return self._coefficient_names()

    def _positions(self, choice: Any) -> np.ndarray:
        """Return which coefficients a choice such as "all" or a list of names means, as positions."""
        names = self._coefficient_names()
        if isinstance(choice, str) and choice == "all":
            return np.arange(len(names))
        if isinstance(choice, str):
            choice = [choice]
        if not isinstance(choice, Iterable):
            raise InvalidData(f'random: must be "all" or names of coefficients, not {choice!r}')
        wanted = list(choice)
        unknown = [str(name) for name in wanted if name not in names]
        if unknown:
            guess = nearest(unknown[0], names) or f'; choose "all" or some of {", ".join(names)}'
            raise InvalidData(f"random: no coefficient {unknown[0]!r}{guess}")
        return np.array(sorted({names.index(name) for name in wanted}), dtype=np.intp)

    def _refuse_missing(self, features: np.ndarray) -> None:
        if np.isfinite(features.sum()):  # the quick check; a sum that overflowed is checked again below
            return
        row, column = np.nonzero(~np.isfinite(features))
        if len(row):
            name = self._coefficient_names()[column[0] + int(self.fit_intercept)]
            what = "NaN" if np.isnan(features[row[0], column[0]]) else "infinity"
            raise InvalidData(
                f'X: feature {name!r} is {what} in row {row[0]}; fill it, leave the row out, or use missing="drop"'
            )

    def _refuse_constant(self, features: np.ndarray) -> None:
        spread = features.max(axis=0) - features.min(axis=0)
        empty = spread == 0 if self.fit_intercept else (spread == 0) & (features[0] == 0)
        if empty.any():
            column = int(np.flatnonzero(empty)[0])
            name = self._coefficient_names()[column + int(self.fit_intercept)]
            fault = "is constant, which the intercept already is" if self.fit_intercept else "is always 0"
            raise InvalidData(f"X: feature {name!r} {fault}; leave it out")


def _spread(rows: Rows, missing: np.ndarray) -> Rows:
    """Return rows for a prediction with those that had missing values among them again, marked."""
    position = np.cumsum(~missing) - 1
    position[missing] = 0
    return replace(rows.part(position), missing=missing)


class GroupedRegressor(RegressorMixin, GroupedEstimator):
    """A regressor whose prediction is the linear predictor."""

    def predict(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the prediction of every row; see `fit` for the arguments."""
        return self._linear(self._read_predict(X, groups, within, offset))

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, within: Any = None, offset: Any = None
    ) -> float:
        """Return the coefficient of determination of the predictions."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, groups, within, offset), sample_weight=sample_weight))
