"""Personal models for every member of a group that cannot pool its data.

    import coterie as ct

    federation = ct.load("digits", "classes", clients=20, classes=3)
    result = ct.run(federation, model="mlp", method=ct.methods.Ditto(lr=0.1), rounds=30)
    result.metrics            # a pandas DataFrame: one row a client and evaluation
    result.model("client-3")  # a personal model, callable on a batch

Nothing heavy is imported before it is used, so that `coterie list` answers at once.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import methods, models
    from coterie.compare import Comparison, compare, report
    from coterie.contract import check_method
    from coterie.data import federation, load, pool
    from coterie.errors import CoterieError
    from coterie.graph import Graph
    from coterie.result import Result
    from coterie.run import resume, run

    __version__: str

__all__ = [
    "Comparison",
    "CoterieError",
    "Graph",
    "Result",
    "__version__",
    "check_method",
    "compare",
    "federation",
    "load",
    "methods",
    "models",
    "pool",
    "report",
    "resume",
    "run",
]

# Where each public name lives; a target without a colon is a module.
_PUBLIC = {
    "Comparison": "coterie.compare:Comparison",
    "CoterieError": "coterie.errors:CoterieError",
    "Graph": "coterie.graph:Graph",
    "Result": "coterie.result:Result",
    "check_method": "coterie.contract:check_method",
    "compare": "coterie.compare:compare",
    "federation": "coterie.data:federation",
    "load": "coterie.data:load",
    "methods": "coterie.methods",
    "models": "coterie.models",
    "pool": "coterie.data:pool",
    "report": "coterie.compare:report",
    "resume": "coterie.run:resume",
    "run": "coterie.run:run",
}


class _Package(ModuleType):
    """Keeps `coterie.run` the function: importing the module of the same name would bind that instead."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and ":" in _PUBLIC.get(name, "")):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("coterie")
    except metadata.PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"
