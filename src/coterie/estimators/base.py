"""Base class of the estimators for grouped data: reads rows, groups and districts; falls back for new groups.

An estimator derives from `GroupedRegressor` or `GroupedClassifier` and

- stores at least `groups`, `within`, `offset`, `fit_intercept` in its constructor (names of columns of X, or None);
- implements `_fit(rows)`, which `fit` calls after it has checked everything and set `groups_`, `within_`,
  `group_within_`, `n_features_in_`, `feature_names_in_` and `_nesting`;
- there calls `self._set_coefficients(group, district, overall)` with arrays of p columns (the intercept, if any, then
  the features). That sets `coef_`, `intercept_`, `within_coef_`, `within_intercept_`, `global_coef_`,
  `global_intercept_`; `rows.design` has the same columns.

Predictions use `rows = self._read_predict(X, ...)` and `self._linear(rows)`: the linear predictor, offset included,
from the group's coefficients, or its district's where the group is new, or the global ones where both are new.

`Rows` holds `features [n, d]`, `target [n]` (None at predict), `group [n]`, `district [n]` (codes; -1 unseen),
`offset [n]` (None: none). `self._coefficient_names()` lists the p names, "intercept" first; `self._random_columns()`
turns the parameter `random` into positions among them. `moments.py` computes the sufficient statistics of the groups,
weighted or not, and `blocks.py` solves for the coefficients from them with Schur complements; a Newton step of a
generalised linear model is the same solution with the working weights and the working response.
"""

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from coterie.estimators.columns import has_column, named, need_pandas, read_offset, refuse_text, take, without
from coterie.estimators.grouping import UNSEEN, InvalidData, Nesting, encode, lookup

__all__ = ["INTERCEPT", "PER_ROW", "GroupedEstimator", "GroupedRegressor", "Rows"]

INTERCEPT = "intercept"
PER_ROW = {"groups": True, "within": True, "offset": True}


@dataclass(frozen=True)
class Rows:
    """The rows of one call, checked: float64, and codes in place of labels."""

    features: np.ndarray  # [n, d]
    target: np.ndarray | None  # [n]
    group: np.ndarray  # [n]
    district: np.ndarray  # [n]
    offset: np.ndarray | None  # [n]
    intercept: bool

    @property
    def design(self) -> np.ndarray:
        """The features with a column of ones before them, if there is an intercept."""
        if not self.intercept:
            return self.features
        return np.column_stack([np.ones(len(self.features)), self.features])

    @property
    def response(self) -> np.ndarray:
        """The target of a linear model minus the offset."""
        assert self.target is not None
        return self.target if self.offset is None else self.target - self.offset


class GroupedEstimator(BaseEstimator, abc.ABC):
    """Base of the estimators; see the module's docstring."""

    # scikit-learn's metadata routing passes these on by default: only these estimators use them.
    __metadata_request__fit = PER_ROW
    __metadata_request__predict = PER_ROW
    __metadata_request__score = PER_ROW

    def fit(self, X: Any, y: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Self:
        """Fit to rows X [n, features] and y [n]; groups, within and offset are arrays of n, or columns of X by name."""
        self._fit(self._read_fit(X, y, groups, within, offset))
        return self

    @abc.abstractmethod
    def _fit(self, rows: Rows) -> None:
        """Set the coefficients."""

    def _read_fit(self, X: Any, y: Any, groups: Any, within: Any, offset: Any, labels: bool = False) -> Rows:
        """Check the rows and learn the groups; with `labels` the target is a class label and is returned unchanged."""
        features, groups, within, offset = self._columns(X, groups, within, offset)
        refuse_text(features)
        features, target = validate_data(
            self,
            features,
            y,
            dtype=np.float64,
            y_numeric=not labels,
            ensure_min_samples=2,
            ensure_all_finite=False,
            order="C",
        )
        self._refuse_missing(features)
        rows = len(features)
        if not labels:
            target = np.asarray(target, dtype=np.float64)
        self._refuse_constant(features)
        if groups is None and within is not None:
            raise InvalidData("groups: districts need groups; pass groups= too, or only groups=")
        self._grouped = groups is not None
        self.groups_, group = np.zeros(1, np.intp), np.zeros(rows, np.intp)
        if groups is not None:
            self.groups_, group = encode(groups, rows, "groups")
        self.within_: np.ndarray | None = None
        district: np.ndarray | None = None
        if within is not None:
            self.within_, district = encode(within, rows, "within")
        self._nesting = Nesting.of(self.groups_, group, self.within_, district)
        self.group_within_ = None if within is None else self._nesting.district
        district = np.zeros(rows, np.intp) if district is None else district
        return Rows(features, target, group, district, read_offset(offset, rows), self.fit_intercept)

    def _read_predict(self, X: Any, groups: Any, within: Any, offset: Any) -> Rows:
        """Check the rows and look up their groups; a new group or district gets UNSEEN."""
        check_is_fitted(self)
        features, groups, within, offset = self._columns(X, groups, within, offset)
        refuse_text(features)
        features = validate_data(self, features, dtype=np.float64, reset=False, ensure_all_finite=False, order="C")
        self._refuse_missing(features)
        rows = len(features)
        if groups is None:
            if self._grouped and len(self.groups_) > 1:
                raise InvalidData(
                    f"groups: the model was fitted with {len(self.groups_)} groups; pass groups= here too "
                    "(an unknown label gets the model of its district, or the global one)"
                )
            group = np.zeros(rows, np.intp)
        else:
            group = lookup(groups, self.groups_, rows, "groups") if self._grouped else np.zeros(rows, np.intp)
        district = np.where(group == UNSEEN, UNSEEN, self._nesting.district[group])
        if within is not None and self.within_ is not None:
            given = lookup(within, self.within_, rows, "within")
            moved = np.flatnonzero((group != UNSEEN) & (given != district))
            if len(moved):
                label = self.groups_.tolist()[group[moved[0]]]
                raise InvalidData(f"within: group {label!r} was in another district at fit; relabel it or refit")
            district = given
        return Rows(features, None, group, district, read_offset(offset, rows), self.fit_intercept)

    def _linear(self, rows: Rows) -> np.ndarray:
        """Return the linear predictor of every row, from the narrowest model that was fitted for it."""
        row = self._narrowest(rows)
        value = np.einsum("nd,nd->n", rows.features, self._table[row, int(self.fit_intercept) :])
        if self.fit_intercept:
            value += self._table[row, 0]
        return value if rows.offset is None else value + rows.offset

    def _narrowest(self, rows: Rows) -> np.ndarray:
        """Return each row's position in the table of groups, then districts, then the global model."""
        groups, districts = len(self.groups_), 0 if self.within_ is None else len(self.within_)
        wider = np.where((rows.district == UNSEEN) | (districts == 0), groups + districts, groups + rows.district)
        return np.where(rows.group == UNSEEN, wider, rows.group)

    def _set_coefficients(self, group: np.ndarray, district: np.ndarray | None, overall: np.ndarray) -> None:
        """Store coefficients: group [groups, p], district [districts, p] (ignored without districts), overall [p]."""
        self.coef_, self.intercept_ = self._split(group)
        self.global_coef_, self.global_intercept_ = self._split(overall)
        self.within_coef_, self.within_intercept_ = None, None
        tables = [group]
        if self.within_ is not None and district is not None:
            self.within_coef_, self.within_intercept_ = self._split(district)
            tables.append(district)
        self._table = np.concatenate([*tables, overall[None]])

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
            columns=self._coefficient_names(),
            index=pd.Index(self.groups_, name=named(self.groups, "group")),
        )
        if self.within_ is not None:
            frame.insert(0, named(self.within, "within"), np.asarray(self.within_)[self._nesting.district])
        return frame

    def _coefficient_names(self) -> list[str]:
        features = getattr(self, "feature_names_in_", None)
        names = [f"x{i}" for i in range(self.n_features_in_)] if features is None else [str(name) for name in features]
        return [INTERCEPT, *names] if self.fit_intercept else names

    def _random_columns(self) -> np.ndarray:
        """Return which coefficients vary between groups, as positions, from `random`."""
        names, choice = self._coefficient_names(), self.random
        if isinstance(choice, str) and choice == "all":
            return np.arange(len(names))
        if isinstance(choice, str):
            choice = [choice]
        if not isinstance(choice, Iterable):
            raise InvalidData(f'random: must be "all" or names of coefficients, not {choice!r}')
        wanted = list(choice)
        unknown = [str(name) for name in wanted if name not in names]
        if unknown:
            raise InvalidData(f'random: no coefficient {unknown[0]!r}; choose "all" or some of {", ".join(names)}')
        return np.array(sorted({names.index(name) for name in wanted}), dtype=np.intp)

    def _columns(self, X: Any, groups: Any, within: Any, offset: Any) -> tuple[Any, Any, Any, Any]:
        """Take the named columns out of X, unless arrays were passed instead."""
        given = {"groups": groups, "within": within, "offset": offset}
        taken = []
        for parameter, array in given.items():
            column = getattr(self, parameter, None)
            if column is None:
                continue
            if has_column(X, column):
                taken.append(column)
                given[parameter] = take(X, column) if array is None else array
            elif array is None:
                raise InvalidData(
                    f"{parameter}: X has no column {column!r}; pass a DataFrame with it, or {parameter}= as an array"
                )
        return without(X, taken), given["groups"], given["within"], given["offset"]

    def _refuse_missing(self, features: np.ndarray) -> None:
        if np.isfinite(features.sum()):  # the quick check; a sum that overflowed is checked again below
            return
        row, column = np.nonzero(~np.isfinite(features))
        if len(row):
            name = self._coefficient_names()[column[0] + int(self.fit_intercept)]
            what = "NaN" if np.isnan(features[row[0], column[0]]) else "infinity"
            raise InvalidData(f"X: feature {name!r} is {what} in row {row[0]}; fill it or leave the row out")

    def _refuse_constant(self, features: np.ndarray) -> None:
        spread = features.max(axis=0) - features.min(axis=0)
        empty = spread == 0 if self.fit_intercept else (spread == 0) & (features[0] == 0)
        if empty.any():
            column = int(np.flatnonzero(empty)[0])
            name = self._coefficient_names()[column + int(self.fit_intercept)]
            fault = "is constant, which the intercept already is" if self.fit_intercept else "is always 0"
            raise InvalidData(f"X: feature {name!r} {fault}; leave it out")


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
