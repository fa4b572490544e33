"""What each column of a table is, why, and what becomes of it.

| kind | rule | becomes |
|---|---|---|
| number | numbers; a few other words among them count as missing, and are named | itself, and a 0/1 "missing" |
| words | anything else | one 0/1 input per level; rare levels share one |
| date | nine in ten cells are dates of one format | time in days, month, weekday, hour |
| identifier | nearly all values different, or called id | left out |
| constant | one value, or none | left out |
| dropped | named in `drop` | left out |

A column is judged over all rows of all sites: this is the contract that sites agree on before training, and it does
not depend on which rows are drawn for training.
"""

import dataclasses
import re
from typing import Any, Literal

import numpy as np

from coterie.data.labels import LARGEST
from coterie.data.tables.cells import (
    Cells,
    cells_of,
    is_blank,
    is_code,
    is_empty,
    part_of,
    read_dates,
    read_numbers,
    stored_numbers,
)

__all__ = ["MISSING", "OTHER", "Column", "Options", "Values", "judge"]

MISSING, OTHER = "(missing)", "(other)"
STRAY = 0.05  # share of cells that may be no number in a column of numbers
UNIQUE = 0.9  # share of different words from which a column is an identifier
PAIRS = 50  # pairs of equal whole numbers expected by chance, from which a column without any is an identifier
FEW = 20  # rows below which nothing is called an identifier
_ID = re.compile(r"(^|.*[_\W])(id|ids|uid|uuid|rowid|rownames?|identifier|key)$|^\(row names\)$|^\(column \d+\)$", re.I)
_CAMEL = re.compile(r".*[a-z](ID|Id)$")
_COUNTED = re.compile(r"(^|.*[_\W])(patient|subject|person|case|record|visit|row|nr|no|number|index)$|^Unnamed", re.I)

Kind = Literal["number", "words", "date", "identifier", "constant", "dropped"]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user says about cells: the decimal sign, words for "no value", columns to keep or leave out."""

    decimal: str | None = None
    no_value: frozenset[str] = frozenset()
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: what it is, and how its cells are read.

    Attributes:
        name: as in the file.
        kind: see the module.
        note: why it is that, or what was done with it; a few words.
        missing: share of rows without a value.
        levels: of words: the levels with an input of their own.
        other: of words: how many rare levels share one input.
        parts: of a date: which numbers are made of it.
        decimal: the decimal sign.
        date_format: of a date.
        indicator: whether an input says that the value is missing.
        warning: a sentence if something is wrong with it.
    """

    name: str
    kind: Kind
    note: str = ""
    missing: float = 0.0
    levels: tuple[str, ...] = ()
    other: int = 0
    parts: tuple[str, ...] = ()
    decimal: str = "."
    date_format: str = ""
    indicator: bool = False
    warning: str = ""

    @property
    def used(self) -> bool:
        """Whether it becomes inputs."""
        return self.kind in ("number", "words", "date")

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the inputs that are numbers."""
        if self.kind == "date":
            return tuple(f"{self.name} {part}" for part in self.parts)
        return (self.name,) if self.kind == "number" else ()

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the inputs that stand for levels."""
        if self.kind != "words":
            return ()
        return tuple(f"{self.name} = {level}" for level in (*self.levels, *([OTHER] * bool(self.other))))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all its inputs."""
        return (*self.numbers, *([f"{self.name} missing"] * self.indicator), *self.words)

    def read(self, series: Any, no_value: frozenset[str] = frozenset()) -> "Values":
        """Read cells the way the table's were read: numbers `[n, parts]` with NaN for missing, or words `[n]`."""
        if self.kind == "words":
            cells = cells_of(series)
            words = np.where(is_blank(cells.words, no_value), MISSING, cells.words).astype(object)
            return Values(words=words[cells.code])
        if self.kind == "date":
            times, stray = _times(series, self.date_format, no_value)
            return Values(numbers=np.stack([part_of(times, part) for part in self.parts], axis=1), stray=stray)
        plain = stored_numbers(series)
        if plain is not None:
            return Values(numbers=plain[:, None])
        cells = cells_of(series)
        read = read_numbers(cells.words, None, no_value)  # another site's file may have another decimal sign
        read = read_numbers(cells.words, self.decimal, no_value) if read.ambiguous else read
        stray = np.where(read.stray, cells.words, "")[cells.code] if read.stray.any() else None
        return Values(numbers=read.values[cells.code][:, None], stray=stray)


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of a column, row by row; `stray` has the words that were expected to be numbers or dates, else ""."""

    numbers: np.ndarray | None = None
    words: np.ndarray | None = None
    stray: np.ndarray | None = None


def judge(name: str, series: Any, options: Options, problems: list[str]) -> tuple[Column, Values]:
    """Say what a column is, and read it; what cannot be used is added to `problems`."""
    if name in options.drop:
        return Column(name, "dropped", "named in drop"), Values()
    if str(getattr(series, "dtype", "")).startswith(("datetime64", "timestamp", "date32", "date64")):
        return _date(name, series, "", "", options, problems)
    plain = stored_numbers(series)
    if plain is not None:
        return _number(name, plain, Column(name, "number"), options, problems)
    if getattr(series.dtype, "kind", "") == "c":
        problems.append(f"has complex numbers in column {name!r}; drop it, or give their parts as two columns")
    cells = cells_of(series)
    count = np.bincount(cells.code, minlength=len(cells.words))
    empty = is_empty(cells.words, options.no_value)
    given = int(count[~empty].sum())
    if given == 0:
        return Column(name, "constant", "no values", 1.0), Values()
    read = read_numbers(cells.words, options.decimal, options.no_value)
    stray = int(count[read.stray].sum())
    codes = any(map(is_code, cells.words[read.stray]))
    if not codes and stray <= STRAY * given and np.isfinite(read.values).sum() > (5 if stray else 0):
        column = Column(name, "number", decimal=read.decimal)
        return _number(name, read.values[cells.code], _with_notes(column, cells, read, stray), options, problems)
    _, form, rival = read_dates(cells.words[~empty], count=count[~empty])
    if form:
        return _date(name, series, form, rival, options, problems)
    return _words(name, cells, count, is_blank(cells.words, options.no_value), codes, read.stray, options)


def _with_notes(column: Column, cells: Cells, read: Any, stray: int) -> Column:
    """Say how the numbers were read where that is not plain."""
    note = "decimal comma" if read.decimal == "," else ""
    warning = ""
    if read.ambiguous:
        word = next(word for word in cells.words if "," in word)
        warning = f"{column.name!r}: {word} is read as thousands; set decimal = ',' if the comma is a decimal sign"
    if stray:
        word, row = cells.words[np.argmax(read.stray)], cells.row(read.stray)
        rows = f"{stray} cells such as this count" if stray > 1 else "it counts"
        warning = f"{column.name!r} holds numbers, but {word!r} in row {row} is none: {rows} as missing"
    return dataclasses.replace(column, note=note, warning=warning)


def _number(
    name: str, values: np.ndarray, column: Column, options: Options, problems: list[str]
) -> tuple[Column, Values]:
    absent = np.isnan(values)
    present = values[~absent]
    if np.isinf(present).any():
        row = int(np.flatnonzero(np.isinf(values))[0]) + 1
        problems.append(
            f"has an infinite number in column {name!r}, row {row} of the data; replace it or drop the column"
        )
    elif present.size and np.abs(present).max() > LARGEST:
        row = int(np.nanargmax(np.abs(values))) + 1
        problems.append(f"has a number in column {name!r}, row {row} of the data, that is too large to compute with")
    column = dataclasses.replace(column, missing=float(absent.mean()), indicator=bool(absent.any()))
    distinct = np.unique(present)
    if distinct.size == 0:
        return dataclasses.replace(column, kind="constant", note="no values", indicator=False), Values()
    if distinct.size == 1 and not absent.any() and name not in options.keep:
        return dataclasses.replace(column, kind="constant", note=f"always {distinct[0]:g}"), Values()
    if name not in options.keep and _numbers_rows(name, present, distinct):
        note = f"{distinct.size:,} different numbers in {len(values):,} rows"
        return dataclasses.replace(column, kind="identifier", note=note, indicator=False), Values()
    return column, Values(numbers=values[:, None])


def _numbers_rows(name: str, present: np.ndarray, distinct: np.ndarray) -> bool:
    """Whether whole numbers only number the rows or whom they belong to."""
    if present.size < FEW or np.any(distinct != np.floor(distinct)):
        return False
    called_id = _ID.match(name) is not None or _CAMEL.match(name) is not None
    all_different, width = distinct.size == present.size, distinct[-1] - distinct[0]
    dense = all_different and width < 2 * present.size
    # Measurements in so narrow a range have about so many pairs of equal values; numbers that are given out have none.
    chance = present.size**2 / (2 * width + 1)
    return (
        (all_different and chance > PAIRS)
        or (dense and _COUNTED.match(name) is not None)
        or (called_id and distinct.size > present.size / 2)
    )


def _words(
    name: str, cells: Cells, count: np.ndarray, empty: np.ndarray, codes: bool, stray: np.ndarray, options: Options
) -> tuple[Column, Values]:
    given, rows = int(count[~empty].sum()), len(cells.code)
    distinct = int((~empty & (count > 0)).sum())
    missing = 1 - given / rows
    if distinct == 1 and given == rows and name not in options.keep:
        return Column(name, "constant", f"always {cells.words[~empty][0]}", missing), Values()
    called_id = (_ID.match(name) is not None or _CAMEL.match(name) is not None) and distinct > given / 2
    if given >= FEW and (distinct > UNIQUE * given or called_id) and name not in options.keep:
        note = f"{distinct:,} different values in {given:,} rows"
        return Column(name, "identifier", note, missing), Values()
    note, warning = f"{distinct:,} levels", ""
    numeric = int(count[~stray & ~empty].sum())
    if codes:
        note += ", codes with leading zeros"
    elif numeric > given / 2:
        word, row = cells.words[np.argmax(stray)], cells.row(stray)
        warning = f"{name!r} is taken for words, because {word!r} in row {row} (and more) is no number"
    absent = ~empty & is_empty(cells.words)
    if absent.any() and not warning:
        word, row = cells.words[np.argmax(absent)], cells.row(absent)
        warning = f"{name!r}: {word!r} in row {row} is a word like others; na = [{word!r}] makes it no value"
    words = np.where(empty, MISSING, cells.words).astype(object)[cells.code]
    return Column(name, "words", note, missing, warning=warning), Values(words=words)


def _date(
    name: str, series: Any, form: str, rival: str, options: Options, problems: list[str]
) -> tuple[Column, Values]:
    times, stray = _times(series, form, options.no_value)
    if stray is not None and np.any(stray != ""):
        wrong = np.flatnonzero(stray != "")
        more = f" ({len(wrong)} such cells)" if len(wrong) > 1 else ""
        problems.append(
            f"holds dates in column {name!r}, but {stray[wrong[0]]!r} in row {wrong[0] + 1} is none{more}; "
            "correct it, empty it, or name it in na"
        )
    absent = np.isnat(times)
    if absent.all():
        return Column(name, "constant", "no values", 1.0), Values()
    parts = [part for part in ("time", "month", "weekday", "hour") if np.unique(part_of(times[~absent], part)).size > 1]
    if not parts and not absent.any():
        return Column(name, "constant", f"always {str(times[0])[:10]}"), Values()
    parts = parts or ["time"]
    warning = ""
    if rival:
        warning = f"{name!r} holds dates that can be read in two ways ({form} and {rival}); {form} is taken"
    note = f"{str(times[~absent].min())[:10]} to {str(times[~absent].max())[:10]}"
    column = Column(name, "date", note, float(absent.mean()), parts=tuple(parts), date_format=form, warning=warning)
    column = dataclasses.replace(column, indicator=bool(absent.any()))
    return column, Values(numbers=np.stack([part_of(times, part) for part in parts], axis=1))


def _times(series: Any, form: str, no_value: frozenset[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the times of a column, and the words that are no dates."""
    import pandas as pd
    from pandas.api import types

    if types.is_datetime64_any_dtype(series):
        return pd.to_datetime(series, utc=True).dt.tz_localize(None).to_numpy().astype("datetime64[ns]"), None
    cells = cells_of(series)
    empty = is_empty(cells.words, no_value)
    times = np.full(len(cells.words), np.datetime64("NaT", "ns"))
    if (~empty).any():
        times[~empty] = read_dates(cells.words[~empty], form or "ISO8601")[0]
        if np.isnat(times[~empty]).all():  # another site's file may write its dates in another way
            times[~empty] = read_dates(cells.words[~empty])[0]
    wrong = np.isnat(times) & ~empty
    return times[cells.code], np.where(wrong, cells.words, "")[cells.code] if wrong.any() else None
