"""Labels of groups (schools, clients) and of their districts (clusters), as integer codes and back.

Labels may be numbers, strings or a pandas column; pandas itself is not imported here. A label that was not seen in
`fit` gets the code -1 (`UNSEEN`), and the estimators use the next wider model for it.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError

__all__ = ["UNSEEN", "Factors", "InvalidData", "encode", "lookup"]

UNSEEN = -1


class InvalidData(CoterieError, ValueError):  # noqa: N818 - named as the other errors are
    """Data that cannot be used; a ValueError too, because scikit-learn's tools expect one."""


@dataclass(frozen=True)
class Factors:
    """The levels of the groups. Without groups there is one, 0; without districts all groups lie in district 0."""

    nested: tuple[np.ndarray, ...]  # labels, sorted, of groups, districts, and the levels above them
    parents: tuple[np.ndarray, ...]  # for every nested level but the last, the unit above each unit
    crossed: tuple[np.ndarray, ...]  # labels of levels that cross
    names: tuple[str, ...]  # of all levels, the nested ones first
    codes: tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]  # [rows] at fit

    @classmethod
    def of(cls, groups: Any, within: list[Any], crossed: list[Any], rows: int, names: tuple[str, ...]) -> "Factors":
        """Number the labels of every row; a unit that lies in two units of the level above is an error."""
        zero = np.zeros(rows, np.intp)
        levels = [(np.zeros(1, np.intp), zero)] if groups is None else [encode(groups, rows, "groups")]
        levels += [encode(column, rows, "within") for column in within]
        others = [encode(column, rows, "crossed") for column in crossed]
        parents = [_parent(below, above) for below, above in itertools.pairwise(levels)]
        district = levels[1][1] if within else zero
        codes = levels[0][1], district, tuple(code for _, code in levels[2:]), tuple(code for _, code in others)
        named = names if groups is not None else ("group", *names)
        return cls(tuple(labels for labels, _ in levels), tuple(parents), tuple(x for x, _ in others), named, codes)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rows' codes out of copies and pickles: a fit uses them once."""
        none = np.zeros(0, np.intp)
        return self.__dict__ | {"codes": (none, none, (), ())}

    @property
    def groups(self) -> np.ndarray:
        """The groups' labels."""
        return self.nested[0]

    @property
    def within(self) -> np.ndarray | None:
        """The districts' labels, or None."""
        return self.nested[1] if len(self.nested) > 1 else None

    @property
    def district(self) -> np.ndarray:
        """The district [groups] of every group."""
        return self.parents[0] if self.parents else np.zeros(len(self.groups), np.intp)

    @property
    def sizes(self) -> list[int]:
        """How many units every nested level has."""
        return [len(labels) for labels in self.nested]

    def ancestors(self) -> list[np.ndarray]:
        """Return the unit of each group at every level above the groups."""
        found, codes = [], np.arange(len(self.groups))
        for parent in self.parents:
            codes = parent[codes]
            found.append(codes)
        return found

    def above(self, group: np.ndarray, within: list[Any], rows: int) -> tuple[np.ndarray, ...]:
        """Return the codes of the levels above the groups for rows with these groups; labels, if given, must agree."""
        answer, codes = [], group
        for level, parent in enumerate(self.parents):
            expected = np.where(codes == UNSEEN, UNSEEN, parent[codes])
            if level < len(within):
                given = lookup(within[level], self.nested[level + 1], rows, "within")
                moved = np.flatnonzero((codes != UNSEEN) & (given != expected))
                if len(moved):
                    label = self.nested[level].tolist()[codes[moved[0]]]
                    raise InvalidData(f"within: group {label!r} was in another district at fit; relabel it or refit")
                expected = given
            answer.append(expected)
            codes = expected
        return tuple(answer) or (np.where(group == UNSEEN, UNSEEN, 0),)


def _parent(below: tuple[np.ndarray, np.ndarray], above: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the unit above each unit; each level is its labels and the rows' codes."""
    (labels, group), (districts, district) = below, above
    of_group = np.zeros(len(labels), dtype=np.intp)
    of_group[group] = district
    conflicts = np.flatnonzero(of_group[group] != district)
    if len(conflicts):
        row = conflicts[0]
        one, other = sorted((int(of_group[group[row]]), int(district[row])))
        raise InvalidData(
            f"within: group {_show(labels[group[row]])} lies in two districts, {_show(districts[one])} and "
            f"{_show(districts[other])}; if numbers start anew in each district, make the labels unique (a formula's "
            "district/school does), and if the two cross, use crossed="
        )
    return of_group


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
