"""What is predicted: classes with their names, or a number, and why."""

import dataclasses
from typing import Any, Literal

import numpy as np

from coterie.data.tables.cells import cells_of, is_canonical, is_empty, read_dates, read_numbers, stored_numbers

__all__ = ["Target", "judge_target"]

MANY = 20  # different whole numbers from which a target is an amount and not classes
SOME = 10  # the same, where they are also more than 5 % of the rows


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
        codes = [number.get(word, number.get(_whole(word), -2)) for word in cells.words]
        return np.where(is_empty(cells.words, no_value), -1, codes)[cells.code].astype(np.int32)


def judge_target(
    name: str, series: Any, setting: str, decimal: str | None, no_value: frozenset[str], problems: list[str]
) -> tuple[Target, np.ndarray, np.ndarray]:
    """Return what is predicted, the targets `[N]` and which rows have one."""
    cells = cells_of(series)
    count = np.bincount(cells.code, minlength=len(cells.words))
    empty = is_empty(cells.words, no_value)
    known = ~empty[cells.code]
    nothing = Target(name, "classification"), np.zeros(len(cells.code), np.int32), known
    if not known.any():
        problems.append(f"has no value at all in the target column {name!r}")
        return nothing
    words = cells.words[~empty]
    read = read_numbers(words, decimal, no_value)
    numeric = not read.stray.any()
    whole = numeric and all(is_canonical(word) for word in words)
    if str(getattr(series, "dtype", "")).startswith("datetime64") or (not numeric and read_dates(words)[1]):
        problems.append(
            f"has dates in the target column {name!r}; turn them into a number, such as days, to predict them"
        )
        return nothing
    rows = int(known.sum())
    kind, reason = _kind(setting, numeric, whole, len(np.unique(read.values)) if numeric else len(words), rows, words)
    if kind == "regression":
        if not numeric:
            stray = ~empty
            stray[stray] = read.stray
            word, row = cells.words[np.argmax(stray)], cells.row(stray)
            problems.append(f"has {word!r} in row {row} of the target column {name!r}, which is no number")
            return nothing
        values = read_numbers(cells.words, decimal or read.decimal, no_value).values[cells.code]
        return _regression(name, values, known, reason, read.decimal, problems)
    return _classes(name, cells.words, cells.code, count, empty, whole, problems), *_numbered(
        cells, empty, whole, known
    )


def _kind(
    setting: str, numeric: bool, whole: bool, distinct: int, rows: int, words: np.ndarray
) -> tuple[Literal["classification", "regression"], str]:
    if setting != "auto":
        return setting, "as kind says"  # type: ignore[return-value]
    if not numeric:
        return "classification", ""
    if not whole:
        if distinct == len(words) and any(word.lstrip("+-").startswith("0") and word.isdigit() for word in words):
            return "classification", ""
        return "regression", ""
    if distinct > MANY or (distinct > SOME and distinct > 0.05 * rows):
        return (
            "regression",
            f'{distinct} different whole numbers are an amount; set kind = "classification" for classes',
        )
    return "classification", ""


def _regression(
    name: str, values: np.ndarray, known: np.ndarray, reason: str, decimal: str, problems: list[str]
) -> tuple[Target, np.ndarray, np.ndarray]:
    known = known & ~np.isnan(values)
    present = values[known]
    if np.isinf(present).any():
        row = int(np.flatnonzero(np.isinf(values))[0]) + 1
        problems.append(f"has an infinite number in the target column {name!r}, row {row} of the data; replace it")
    elif present.size and present.min() == present.max():
        problems.append(
            f"has the same number, {present[0]:g}, in every row of the target column {name!r}: nothing to learn"
        )
    why = f"regression: {name!r} from {present.min():g} to {present.max():g}" + (f" ({reason})" if reason else "")
    return Target(name, "regression", why=why, decimal=decimal), np.where(known, values, 0.0), known


def _whole(word: str) -> str:
    """Write a whole number in its shortest form; other words stay."""
    return word.partition(".")[0] if is_canonical(word) else word


def _names(words: np.ndarray, whole: bool) -> list[str]:
    if whole:
        return sorted({_whole(word) for word in words}, key=int)
    return sorted(set(words.tolist()))


def _numbered(cells: Any, empty: np.ndarray, whole: bool, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    number = {name: i for i, name in enumerate(_names(cells.words[~empty], whole))}
    codes = [0 if no else number[_whole(w) if whole else w] for w, no in zip(cells.words, empty, strict=True)]
    return np.array(codes, np.int32)[cells.code], known


def _classes(
    name: str,
    words: np.ndarray,
    code: np.ndarray,
    count: np.ndarray,
    empty: np.ndarray,
    whole: bool,
    problems: list[str],
) -> Target:
    names = _names(words[~empty], whole)
    sizes = dict.fromkeys(names, 0)
    for word, number, no in zip(words, count, empty, strict=True):
        if not no:
            sizes[_whole(word) if whole else word] += int(number)
    rows = sum(sizes.values())
    if len(names) == 1:
        problems.append(f"has only one class, {names[0]!r}, in the target column {name!r}: there is nothing to learn")
    elif len(names) > MANY and len(names) > rows / 2:
        problems.append(
            f"has {len(names):,} different words in {rows:,} rows of the target column {name!r}: too many classes"
        )
    shown = ", ".join(f"{label} {size:,}" for label, size in list(sizes.items())[:10])
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return Target(name, "classification", tuple(names), why=f"classification, {len(names)} classes: {shown}{more}")
