"""What a file must hold, written down as small checks that are put together; every file of a folder is read by them.

A check takes a plain value (of JSON or TOML) and returns it; it raises `Mismatch`, which knows the field, for anything
else. `read_json`, `read_lines` and `read_toml_text` turn that into one sentence with the file and the field:

    runs/x/metrics.jsonl, line 3: "round" must be a whole number, not 'a'

Folders travel between sites, so nothing is believed: types, ranges, lengths and depth are all checked before use.
"""

import collections.abc
import dataclasses
import itertools
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, shown
from coterie.storage.owned import Unreadable, read_file

__all__ = [
    "FARTHEST", "Check", "Mismatch", "checked", "each", "increasing", "kept_lines", "mapping", "maybe", "number",
    "numbers", "parse_json", "plain", "read_json", "read_lines", "read_toml_text", "record", "table", "text", "truth",
    "whole", "word",
]  # fmt: skip

Check = Callable[[Any], Any]
LARGEST = 2**63 - 1
FARTHEST = 1e140  # from zero: squares of such numbers, and their sums, are finite
DEPTH = 8  # of values that have no schema of their own: a setting of a method, say


class Mismatch(Exception):  # noqa: N818 (it never reaches a user)
    """A value that does not fit; `field` is its place in the file."""

    def __init__(self, what: str, field: str = ""):
        super().__init__(what)
        self.what, self.field = what, field

    def below(self, name: object) -> "Mismatch":
        """Return it as seen from the table that holds the field."""
        return Mismatch(self.what, f"{name}.{self.field}" if self.field else str(name))

    def sentence(self, file: object) -> str:
        """Return the sentence for a user."""
        return f'{file}: "{self.field[:80]}" {self.what}' if self.field else f"{file} {self.what}"


def _named(value: Any) -> str:
    """Return a value as a sentence names it; tables and lists, which can be long, by what they are."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return shown(value)


def whole(low: int = -LARGEST, high: int = LARGEST) -> Check:
    """A whole number in a range."""

    def check(value: Any) -> int:
        if type(value) is not int:
            raise Mismatch(f"must be a whole number, not {_named(value)}")
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high}"
            raise Mismatch(f"must be {limit}, not {_named(value)}")
        return value

    return check


def number(low: float = -FARTHEST, high: float = FARTHEST, finite: bool = True) -> Check:
    """A number in a range; with `finite` neither NaN nor infinite."""

    def check(value: Any) -> float:
        if type(value) is float and not finite and not math.isfinite(value):
            return value
        if type(value) not in (int, float) or (type(value) is int and abs(value) > LARGEST) or not math.isfinite(value):
            raise Mismatch(f"must be a finite number, not {_named(value)}")
        if not low <= value <= high:
            raise Mismatch(f"must be between {low:g} and {high:g}, not {_named(value)}")
        return value

    return check


def text(value: Any) -> str:
    """Text that a file in UTF-8 can hold; JSON can also write halves of characters."""
    if type(value) is not str:
        raise Mismatch(f"must be text, not {_named(value)}")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Mismatch(f"must be text in UTF-8, not {_named(value)}")
    return value


def truth(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Mismatch(f"must be true or false, not {_named(value)}")
    return value


def word(*known: Any) -> Check:
    """One of some values."""

    def check(value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in known):
            raise Mismatch(f"must be {' or '.join(map(str, known[:8]))}, not {_named(value)}")
        return value

    return check


def maybe(inner: Check) -> Check:
    """Nothing, or a value that fits."""
    return lambda value: None if value is None else inner(value)


def each(inner: Check, count: int | None = None, least: int = 0, distinct: bool = False) -> Check:
    """A list of values that fit; of some length, where that is known."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Mismatch(f"must be a list, not {_named(value)}")
        if count is not None and len(value) != count:
            raise Mismatch(f"must have {count:,} entries, not {len(value):,}")
        if len(value) < least:
            raise Mismatch("must not be empty")
        for place, entry in enumerate(value, 1):
            try:
                inner(entry)
            except Mismatch as wrong:
                raise wrong.below(place) from None
        if distinct and len(set(value)) != len(value):
            raise Mismatch("must not name anything twice")
        return value

    return check


def numbers(count: int) -> Check:
    """A list of finite numbers, one per client; there may be millions, so types are counted and not looked at."""

    def check(value: Any) -> list[float]:
        if not isinstance(value, list) or len(value) != count or not set(map(type, value)) <= {int, float}:
            each(number(), count)(value)
        try:
            finite = all(map(math.isfinite, value))
        except OverflowError:  # a whole number of hundreds of digits
            finite = False
        if not finite:
            raise Mismatch("must be finite numbers")
        if value and max(max(value), -min(value)) > FARTHEST:
            raise Mismatch(f"must be numbers of at most {FARTHEST:g}")
        return value

    return check


def table(
    required: Mapping[str, Check], optional: Mapping[str, Check] | None = None, rest: Check | None = None
) -> Check:
    """A table with these keys; others are refused unless `rest` checks them."""
    others = optional or {}

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch(f"must be a table, not {_named(value)}")
        for name in required:
            if name not in value:
                raise Mismatch("is missing", name)
        for name, entry in value.items():
            inner = required.get(name) or others.get(name) or rest
            if inner is None:
                raise Mismatch("is not known; it may be of a newer version of coterie", str(name))
            try:
                inner(entry)
            except Mismatch as wrong:
                raise wrong.below(name) from None
        return value

    return check


def mapping(inner: Check) -> Check:
    """A table with any keys."""
    return table({}, rest=inner)


def plain(value: Any, depth: int = DEPTH) -> Any:
    """Any value that is not nested too deeply."""
    if isinstance(value, dict | list):
        if depth == 0:
            raise Mismatch("is nested too deeply")
        for entry in value.values() if isinstance(value, dict) else value:
            plain(entry, depth - 1)
    return value


def record(hint: Any) -> Check:
    """What a type says: a dataclass or a named tuple is a table of its fields, those without a default are required."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple: dict[Any, Check] = {int: whole(), float: number(), str: text, bool: truth, Any: plain}
    if hint in simple:
        return simple[hint]
    if origin is typing.Literal:
        return word(*arguments)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return maybe(record(inner))
    if origin in (tuple, list, collections.abc.Sequence):
        return each(record(arguments[0]))
    if origin in (dict, collections.abc.Mapping):
        return mapping(record(arguments[1]))
    hints = typing.get_type_hints(hint)
    if dataclasses.is_dataclass(hint):
        unset = {f.name for f in dataclasses.fields(hint) if f.default is f.default_factory is dataclasses.MISSING}
    else:
        unset = set(hint._fields) - set(hint._field_defaults)
    parts = {name: record(inner) for name, inner in hints.items()}
    return table({n: c for n, c in parts.items() if n in unset}, {n: c for n, c in parts.items() if n not in unset})


def checked(check: Check, value: Any, file: object) -> Any:
    """Return a value that fits; otherwise one sentence."""
    try:
        return check(value)
    except Mismatch as wrong:
        raise CoterieError(wrong.sentence(file)) from None


def parse_json(data: bytes | str, file: object) -> Any:
    """Parse JSON from anybody."""
    try:
        return json.loads(data)
    except RecursionError:
        raise Unreadable(f"{file} cannot be read (it is nested too deeply)") from None
    except ValueError as error:
        raise Unreadable(f"{file} cannot be read ({error})") from None


def read_json(root: Path, name: str, check: Check) -> Any:
    """Read a JSON file of a folder."""
    return checked(check, parse_json(read_file(root, name), root / name), root / name)


def read_lines(root: Path, name: str, check: Check) -> list[dict[str, Any]]:
    """Read a file with one JSON value per line."""
    lines, file = read_file(root, name).removesuffix(b"\n").split(b"\n"), root / name
    values = []
    for place, line in enumerate([] if lines == [b""] else lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise Unreadable(f"line {place} of {file} is damaged") from None
        values.append(checked(check, value, f"{file}, line {place}"))
    return values


def kept_lines(data: bytes, file: object, keep: Callable[[Any], bool]) -> list[bytes]:
    """Return the lines that `keep` accepts, without the torn end of a file that was being written.

    A line that cannot be read was torn when the process died, if no kept line follows: it is left out, too. Before a
    kept line it is damage, and an error.
    """
    kept, broken = [], 0
    for place, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            wanted = keep(json.loads(line))
        except (ValueError, RecursionError, Mismatch):
            broken = broken or place
            continue
        if wanted and broken:
            raise Unreadable(f"line {broken} of {file} is damaged")
        if wanted:
            kept.append(line + b"\n")
    return kept


def read_toml_text(data: bytes | str, file: object, check: Check) -> dict[str, Any]:
    """Read TOML from anybody."""
    try:
        value = tomllib.loads(data if isinstance(data, str) else data.decode())
    except RecursionError:
        raise CoterieError(f"{file} is nested too deeply") from None
    except ValueError as error:  # also what is not UTF-8
        raise CoterieError(f"{file} is not valid TOML: {error}") from None
    return checked(check, value, file)


def increasing(rows: Sequence[Mapping[str, Any]], key: str, file: object) -> None:
    """Refuse lines whose numbers do not grow."""
    for place, (before, after) in enumerate(itertools.pairwise(rows), 2):
        if after[key] <= before[key]:
            raise CoterieError(f'{file}, line {place}: "{key}" must be above {before[key]}, not {after[key]}')
