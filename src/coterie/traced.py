"""Specs that enter compiled programs: real-valued fields are traced, all others are constants of the program.

Changing a learning rate needs no new compilation. A field that is exactly zero is a constant too: what it controls is
left out of the program, so switching it on needs a new compilation.
"""

import copy
import dataclasses
import typing
from typing import Any, TypeVar

import jax

from coterie.spec import spec

__all__ = ["changed", "is_off", "traced"]

T = TypeVar("T")


def is_off(value: Any) -> bool:
    """Whether a setting is switched off; zeros are never traced, so this is known while tracing."""
    return isinstance(value, int | float) and value == 0


def changed(value: T, **fields: Any) -> T:
    """Return a copy of a spec with new values, without its checks: a value may be a tracer."""
    other = copy.copy(value)
    for name, field in fields.items():
        object.__setattr__(other, name, field)
    return other


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def traced(cls: type[T]) -> type[T]:
    """Turn a class into a `spec` whose real-valued, non-zero fields are leaves of a JAX pytree."""
    cls = spec(cls)
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    static = {f.name for f in dataclasses.fields(cls) if f.metadata.get("static")}  # type: ignore[arg-type]
    real = [name for name in fields if float in (hints[name], *typing.get_args(hints[name])) and name not in static]

    def flatten(value: Any) -> tuple[list, tuple]:
        candidates = {name: getattr(value, name) for name in real}
        leaves = [name for name, v in candidates.items() if not is_off(v) and not isinstance(v, str | tuple)]
        rest = tuple((name, getattr(value, name)) for name in fields if name not in leaves)
        return [getattr(value, name) for name in leaves], (tuple(leaves), rest)

    def unflatten(structure: tuple, leaves: list) -> Any:
        names, rest = structure
        value = object.__new__(cls)  # without the checks: a leaf may be a tracer
        for name, leaf in [*zip(names, leaves, strict=True), *rest]:
            object.__setattr__(value, name, leaf)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls
