"""What a method is: a frozen dataclass of hyper-parameters with three pure functions.

    class Mine(LocalSGD):
        def init(self, task, peers, clients, key) -> State
        def round(self, task, state, peers, clients, key) -> tuple[State, Info]
        def models(self, state) -> Variables          # [C, ...]: the personal model of each client

Every array has the clients that live here as its first axis. The real-valued hyper-parameters are traced, so that
another learning rate needs no new compilation; one that is exactly zero is switched off and costs nothing.
"""

import dataclasses
import typing
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import jax

from coterie.clients import Clients
from coterie.spec import spec

__all__ = ["Info", "Method", "adapted", "at_round", "is_off", "method"]

T = TypeVar("T")
Topology = Literal["none", "hub", "graph"]


class Info(NamedTuple):
    """What a person wants to see of a round."""

    loss: jax.Array  # [C] mean training loss over the local steps
    weights: Any = None  # [C, D] the weight given to each slot, where the method has any
    counts: Any = None  # name -> [C] what the method counts beside bytes, from the start; columns of the metrics


class Method(Protocol):
    """The contract every method keeps; `check_method` tests it."""

    topology: ClassVar[Topology]  # whom it talks to: nobody, a hub (`mean`), or the neighbours of a graph

    def init(self, task: Any, peers: Any, clients: Clients, key: jax.Array) -> Any:
        """Return the state before the first round."""

    def round(self, task: Any, state: Any, peers: Any, clients: Clients, key: jax.Array) -> tuple[Any, Info]:
        """Advance one communication round."""

    def models(self, state: Any) -> Any:
        """Return each client's personal model."""


def is_off(value: Any) -> bool:
    """Whether a hyper-parameter is absent: zeros are never traced, so this can be asked while tracing."""
    return isinstance(value, int | float) and value == 0


def adapted(method: Any, task: Any) -> Any:
    """Return what a client learns with this method: most take the task as it is, one may want an ensemble of it."""
    return method.adapt(task) if hasattr(method, "adapt") else task


def at_round(method: T, number: Any) -> T:
    """Return a method as it is in round `number`, counted from 1: its learning rate may have been annealed."""
    return method.at_round(number) if hasattr(method, "at_round") else method


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def method(cls: type[T]) -> type[T]:
    """Make a method of a class: a `spec` whose real-valued, non-zero fields are leaves of a JAX pytree."""
    cls = spec(cls)
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    static = {f.name for f in dataclasses.fields(cls) if f.metadata.get("static")}  # type: ignore[arg-type]
    real = [name for name in fields if float in (hints[name], *typing.get_args(hints[name])) and name not in static]

    def flatten(value: Any) -> tuple[list, tuple]:
        chosen = {name: getattr(value, name) for name in real}
        traced = [name for name, v in chosen.items() if not is_off(v) and not isinstance(v, str | tuple)]
        rest = tuple((name, getattr(value, name)) for name in fields if name not in traced)
        return [getattr(value, name) for name in traced], (tuple(traced), rest)

    def unflatten(structure: tuple, leaves: list) -> Any:
        traced, rest = structure
        value = object.__new__(cls)  # past the checks: a leaf may be a tracer
        for name, leaf in [*zip(traced, leaves, strict=True), *rest]:
            object.__setattr__(value, name, leaf)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls
