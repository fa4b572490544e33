"""A method on a small federation of unequal clients, to be trained in every way that the contract compares."""

import copy
import dataclasses
from typing import Any

import numpy as np

from coterie import registry
from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.solving import Fitting
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods.base import Solved, require_method
from coterie.models.linear import Linear
from coterie.models.mlp import Mlp
from coterie.peers.local import Plan
from coterie.testing.small import small_federation
from coterie.testing.two_processes import Outcome, Partner, SplitRun, train

__all__ = ["CLIENTS", "ROUNDS", "SEED", "Case"]

CLIENTS, ROUNDS, SEED = 7, 3, 5
TWO_LAYERS = Mlp(hidden=(4,), activation="tanh")


class Case:
    """A method on the contract's federation; results that several checks need are computed once."""

    def __init__(self, method: Any, partner: Partner | None = None, codec: Any = None, **settings: Any):
        cls = registry.load("methods", method) if isinstance(method, str) else method
        require_method(cls)
        fields = {field.name for field in dataclasses.fields(cls)}
        usual = {key: value for key, value in {"lr": 0.1, "batch_size": 4}.items() if key in fields}
        self.method: Any = cls(**(usual | settings))
        self.codec = codec
        self.federation = small_federation(CLIENTS)
        self.device = choose_device("cpu")
        self.model, self.task = self._model()
        self.graph, self.weights = self._graph(CLIENTS, reach=2)
        self._partner, self._owned = partner, partner is None
        self._halves: dict[tuple[float, int], Any] = {}
        self._straight: dict[str, Any] = {}
        self._engines: dict[str, Engine] = {}
        self._split: SplitRun | None = None

    def _model(self) -> tuple[Any, Task]:
        """Return a linear model and its task, or a network of two layers for a method that needs layers."""
        task = Task.of(self.federation, Linear())
        try:
            self.method.check(task, self.federation)
        except CoterieError:
            return TWO_LAYERS, Task.of(self.federation, TWO_LAYERS)
        return Linear(), task

    def _graph(self, clients: int, reach: int) -> tuple[Graph, np.ndarray]:
        if self.method.topology != "graph" or reach == 0:
            return Graph.empty(clients), np.zeros((clients, 0))
        graph = Ring(reach=reach).build(clients, 0)
        return graph, metropolis(graph)[0]

    def on(self, graph: Graph) -> "Case":
        """Return the same case on another graph, with the same partner process."""
        other = copy.copy(self)
        self._partner = other._partner = self._partner or Partner()
        other.graph, other.weights, other._halves, other._straight = graph, np.zeros(graph.present.shape), {}, {}
        other._split = None
        return other

    def training(self, mode: str = "exact", federation: Federation | None = None, **changes: Any) -> Training:
        """Return a fresh training of the method."""
        federation = federation or self.federation
        task = self.task if federation is self.federation else Task.of(federation, self.model)
        plan = Plan("exact" if mode == "exact" else "fast")
        engine = changes.pop("engine", None)
        if engine is None:
            engine = Engine(task, federation, self.device, plan, self._engines.get(mode))
            self._engines.setdefault(mode, engine)  # later ones share its programs
        method = changes.pop("method", self.method)
        graph, weights = changes.pop("graph", (self.graph, self.weights))
        kind = Fitting if isinstance(method, Solved) else Training
        return kind(engine, method, graph, weights, changes.pop("seed", SEED), codec=self.codec, **changes)

    def straight(self, mode: str) -> Outcome:
        """Return the run in one process in which everything arrives."""
        if mode not in self._straight:
            self._straight[mode] = train(self.training(mode), ROUNDS)
        return self._straight[mode]

    def halves(self, loss: float, run: int = 0) -> Any:
        """Return both halves of a run that was split over two processes and lost a fraction of its messages."""
        if (loss, run) not in self._halves:
            self._partner = self._partner or Partner()
            self._split = self._split or SplitRun(
                self.method, self.federation, self.model, self.graph, self.weights, ROUNDS, SEED, self.codec
            )
            self._halves[loss, run] = self._partner.run(self._split, loss, run)
        return self._halves[loss, run]

    def close(self) -> None:
        """End the partner process, if this case started it."""
        if self._owned and self._partner is not None:
            self._partner.close()
