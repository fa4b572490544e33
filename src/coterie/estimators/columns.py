"""Columns of X, by name or by number, of a DataFrame or an array; pandas is not imported."""

from typing import Any

import numpy as np

from coterie.estimators.grouping import InvalidData
from coterie.spec import nearest

__all__ = ["has_column", "named", "need_pandas", "refuse_text", "refuse_unknown", "refuse_words", "take", "without"]


def need_pandas(what: str) -> Any:
    """Import pandas, which only the tables need."""
    try:
        import pandas
    except ImportError as error:
        raise InvalidData(f"{what}: needs pandas; install it (pip install pandas)") from error
    return pandas


def refuse_words(target: Any) -> None:
    """Raise if the target of a regression holds words."""
    if target is None or getattr(getattr(target, "dtype", None), "kind", "O") not in "OUST":
        return
    for value in np.ravel(np.asarray(target, dtype=object)):
        try:
            float(value if isinstance(value, str) else 0)  # what else is wrong with it, scikit-learn says
        except ValueError:
            raise InvalidData(f"y: {value!r} is not a number; for classes use HierarchicalLogisticRegression") from None


def refuse_text(X: Any) -> None:
    """Name a column of a DataFrame that is not numeric; often it is a group label that was not declared as one."""
    for column in getattr(X, "columns", ()):
        values = X[column]
        if getattr(values, "ndim", 1) == 1 and getattr(values.dtype, "kind", "O") not in "biufc":
            try:
                np.asarray(values, dtype=np.float64)
            except (TypeError, ValueError):
                raise InvalidData(
                    f"X: column {column!r} is not numeric; encode it (from_formula does), leave it out, or name "
                    "it with groups= or within="
                ) from None


def refuse_unknown(X: Any, known: Any) -> None:
    """Refuse a DataFrame with a column that was not there at fit, if a guess or advice can be given.

    scikit-learn refuses the others, with sentences that its own tests ask for.
    """
    columns = [str(column) for column in getattr(X, "columns", ())]
    if known is None or not columns:
        return
    absent = [name for name in known if name not in columns]
    for column in columns:
        if column in known:
            continue
        guess = nearest(column, absent)
        if guess or not absent:
            raise InvalidData(f"X: column {column!r} was not there at fit{guess or '; leave it out'}")


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


def named(column: Any, default: str) -> str:
    """Return the column if it is a name, otherwise the default."""
    return column if isinstance(column, str) else default
