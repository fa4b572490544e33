"""What a checkpoint of a run holds: the arrays to continue with, and a record of how far the run has come.

The arrays are named by their paths in `Snapshot`. The record is JSON and has the number of this format; checkpoints of
coterie 0.1 have the same arrays, but one text for each entry of the record and no number.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.storage import checkpoint

__all__ = ["FORMAT", "Record", "Saved", "Snapshot", "load", "save"]

FORMAT = 1
RECORD = "record"  # its name among the texts of the file


class Snapshot(NamedTuple):
    """The arrays of a checkpoint."""

    state: Any  # the method's, with what the codec remembers
    best: Any = None  # the best models so far, where the run keeps them
    graph: dict[str, np.ndarray] | None = None  # `neighbours` and `present`, where the method changes its graph


class Record(NamedTuple):
    """How far the run has come."""

    best_round: int
    waited: int  # evaluations since the best one
    best_score: float | None  # None where no score was compared
    written: dict[str, int]  # how many records each file or folder has
    config: str  # the config file


class Saved(NamedTuple):
    """A checkpoint as it was read: the round, its record, its arrays by name, and notes on corrupt ones."""

    round: int
    record: Record
    arrays: dict[str, np.ndarray]
    notes: list[str]

    def has(self, field: str) -> bool:
        """Whether a field of the snapshot has arrays."""
        return any(name.startswith(f"['{field}']") for name in self.arrays)

    def graph(self) -> Graph:
        """Return the graph that was in use."""
        return Graph(*(self.arrays[f"['graph']['{name}']"] for name in ("neighbours", "present")))

    def snapshot(self, like: Snapshot) -> Snapshot:
        """Put the arrays into the structure of `like`, whose leaves give the shapes and dtypes expected."""
        return Snapshot(**checkpoint.unpack(self.arrays, like._asdict()))


def save(folder: Path, number: int, snapshot: Snapshot, record: Record) -> None:
    """Write the checkpoint of round `number` into the folder of a run."""
    text = json.dumps({"format": FORMAT, **record._asdict()})
    checkpoint.save(folder, number, checkpoint.pack(snapshot._asdict()), {RECORD: text})


def load(folder: Path) -> Saved | None:
    """Read the newest checkpoint that is whole, if there is any."""
    loaded = checkpoint.load(folder)
    if loaded is None:
        return None
    number, arrays, meta, notes = loaded
    return Saved(number, _record(meta, folder), arrays, notes)


def _record(meta: dict[str, str], folder: Path) -> Record:
    if RECORD not in meta:  # written by coterie 0.1
        written = {name: int(meta[name]) for name in ("metrics.jsonl", "ledger", "graph")}
        score = float(meta["best_score"])
        return Record(
            best_round=int(meta["best_round"]),
            waited=int(meta["waited"]),
            best_score=score if np.isfinite(score) else None,
            written=written,
            config=meta["config"],
        )
    entries = json.loads(meta[RECORD])
    if entries.pop("format") > FORMAT or not entries.keys() <= set(Record._fields):
        raise CoterieError(f"the checkpoints of {folder} are of a newer format; resume with a newer version of coterie")
    return Record(**entries)
