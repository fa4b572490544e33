"""Reading, writing and comparing TOML; the standard library only reads it."""

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, shown

__all__ = ["difference", "dump_toml", "parse_override", "read_toml", "toml_value"]

DEEPEST = 10  # levels of tables and lists in a file


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a config file; a byte order mark, as some editors write it, is left out."""
    try:
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe would be waited for, a device has no end
            raise CoterieError(f"{path} is not a plain file; an experiment is a TOML file")
        return _parsed(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CoterieError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CoterieError(f"{path} is not a text file; an experiment is a TOML file") from None
    except ValueError as error:  # also of the path, which may have a NUL
        raise CoterieError(f"{path} is not valid TOML: {error}") from None


def parse_override(text: str) -> dict[str, dict[str, Any]]:
    """Read `method.lr=0.1` as a change of one key."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        raise CoterieError(f"--set {shown(text)}: write SECTION.KEY=VALUE, for example method.lr=0.1")
    try:
        parsed = _parsed(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is text
    except ValueError as error:
        raise CoterieError(f"--set {shown(text)}: {error}") from None
    return {section: {key: parsed}}


def _parsed(text: str) -> dict[str, Any]:
    """Parse TOML; what is nested so deeply that it cannot be meant is a ValueError, as are too many digits."""
    too_deep = f"it is nested more than {DEEPEST} levels deep"
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # from Python's limit on digits, which says how a program could lift it
        raise ValueError("it has an integer of too many digits") from None
    level: list[Any] = [tables]
    for _ in range(DEEPEST):
        level = [item for value in level for item in _inside(value)]
    if level:
        raise ValueError(too_deep)
    return tables


def _inside(value: Any) -> list[Any]:
    """Return the tables and lists inside of a table or a list."""
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, dict | list)]


def dump_toml(tables: Mapping[str, Any]) -> str:
    """Write nested tables of plain values as TOML (the standard library only reads it)."""
    lines = [f"{key} = {toml_value(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for key, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]", *(f"{name} = {toml_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Write one plain value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON and TOML escape text in the same way, except for one control character that JSON allows
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


def difference(read: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Say which is the first key in which a config differs from one that was read from a file ("there"), or None."""
    ours, theirs = _flat(tomllib.loads(dump_toml(config))), _flat(read)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            return f"{key} is {shown(theirs.get(key))} there and {shown(ours.get(key))} here"
    return None


def _flat(tables: dict[str, Any], above: str = "") -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in tables.items():
        entries |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return entries
