"""Public names of a package that are imported when they are first used, so that importing the package costs nothing.

A package's `__init__.pyi` lists its names as imports; type checkers and `exports` read it.
"""

import ast
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

from coterie.names import Row

__all__ = ["exports"]


def exports(package: str, rows: Iterable[Row] = ()) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: its `__name__`; `from module import name` in its stub adds a name, `from . import name` a submodule.
        rows: rows of `names.py` whose classes belong to the package, too.
    """
    homes = {row.target.partition(":")[2]: row.target.partition(":")[0] for row in rows} | _homes(package)
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: names, names


@functools.cache
def _homes(package: str) -> dict[str, str]:
    """Return the names in a package's stub and the modules that they are imported from."""
    nodes = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"").body
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
