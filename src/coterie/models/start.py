"""Start from given weights instead of random ones: a safetensors file of ours, or a PyTorch state dict."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
from jax import Array

from coterie.models.naming import load

__all__ = ["starting_from"]


def starting_from(build: Callable[[Array], Any], path: str | Path) -> Callable[[Array], Any]:
    """Return a function of a key that builds the same module with its parameters read from a file.

    Args:
        build: a function of a key that returns a module, or a module and its statistics.
        path: a safetensors file whose names, shapes and types are the model's; what differs is refused by name.
    """

    def built(key: Array) -> Any:
        made = build(key)
        module, statistics = made if isinstance(made, tuple) else (made, None)
        params, static = eqx.partition(module, eqx.is_inexact_array)
        module = eqx.combine(load(path, params), static)
        return module if statistics is None else (module, statistics)

    return built
