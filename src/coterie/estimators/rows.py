"""The rows of one call, and how they are taken out of a DataFrame or an array and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.estimators.columns import has_column, take, without
from coterie.estimators.grouping import InvalidData
from coterie.spec import nearest

__all__ = ["Parts", "Rows", "drop_missing", "read_numbers", "take_parts"]


@dataclass(frozen=True)
class Rows:
    """The rows of one call, checked: float64, and codes in place of labels."""

    features: np.ndarray  # [n, d]
    target: np.ndarray | None  # [n]
    group: np.ndarray  # [n]
    district: np.ndarray  # [n]
    offset: np.ndarray | None  # [n]
    intercept: bool
    weights: np.ndarray | None = None  # [n]
    outer: tuple[np.ndarray, ...] = ()  # [n] codes of the levels above the districts
    crossed: tuple[np.ndarray, ...] = ()  # [n] codes of the levels that cross
    missing: np.ndarray | None = None  # [n] whether a value was missing, at predict

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

    def part(self, some: np.ndarray) -> "Rows":
        """Return some of the rows."""
        columns = {
            name: getattr(self, name) for name in ("features", "target", "group", "district", "offset", "weights")
        }
        kept: dict[str, Any] = {name: None if value is None else value[some] for name, value in columns.items()}
        lists: dict[str, Any] = {
            name: tuple(codes[some] for codes in getattr(self, name)) for name in ("outer", "crossed")
        }
        return replace(self, **kept, **lists)


@dataclass(frozen=True)
class Parts:
    """What a call consists of, before anything is checked; None where there is nothing."""

    features: Any
    target: Any = None
    groups: Any = None
    within: list[Any] = field(default_factory=list)  # the nearest level first
    crossed: list[Any] = field(default_factory=list)
    offset: Any = None
    weights: Any = None
    names: tuple[str, ...] = ()  # of the levels: groups, within, crossed


def take_parts(model: Any, X: Any, y: Any, given: Mapping[str, Any]) -> Parts:
    """Take the columns that the model's settings name out of X, unless arrays were passed instead."""
    taken: list[Any] = []
    found: dict[str, Any] = {}
    names: list[str] = []
    for parameter, column in _named_columns(model):
        array = given.get(parameter)
        if column is None:
            value = array
        elif has_column(X, column):
            taken.append(column)
            value = take(X, column) if array is None else array
        elif array is None:
            raise InvalidData(_no_column(parameter, column, X))
        else:
            value = array
        kind = parameter.partition(" ")[0]
        if kind in ("within", "crossed"):
            found.setdefault(kind, []).extend([] if value is None else [value])
        else:
            found[kind] = value
        if kind in ("groups", "within", "crossed") and value is not None:
            names.append(_level_name(column, value, kind))
    return Parts(without(X, taken), y, names=tuple(names), **found)


def _named_columns(model: Any) -> list[tuple[str, Any]]:
    """Return every setting that names columns; further columns of the same setting have a number."""
    columns: list[tuple[str, Any]] = [("groups", getattr(model, "groups", None))]
    for parameter in ("within", "crossed"):
        value = getattr(model, parameter, None)
        several = list(value) if isinstance(value, list | tuple) else [value]
        columns += [(parameter if k == 0 else f"{parameter} {k}", column) for k, column in enumerate(several)]
    return [*columns, ("offset", getattr(model, "offset", None)), ("weights", getattr(model, "weights", None))]


def _no_column(parameter: str, column: Any, X: Any) -> str:
    kind = parameter.partition(" ")[0]
    if not hasattr(X, "columns"):
        advice = f"pass a DataFrame with it, or {kind}= as an array"
        return (
            f"{kind}: X has no column {column!r}; {advice} (in a pipeline, set_output(transform='pandas') keeps names)"
        )
    guess = nearest(str(column), [str(name) for name in X.columns])
    return f"{kind}: X has no column {column!r}{guess or f'; pass a DataFrame with it, or {kind}= as an array'}"


def _level_name(column: Any, value: Any, kind: str) -> str:
    if isinstance(column, str):
        return column
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else {"groups": "group", "within": "outer group", "crossed": "crossed"}[kind]


def read_numbers(values: Any, rows: int, name: str) -> np.ndarray | None:
    """Check an offset or weights: one finite number per row, or None."""
    from sklearn.utils.validation import column_or_1d

    if values is None:
        return None
    numbers = column_or_1d(np.asarray(values, dtype=np.float64))
    if len(numbers) != rows:
        raise InvalidData(f"{name}: {len(numbers)} numbers for {rows} rows; give one per row")
    wrong = ~np.isfinite(numbers) | ((numbers < 0) if name == "weights" else False)
    if wrong.any():
        fault = "is negative" if np.isfinite(numbers[wrong][0]) else "is not finite"
        raise InvalidData(f"{name}: row {np.flatnonzero(wrong)[0]} {fault}; fill it or leave it out")
    return numbers


def drop_missing(parts: Parts) -> tuple[Parts, np.ndarray]:
    """Return the parts without rows in which something is missing, and which rows [n] those are."""
    columns = [parts.target, parts.groups, *parts.within, *parts.crossed, parts.offset, parts.weights]
    count = parts.features.shape[0] if hasattr(parts.features, "shape") else len(parts.features)
    missing = np.zeros(count, dtype=bool)
    tables = [parts.features, *(column for column in columns if column is not None)]
    for table in tables:
        empty = _is_missing(table)
        if len(empty) == count:  # another length is refused later, with a sentence of its own
            missing |= empty
    if not missing.any():
        return parts, missing
    kept = np.flatnonzero(~missing)
    if not len(kept):
        raise InvalidData('missing: every row has a missing value, so missing="drop" leaves none')

    def some(table: Any) -> Any:
        if table is None:
            return None
        return table.iloc[kept] if hasattr(table, "iloc") else np.asarray(table)[kept]

    lists: dict[str, Any] = {name: [some(column) for column in getattr(parts, name)] for name in ("within", "crossed")}
    plain: dict[str, Any] = {
        name: some(getattr(parts, name)) for name in ("features", "target", "groups", "offset", "weights")
    }
    return replace(parts, **plain, **lists), missing


def _is_missing(table: Any) -> np.ndarray:
    """Return which rows of a table or column have a missing value."""
    if hasattr(table, "isna"):
        empty = np.asarray(table.isna())
    else:
        array = np.asarray(table)
        if array.dtype.kind == "O":
            empty = np.frompyfunc(lambda value: value is None or value != value, 1, 1)(array).astype(bool)
        else:
            empty = np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, dtype=bool)
    return np.asarray(empty.any(axis=1) if empty.ndim > 1 else np.atleast_1d(empty))
