"""What a run has recorded so far: metrics, ledger, graphs and seconds, in memory and in its folder."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.place import Place
from coterie.experiment.rounds import Rounds
from coterie.graphs.graph import Graph
from coterie.graphs.quality import graph_quality, true_groups
from coterie.peers.ledger import Ledger
from coterie.storage.arrays import narrowed

__all__ = ["History"]


class History:
    """The records of a run.

    Args:
        job: what is run.
        engine: the federation on its device; it counts the seconds.
        folder: where to write; None keeps everything in memory.
        place: where the clients live.
    """

    def __init__(self, job: Job, engine: Engine, folder: RunFolder | None, place: Place):
        self.engine, self.folder, self.place = engine, folder, place
        self.groups = None  # the true groups, to compare a learned graph with
        if job.method.learns_weights and place.members is None:
            self.groups = true_groups(job.federation.groups, job.federation.label_counts())
        names = job.federation.names if place.members is None else place.members.names
        self.ledger = Ledger(names, place.rows(job.graph.neighbours), ids=place.ids)
        self.totals = self.ledger.totals()
        self.rows: list[dict[str, Any]] = []
        self.graphs: dict[int, dict[str, np.ndarray]] = {}
        self._spent = {"wall": 0.0, **dict.fromkeys(engine.seconds, 0.0)}  # seconds before a resume
        self._started = {"wall": time.monotonic(), **engine.seconds}
        self.sharers = 1  # runs that share the seconds of this one, since they are one program

    def record(self, number: int, block: Rounds, graph: Graph, row: dict[str, np.ndarray] | None = None) -> None:
        """Record a block of rounds and the evaluation after it, if there was one; round 0 is the start."""
        first, rounds = (number - len(block.loss) + 1 if number else 0), len(block.loss)
        neighbours = self.place.rows(graph.neighbours)
        entry = self.ledger.add(first, block.traffic, neighbours, self.place.frames(first, rounds))
        cost = Ledger(self.ledger.names, self.ledger.neighbours, [entry], self.ledger.ids).totals()
        self.totals = {name: total + cost[name] for name, total in self.totals.items()}
        if row is not None:
            line = {"round": number} | {name: value.tolist() for name, value in row.items()}
            line |= {f"bytes_{name}": total.tolist() for name, total in self.totals.items()}
            line |= {name: count.tolist() for name, count in (block.counts or {}).items()}
            if block.weights is not None:
                table = {"neighbours": neighbours, "present": self.place.rows(graph.present), "weights": block.weights}
                self.graphs[number] = table
                line |= {} if self.groups is None else graph_quality(table, self.groups)
            self.rows.append(line)
        if self.folder is None:
            return
        with self.engine.profile.part("input and output"):
            self._write(self.folder, number, entry, row)

    def _write(self, folder: RunFolder, number: int, entry: dict[str, Any], row: Any) -> None:
        """Append a block of rounds to the files of the run."""
        entry = entry if number else entry | {"neighbours": self.ledger.neighbours}
        folder.save_arrays("ledger", number, {name: narrowed(array) for name, array in entry.items()})
        if row is not None and number in self.graphs:
            folder.save_arrays("graph", number, self.graphs[number])
        if row is not None:
            folder.append("metrics.jsonl", self.rows[-1])
            folder.append("timing.jsonl", {"round": number, **self.seconds(), "device": self.engine.device.label})

    def written(self) -> dict[str, int]:
        """Return how many records of each kind a checkpoint covers."""
        return {"metrics.jsonl": len(self.rows), "ledger": len(self.ledger.blocks), "graph": len(self.graphs)}

    def read_back(self, folder: RunFolder, number: int, written: Mapping[str, int]) -> None:
        """Read what was written until the checkpoint of round `number`, and cut off the rest."""
        folder.cut(number, written)
        self.rows, self.graphs, self.ledger = folder.lines("metrics.jsonl"), folder.graphs(), folder.ledger()
        self.totals = self.ledger.totals()
        times = folder.lines("timing.jsonl")
        if times:
            self._spent = {name: times[-1][name] for name in self._spent}

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent so far, those before a resume included."""
        now = {"wall": time.monotonic(), **self.engine.seconds}
        return {name: round(self._spent[name] + (now[name] - self._started[name]) / self.sharers, 4) for name in now}
