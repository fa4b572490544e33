"""Models as Equinox modules: what a user can choose by name, and what makes a module of their own fit.

A name is imported when it is first used, so that `coterie.models.naming` costs no more than it needs.
"""

import importlib
from typing import Any

__all__ = ["Augment", "Cnn", "Cnn4", "Linear", "Lstm", "Mlp", "replace_convolutions"]

HOMES = {
    "Augment": "augment",
    "Cnn": "cnn",
    "Cnn4": "cnn4",
    "Linear": "linear",
    "Lstm": "lstm",
    "Mlp": "mlp",
    "replace_convolutions": "convert",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
