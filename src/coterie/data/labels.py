"""Arrays of the user's: numbers, names and targets, with one rule for files and arrays of when numbers are classes.

Words are classes, and so are whole numbers (0 and 1, 0.0 and 1.0, false and true) where they are few; many are an
amount. Classes are numbered in the sorted order of their values and keep them as names: 2019 and 2020 are two classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.clients import Kind
from coterie.data.samples import encode
from coterie.errors import CoterieError

__all__ = [
    "LARGEST",
    "LONGEST",
    "MANY",
    "centred",
    "characters",
    "few",
    "inputs",
    "joined",
    "judged_kind",
    "names_of",
    "numbers",
    "plain",
    "targets",
    "text_of",
]

MANY = 20  # different whole numbers from which a target is an amount and not classes
SOME = 10  # the same, where they are also more than 5 % of the rows
EXACT = 2**24  # whole numbers up to this are exact in float32
DIGITS = 1e-3  # of the deviation of targets, from which rounding them matters
LARGEST = float(np.finfo(np.float32).max)
LONGEST = 250  # letters of a name
CHARACTERS = 0x110000  # of Unicode


def few(distinct: int, rows: int) -> bool:
    """Whether so many different whole numbers are classes rather than an amount."""
    return distinct <= SOME or (distinct <= MANY and distinct <= 0.05 * rows)


def judged_kind(y: np.ndarray, images: bool) -> tuple[Kind, str]:
    """Return what targets look like, and a few words about it where people should know.

    Args:
        y: the targets `[N, ...]`.
        images: whether the inputs have more axes than a table's: then integers are classes, however many there are.
    """
    if y.dtype.kind not in "iuf" or (y.ndim > 1 and y.dtype.kind != "f"):
        return "classification", ""
    if y.ndim > 1 or y.size == 0 or (y.dtype.kind == "f" and not np.all(y == np.floor(y))):
        return "regression", ""
    distinct = len(np.unique(y))
    if few(distinct, len(y)) or (images and y.dtype.kind != "f"):
        return "classification", ""
    return "regression", f'{distinct:,} different whole numbers are an amount; kind = "classification" makes classes'


def plain(values: Any, what: str) -> np.ndarray:
    """Return an array; cells that are masked have no value, and are refused."""
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(values))
        if masked:
            raise CoterieError(
                f"{what}: {masked:,} masked cells have no value; fill them, or give a DataFrame, whose gaps are filled"
            )
        values = values.data
    try:
        return np.asarray(values)
    except ValueError:
        raise CoterieError(f"{what} have rows of different lengths; every sample must have the same shape") from None


def joined(parts: Sequence[np.ndarray], what: str) -> np.ndarray:
    """Put arrays below each other; words and numbers do not mix."""
    if len({"number" if part.dtype.kind in "biuf" else part.dtype.kind for part in parts}) > 1:
        raise CoterieError(f"{what}: some are numbers and some are words; use one of them for all")
    if len({part.shape[1:] for part in parts}) > 1:
        raise CoterieError(f"{what} have different shapes per sample; they must match")
    return np.concatenate(parts)


def numbers(values: Any, what: str) -> np.ndarray:
    """Return an array of numbers: bytes and floats unchanged, others as the smallest float type that keeps them."""
    array = plain(values, what)
    if array.dtype.kind not in "biuf":
        raise CoterieError(f"{what} must be numbers, not {array.dtype}")
    if array.dtype == np.uint8 or array.size == 0:
        return array if array.dtype == np.uint8 else array.astype(np.float32)
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    top = max(abs(float(array.max())), abs(float(array.min())))
    if LARGEST < top < np.inf:
        raise CoterieError(f"{what} hold the number {top:g}, which is too large to compute with; use another unit")
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype.itemsize < 4 or top <= EXACT else np.float64)


def inputs(values: Any, what: str) -> np.ndarray:
    """Return inputs as numbers; grey images (bytes `[N, H, W]`) get a channel axis."""
    array = numbers(values, what)
    if array.ndim == 0:
        raise CoterieError(f"{what} must have one entry per sample, not be a single value")
    return array[:, None] if array.ndim == 3 and array.dtype == np.uint8 else array


def characters(values: Any, what: str) -> np.ndarray:
    """Return the numbers of characters `[N, T]`."""
    array = plain(values, what)
    if array.dtype.kind not in "iu" or array.ndim != 2:
        raise CoterieError(f"{what} must be integers [N, T] for next-character, not {array.dtype} {list(array.shape)}")
    if array.size and (array.min() < 0 or array.max() >= CHARACTERS):
        wrong = array.min() if array.min() < 0 else array.max()
        raise CoterieError(f"{what} hold {wrong}, which is no character; they must be from 0 to {CHARACTERS - 1:,}")
    return array.astype(np.int32)


def targets(y: np.ndarray, kind: Kind, what: str) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Return targets as the program reads them, the number of classes or outputs, and the names of classes."""
    if kind == "regression":
        values = numbers(y, what)
        values = values.astype(np.float32) if values.dtype == np.uint8 else values
        return values, int(np.prod(values.shape[1:], dtype=np.int64)), ()
    if y.ndim != 1:
        raise CoterieError(f"{what} must have one label per sample, not shape {y.shape[1:]}")
    if y.dtype.kind == "f" and not np.all(y == np.floor(y)):
        raise CoterieError(f"{what} must be whole numbers or words for classification")
    codes, labels = encode(y if y.dtype.kind in "iufb" else _filled(text_of(y, what), what))
    return codes, len(labels), tuple(text_of(labels, what).tolist())


def centred(y: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Subtract the mean of the training rows from targets of which float32 would lose digits that matter.

    Returns:
        The targets, and the federation's field `target_mean` where it is not 0: 1e8 + 3 x is learned as 3 x.
    """
    seen = y[train]
    lost = np.abs(seen - seen.astype(np.float32)).max(initial=0.0)
    if y.ndim > 1 or y.dtype != np.float64 or not np.isfinite(lost) or lost <= DIGITS * seen.std():
        return y, {}
    mean = float(seen.mean())
    return y - mean, {"target_mean": mean}


def names_of(values: Any, what: str) -> np.ndarray:
    """Return names `[N]`: whole numbers as they are, the rest as text exactly as written; every sample needs one."""
    array = plain(values, what)
    if array.ndim != 1:
        raise CoterieError(f"{what} must have one entry per sample, not shape {array.shape}")
    if array.dtype.kind in "iu":
        return array
    words = _filled(text_of(array, what), what)
    longest = max(map(len, words.tolist()), default=0)
    if longest > LONGEST:
        raise CoterieError(f"{what}: a name has {longest:,} letters; at most {LONGEST} can be used")
    return words.astype(str)


def text_of(values: np.ndarray, what: str) -> np.ndarray:
    """Return a column as text; None and NaN are the empty word, whole floats are written without a point."""
    if values.dtype.kind in "cmMV":
        raise CoterieError(f"{what} must be numbers or words, not {values.dtype}")
    if values.dtype.kind in "Uiub":
        return values.astype(str)
    known = values[values == values] if values.dtype.kind == "f" else values
    whole = known.dtype.kind == "f" and bool(np.all(known == np.floor(known))) and bool(np.all(np.isfinite(known)))
    words = np.empty(len(values), dtype=object)  # not as wide as the longest word
    words[:] = [_word(value, whole, what) for value in values.tolist()]
    return words


def _word(value: Any, whole: bool, what: str) -> str:
    if value is None or value != value:  # NaN is not itself
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CoterieError(f"{what}: {value[:20]!r} is no text in UTF-8") from None
    if not isinstance(value, str | int | float | np.generic):
        raise CoterieError(f"{what} must be numbers or words, not {type(value).__name__}")
    return str(int(value)) if whole else str(value)


def _filled(words: np.ndarray, what: str) -> np.ndarray:
    empty = next((i for i, word in enumerate(words.tolist()) if not word.strip()), None)
    if empty is not None:
        raise CoterieError(f"{what}: sample {empty} has no value; give it one or leave it out")
    return words
