"""What a method is: a frozen dataclass of hyper-parameters, class variables that describe it, and a few pure functions.

    @method
    class Mine(LocalSGD, Method):
        topology = "graph"

        def init(self, task, peers, clients, key) -> State
        def round(self, task, state, peers, clients, key) -> tuple[State, Info]
        def models(self, state) -> Variables          # [C, ...]: each client's model; default: state.variables

Every array has the clients that live here as its first axis. Real-valued hyper-parameters are traced, so another
learning rate needs no new compilation; one that is exactly zero is switched off and costs nothing.
`docs/extend/method.md` documents the whole interface.
"""

import abc
import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Federation
from coterie.errors import CoterieError
from coterie.graphs.mixing import Rule
from coterie.learning.task import Task, Variables
from coterie.methods.sends import Sends
from coterie.numerics import tree
from coterie.numerics.tree import Same
from coterie.peers.base import Peers
from coterie.spec import nearest
from coterie.traced import traced

__all__ = ["Fitted", "Info", "Method", "Newcomer", "Role", "Solved", "Topology", "Tunes", "method", "require_method"]

Topology = Literal["none", "hub", "graph"]
Role = Literal["guess", "alone", "pooled", "cooperates"]
Newcomer = Literal["shared", "cluster", "mixture", "nearest", "none"]
Tunes = Mapping[str, tuple[float, ...]]
T = TypeVar("T")


class Info(NamedTuple):
    """What a round reports to the user."""

    loss: jax.Array  # [C] mean training loss over the local steps
    weights: Any = None  # [C, D] the weight of each slot, for methods that have weights
    counts: Any = None  # name -> [C] totals since the start; each becomes a column of the metrics


class Method(abc.ABC):
    """The interface of every method; `check_method` tests what a type cannot express.

    Class variables describe the method to the run. Only `topology` has no default.
    """

    topology: ClassVar[Topology]  # with whom it communicates: nobody, a hub, or the neighbours in a graph
    role: ClassVar[Role] = "cooperates"  # in a comparison: a baseline, one model on all data, or a candidate
    uses_hub: ClassVar[bool] = (
        False  # a graph method that also uses a hub; for the contract: alone means a federation of one
    )
    default_graph: ClassVar[str] = "exponential"  # what `graph.name = "auto"` means
    default_weights: ClassVar[str] = "metropolis"  # what `graph.weights = "auto"` means
    stability: ClassVar[Rule | None] = None  # the eigenvalues of the mixing weights it is stable for; None: any
    learns_weights: ClassVar[bool] = False  # it learns with whom to cooperate; its weights are compared with the truth
    random_links: ClassVar[bool] = False  # it runs on directed links that change from step to step
    in_turns: ClassVar[bool] = False  # it trains the personal layers first, then the shared ones
    alone_is_sgd: ClassVar[bool] = True  # without others it is plain gradient descent (with the settings of `plain`)
    # Its main own hyper-parameter with values worth trying, the default among them: `compare` tunes it after lr.
    tunes: ClassVar[Tunes] = {}
    sends: ClassVar[Sends] = {}  # by verb: what its messages are and what leaks from them (`methods/sends.py`)
    newcomer: ClassVar[Newcomer] = "mixture"  # the model of a client that took no part: see docs/extend/method.md

    @abc.abstractmethod
    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> Any:
        """Return the state before the first round."""

    @abc.abstractmethod
    def round(self, task: Task, state: Any, peers: Peers, clients: Clients, key: jax.Array) -> tuple[Any, Info]:
        """Advance one communication round."""

    def models(self, state: Any) -> Variables:
        """Return each client's personal model: `state.variables`, unless the method overrides this."""
        if not hasattr(state, "variables"):
            raise CoterieError(f"{type(self).__name__} has no models(), and its state has no `variables`")
        return state.variables

    def model_of_all(self, state: Any) -> Same | None:
        """Return the one model that the state holds for all clients, where they cannot differ; None: each has its own.

        It is then evaluated and saved instead of `models(state)`, so that a program never has a copy for each client.
        """
        return None

    def common(self, task: Task, state: Any) -> Any:
        """Return each client's copy `[C, ...]` of the model that everybody shares; None: the personal models are it.

        Where the state holds one for all, that one (`Same`). Where `newcomer` is "shared", the mean of these copies is
        the model of a client that took no part.
        """
        return None

    # -- before the run -----------------------------------------------------------------------------------------

    def adapt(self, task: Task) -> Task:
        """Return the task that clients learn with this method, for example an ensemble of the given one."""
        return task

    def check(self, task: Task, federation: Federation) -> None:
        """Raise `CoterieError` for a task or data this method cannot work with, before anything is compiled."""
        return

    @property
    def mutual(self) -> bool:
        """Whether all edges must go both ways: a client sends to exactly those it receives from."""
        return False

    @property
    def rounds_per_model(self) -> int:
        """Rounds per model for a method that produces a path of models; 0: it produces one."""
        return 0

    # -- during the run -----------------------------------------------------------------------------------------

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the method with the settings of round `number`, counted from 1: some may be annealed."""
        return self

    def finetune(self, task: Task, state: Any, peers: Peers, clients: Clients, key: jax.Array) -> Variables | None:
        """Return the models after fine-tuning, which are then evaluated; None: this method does not fine-tune."""
        return None

    def stages(self) -> tuple[int, ...]:
        """Return the rounds after which the graph changes."""
        return ()

    def at_stage(self, first: int) -> Self:
        """Return the method of the stage that begins with round `first`: what its program leaves out may differ."""
        return self

    def keep(self, state: Any, present: jax.Array, clients: int) -> jax.Array:
        """Return which slots `[C, D]` stay when a stage ends."""
        return present

    def narrow(self, state: Any, take: Callable[[jax.Array], jax.Array]) -> Any:
        """Return the state on the new graph: pass every array over slots `[C, D, ...]` through `take`."""
        return state

    def hub_state(self) -> tuple[str, ...]:
        """Return the fields of the state that are the hub's: a client that is away for a round does not hold them."""
        return ()

    def absent(self, task: Task, before: Any, after: Any) -> Any:
        """Return the state of clients that took no part in a round: what they had before.

        A method whose hub has something for everyone, such as a shared model, takes that from `after`, the state of a
        round in which they did work: such a client fetches it when it next takes part.
        """
        return before

    # -- for the contract ---------------------------------------------------------------------------------------

    def plain(self) -> Self:
        """Return the method with the settings under which a client alone does full-batch gradient descent."""
        return self


class Fitted(NamedTuple):
    """The result of a solved method: one model per client, and what each client exchanged with the hub."""

    models: Variables  # [K, ...]
    messages: int = 0  # in each direction
    bytes_up: int = 0  # total over all messages, headers included
    bytes_down: int = 0


class Solved(Method):
    """Base of methods solved at once instead of trained in rounds: `fit` runs in round 1, outside the program."""

    @abc.abstractmethod
    def fit(self, task: Task, clients: Clients) -> Fitted:
        """Return the solution for all clients, computed on the host."""

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> Variables:
        """Return fresh models as placeholders until the problem is solved."""
        return tree.broadcast(task.init(key), peers.ids.shape[0])

    def round(self, task: Task, state: Any, peers: Peers, clients: Clients, key: jax.Array) -> tuple[Any, Info]:
        """Change nothing: the solution is final."""
        return state, Info(jnp.zeros(peers.ids.shape[0], task.dtype))

    def models(self, state: Variables) -> Variables:
        """Return the models, which are the whole state."""
        return state


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def method(cls: type[T]) -> type[T]:
    """Turn a class into a method: a spec that enters compiled programs, checked against the interface."""
    if not issubclass(cls, Method):
        raise CoterieError(f"{cls.__name__} must derive from Method: class {cls.__name__}(LocalSGD, Method)")
    for name in sorted(cls.__abstractmethods__):
        raise CoterieError(f"{cls.__name__} has no {name}(), which every method needs")
    known = {name for name in [*vars(Method), *Method.__annotations__] if not name.startswith("_")}
    for base in cls.__mro__[: cls.__mro__.index(Method)]:
        _refuse_misspelt(base, known)
    for name, hint in typing.get_type_hints(Method).items():
        choices = [a for option in typing.get_args(hint) for a in typing.get_args(option) if isinstance(a, str)]
        if not hasattr(cls, name):
            raise CoterieError(f"{cls.__name__} must say its {name}: {', '.join(choices)}")
        if choices and getattr(cls, name) not in (*choices, None):
            raise CoterieError(f"{cls.__name__}.{name} must be one of {', '.join(choices)}, not {getattr(cls, name)!r}")
    made = traced(cls)
    made._is_method = True  # type: ignore[attr-defined]
    fields = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
    for name in made.tunes:
        if name not in fields:
            raise CoterieError(f"{cls.__name__}.tunes names {name!r}, which is not a setting{nearest(name, fields)}")
    return made


def require_method(cls: type) -> None:
    """Refuse a class that was not turned into a method: the decorator of its parent does not count."""
    if not vars(cls).get("_is_method"):
        raise CoterieError(
            f"{cls.__name__} is not a method yet: put @method above the class (from coterie.extend import method)"
        )


def _refuse_misspelt(cls: type, known: set[str]) -> None:
    """Refuse class variables that nothing reads, and functions whose name is nearly that of a hook."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    hints = vars(cls).get("__annotations__", {})
    for name, value in list(vars(cls).items()):
        if name.startswith("_") or name in known or name in inherited:
            continue
        if "ClassVar" in str(hints.get(name)) or (name not in hints and isinstance(value, bool | int | float | str)):
            raise CoterieError(f"{cls.__name__}.{name} is not a flag of a method{nearest(name, known)}")
        if callable(value) and (close := difflib.get_close_matches(name, known, n=1, cutoff=0.85)):
            raise CoterieError(f"{cls.__name__}.{name}() is never called; did you mean {close[0]}()?")
