"""Codecs: compress the vectors in messages. Any method can be run with any of them.

A name is imported when it is first used, as with models.
"""

import importlib
from typing import Any

__all__ = ["QSGD", "Codec", "Fused", "Half", "Raw", "TopK"]

HOMES = {"Codec": "base", "Fused": "fused", "Half": "half", "QSGD": "qsgd", "Raw": "raw", "TopK": "top_k"}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
