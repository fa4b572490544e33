"""What a checkpoint of a run holds: the arrays to continue with, and a record of how far the run has come.

The arrays are named by their paths in `Snapshot`. The record is JSON and has the number of this format; checkpoints of
coterie 0.1 have the same arrays, but one text for each entry of the record and no number.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.storage import checkpoint
from coterie.storage.schema import checked, parse_json, plain, read_toml_text, record, table, whole, word

__all__ = ["FORMAT", "RECORD", "Record", "Saved", "Snapshot", "as_text", "load", "record_of", "save"]

FORMAT = 1
RECORD = "record"  # its name among the texts of the file
WRITTEN = ("metrics.jsonl", "ledger", "graph")
RANGES = {"best_round": whole(0), "waited": whole(0), "written": table(dict.fromkeys(WRITTEN, whole(0)))}


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
        found = [self.arrays.get(f"['graph']['{name}']") for name in ("neighbours", "present")]
        neighbours, present = found
        if neighbours is None or present is None or neighbours.ndim != 2 or neighbours.shape != present.shape:
            raise CoterieError(f"the checkpoint of round {self.round} has no graph that fits this run")
        if neighbours.size and not 0 <= neighbours.min() <= neighbours.max() < len(neighbours):
            raise CoterieError(f"the checkpoint of round {self.round} has a graph with clients that do not exist")
        return Graph(neighbours, present)

    def snapshot(self, like: Snapshot) -> Snapshot:
        """Put the arrays into the structure of `like`, whose leaves give the shapes and dtypes expected."""
        return Snapshot(**checkpoint.unpack(self.arrays, like._asdict()))


def save(folder: Path, step: int, snapshot: Snapshot, record: Record) -> None:
    """Write the checkpoint of round `step` into the folder of a run."""
    checkpoint.save(folder, step, checkpoint.pack(snapshot._asdict()), {RECORD: as_text(record)})


def as_text(record: Record) -> str:
    """Return the record as it is written."""
    return json.dumps({"format": FORMAT, **record._asdict()})


def load(folder: Path) -> Saved | None:
    """Read the newest checkpoint that is whole, if there is any."""
    loaded = checkpoint.load(folder)
    if loaded is None:
        return None
    step, arrays, meta, notes = loaded
    return Saved(step, record_of(meta, folder, step), arrays, notes)


def record_of(meta: dict[str, str], folder: Path, step: int) -> Record:
    """Return the record among the texts of a checkpoint, checked."""
    file = f"{folder / 'checkpoints'}, step-{step:08d}"
    entries = _earlier_record(meta, file) if RECORD not in meta else parse_json(meta[RECORD], file)
    known = {"format", *Record._fields}
    if isinstance(entries, dict) and (entries.get("format") == FORMAT + 1 or not entries.keys() <= known):
        raise CoterieError(f"the checkpoints of {folder} are of a newer format; resume with a newer version of coterie")
    checked(table({"format": word(FORMAT)}, rest=lambda value: value), entries, file)
    fields = {name: value for name, value in entries.items() if name != "format"}
    checked(record(Record), fields, file)
    checked(table(RANGES, rest=lambda value: value), fields, file)
    read_toml_text(entries["config"], f"{file}: config", table({}, rest=plain))
    return Record(**fields)


def _earlier_record(meta: dict[str, str], file: str) -> dict[str, Any]:
    """Return the entries of a checkpoint that coterie 0.1 wrote: each is a text of its own."""
    for name in (*Record._fields, *WRITTEN):
        if name not in meta and name != "written":
            raise CoterieError(f'{file}: "{name}" is missing')
    try:
        score = float(meta["best_score"])
        return {
            "format": FORMAT,
            "best_round": int(meta["best_round"]),
            "waited": int(meta["waited"]),
            "best_score": score if math.isfinite(score) else None,
            "written": {name: int(meta[name]) for name in WRITTEN},
            "config": meta["config"],
        }
    except ValueError as error:
        raise CoterieError(f"{file} cannot be read ({str(error)[:80]})") from None
