"""What a method sends, found by tracing one round of it as a member runs it: nothing is computed and nothing is sent.

The verbs are those of a network (`peers/remote.py`); on the way to the carrier each message is written down with its
arrays, the verb it belongs to and the way it takes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from coterie.codecs.frame import frame_bytes
from coterie.data.clients import Federation
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods.base import Method, Solved
from coterie.peers import ALL_TO_ALL
from coterie.peers.base import Tables
from coterie.peers.coding import Coder, Outgoing
from coterie.peers.line import Line
from coterie.peers.pushed import Step
from coterie.peers.remote import RemotePeers
from coterie.peers.tables import make_tables

__all__ = ["VERBS", "Sent", "Way", "traced_messages"]

VERBS = ("mix", "push", "swap", "ask", "mean", "centres", "hub", "most", "share")
Way = Literal["listeners", "neighbours", "hub", "everyone", "partner"]
Phase = Literal["start", "round", "stage"]


@dataclasses.dataclass(frozen=True)
class Sent:
    """One kind of message.

    Attributes:
        phase: once at the start, in every round, or when a stage of the method ends.
        verb: the verb that sends it; "answer" to a question, "receipt" of a push.
        way: from a member to its listeners (who hear it), to its neighbours (whom it hears) or to the hub; from the
            hub to everyone; or to one's partner in a step of a mean without a hub.
        arrays: shape and type of each array in it.
        times: how often it is sent in a round.
        sometimes: whether it depends on chance, or on what was learned, that it is sent in a round.
        coded: whether a codec makes it shorter.
        first: the round in which the stage begins that it belongs to; 1 for methods without stages.
        step: the number of the step (`peers/pushed.py`), for partners.
    """

    phase: Phase
    verb: str
    way: Way
    arrays: tuple[tuple[tuple[int, ...], str], ...]
    times: int = 1
    sometimes: bool = False
    coded: bool = False
    first: int = 1
    step: int = 0

    @property
    def layout(self) -> list[jax.ShapeDtypeStruct]:
        """The arrays as a frame's header knows them."""
        return [jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in self.arrays]

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return sum(math.prod(shape) for shape, _ in self.arrays)

    @property
    def size(self) -> int:
        """Its bytes, header included; where a codec makes it shorter, at most so many."""
        return frame_bytes(self.layout) + self.coded


class Recorder:
    """Where the messages of one round are written down.

    A place in the program has a name, so that a loop whose body is traced twice is recorded once.
    """

    def __init__(self, phase: Phase, first: int = 1):
        self.phase, self.first, self.found = phase, first, dict[tuple[Any, ...], Sent]()
        self.verb, self.times, self.sometimes = "", 1, False
        self._path: tuple[Any, ...] = ()
        self._count = 0

    def add(self, verb: str, way: Way, leaves: Any, leading: int, coded: bool = False, step: int = 0) -> None:
        """Write down a message; its arrays have so many leading axes for clients and slots."""
        arrays = tuple((tuple(a.shape[leading:]), np.dtype(a.dtype).name) for a in jax.tree.leaves(leaves))
        often = self.times, self.sometimes
        self.found[self.place()] = Sent(self.phase, verb, way, arrays, *often, coded, self.first, step)

    def place(self) -> tuple[Any, ...]:
        """Return the name of the next place in the program."""
        self._count += 1
        return (*self._path, self._count)

    def inside(
        self, body: Callable[..., Any], name: Any, times: int = 1, sometimes: bool = False
    ) -> Callable[..., Any]:
        """Return the body of a loop or a branch, whose places are named apart."""

        @functools.wraps(body)
        def run(*values: Any) -> Any:
            before = self._path, self._count, self.times, self.sometimes
            self._path, self._count = (*self._path, name), 0
            self.times, self.sometimes = self.times * times, self.sometimes or sometimes
            try:
                return body(*values)
            finally:
                self._path, self._count, self.times, self.sometimes = before

        return run


class TracedPeers(RemotePeers):
    """The verbs of a network, with every message written down."""

    def __init__(self, tables: Tables, recorder: Recorder, coder: Coder | None, hub: bool, all_to_all: int):
        super().__init__(tables, Line(), coder, hub, all_to_all=all_to_all)
        self.recorder = recorder

    def __getattribute__(self, name: str) -> Any:
        """Note which verb runs."""
        found = super().__getattribute__(name)
        return self._noted(name, found) if name in VERBS else found

    def _noted(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            before, self.recorder.verb = self.recorder.verb, name
            try:
                return verb(*args, **options)
            finally:
                self.recorder.verb = before

        return run

    def loop(self, times: int, body: Callable, start: Any) -> Any:
        """See `Peers.loop`."""
        return super().loop(times, self.recorder.inside(body, self.recorder.place(), times), start)

    def choose(self, flag: jax.Array, yes: Callable, no: Callable, value: Any) -> Any:
        """See `Peers.choose`."""
        place = self.recorder.place()
        branches = [self.recorder.inside(b, (*place, n), sometimes=True) for b, n in ((yes, "yes"), (no, "no"))]
        return super().choose(flag, branches[0], branches[1], value)

    def _to_slots(self, message: Outgoing, *args: Any, **options: Any) -> Any:
        self._add_message(message, "listeners")
        return super()._to_slots(message, *args, **options)

    def _acknowledge(self, arrived: jax.Array) -> tuple[jax.Array, jax.Array]:
        self.recorder.add("receipt", "neighbours", (), 1)
        return super()._acknowledge(arrived)

    def _swap_slots(self, x: Any, *args: Any, **options: Any) -> Any:
        self.recorder.add(self.recorder.verb, "neighbours", x, 2)
        return super()._swap_slots(x, *args, **options)

    def _ask_slots(self, fn: Callable, message: Outgoing, own: Any) -> Any:
        self._add_message(message, "neighbours")
        received, like = super()._ask_slots(fn, message, own)
        self.recorder.add("answer", "listeners", like, 1)
        return received, like

    def _to_hub(
        self, x: Any, active: Any, certain: bool, size: Any, whole: Any = None, *args: Any, **options: Any
    ) -> Any:
        self.recorder.add(self.recorder.verb, "hub", x, 1, whole is not None)
        return super()._to_hub(x, active, certain, size, whole, *args, **options)

    def _from_hub(self, rows: Any, *args: Any, **options: Any) -> Any:
        self.recorder.add(self.recorder.verb, "everyone", rows, 1)
        return super()._from_hub(rows, *args, **options)

    def _pass_on(self, x: Any, step: Step) -> Any:
        self.recorder.add(self.recorder.verb, "partner", x, 1, step=step.number)
        return super()._pass_on(x, step)

    def _add_message(self, message: Outgoing, way: Way) -> None:
        coded = message.vector is not None
        leaves = (message.rest, message.vector) if coded else message.value
        self.recorder.add(self.recorder.verb, way, leaves, 1, coded)


def traced_messages(
    method: Method,
    task: Task,
    own: Federation,
    number: int,
    graph: Graph,
    weights: np.ndarray,
    codec: Any = None,
    hub: bool = True,
    all_to_all: int = ALL_TO_ALL,
) -> list[Sent]:
    """Return every kind of message of a run, in the order of the program.

    Args:
        method: how the clients cooperate.
        task: what each client learns.
        own: the data of one client, of which only the shapes matter.
        number: that client's number.
        graph, weights: who hears whom.
        codec: how messages are encoded; None sends them as they are.
        hub: whether a member is the hub.
        all_to_all: clients up to which, without one, everybody sends to everybody.
    """
    if isinstance(method, Solved):
        return []
    task, key, clients = method.adapt(task), jax.random.key(0), own.arrays()
    tables = make_tables(graph, weights, np.array([number]), np.dtype(task.dtype).type)
    start, found = Recorder("start"), list[Sent]()

    def init(method: Method, tables: Any, clients: Any, key: Any) -> Any:
        return method.init(task, TracedPeers(tables, start, None, hub, all_to_all), clients, key)

    def one(method: Method, tables: Any, clients: Any, key: Any, state: Any, recorder: Recorder) -> Any:
        coder = None if codec is None else Coder(codec.at_round(1), key, None)
        peers = TracedPeers(tables, recorder, coder, hub, all_to_all)
        return method.at_round(jnp.int32(1)).round(task, state, peers, clients, key)[0]

    state = jax.eval_shape(init, method, tables, clients, key)
    found += start.found.values()
    now, later = method, state
    for first in (1, *(end + 1 for end in method.stages())):
        if first > 1:
            later = jax.eval_shape(lambda now, later: now.narrow(later, lambda slots: slots), now, later)
        now, recorder = method.at_stage(first), Recorder("round", first)
        jax.eval_shape(functools.partial(one, recorder=recorder), now, tables, clients, key, later)
        found += recorder.found.values()
    for end in method.stages():
        recorder = Recorder("stage", end + 1)

        def announce(method: Method, tables: Any, state: Any, recorder: Recorder = recorder) -> Any:
            kept = method.keep(state, tables.present, graph.clients)
            return TracedPeers(tables, recorder, None, hub, all_to_all).share(kept, certain=True)

        jax.eval_shape(announce, method, tables, state)
        found += recorder.found.values()
    return found
