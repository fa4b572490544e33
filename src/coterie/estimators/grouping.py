"""Labels of groups (schools, clients) and of their districts (clusters), as integer codes and back.

Labels may be numbers, strings or a pandas column; pandas itself is not imported here. A label that was not seen in
`fit` gets the code -1 (`UNSEEN`), and the estimators use the next wider model for it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError

__all__ = ["UNSEEN", "InvalidData", "Nesting", "encode", "lookup"]

UNSEEN = -1


class InvalidData(CoterieError, ValueError):  # noqa: N818 - named as the other errors are
    """Data that cannot be used; a ValueError too, because scikit-learn's tools expect one."""


@dataclass(frozen=True)
class Nesting:
    """Groups in districts. Without districts all groups lie in district 0, which has no label."""

    groups: np.ndarray  # labels, sorted
    districts: np.ndarray | None  # labels, sorted; None: no second level
    district: np.ndarray  # [groups] index of the district of each group

    @classmethod
    def of(
        cls, groups: np.ndarray, group: np.ndarray, districts: np.ndarray | None, district: np.ndarray | None
    ) -> "Nesting":
        """Find the district of each group from the codes of every row; a group in two districts is an error."""
        if districts is None or district is None:
            return cls(groups, None, np.zeros(len(groups), dtype=np.intp))
        of_group = np.zeros(len(groups), dtype=np.intp)
        of_group[group] = district
        conflicts = np.flatnonzero(of_group[group] != district)
        if len(conflicts):
            row = conflicts[0]
            one, other = sorted((int(of_group[group[row]]), int(district[row])))
            raise InvalidData(
                f"within: group {_show(groups[group[row]])} lies in two districts, {_show(districts[one])} and "
                f"{_show(districts[other])}; if numbers start anew in each district, make the labels unique"
            )
        return cls(groups, districts, of_group)


def encode(labels: Any, rows: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct labels and, for every row, the position of its label among them."""
    values = _column(labels, rows, name)
    if hasattr(values, "factorize"):  # a pandas column: fast for strings and categories, and it marks missing values
        codes, distinct = values.factorize(sort=True)
        missing = np.flatnonzero(codes < 0)
        codes, distinct = codes.astype(np.intp), np.asarray(distinct)
    else:
        missing = np.flatnonzero(_is_missing(values))
        if not len(missing):
            try:
                distinct, codes = np.unique(values, return_inverse=True)
            except TypeError as error:
                raise InvalidData(
                    f"{name}: labels of different types cannot be sorted; make them all strings"
                ) from error
            codes = codes.astype(np.intp).reshape(-1)
    if len(missing):
        raise InvalidData(f"{name}: row {missing[0]} has no label; give it one or leave the row out")
    if distinct.dtype.kind in "OUS" and len(distinct) and str(distinct[0]) == "":
        raise InvalidData(
            f"{name}: row {np.flatnonzero(codes == 0)[0]} has an empty label; name it or leave the row out"
        )
    return distinct, codes


def lookup(labels: Any, known: np.ndarray, rows: int, name: str) -> np.ndarray:
    """Return the position of every row's label among the known ones, or UNSEEN."""
    distinct, codes = encode(labels, rows, name)
    if len(distinct) and len(known) and _is_text(distinct) != _is_text(known):
        raise InvalidData(
            f"{name}: labels were {_kind(known)} at fit and are {_kind(distinct)} now; convert them, "
            "or every group would count as unseen"
        )
    position = {label: index for index, label in enumerate(known.tolist())}
    table = np.array([position.get(label, UNSEEN) for label in distinct.tolist()], dtype=np.intp)
    return table[codes] if len(table) else codes


def _column(labels: Any, rows: int, name: str) -> Any:
    values = labels if hasattr(labels, "factorize") else np.asarray(labels)
    if getattr(values, "ndim", 1) != 1:
        if getattr(values, "ndim", 0) == 2 and values.shape[1] == 1:
            values = np.asarray(values)[:, 0]
        else:
            raise InvalidData(f"{name}: expected one label per row, but its shape is {np.shape(values)}")
    if len(values) != rows:
        raise InvalidData(f"{name}: {len(values)} labels for {rows} rows; give one label per row")
    return values


def _is_missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "O":
        return np.array([value is None or value != value for value in values], dtype=bool)
    if values.dtype.kind in "fcmM":
        return np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
    return np.zeros(len(values), dtype=bool)


def _is_text(labels: np.ndarray) -> bool:
    return isinstance(labels.tolist()[0], str)


def _kind(labels: np.ndarray) -> str:
    return "text" if _is_text(labels) else "numbers"


def _show(label: Any) -> str:
    return repr(label.item() if isinstance(label, np.generic) else label)
