"""Find and import what is chosen by name: a row of `names.py`, an entry point, or a file of the user's own.

Your own class needs no row: `./mine.py:Mine` and `package.module:Mine` are names too, and so is an entry point in the
group `coterie.methods` (or `.models`, ...). Such names are meant where a person writes them. Where a folder names them
that may come from somebody else (`names_from`), they are refused until the person says that the code may run.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from coterie.errors import CoterieError, shown
from coterie.names import KINDS, Kind, Row
from coterie.spec import nearest

__all__ = [
    "KINDS",
    "Row",
    "file_of",
    "find",
    "imported",
    "kind_of",
    "load",
    "module_from_file",
    "name_of",
    "names_from",
    "own_frames",
    "rows",
]

OWN_FILES = "coterie_user_"  # begins the name of a module that is a file of the user's own
_own_modules: set[str] = set()  # modules that were imported because a name asked for them
_stranger: contextvars.ContextVar[str] = contextvars.ContextVar("stranger", default="")  # the file that names come from

# Names people type that mean something else here, with what to say.
EXPLAINED = {
    "dpsgd": "dpsgd is differentially private SGD everywhere else, so it is not a name here; decentralised parallel "
    "SGD (D-PSGD) is gossip-sgd with order = 'mix-and-step'",
    "d-psgd": "D-PSGD is gossip-sgd with order = 'mix-and-step'",
    "dsgd": "DSGD is gossip-sgd with order = 'step-then-mix'",
}


@contextlib.contextmanager
def names_from(file: str | Path, trust_code: bool = False) -> Iterator[None]:
    """Within this, names come from a file of a folder: code that is not installed as ours is refused unless trusted."""
    before = _stranger.set("" if trust_code else str(file))
    try:
        yield
    finally:
        _stranger.reset(before)


def rows(kind: str) -> list[Row]:
    """List what can be chosen: the built-in rows, then those that installed packages offer by entry point."""
    if kind not in KINDS:
        raise CoterieError(f"there is no list of {kind!r}; choose from {', '.join(KINDS)}{nearest(kind, KINDS)}")
    points = importlib.metadata.entry_points(group=f"coterie.{kind}")
    return KINDS[kind].rows + [Row(point.name, point.value, "from an installed package") for point in points]


def find(kind: str, name: str) -> Row:
    """Find a row by name, or raise the sentence that names the nearest one."""
    if not isinstance(name, str):
        raise CoterieError(f"{KINDS[kind].section}.name must be text, not {shown(name)}")
    table = {row.name: row for row in rows(kind)}
    if name in table:
        return table[name]
    if ":" in name:
        if _stranger.get():
            raise CoterieError(
                f"{_stranger.get()} wants to run code: {KINDS[kind].section}.name = {shown(name)}; read that file, "
                "then add --trust-code (in Python: trust_code=True)"
            )
        return Row(name, name, "your own")
    if name.lower() in EXPLAINED:
        raise CoterieError(EXPLAINED[name.lower()])
    guess = nearest(name, table) or f"; choose from {', '.join(table)}"
    raise CoterieError(f"there is no {kind.removesuffix('s')} called {shown(name)}{guess}")


def load(kind: str, name: str) -> Any:
    """Import the class behind a name; a class of the user's own must be of the kind that is asked for."""
    cls = imported(find(kind, name).target, name)
    is_spec = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    if ":" in name and not (is_spec and _has_function(cls, KINDS[kind])):
        what = f"{'@method' if kind == 'methods' else '@spec'} and {KINDS[kind].functions[0]}()"
        raise CoterieError(f"{name} is not a {kind.removesuffix('s')}, which is a class with {what}")
    if ":" in name and kind == "methods" and not vars(cls).get("_is_method"):
        raise CoterieError(
            f"{name} is not a method yet: put @method above the class (from coterie.extend import method)"
        )
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
    is_file = module_name.endswith(".py")
    if not attribute or (not is_file and not all(part.isidentifier() for part in module_name.split("."))):
        raise CoterieError(f"{shown(name)} is not a name; a class of your own is named FILE.py:CLASS or PACKAGE:CLASS")
    try:
        module = module_from_file(module_name) if is_file else _module(module_name)
    except CoterieError:
        raise
    except (Exception, SystemExit) as error:  # a file may also call exit()
        reason = error if isinstance(error, ImportError | OSError | SyntaxError) else f"{type(error).__name__}: {error}"
        raise CoterieError(f"{name}: {module_name} cannot be imported ({reason})") from error
    if not hasattr(module, attribute):
        raise CoterieError(f"{name}: {module_name} has no {attribute!r}{nearest(attribute, dir(module))}")
    return getattr(module, attribute)


def _module(name: str) -> Any:
    if name.partition(".")[0] != __package__:
        _own_modules.add(name)
    return importlib.import_module(name)


def own_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the first line of the user's own code on; None if it did not come from there."""
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module in _own_modules or module.startswith(OWN_FILES):
            return trace
        trace = trace.tb_next
    return None


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
    try:
        file = Path(path).resolve()
        there = file.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        there = False
    if not there:
        raise CoterieError(f"{shown(path)} is not a file; a method of your own is named FILE.py:CLASS")
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
