"""The place of one member in a run on a network: what happens between two rounds there (see `experiment/place.py`)."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from coterie.experiment.members import Members, keep_members
from coterie.experiment.place import Place
from coterie.graphs.graph import Graph
from coterie.peers import ALL_TO_ALL
from coterie.peers.line import Line
from coterie.peers.remote import Remote
from coterie.sites.control import Control
from coterie.sites.counting import CountsFile
from coterie.sites.deliveries import DeliveryLog
from coterie.sites.meeting import Meeting
from coterie.sites.recording import RecordingCarrier

__all__ = ["Network", "Site", "Status", "Transport"]


@dataclasses.dataclass
class Status:
    """What a person sees of a member while it runs.

    Attributes:
        round: the last round that has ended.
        loss: of that round.
        score: after the last evaluation.
        weights: how much it weighs each neighbour, by name; empty where the method has no weights.
        connected: the other members that are there.
        refused: how many messages were not used, by sender and reason.
        waited: seconds spent waiting for others.
    """

    round: int = 0
    loss: float | None = None
    score: float | None = None
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    connected: list[str] = dataclasses.field(default_factory=list)
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    waited: float = 0.0


class Transport(Control, Protocol):
    """What a site needs of the carrier that opens the network, besides frames."""

    @property
    def heard_round(self) -> int:
        """The highest round that members were heard in."""

    def begin_run(self, run: int) -> None:
        """Take frames of this run from now on."""


class Network(NamedTuple):
    """An open network."""

    transport: Transport
    carrier: RecordingCarrier
    meeting: Meeting


class Site(Place):
    """A member: its clients live here, those of the others elsewhere.

    Args:
        members: the names of all clients, and which of them live here.
        join: opens the network, given the size of the largest frame that is sent.
        hub: whether a member is the hub.
        folder: the folder of the run; None writes nothing.
        pace: seconds from the start of a round to that of the next one, at least: a member on a busy machine.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
        refuse: raises where this member may not go on, for example because its certificate has expired.
    """

    network: Transport
    meeting: Meeting
    carrier: RecordingCarrier

    def __init__(
        self,
        members: Members,
        join: Callable[[int], Network],
        hub: bool,
        folder: Path | None = None,
        pace: float = 0.0,
        all_to_all: int = ALL_TO_ALL,
        refuse: Callable[[], None] = lambda: None,
    ):
        self.members, self.status = members, Status()
        self._pace, self._began, self._refuse = pace, 0.0, refuse
        self._join, self._folder = join, folder
        self._line = Line()
        self._log: DeliveryLog | None = None
        self._counted: CountsFile | None = None
        self._late = False  # it came, or comes back, while the others are in the middle of the run
        self.peers = Remote(self._line, hub, all_to_all)

    def meet(self, done: int, prepare: Callable[[], None]) -> bool:
        """See `Place.meet`: compile, agree with the others, and connect."""
        assert self.members is not None
        prepare()
        self.network, self.carrier, self.meeting = self._join(self._line.largest)
        together = self.meeting.start(self.members.run, done)
        number = self.meeting.card.run
        self.members = self.members._replace(run=number)
        if self._folder is not None:
            keep_members(self._folder, self.members)
            self._log = DeliveryLog(self._folder, self.members.here, self.carrier.hub)
            if done > 0:
                self._log.restored(done)
        self.network.begin_run(number)
        self._line.connect(self.carrier, number)
        self._counted = None if self._folder is None else CountsFile(self._folder)
        self._late = not together
        # Who begins alone sends and awaits nothing for its first model: the others have theirs.
        self.carrier.alone = done < 0 and (self._late or self.meeting.card.round > 0)
        return together

    def next_round(self, number: int) -> int:
        """See `Place.next_round`."""
        time.sleep(max(0.0, self._began + self._pace - time.monotonic()))
        self._began = time.monotonic()
        self._refuse()
        self.meeting.company(number, self._refuse)
        number = max(number, self.meeting.card.round)
        if self._late or self.network.heard_round > number:
            number = self.meeting.current(number, self._late)
        self._late = False
        self.meeting.say(round=number)
        return number

    def graph_in_use(self, number: int) -> Graph | None:
        """See `Place.graph_in_use`."""
        return self.meeting.stages.graph_after(number)

    def agree(self, number: int, graph: Graph) -> Graph:
        """See `Place.agree`."""
        return self.meeting.stages.agree(number, graph)

    def round_done(self, number: int, block: Any = None, graph: Graph | None = None) -> None:
        """See `Place.round_done`: write down what arrived."""
        if self.carrier.failure is not None:
            raise self.carrier.failure
        if self._log is not None:
            self._log.round(number, self._line.deliveries)
        self._line.deliveries.clear()
        self.carrier.alone = False
        self._look(number)
        if block is None or graph is None:
            return
        self.status.loss = float(np.mean(block.loss[-1]))
        if block.weights is not None:
            assert self.members is not None
            rows = zip(self.rows(graph.neighbours)[0], self.rows(graph.present)[0], block.weights[0], strict=True)
            self.status.weights = {self.members.names[j]: float(w) for j, there, w in rows if there}

    def _look(self, number: int) -> None:
        """Note who is there and what was refused."""
        counts = self._line.counts
        with counts.lock:
            refused = {f"{who}: {why}": count for (who, why), count in counts.refused.items()}
        status = self.status
        status.round, status.connected, status.refused = number, self.meeting.others, refused
        status.waited = round(counts.waited, 3)

    def evaluated(self, row: Mapping[str, np.ndarray]) -> None:
        """See `Place.evaluated`."""
        self.status.score = float(np.mean(row["test_score"]))

    def frames(self, first: int, rounds: int) -> dict[str, np.ndarray]:
        """See `Place.frames`."""
        return self.carrier.frames(first, rounds)

    def saving(self) -> None:
        """See `Place.saving`."""
        self.carrier.sync()
        if self._log is not None:
            self._log.sync()
        if self._counted is not None:
            self._counted.save(self._line.counts, self.members.names if self.members else ())
