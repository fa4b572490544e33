"""Everything a user can configure is a frozen dataclass whose fields document and check themselves.

Methods, models, data sets, partitions and graphs are all a `spec`: its fields are the keys of the TOML section, the
arguments of the Python constructor and the rows that `coterie show` prints. This module does not import JAX, so that
the command line can describe them without waiting for that import.
"""

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, dataclass_transform

from coterie.errors import CoterieError, shown

__all__ = ["LARGEST", "LARGEST_SEED", "Field", "build", "describe", "nearest", "param", "spec", "to_dict"]

T = TypeVar("T")

LARGEST = 2**31 - 1  # of an integer whose field names no limit: what 32 bits hold, on every device
LARGEST_SEED = 2**32 - 1  # random generators drop the bits above, so that two seeds would give the same run


def param(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    static: bool = False,
    left_out: bool = False,
) -> Any:
    """Declare a field: its default, its meaning in one line, and the range it must lie in.

    `static` marks a real number that shapes the compiled program (a fraction of the clients, say): changing it
    needs a new compilation. Other real numbers are traced, except that 0 means off: see `coterie.traced`.

    `left_out` marks a setting that is not written while it has its default. A setting that is new in a version needs
    it: folders of earlier versions do not have it, and are continued.
    """
    limits = {"above": above, "at_least": at_least, "at_most": at_most, "below": below}
    given = {name: value for name, value in limits.items() if value is not None}
    metadata = {"help": help, "limits": given, "static": static, "left_out": left_out}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def spec(cls: type[T]) -> type[T]:
    """Turn a class into a frozen, keyword-only dataclass that refuses values of the wrong type or out of range."""
    check_more = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:  # noqa: N807
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _convert(getattr(self, field.name), hints[field.name], field.name)
            _check_value(value, field)
            object.__setattr__(self, field.name, value)
        if check_more is not None:
            check_more(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    made.__init__ = _explaining(made, made.__init__)  # type: ignore[method-assign]
    return made


def _explaining(cls: type, initialise: Any) -> Any:
    """Return a constructor that answers a setting it does not have with the nearest one that it has."""
    known = [field.name for field in dataclasses.fields(cls) if field.init]

    @functools.wraps(initialise)
    def explained(self: Any, *positional: Any, **settings: Any) -> None:
        for key in settings:
            if key not in known:
                guess = nearest(key, known) or (f"; known: {', '.join(known)}" if known else "; it has no settings")
                raise CoterieError(f"{type(self).__name__} has no setting {key!r}{guess}")
        initialise(self, *positional, **settings)

    return explained


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Return `value` converted to the annotated type, or raise an error that names the field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _convert(value, option, name)
            except CoterieError:
                continue
        raise CoterieError(f"{name} must be {_type_name(hint)}, not {shown(value)}")
    if origin is Literal:
        if value in arguments:
            return value
        guess = nearest(str(value), [str(a) for a in arguments])
        raise CoterieError(f"{name} must be one of {', '.join(map(str, arguments))}, not {shown(value)}{guess}")
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            value = (value,)
        return tuple(_convert(item, arguments[0], name) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise CoterieError(f"{name} must be a number of at most 308 digits, not {shown(value)}") from None
    if hint is types.NoneType:
        if value is None:
            return None
    elif isinstance(hint, type) and isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise CoterieError(f"{name} must be {_type_name(hint)}, not {shown(value)}")


def _check_value(value: Any, field: dataclasses.Field) -> None:
    """Refuse a number out of range, and text that no file can hold: config.toml keeps every setting."""
    if isinstance(value, tuple):
        for item in value:
            _check_value(item, field)
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise CoterieError(
            f"{field.name} must be text in UTF-8 without NUL, not {shown(value)}; rename the file if it is a path"
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if value != value:
        raise CoterieError(f"{field.name} must be a number, not nan")
    usual = {"at_least": -LARGEST, "at_most": LARGEST} if isinstance(value, int) else {}
    tests = {
        "above": (lambda limit: value > limit, "greater than"),
        "at_least": (lambda limit: value >= limit, "at least"),
        "at_most": (lambda limit: value <= limit, "at most"),
        "below": (lambda limit: value < limit, "less than"),
    }
    for name, limit in (usual | field.metadata.get("limits", {})).items():
        passes, words = tests[name]
        if not passes(limit):
            raise CoterieError(f"{field.name} must be {words} {_number(limit)}, not {_number(value)}")


def _number(value: float) -> str:
    """Write a number in a sentence; an integer exactly, unless it is very long."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else shown(value)
    return f"{value:g}"


def _type_name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(a) for a in arguments)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    return {"str": "text", "bool": "true or false", "int": "integer", "float": "number", "NoneType": "none"}.get(
        getattr(hint, "__name__", str(hint)), getattr(hint, "__name__", str(hint))
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean X?"`, or an empty string if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def build(cls: type[T], options: Mapping[str, Any], where: str) -> T:
    """Construct a spec from a table of a config file; every error names the key as `where.key`."""
    known = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            guess = nearest(key, known)
            listing = f"; known: {', '.join(known)}" if known else "; it has no settings"
            raise CoterieError(f"unknown key {where}.{key}{guess or listing}")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.init and field.default is dataclasses.MISSING and field.name not in options:
            raise CoterieError(f"{where}.{field.name} is required: {field.metadata.get('help', '')}")
    try:
        return cls(**options)
    except CoterieError as error:
        raise CoterieError(f"{where}.{error}") from None


@dataclasses.dataclass(frozen=True)
class Field:
    """One setting, as `coterie show` prints it."""

    name: str
    type: str
    default: Any
    help: str


def describe(cls: type) -> list[Field]:
    """List the settings of a spec."""
    hints = typing.get_type_hints(cls)
    return [
        Field(
            field.name,
            _type_name(hints[field.name]),
            "required" if field.default is dataclasses.MISSING else field.default,
            field.metadata.get("help", ""),
        )
        for field in dataclasses.fields(cls)
        if field.init
    ]


def to_dict(value: Any) -> dict[str, Any]:
    """Return the settings of a spec as plain values, ready for TOML or JSON; None is left out, as TOML has no null."""
    fields = [field for field in dataclasses.fields(value) if field.init]
    settings = {
        field.name: getattr(value, field.name)
        for field in fields
        if not (field.metadata.get("left_out") and getattr(value, field.name) == field.default)
    }
    return {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items() if v is not None}
