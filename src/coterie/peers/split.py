"""Run a method with its clients split over two processes, and repeat the loss of such a run in a simulation.

The half of the even-numbered clients lives in this process, the other in a partner process; they talk through a pipe
(`pipe.py`). Used by the contract that every method keeps.
"""

import contextlib
import multiprocessing
import pickle
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie import registry
from coterie.clients import Federation
from coterie.errors import CoterieError
from coterie.graph import Graph
from coterie.peers.base import Arrivals, Traffic
from coterie.peers.pipe import PipeCarrier
from coterie.peers.remote import Delivery, Line, RemotePeers
from coterie.peers.tables import make_tables

__all__ = ["Half", "Partner", "Problem", "arrivals_of", "merge", "run_half"]


class Problem(NamedTuple):
    """A small run, in a form that another process can repeat."""

    method: Any
    federation: Federation
    model: Any  # a model spec
    graph: Graph
    weights: np.ndarray
    rounds: int
    seed: int
    loss: float = 0.0
    run: int = 0  # loss is drawn from the frames' headers: another run loses others
    personal: tuple[str, ...] = ()


class Half(NamedTuple):
    """What one process knows at the end: models and losses of its clients, traffic, deliveries, bytes it sent."""

    ids: np.ndarray
    models: Any
    loss: np.ndarray  # [R, C]
    traffic: list[Traffic]  # by round, 0 is the start
    deliveries: list[Delivery]
    sent: dict[tuple[int, int], int]


def run_half(problem: Problem, connection: Any, hub: bool) -> Half:
    """Run the clients that live in this process; one call of the program is one round."""
    from coterie.task import Task

    clients = len(problem.federation)
    here = np.arange(clients)[0 if hub else 1 :: 2]
    task = Task.of(problem.federation, problem.model, personal=problem.personal)
    host_tables = make_tables(problem.graph, problem.weights, here)
    tables = jax.tree.map(jnp.asarray, host_tables)
    data = jax.tree.map(jnp.asarray, problem.federation.select(here).arrays())
    carrier = PipeCarrier(connection, set(here.tolist()), hub, problem.loss)
    line = Line(carrier, host_tables, problem.run)
    init_key, round_key, tune_key = jax.random.split(jax.random.key(problem.seed), 3)

    @jax.jit
    def start(method: Any, tables: Any, data: Any, key: jax.Array) -> Any:
        peers = RemotePeers(tables, clients, line)
        return method.init(task, peers, data, key), peers.traffic()

    @jax.jit
    def advance(method: Any, tables: Any, data: Any, key: jax.Array, state: Any, number: jax.Array) -> Any:
        peers = RemotePeers(tables, clients, line)
        state, info = method.round(task, state, peers, data, jax.random.fold_in(key, number))
        return state, info, peers.traffic()

    line.start_round(0)
    state, traffic = jax.block_until_ready(start(problem.method, tables, data, init_key))
    traffics, losses = [traffic], []
    for number in range(1, problem.rounds + 1):
        line.start_round(number)
        step = advance(problem.method, tables, data, round_key, state, jnp.int32(number))
        state, info, traffic = jax.block_until_ready(step)
        traffics.append(traffic)
        losses.append(np.asarray(info.loss))
    if hasattr(problem.method, "finetune"):
        peers = RemotePeers(tables, clients, line)
        key = jax.random.fold_in(tune_key, problem.rounds)
        models = jax.jit(lambda state, data: problem.method.finetune(task, state, peers, data, key))(state, data)
    else:
        models = problem.method.models(state)
    host = jax.tree.map(np.asarray, (models, traffics))
    return Half(here, host[0], np.stack(losses), host[1], line.deliveries, carrier.bytes)


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
        own_file = module.__file__ if module.__name__.startswith("coterie_user_") else None
        try:
            self._orders.send((own_file, pickle.dumps(problem)))
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
    while (order := orders.recv()) is not None:
        own_file, packed = order
        try:
            if own_file is not None:
                registry.module_from_file(own_file)
            problem = pickle.loads(packed)
        except (AttributeError, ImportError) as error:
            orders.send(str(error))
            continue
        orders.send(None)
        orders.send(run_half(problem, line, hub=False))


def merge(halves: Sequence[Half], what: str) -> Any:
    """Put both halves' models (or losses, transposed to `[C, R]`) together in id order."""
    ids = np.concatenate([half.ids for half in halves])
    values = [half.loss.T if what == "loss" else getattr(half, what) for half in halves]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[np.argsort(ids)], *values)


def arrivals_of(halves: Sequence[Half], graph: Graph, rounds: int) -> Arrivals:
    """Turn the deliveries of both halves into the loss that a simulation repeats: row r is round r, 0 is the start."""
    hub, other = halves
    clients, slots = graph.neighbours.shape
    exchanges: list[list[Delivery]] = [[] for _ in range(rounds + 1)]
    for mine, theirs in zip(hub.deliveries, other.deliveries, strict=True):
        if mine.down is not None:  # the way back of the exchange before it
            before = exchanges[mine.round][-1]
            exchanges[mine.round][-1] = before._replace(down=_together(halves, mine.down, theirs.down))
        elif mine.up is not None:
            exchanges[mine.round].append(mine)
        else:
            exchanges[mine.round].append(mine._replace(edges=_together(halves, mine.edges, theirs.edges)))
    longest = max(map(len, exchanges))
    shapes = {"edges": (clients, slots), "up": (clients,), "down": (clients,)}
    found: dict[str, Any] = {name: np.ones((rounds + 1, longest, *shape), bool) for name, shape in shapes.items()}
    for r, row in enumerate(exchanges):
        for t, delivery in enumerate(row):
            for name, arrived in found.items():
                if getattr(delivery, name) is not None:
                    arrived[r, t] = getattr(delivery, name)
    return Arrivals(**found)


def _together(halves: Sequence[Half], mine: Any, theirs: Any) -> np.ndarray:
    ids = np.concatenate([half.ids for half in halves])
    return np.concatenate([mine, theirs])[np.argsort(ids)]
