"""Personal models for every member of a group that cannot pool its data.

    import coterie as ct

    federation = ct.load("digits", "classes", clients=20, classes=3)
    result = ct.run(federation, model="mlp", method=ct.methods.Ditto(lr=0.1), rounds=30)
    result.metrics            # a pandas DataFrame: one row per client and evaluation
    result.model("client-3")  # a personal model, callable on a batch

Every name is imported when it is first used, so that `coterie list` answers at once.
"""

from typing import Any

from coterie.lazy import exports

_imported, __dir__, __all__ = exports(__name__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    return _version() if name == "__version__" else _imported(name)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("coterie")
    except metadata.PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"
