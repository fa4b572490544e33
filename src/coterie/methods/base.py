"""What a method is: a frozen dataclass of hyper-parameters with three pure functions.

    class Mine(LocalSGD):
        def init(self, task, peers, clients, key) -> State
        def round(self, task, state, peers, clients, key) -> tuple[State, Info]
        def models(self, state) -> Variables          # [C, ...]: the personal model of each client

Every array has the clients that live here as its first axis. The real-valued hyper-parameters are traced, so that
another learning rate needs no new compilation; one that is exactly zero is switched off and costs nothing.
"""

from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax

from coterie.data.clients import Clients
from coterie.learning.task import Variables
from coterie.traced import at_round, is_off, traced

__all__ = ["Fitted", "Info", "Method", "adapted", "at_round", "is_off", "method", "stage_ends"]

Topology = Literal["none", "hub", "graph"]


class Info(NamedTuple):
    """What a person wants to see of a round."""

    loss: jax.Array  # [C] mean training loss over the local steps
    weights: Any = None  # [C, D] the weight given to each slot, where the method has any
    counts: Any = None  # name -> [C] what the method counts beside bytes, from the start; columns of the metrics


class Fitted(NamedTuple):
    """What such a method returns: a model for each client, and what each of them sent to the hub and got from it."""

    models: Variables  # [K, ...]
    messages: int = 0  # each way
    bytes_up: int = 0  # in all messages together, headers included
    bytes_down: int = 0


class Method(Protocol):
    """The contract every method keeps; `check_method` tests it."""

    topology: ClassVar[Topology]  # whom it talks to: nobody, a hub (`mean`), or the neighbours of a graph

    def init(self, task: Any, peers: Any, clients: Clients, key: jax.Array) -> Any:
        """Return the state before the first round."""

    def round(self, task: Any, state: Any, peers: Any, clients: Clients, key: jax.Array) -> tuple[Any, Info]:
        """Advance one communication round."""

    def models(self, state: Any) -> Any:
        """Return each client's personal model."""


def stage_ends(method: Any) -> tuple[int, ...]:
    """Return the rounds after which a method changes its graph; most never do."""
    return method.stages() if hasattr(method, "stages") else ()


def adapted(method: Any, task: Any) -> Any:
    """Return what a client learns with this method: most take the task as it is, one may want an ensemble of it."""
    return method.adapt(task) if hasattr(method, "adapt") else task


method = traced  # a method is a spec that enters compiled programs
