"""Personal models for every member of a group that cannot pool its data.

    import coterie as ct

    federation = ct.load("digits", "classes", clients=20, classes=3)
    result = ct.run(federation, model="mlp", method=ct.methods.Ditto(lr=0.1), rounds=30)
    result.metrics            # a pandas DataFrame: one row a client and evaluation
    result.model("client-3")  # a personal model, callable on a batch

Nothing heavy is imported before it is used, so that `coterie list` answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import methods, models
    from coterie.comparison.compare import compare
    from coterie.comparison.comparison import Comparison
    from coterie.data import federation, load, pool
    from coterie.errors import CoterieError
    from coterie.experiment.result import Result
    from coterie.experiment.run import resume, run
    from coterie.graphs.graph import Graph
    from coterie.pages import report
    from coterie.testing.contract import check_method

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
    "Comparison": "coterie.comparison.comparison:Comparison",
    "CoterieError": "coterie.errors:CoterieError",
    "Graph": "coterie.graphs.graph:Graph",
    "Result": "coterie.experiment.result:Result",
    "check_method": "coterie.testing.contract:check_method",
    "compare": "coterie.comparison.compare:compare",
    "federation": "coterie.data:federation",
    "load": "coterie.data:load",
    "methods": "coterie.methods",
    "models": "coterie.models",
    "pool": "coterie.data:pool",
    "report": "coterie.pages:report",
    "resume": "coterie.experiment.run:resume",
    "run": "coterie.experiment.run:run",
}


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
