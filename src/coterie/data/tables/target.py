"""What is predicted: classes with their names, or a number, and why."""

import dataclasses
from typing import Any, Literal

import numpy as np

from coterie.data.labels import LARGEST, MANY, few
from coterie.data.tables.cells import (
    Cells,
    Numbers,
    cells_of,
    is_blank,
    is_canonical,
    is_code,
    is_empty,
    read_dates,
    read_numbers,
    stored_numbers,
)

__all__ = ["Target", "judge_target"]


@dataclasses.dataclass(frozen=True)
class Target:
    """What is predicted.

    Attributes:
        name: the column.
        kind: "classification" or "regression".
        class_names: the classes in the order of their numbers.
        mean, std: of the training rows, of a regression; 0 and 1 before the table is divided.
        why: the task in one sentence.
        decimal: the decimal sign of its cells.
    """

    name: str
    kind: Literal["classification", "regression"]
    class_names: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    why: str = ""
    decimal: str = "."

    def read(self, series: Any, no_value: frozenset[str] = frozenset()) -> np.ndarray:
        """Read targets of new rows: class numbers (-1 for no value, -2 for a class that is not known), or numbers."""
        if self.kind == "regression":
            plain = stored_numbers(series)
            if plain is not None:
                return plain
            cells = cells_of(series)
            read = read_numbers(cells.words, None, no_value)
            read = read_numbers(cells.words, self.decimal, no_value) if read.ambiguous else read
            return read.values[cells.code]
        cells = cells_of(series)
        number = {name: i for i, name in enumerate(self.class_names)}
        called = _called(cells.words, read_numbers(cells.words, self.decimal, no_value))
        known = [number.get(word, number.get(name, -2)) for word, name in zip(cells.words, called, strict=True)]
        absent = is_empty(cells.words, no_value) & (np.array(known) < 0)  # a class may be called NA
        return np.where(absent | is_blank(cells.words, no_value), -1, known)[cells.code].astype(np.int32)


def judge_target(
    name: str, series: Any, setting: str, decimal: str | None, no_value: frozenset[str], problems: list[str]
) -> tuple[Target, np.ndarray, np.ndarray]:
    """Return what is predicted, the targets `[N]` and which rows have one."""
    from pandas.api import types

    cells = cells_of(series.dt.total_seconds() if types.is_timedelta64_dtype(series) else series)
    read = read_numbers(cells.words, decimal, no_value)
    blank, empty = is_blank(cells.words, no_value), is_empty(cells.words, no_value)
    stray, number = read.stray & ~empty, ~np.isnan(read.values)
    numeric = not stray.any() and bool(number.any())
    empty = ~number if numeric else blank  # NA is no number, but a word like any other
    known = ~empty[cells.code]
    nothing = Target(name, "classification"), np.zeros(len(cells.code), np.int32), known
    if not known.any():
        problems.append(f"has no value at all in the target column {name!r}")
        return nothing
    if types.is_datetime64_any_dtype(series) or (not numeric and read_dates(cells.words[~empty])[1]):
        problems.append(
            f"has dates in the target column {name!r}; turn them into a number, such as days, to predict them"
        )
        return nothing
    values = read.values[number]
    whole = numeric and bool(np.all(np.isfinite(values) & (values == np.floor(values))))
    called = _called(cells.words, read) if whole else cells.words
    kind, reason = setting, "as kind says"
    if setting == "auto":
        kind, reason = _kind(numeric, whole, len(set(called[~empty])), int(known.sum()))
    if stray.any() and (kind == "regression" or (setting == "auto" and _is_amount(cells, number, stray))):
        word, row = cells.words[np.argmax(stray)], cells.row(stray)
        problems.append(
            f"has {word!r} in row {row} of the target column {name!r}, which is no number; correct it, empty it or "
            "name it in na" + ("" if kind == "regression" else ', or set kind = "classification"')
        )
        return nothing
    if kind == "regression":
        return _regression(name, read.values[cells.code], known, reason, read.decimal, problems)
    target, codes = _classes(name, cells, called, empty, whole, problems)
    return dataclasses.replace(target, decimal=read.decimal), codes, known


def _is_amount(cells: Cells, number: np.ndarray, stray: np.ndarray) -> bool:
    """Whether most rows hold one of many numbers, none of which is a code such as 007: then words are strays."""
    rows = number[cells.code]
    many = not few(int(number.sum()), len(rows))
    return many and 2 * int(rows.sum()) > len(rows) and not any(map(is_code, cells.words[stray]))


def _kind(numeric: bool, whole: bool, distinct: int, rows: int) -> tuple[Literal["classification", "regression"], str]:
    if not numeric or (whole and few(distinct, rows)):
        return "classification", ""
    amount = f'{distinct:,} different whole numbers are an amount; set kind = "classification" for classes'
    return "regression", amount if whole else ""


def _regression(
    name: str, values: np.ndarray, known: np.ndarray, reason: str, decimal: str, problems: list[str]
) -> tuple[Target, np.ndarray, np.ndarray]:
    known = known & ~np.isnan(values)
    present = values[known]
    if np.isinf(present).any():
        row = int(np.flatnonzero(np.isinf(values))[0]) + 1
        problems.append(f"has an infinite number in the target column {name!r}, row {row} of the data; replace it")
    elif present.size and np.abs(present).max() > LARGEST:
        row = int(np.argmax(np.where(known, np.abs(values), 0.0))) + 1
        problems.append(f"has a number in the target column {name!r}, row {row} of the data, that is too large")
    elif present.size and present.min() == present.max():
        problems.append(
            f"has the same number, {present[0]:g}, in every row of the target column {name!r}: nothing to learn"
        )
    why = f"regression: {name!r} from {present.min():g} to {present.max():g}" + (f" ({reason})" if reason else "")
    return Target(name, "regression", why=why, decimal=decimal), np.where(known, values, 0.0), known


def _called(words: np.ndarray, read: Numbers) -> np.ndarray:
    """Write whole numbers in their shortest form, so that 1, 1.0 and 1e0 are one class; other words stay."""
    shortest = []
    for word, value in zip(words, read.values, strict=True):
        if is_canonical(word):  # not through a float, which has no more than 16 digits
            shortest.append(str(int(word.partition(".")[0])))
        else:
            shortest.append(str(int(value)) if np.isfinite(value) and value == np.floor(value) else word)
    return np.array(shortest, dtype=object)


def _classes(
    name: str, cells: Cells, called: np.ndarray, empty: np.ndarray, whole: bool, problems: list[str]
) -> tuple[Target, np.ndarray]:
    """Number the classes in sorted order of their values."""
    names = sorted(set(called[~empty]), key=int if whole else None)
    number = {label: i for i, label in enumerate(names)}
    codes = np.array([number.get(label, 0) for label in called], np.int32)[cells.code]
    counts = np.bincount(codes[~empty[cells.code]], minlength=len(names))
    sizes = dict(zip(names, counts.tolist(), strict=True))
    rows = sum(sizes.values())
    if len(names) == 1:
        problems.append(f"has only one class, {names[0]!r}, in the target column {name!r}: there is nothing to learn")
    elif len(names) > MANY and len(names) > rows / 2:
        problems.append(
            f"has {len(names):,} different words in {rows:,} rows of the target column {name!r}: too many classes"
        )
    shown = ", ".join(f"{label} {size:,}" for label, size in list(sizes.items())[:10])
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    why = f"classification, {len(names)} classes: {shown}{more}"
    return Target(name, "classification", tuple(names), why=why), codes
