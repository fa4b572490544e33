"""Cells as text: which are empty, which are numbers (with which decimal sign), which are dates.

Everything works on the distinct words of a column, so that a long column costs little.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "EMPTY",
    "Cells",
    "Numbers",
    "cells_of",
    "is_blank",
    "is_canonical",
    "is_code",
    "is_empty",
    "part_of",
    "read_dates",
    "read_numbers",
    "stored_numbers",
]

EMPTY = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "NaT"})
NO_NUMBER = EMPTY | {"None", "none", "-", "--", ".", "?"}  # what people write where a number is missing

_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+|),\d+([eE][+-]?\d+)?")  # 1,5 and 1.234,5
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")  # 1,234 and 1,234.5
_CODE = re.compile(r"[+-]?0\d+")
_WHOLE = re.compile(r"-?(0|[1-9]\d*)(\.0*)?")
# Codes such as 007, and what Python may take for a number while people do not.
_ODD = re.compile(r"^[+-]?0\d|_|[xXdDlL]$|[xX][0-9a-fA-F]|rue$|alse$|RUE$|ALSE$", re.MULTILINE)

_DAYS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d%b%Y",
         "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d.%m.%y", "%m/%d/%y", "%d/%m/%y")  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S")
_MAYBE_DATE = re.compile(r"\d.*[-/.: ]?.*\d|\d+\s?[A-Za-z]{3}")
ISO = "ISO8601"

Words = Sequence[str] | np.ndarray


class Cells(NamedTuple):
    """A column of text: its distinct words and which of them each row has `[N]`."""

    words: np.ndarray
    code: np.ndarray

    @property
    def text(self) -> np.ndarray:
        """The words row by row `[N]`."""
        return self.words[self.code]

    def row(self, chosen: np.ndarray) -> int:
        """Return the first row, counted from 1, whose word is one of those where `chosen` is true."""
        return int(np.argmax(chosen[self.code])) + 1


class Numbers(NamedTuple):
    """Distinct words read as numbers: the values (NaN where there is none) and which words are no number at all."""

    values: np.ndarray
    stray: np.ndarray
    decimal: str
    ambiguous: bool


def cells_of(column: Any) -> Cells:
    """Return a column of any type as text, exactly as written; missing values are the empty word.

    Whole numbers in a column of floats, which pandas makes of a column with gaps, are written without ".0".
    """
    import pandas as pd

    if str(getattr(column, "dtype", "")) == "category":
        code, words = column.cat.codes.to_numpy(np.int64), [str(word) for word in column.cat.categories]
    elif column.dtype.kind == "f":
        values = column.to_numpy(np.float64, na_value=np.nan)
        narrow = getattr(column.dtype, "itemsize", 8) < 8
        whole = bool(np.all(np.isnan(values) | (np.isfinite(values) & (values == np.floor(values)))))
        code, distinct = pd.factorize(values, use_na_sentinel=True)
        # 0.1 in 32 bits is 0.1, not 0.10000000149011612
        words = [
            str(int(value)) if whole else str(np.float32(value) if narrow else value) for value in distinct.tolist()
        ]
    else:
        if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) not in ("string", "empty"):
            column = column.map(_as_written, na_action="ignore")  # True, 1 and 1.0 are equal in Python
        code, distinct = pd.factorize(column, use_na_sentinel=True)
        words = [str(value) for value in distinct.tolist()]
    if np.any(code < 0):
        code, words = np.where(code < 0, len(words), code), [*words, ""]
    text = np.array(words, dtype=object)
    if len(set(words)) == len(words):
        return Cells(text, code)
    distinct, merged = np.unique(text, return_inverse=True)
    return Cells(distinct, merged.reshape(-1)[code])


def _as_written(value: Any) -> str:
    if isinstance(value, bytes):  # some programs write text to Parquet without saying that it is text
        return value.decode("utf-8", errors="backslashreplace")
    return str(value)


def stored_numbers(series: Any) -> np.ndarray | None:
    """Return the values of a column that is stored as numbers, else None."""
    from pandas.api import types

    if types.is_bool_dtype(series) or types.is_numeric_dtype(series):
        if types.is_complex_dtype(series):
            return None
        return series.to_numpy(np.float64, na_value=np.nan)
    if types.is_timedelta64_dtype(series):
        return series.dt.total_seconds().to_numpy(np.float64)
    return None


def is_canonical(word: str) -> bool:
    """Whether a word is a whole number in its usual form: 7 or 7.0, but not 07."""
    return _WHOLE.fullmatch(word) is not None


def is_code(word: str) -> bool:
    """Whether a word is a code such as 007."""
    return _CODE.fullmatch(word) is not None


def is_blank(words: Words, no_value: frozenset[str] = frozenset()) -> np.ndarray:
    """Say which words are empty, or named as no value by the user."""
    return np.array([not word.strip() or word in no_value for word in words], bool)


def is_empty(words: Words, no_value: frozenset[str] = frozenset()) -> np.ndarray:
    """Say which words mean that there is no number or date."""
    return np.array([word.strip() in EMPTY or word in no_value for word in words], bool)


def read_numbers(words: Words, decimal: str | None = None, no_value: frozenset[str] = frozenset()) -> Numbers:
    """Read distinct words as numbers.

    Args:
        words: the words of a column.
        decimal: "." or ","; if None it is found: a comma, if some word has one that cannot separate thousands.
        no_value: words that mean "no value", besides the usual ones.
    """
    import pandas as pd

    words, together = list(words), "\n".join(words)
    if " " in together or "\t" in together:
        words = [word.strip() for word in words]
    text = np.array(words, dtype=object)
    values = pd.to_numeric(pd.Series(text, dtype=object), errors="coerce").to_numpy(np.float64, copy=True)
    if _ODD.search(together):  # one look at all of them is much faster than one at each
        values[[_ODD.search(word) is not None for word in words]] = np.nan
    empty = np.zeros(len(words), bool)
    for i in np.flatnonzero(np.isnan(values)):
        empty[i] = words[i] in NO_NUMBER or words[i] in no_value
    for word in no_value:
        empty |= text == word
    values[empty] = np.nan
    comma, thousands = np.zeros((2, len(words)), bool)
    for i in np.flatnonzero(np.isnan(values) & ~empty):
        if "," in words[i]:
            comma[i], thousands[i] = _COMMA.fullmatch(words[i]) is not None, _THOUSANDS.fullmatch(words[i]) is not None
    found = decimal or ("," if np.any(comma & ~thousands) else ".")
    for i in np.flatnonzero(comma if found == "," else thousands):
        plain = words[i].replace(".", "").replace(",", ".") if found == "," else words[i].replace(",", "")
        values[i] = float(plain)
    ambiguous = decimal is None and found == "." and bool(thousands.any())
    return Numbers(values, np.isnan(values) & ~empty, found, ambiguous)


def read_dates(words: Words, wanted: str = "", count: np.ndarray | None = None) -> tuple[np.ndarray, str, str]:
    """Read distinct words as dates: nanosecond times (NaT where there is none), the format, and another that fits, too.

    Without `wanted`, the format that reads most cells is taken, and none if it reads fewer than nine in ten; `count`
    says how many cells have each word.
    """
    text = np.array([*words, ""], object)[:-1]  # objects, whatever the words are
    times = np.full(len(text), np.datetime64("NaT", "ns"))
    given = np.flatnonzero(~is_empty(text))
    count = np.ones(len(text)) if count is None else np.asarray(count, float)
    if wanted:
        times[given] = _parse(text[given], wanted)
        return times, wanted, ""
    head = given[np.argsort(-count[given], kind="stable")[:100]]  # the commonest words decide what is tried on all
    weight, few = count[head], 0.1 * count[head].sum()
    dateless = [not _MAYBE_DATE.search(word) or _PLAIN.fullmatch(word) is not None for word in text[head]]
    if not len(head) or weight[dateless].sum() > few:
        return times, "", ""
    best, name, rival, most = times[given], "", "", 0.9 * count[given].sum()
    colons = weight[[":" in word for word in text[head]]].sum()
    for form in _formats(timed=weight.sum() - colons <= few, bare=colons <= few):
        if weight[np.isnat(_parse(text[head], form))].sum() > few:
            continue
        values = _parse(text[given], form)
        read = count[given][~np.isnat(values)].sum()
        if read > most or (read == most and not name):
            best, name, rival, most = values, form, "", read
        elif read == most and not np.array_equal(values, best):
            rival = rival or form
    times[given] = best
    return times, name, rival


def _formats(timed: bool, bare: bool) -> Iterator[str]:
    """Yield formats of words that nearly all have a colon, as a time of day has (`timed`), or have none (`bare`)."""
    yield ISO
    for time in _TIMES:
        if timed if time else bare:
            yield from (day + time for day in _DAYS)


def _parse(words: np.ndarray, form: str) -> np.ndarray:
    """Read text in one format; what does not fit is NaT. Times with an offset become UTC.

    Years before 1678 and after 2261 do not fit, with every version of pandas: a count of nanoseconds ends there.
    """
    import pandas as pd

    times = pd.to_datetime(words, format=form, errors="coerce", utc=True).tz_localize(None).to_numpy()
    fits = (times >= np.datetime64("1678-01-01")) & (times < np.datetime64("2262-01-01"))
    # NaT in the unit of `times`: nanoseconds would overflow where a year does not fit, and NumPy 2.5 warns of none.
    return np.where(fits, times, np.array("NaT", times.dtype)).astype("datetime64[ns]")


def part_of(times: np.ndarray, part: str) -> np.ndarray:
    """Return one number of each time: days since 1970 ("time"), month 1-12, weekday 0-6 (Monday is 0), hour 0-24."""
    values: np.ndarray
    days = times.astype("datetime64[D]")
    if part == "time":
        values = (times - np.datetime64("1970-01-01", "ns")) / np.timedelta64(1, "D")
    elif part == "month":
        values = times.astype("datetime64[M]").astype(np.int64) % 12 + 1.0
    elif part == "weekday":
        values = (days.astype(np.int64) + 3) % 7 + 0.0  # 1970 began with a Thursday
    else:
        values = (times - days) / np.timedelta64(1, "h")
    return np.where(np.isnat(times), np.nan, values)
