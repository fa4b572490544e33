"""Find and import what is chosen by name: a row of `names.py`, an entry point, or a file of the user's own.

Your own class needs no row: `./mine.py:Mine` and `package.module:Mine` are names too, and so is an entry point in the
group `coterie.methods` (or `.models`, ...).
"""

import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.names import KINDS, Kind, Row
from coterie.spec import nearest

__all__ = ["KINDS", "Row", "file_of", "find", "imported", "kind_of", "load", "module_from_file", "name_of", "rows"]

OWN_FILES = "coterie_user_"  # begins the name of a module that is a file of the user's own

# Names people type that mean something else here, with what to say.
EXPLAINED = {
    "dpsgd": "dpsgd is differentially private SGD everywhere else, so it is not a name here; decentralised parallel "
    "SGD (D-PSGD) is gossip-sgd with order = 'mix-and-step'",
    "d-psgd": "D-PSGD is gossip-sgd with order = 'mix-and-step'",
    "dsgd": "DSGD is gossip-sgd with order = 'step-then-mix'",
}


def rows(kind: str) -> list[Row]:
    """List what can be chosen: the built-in rows, then those that installed packages offer by entry point."""
    if kind not in KINDS:
        raise CoterieError(f"there is no list of {kind!r}; choose from {', '.join(KINDS)}{nearest(kind, KINDS)}")
    points = importlib.metadata.entry_points(group=f"coterie.{kind}")
    return KINDS[kind].rows + [Row(point.name, point.value, "from an installed package") for point in points]


def find(kind: str, name: str) -> Row:
    """Find a row by name, or raise the sentence that names the nearest one."""
    table = {row.name: row for row in rows(kind)}
    if name in table:
        return table[name]
    if ":" in name:
        return Row(name, name, "your own")
    if name.lower() in EXPLAINED:
        raise CoterieError(EXPLAINED[name.lower()])
    guess = nearest(name, table) or f"; choose from {', '.join(table)}"
    raise CoterieError(f"there is no {kind.removesuffix('s')} called {name!r}{guess}")


def load(kind: str, name: str) -> Any:
    """Import the class behind a name; a class of the user's own must be of the kind that is asked for."""
    cls = imported(find(kind, name).target, name)
    is_spec = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    if ":" in name and not (is_spec and _has_function(cls, KINDS[kind])):
        what = f"{'@method' if kind == 'methods' else '@spec'} and {KINDS[kind].functions[0]}()"
        raise CoterieError(f"{name} is not a {kind.removesuffix('s')}, which is a class with {what}")
    return cls


def name_of(kind: str, value: Any) -> str | None:
    """Return the name under which the class of an object can be chosen, if it has one."""
    target = f"{type(value).__module__}:{type(value).__name__}"
    return next((row.name for row in rows(kind) if row.target == target), None)


def kind_of(cls: Any, name: str) -> str:
    """Say which kind of thing a class of the user's own is, from the functions it has."""
    for kind in sorted(KINDS.values(), key=lambda kind: "__call__" in kind.functions):  # others may be callable, too
        if _has_function(cls, kind) and (not kind.argument or _takes(getattr(cls, kind.functions[0]), kind.argument)):
            return kind.name
    raise CoterieError(
        f"{name} is not a method, data set, partition, model, graph or codec: it has none of their functions"
    )


def imported(target: str, name: str) -> Any:
    """Import what `FILE.py:CLASS` or `package.module:CLASS` names, whatever it is."""
    module_name, _, attribute = target.rpartition(":")
    try:
        module = module_from_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    except (ImportError, OSError, SyntaxError) as error:
        raise CoterieError(f"{name}: {module_name} cannot be imported ({error})") from error
    if not hasattr(module, attribute):
        raise CoterieError(f"{name}: {module_name} has no {attribute!r}{nearest(attribute, dir(module))}")
    return getattr(module, attribute)


def _has_function(cls: Any, kind: Kind) -> bool:
    bases = getattr(cls, "__mro__", ())
    return any(name in vars(base) for base in bases for name in kind.functions)  # not hasattr: every class is callable


def _takes(function: Any, argument: str) -> bool:
    return argument in inspect.signature(function).parameters


def file_of(cls: type) -> str:
    """Return the file of the user's own that a class comes from; empty for one that can be imported by name."""
    module = sys.modules[cls.__module__]
    return str(module.__file__) if module.__name__.startswith(OWN_FILES) else ""


def module_from_file(path: str) -> Any:
    """Import a file of the user's own, once; its module has the same name in every process, so that classes travel."""
    file = Path(path).resolve()
    if not file.is_file():
        raise CoterieError(f"{path} is not a file; a method of your own is named FILE.py:CLASS")
    name = f"{OWN_FILES}{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        module_spec = importlib.util.spec_from_file_location(name, file)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[name] = module
        try:
            module_spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]  # a half-imported module must not pass for a whole one at the next try
            raise
    return sys.modules[name]
