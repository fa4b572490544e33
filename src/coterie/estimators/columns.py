"""Columns of X, by name or by number, of a DataFrame or an array; pandas is not imported."""

from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from coterie.estimators.grouping import InvalidData

__all__ = ["has_column", "named", "need_pandas", "read_offset", "refuse_text", "take", "without"]


def need_pandas(what: str) -> Any:
    """Import pandas, which only the tables need."""
    try:
        import pandas
    except ImportError as error:
        raise InvalidData(f"{what}: needs pandas; install it (pip install pandas)") from error
    return pandas


def refuse_text(X: Any) -> None:
    """Name a column of a DataFrame that is not numeric; often it is a group label that was not declared as one."""
    for column in getattr(X, "columns", ()):
        values = X[column]
        if getattr(values, "ndim", 1) == 1 and getattr(values.dtype, "kind", "O") not in "biufc":
            try:
                np.asarray(values, dtype=np.float64)
            except (TypeError, ValueError):
                raise InvalidData(
                    f"X: column {column!r} is not numeric; encode it, leave it out, or name it with groups= or within="
                ) from None


def has_column(X: Any, column: Any) -> bool:
    """Whether X, a DataFrame or an array, has the column."""
    if hasattr(X, "columns"):
        return column in X.columns
    return isinstance(column, int) and np.ndim(X) == 2 and -np.shape(X)[1] <= column < np.shape(X)[1]


def take(X: Any, column: Any) -> Any:
    """Return a column of X."""
    return X[column] if hasattr(X, "columns") else np.asarray(X)[:, column]


def without(X: Any, columns: list[Any]) -> Any:
    """Return X without some columns."""
    if not columns:
        return X
    return X.drop(columns=columns) if hasattr(X, "columns") else np.delete(np.asarray(X), columns, axis=1)


def read_offset(offset: Any, rows: int) -> np.ndarray | None:
    """Check an offset: one finite number per row, or None."""
    if offset is None:
        return None
    values = column_or_1d(np.asarray(offset, dtype=np.float64))
    if len(values) != rows:
        raise InvalidData(f"offset: {len(values)} numbers for {rows} rows; give one per row")
    if not np.isfinite(values).all():
        raise InvalidData(
            f"offset: row {np.flatnonzero(~np.isfinite(values))[0]} is not finite; fill it or leave it out"
        )
    return values


def named(column: Any, default: str) -> str:
    """Return the column if it is a name, otherwise the default."""
    return column if isinstance(column, str) else default
