"""Run a method with its clients split over two processes, and repeat the loss of such a run in a simulation.

The even-numbered clients live in this process, the others in a partner process; they talk through a pipe
(`peers/pipe.py`). Both run the same `Training` as a simulation, with another factory of peers. Used by the contract
that every method keeps.
"""

import contextlib
import multiprocessing
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from coterie import registry
from coterie.codecs.base import Codec
from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods.base import Method
from coterie.numerics.tree import for_each
from coterie.peers import ALL_TO_ALL
from coterie.peers.base import Arrivals
from coterie.peers.faults import Faults
from coterie.peers.faulty import FaultyCarrier
from coterie.peers.injection import Injection
from coterie.peers.line import Carrier, Delivery, Line
from coterie.peers.local import Plan
from coterie.peers.pipe import PipeCarrier
from coterie.peers.remote import Remote
from coterie.sites.deliveries import Round, arrivals_in_round

__all__ = ["Half", "Outcome", "Partner", "Site", "SplitRun", "arrivals_of", "merge", "train"]


class SplitRun(NamedTuple):
    """A small run, in a form that another process can repeat."""

    method: Method
    federation: Federation
    model: Any  # a model spec
    graph: Graph
    weights: np.ndarray
    rounds: int
    seed: int
    codec: Codec | None = None
    hub: bool = True
    robust: float | None = None
    all_to_all: int = ALL_TO_ALL


class Outcome(NamedTuple):
    """What a training gives: its last state, models on the host, losses, and the traffic with the graph it used."""

    state: Any
    models: Any
    loss: np.ndarray  # [R, C]
    traffic: list[tuple[Any, Graph]]


class Half(NamedTuple):
    """What one process knows at the end: models and losses of its clients, deliveries, bytes that its carrier sent, and
    the traffic that its own ledger counted."""

    ids: np.ndarray
    models: Any
    loss: np.ndarray  # [R, C]
    deliveries: list[Delivery]
    sent: dict[tuple[int, int], int]
    traffic: list[Any]


def train(training: Training, rounds: int, arrivals: Sequence[Arrivals] | None = None) -> Outcome:
    """Train from the start for some rounds; `arrivals` is a recorded loss to repeat, by round, 0 being the start."""
    state, opening = training.init(None if arrivals is None else arrivals[0])
    traffic, losses, done = [(opening.traffic, training.graph)], [], 0
    while done < rounds:
        count, graph = training.rounds_to_stage(done + 1, rounds - done), training.graph
        lost = None if arrivals is None else _stacked(arrivals[done + 1 : done + 1 + count])
        state, block = training.advance(state, done + 1, count, lost)
        done += count
        state, news = training.next_stage(state, done)
        traffic += [(part, graph) for part in (block.traffic, news) if part is not None]
        losses.append(block.loss)
    models = for_each(jax.device_get(training.models(state, rounds)), training.engine.size)
    return Outcome(state, models, np.concatenate(losses), traffic)


def _stacked(arrivals: Sequence[Arrivals]) -> Arrivals:
    """Stack the arrivals of several rounds; in exchanges that a round lacks everything arrives."""
    longest = max(len(one.up) for one in arrivals)

    def padded(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.ones((longest - len(a), *a.shape[1:]), bool)])

    return jax.tree.map(lambda *parts: np.stack([padded(part) for part in parts]), *arrivals)


class Site:
    """The clients that live in one process: their data, and programs that are compiled once for several runs."""

    def __init__(self, what: SplitRun, ids: np.ndarray):
        self.what, self.ids = what, ids
        task = Task.of(what.federation, what.model)
        self.engine = Engine(task, what.federation.select(ids), choose_device("cpu"), Plan("exact"))
        self.line = Line()

    def run(self, carrier: Carrier, number: int, faults: Faults = Faults.NONE) -> Half:
        """Train these clients over a carrier; all processes of a run have the same `number` and faults."""
        injection = Injection.of(faults, self.what.federation.names, self.what.codec is not None)
        self.line.connect(carrier if injection is None else FaultyCarrier(carrier, injection), number)
        training = Training(
            self.engine,
            self.what.method,
            self.what.graph,
            self.what.weights,
            self.what.seed,
            ids=self.ids,
            codec=self.what.codec,
            peers=Remote(self.line, self.what.hub, self.what.all_to_all),
            faults=injection,
            robust=self.what.robust,
        )
        outcome = train(training, self.what.rounds)
        traffic = [part for part, _ in outcome.traffic]
        return Half(self.ids, outcome.models, outcome.loss, self.line.deliveries, dict(self.line.counts.bytes), traffic)

    def run_half(self, connection: Any, hub: bool, loss: float, number: int, faults: Faults) -> Half:
        """Train over a pipe; messages are lost by chance, others for another `number`."""
        return self.run(PipeCarrier(connection, set(self.ids.tolist()), hub, loss), number, faults)


class Partner:
    """The other process; kept alive for several runs, since starting it takes seconds."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, orders = context.Pipe()
        self._line, line = context.Pipe()
        self._process = context.Process(target=_serve, args=(orders, line), daemon=True)
        self._process.start()
        self._site: Site | None = None  # of the last run: compiled once, run with several losses

    def run(
        self, what: SplitRun, loss: float = 0.0, number: int = 0, faults: Faults = Faults.NONE
    ) -> tuple[Half, Half]:
        """Run both halves, losing a fraction of the messages (others for another `number`), or with faults."""
        if self._site is None or self._site.what is not what:
            self._open(what)
            self._site = Site(what, _half(what, hub=True))
        self._orders.send((loss, number, faults))
        return self._site.run_half(self._line, True, loss, number, faults), self._orders.recv()

    def _open(self, what: SplitRun) -> None:
        """Hand a run to the other process, which must be able to import its method."""
        try:
            self._orders.send(registry.file_of(type(what.method)))
            self._orders.send(what)
            refused = self._orders.recv()
        except (EOFError, ConnectionError):
            refused = "it ended at once"
        if refused is not None:
            raise CoterieError(
                f"a second process cannot import {type(what.method).__name__} ({refused}): put it in a file of its "
                "own, and what runs there below `if __name__ == '__main__':`"
            )

    def close(self) -> None:
        """End the partner process."""
        with contextlib.suppress(ConnectionError):  # it may have died of what is being reported
            self._orders.send(None)
        self._process.join(30)


def _serve(orders: Any, line: Any) -> None:
    """Work in the partner process: a file name announces a run, (loss, number, faults) starts it, None ends."""
    site = None
    while (order := orders.recv()) is not None:
        if isinstance(order, tuple):
            assert site is not None
            orders.send(site.run_half(line, False, *order))
            continue
        try:
            if order:
                registry.module_from_file(order)
            what = orders.recv()
            site = Site(what, _half(what, hub=False))
        except (AttributeError, ImportError) as error:  # the method's class cannot be found from here
            orders.send(str(error))
            continue
        orders.send(None)


def _half(what: SplitRun, hub: bool) -> np.ndarray:
    """Return the clients at one end: the even-numbered ones are where the hub is."""
    return np.arange(len(what.federation))[0 if hub else 1 :: 2]


def merge(halves: Sequence[Half], what: str) -> Any:
    """Put both halves' models (or losses, transposed to `[C, R]`) together in id order."""
    ids = np.concatenate([half.ids for half in halves])
    values = [half.loss.T if what == "loss" else getattr(half, what) for half in halves]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[np.argsort(ids)], *values)


def arrivals_of(halves: Sequence[Half], rounds: int) -> list[Arrivals]:
    """Turn the deliveries of both halves into the loss that a simulation repeats, by round; 0 is the start."""
    clients = sum(len(half.ids) for half in halves)
    return [
        arrivals_in_round(
            [Round(number, half.ids, [d for d in half.deliveries if d.round == number]) for half in halves], clients
        )
        for number in range(rounds + 1)
    ]
