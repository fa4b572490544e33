"""Run a method with its clients split over two processes, and repeat the loss of such a run in a simulation.

The half of the even-numbered clients lives in this process, the other in a partner process; they talk through a pipe
(`pipe.py`). Used by the contract that every method keeps.
"""

import contextlib
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie import registry
from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.engine import slot_taker
from coterie.graphs.graph import Graph
from coterie.methods.base import Method
from coterie.peers.base import Arrivals, Traffic, on_host
from coterie.peers.coding import Coder
from coterie.peers.line import Delivery, Line
from coterie.peers.pipe import PipeCarrier
from coterie.peers.remote import RemotePeers
from coterie.peers.tables import make_tables

__all__ = ["Half", "Partner", "Problem", "arrivals_of", "merge", "run_half"]


class Problem(NamedTuple):
    """A small run, in a form that another process can repeat."""

    method: Method
    federation: Federation
    model: Any  # a model spec
    graph: Graph
    weights: np.ndarray
    rounds: int
    seed: int
    loss: float = 0.0
    run: int = 0  # loss is drawn from the frames' headers: another run loses others
    personal: tuple[str, ...] = ()
    codec: Any = None


class Half(NamedTuple):
    """What one process knows at the end: models and losses of its clients, traffic, deliveries, bytes it sent."""

    ids: np.ndarray
    models: Any
    loss: np.ndarray  # [R, C]
    traffic: list[Traffic]  # by round, 0 is the start
    deliveries: list[Delivery]
    sent: dict[tuple[int, int], int]


class _Stage(NamedTuple):
    """One graph, with programs of its own, since callbacks know whom they address."""

    graph: Graph
    line: Line
    tables: Any
    programs: dict[str, Any]


class _Site:
    """The clients that live in one process, with the programs of every stage they have been in."""

    def __init__(self, problem: Problem, hub: bool):
        from coterie.learning.task import Task

        self.problem, self.clients, self.hub = problem, len(problem.federation), hub
        self.here = np.arange(self.clients)[0 if hub else 1 :: 2]
        task = Task.of(problem.federation, problem.model, personal=problem.personal)
        self.task = problem.method.adapt(task)
        self.data = jax.tree.map(jnp.asarray, problem.federation.select(self.here).arrays())
        self._stages: dict[bytes, _Stage] = {}

    def start(self, problem: Problem, connection: Any) -> None:
        """Begin a run of the same problem: it may lose other messages."""
        self.problem = problem
        self.carrier = PipeCarrier(connection, set(self.here.tolist()), self.hub, problem.loss)
        self.line: Any = None
        self._use(problem.graph, problem.weights)

    def _use(self, graph: Graph, weights: np.ndarray) -> None:
        """Begin a stage."""
        name = graph.neighbours.tobytes() + weights.tobytes()
        if name not in self._stages:
            tables = make_tables(graph, weights, self.here)
            line = Line(self.carrier, tables)
            self._stages[name] = _Stage(graph, line, jax.tree.map(jnp.asarray, tables), {})
        old = self.line
        self.graph, self.line, self._tables, self._programs = self._stages[name]
        self.line.carrier, self.line.run = self.carrier, self.problem.run
        self.line.deliveries = [] if old is None else old.deliveries
        self.line.round, self.line.exchange = (0, 0) if old is None else (old.round, old.exchange)
        self.memory: Any = {}  # what the codec remembers begins anew with every stage

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a function of the method with peers; returns what it returns, and the traffic."""
        line, clients, method = self.line, self.clients, self.problem.method
        functions: dict[str, Callable] = {
            "init": lambda m, peers, data, key: m.init(self.task, peers, data, key),
            "finetune": lambda m, peers, data, key, state: m.finetune(self.task, state, peers, data, key),
            "keep": lambda m, peers, data, state: peers.share(m.keep(state, peers.present, clients), certain=True)[0],
        }

        def program(method: Any, tables: Any, data: Any, *arguments: Any) -> Any:
            peers = RemotePeers(tables, clients, line)
            return functions[name](method, peers, data, *arguments), peers.traffic()

        compiled = self._programs.setdefault(name, jax.jit(program))
        return jax.block_until_ready(compiled(method, self._tables, self.data, *arguments))

    def round(self, key: jax.Array, state: Any, number: int) -> tuple[Any, Any, Traffic]:
        """Run one round; what its codec remembers stays here."""
        line, clients, codec = self.line, self.clients, self.problem.codec

        def program(
            method: Any, tables: Any, data: Any, codec: Any, key: Any, state: Any, number: Any, held: Any
        ) -> Any:
            coder = None if codec is None else Coder(codec.at_round(number), key, held)
            peers = RemotePeers(tables, clients, line, coder)
            found = method.at_round(number).round(self.task, state, peers, data, key)
            return found, peers.traffic(), peers.memory

        inputs = (self.problem.method, self._tables, self.data, codec, key, state, jnp.int32(number))
        if codec is not None and not self.memory:
            shapes = jax.eval_shape(program, *inputs, None)[2]
            self.memory = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        compiled = self._programs.setdefault("round", jax.jit(program))
        (state, info), traffic, self.memory = jax.block_until_ready(compiled(*inputs, self.memory))
        return state, info, traffic

    def next_stage(self, state: Any) -> tuple[Any, Traffic]:
        """Drop the edges that nobody keeps, as `Training.next_stage` does."""
        kept, traffic = self.call("keep", state)
        graph, slots = self.graph.keep(np.asarray(kept))
        self._use(graph, np.zeros(graph.neighbours.shape))
        return self.problem.method.narrow(state, slot_taker(slots[self.here])), traffic


_sites: dict[tuple[bytes, bool], _Site] = {}  # the last one: a problem is run several times, compiled once


def _site_of(problem: Problem, hub: bool) -> _Site:
    name = pickle.dumps(problem._replace(loss=0.0, run=0)), hub  # only a name: nothing is read back from it
    if name not in _sites:
        _sites.clear()
        _sites[name] = _Site(problem, hub)
    return _sites[name]


def run_half(problem: Problem, connection: Any, hub: bool) -> Half:
    """Run the clients that live in this process; one call of the program is one round."""
    site = _site_of(problem, hub)
    site.start(problem, connection)
    init_key, round_key, tune_key = jax.random.split(jax.random.key(problem.seed), 3)
    site.line.start_round(0)
    state, traffic = site.call("init", init_key)
    traffics, losses = [traffic], []
    for number in range(1, problem.rounds + 1):
        site.line.start_round(number)
        state, info, traffic = site.round(jax.random.fold_in(round_key, number), state, number)
        traffics.append(traffic)
        losses.append(np.asarray(info.loss))
        if number in problem.method.stages():
            state, traffic = site.next_stage(state)
            traffics.append(traffic)
    tuned, _ = site.call("finetune", jax.random.fold_in(tune_key, problem.rounds), state)
    models = problem.method.models(state) if tuned is None else tuned
    models, traffics = jax.tree.map(np.asarray, models), [on_host(traffic) for traffic in traffics]
    return Half(site.here, models, np.stack(losses), traffics, site.line.deliveries, site.carrier.bytes)


class Partner:
    """The other process; kept alive for several problems, since starting it takes seconds."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, orders = context.Pipe()
        self._line, line = context.Pipe()
        self._process = context.Process(target=_serve, args=(orders, line), daemon=True)
        self._process.start()

    def run(self, problem: Problem) -> tuple[Half, Half]:
        """Run both halves of a problem."""
        module = sys.modules[type(problem.method).__module__]
        own_file = module.__file__ if module.__name__.startswith("coterie_user_") else ""
        try:
            self._orders.send(own_file)
            self._orders.send(problem)
            refused = self._orders.recv()
        except (EOFError, ConnectionError):
            refused = "it ended at once"
        if refused is not None:
            raise CoterieError(
                f"a second process cannot import {type(problem.method).__name__} ({refused}): put it in a file of its "
                "own, and what runs there below `if __name__ == '__main__':`"
            )
        return run_half(problem, self._line, hub=True), self._orders.recv()

    def close(self) -> None:
        """End the partner process."""
        with contextlib.suppress(ConnectionError):  # it may have died of what is being reported
            self._orders.send(None)
        self._process.join(30)


def _serve(orders: Any, line: Any) -> None:
    while (own_file := orders.recv()) is not None:
        try:
            if own_file:
                registry.module_from_file(own_file)
            problem = orders.recv()
        except (AttributeError, ImportError) as error:  # the method's class cannot be found from here
            orders.send(str(error))
            continue
        orders.send(None)
        orders.send(run_half(problem, line, hub=False))


def merge(halves: Sequence[Half], what: str) -> Any:
    """Put both halves' models (or losses, transposed to `[C, R]`) together in id order."""
    ids = np.concatenate([half.ids for half in halves])
    values = [half.loss.T if what == "loss" else getattr(half, what) for half in halves]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[np.argsort(ids)], *values)


def arrivals_of(halves: Sequence[Half], rounds: int) -> list[Arrivals]:
    """Turn the deliveries of both halves into the loss that a simulation repeats, by round; 0 is the start."""
    hub, other = halves
    exchanges: list[list[Delivery]] = [[] for _ in range(rounds + 1)]
    for mine, theirs in zip(hub.deliveries, other.deliveries, strict=True):
        if mine.down is not None:  # the way back of the exchange before it
            before = exchanges[mine.round][-1]
            exchanges[mine.round][-1] = before._replace(down=_together(halves, mine.down, theirs.down))
        elif mine.up is not None:
            exchanges[mine.round].append(mine)
        else:
            exchanges[mine.round].append(mine._replace(edges=_together(halves, mine.edges, theirs.edges)))
    clients = sum(len(half.ids) for half in halves)
    return [_table(row, clients) for row in exchanges]


def _table(exchanges: list[Delivery], clients: int) -> Arrivals:
    """Stack the exchanges of one round; what was not part of an exchange arrived."""
    slots = max((d.edges.shape[1] for d in exchanges if d.edges is not None), default=0)
    shapes = {"edges": (clients, slots), "up": (clients,), "down": (clients,)}
    found: dict[str, Any] = {name: np.ones((max(1, len(exchanges)), *shape), bool) for name, shape in shapes.items()}
    for t, delivery in enumerate(exchanges):
        for name, arrived in found.items():
            if getattr(delivery, name) is not None:
                arrived[t] = getattr(delivery, name)
    return Arrivals(**found)


def _together(halves: Sequence[Half], mine: Any, theirs: Any) -> np.ndarray:
    ids = np.concatenate([half.ids for half in halves])
    return np.concatenate([mine, theirs])[np.argsort(ids)]
