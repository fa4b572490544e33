"""A federation without anybody's rows: what a run is, for everything that only needs shapes (check, disclose)."""

import dataclasses
from functools import cached_property

import numpy as np

from coterie.data.clients import Federation, stack
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job, make_graph, make_task, needs_data, precision
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.peers.pushed import push_steps
from coterie.sites.contract import Contract
from coterie.sites.data import load_everyone
from coterie.sites.federation import FederationFile
from coterie.sites.tracing import Sent, traced_messages

__all__ = ["Outline"]

ROWS = 8  # of the stand-in for a site's table


@dataclasses.dataclass(frozen=True)
class Outline:
    """The run of a federation without its data: task, graph and messages.

    Attributes:
        federation: the shared file.
        experiment: the run, with everything decided.
        one: the data of one member, or zeros of their shapes.
        task: what each member learns.
        graph: who hears whom at the start.
        weights: the mixing weights of the graph.
    """

    federation: FederationFile
    experiment: Experiment
    one: Federation
    task: Task
    graph: Graph
    weights: np.ndarray

    @classmethod
    def of(cls, federation: FederationFile) -> "Outline":
        """Build task and graph: of the data that the shared file names, or of the column contract alone."""
        experiment, method = federation.experiment, federation.experiment.method.spec
        if needs_data(method, experiment.graph):
            raise CoterieError(
                f"graph {experiment.graph.name} is made from the data of all members for {experiment.method.name}, and "
                "nobody has them; choose another graph, for example complete"
            )
        if federation.contract is None:
            job = Job.of(*load_everyone(federation))
            one = job.federation.select([0])
            return cls(federation, job.experiment, one, job.task, job.graph, job.weights)
        one = _stand_in(federation.contract, federation)
        task = make_task(experiment, one)
        method.check(task, one)
        graph, weights = make_graph(method, experiment.graph, len(federation.members))
        return cls(federation, experiment, one, task, graph, weights)

    @property
    def personal(self) -> list[str]:
        """The names of the parts of a model that never leave a site."""
        return self.experiment.method.spec.adapt(self.task).personal_names

    @cached_property
    def messages(self) -> list[Sent]:
        """Every kind of message of the run."""
        method, codec = self.experiment.method.spec, self.experiment.codec
        coded = codec.spec if codec.name != "none" and method.topology != "none" else None
        with precision(self.experiment.run.precision):
            hub, all_to_all = self.federation.hub is not None, self.experiment.run.all_to_all
            return traced_messages(method, self.task, self.one, 0, self.graph, self.weights, coded, hub, all_to_all)

    def receivers(self, sent: Sent, number: int) -> list[int]:
        """Return to whom a member sends a kind of message, by number; without a hub everyone is its own."""
        hub = None if self.federation.hub is None else self.federation.number(self.federation.hub)
        everyone = [i for i in range(len(self.federation.members)) if i != number]
        if sent.way == "hub":
            return everyone if hub is None else [hub] * (hub != number)
        if sent.way == "everyone":
            return everyone if hub == number else []
        if sent.way == "partner":
            partner = int(push_steps(len(self.federation.members))[sent.step].sends[number])
            return [partner] if partner >= 0 else []
        if sent.way == "neighbours":
            return sorted(self.graph.neighbours[number][self.graph.present[number]].tolist())
        listeners, listening = self.graph.listeners
        return sorted(listeners[number][listening[number]].tolist())

    def pairs(self) -> set[tuple[int, int]]:
        """Return every (sender, receiver) of the run."""
        numbers = range(len(self.federation.members))
        return {(i, j) for sent in self.messages for i in numbers for j in self.receivers(sent, i)}

    def round_bytes(self, number: int) -> int:
        """Return the bytes that a member sends in a round, at most: with everything that depends on chance."""
        stages = sorted({sent.first for sent in self.messages if sent.phase == "round"})
        return max((self._bytes("round", first, number) for first in stages), default=0)

    def total_bytes(self, number: int) -> int:
        """Return the bytes that a member sends in the whole run, at most."""
        rounds = self.experiment.run.rounds
        stages = sorted({sent.first for sent in self.messages if sent.phase == "round"})
        lengths = np.diff([*(min(first, rounds + 1) for first in stages), rounds + 1])
        total = sum(self._bytes("round", first, number) * int(n) for first, n in zip(stages, lengths, strict=True))
        ends = [sent.first for sent in self.messages if sent.phase == "stage" and sent.first <= rounds]
        return total + self._bytes("start", 1, number) + sum(self._bytes("stage", e, number) for e in set(ends))

    def _bytes(self, phase: str, first: int, number: int) -> int:
        return sum(
            sent.times * sent.size * len(self.receivers(sent, number))
            for sent in self.messages
            if (sent.phase, sent.first) == (phase, first)
        )


def _stand_in(contract: Contract, federation: FederationFile) -> Federation:
    """Return a federation of one member with rows of zeros in place of its table."""
    made = contract.preparation
    x = np.zeros((ROWS, len(made.features)), made.dtype)
    classes = len(made.target.class_names)
    y = (np.arange(ROWS) % classes).astype(np.int32) if classes else np.linspace(-1, 1, ROWS)
    groups = [member.group for member in federation.members if member.group is not None]
    part = stack([(x, y)])
    return Federation(
        names=(federation.names[0],),
        train=part,
        validation=part,
        test=part,
        kind=made.target.kind,
        classes=classes or 1,
        groups=np.zeros(1, np.int64) if groups else None,
        group_count=len(set(groups)),
        class_names=made.target.class_names,
        target_mean=made.target.mean,
        target_std=made.target.std,
        preparation=made,
    )
