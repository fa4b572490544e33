"""The folder of a sweep.

coterie.json                      the marker, written first: this is the folder of a sweep
sweep.toml                        the experiment and what varies; `coterie sweep` reads it, too
machine.json                      the kind and number of devices it began on
lock                              locked by the process that writes here
candidate-<n>/seed-<s>/           a run
candidate-<n>/failure-<s>.json    why a run has no result
results.csv                       one row per candidate and seed
sweep.json                        the same rows and which is the best, written last: the sweep is complete
report.html                       the parallel coordinates, and the table
"""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.experiment.config import FORMAT
from coterie.experiment.folder import REMEDY, RunFolder
from coterie.storage.commands import command
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.owned import OwnedFolder, Unreadable, holds, inside, read_file
from coterie.storage.schema import (
    Mismatch,
    each,
    maybe,
    number,
    plain,
    read_json,
    read_toml_text,
    table,
    text,
    truth,
    whole,
    word,
)
from coterie.storage.toml import difference, dump_toml

__all__ = ["SUMMARY_FILE", "SWEEP_FILE", "SweepFolder", "read_summary"]

SWEEP_FILE = "sweep.toml"
SUMMARY_FILE = "sweep.json"
CHECKPOINT = re.compile(r"step-\d{8,15}\.safetensors")
SWEEP = table({"format": word(FORMAT), "sweep": table({}, rest=plain)}, rest=plain)
FAILURE = table({"failure": text, "diverged": truth, "config": table({}, rest=plain)})
COUNT = whole(1, 10**6)
FIGURE = maybe(number())
NUMBER = number(-1e300, 1e300)


def _setting(value: Any) -> Any:
    """Check the value of a setting: a number, text, true or false, or a list or table of them."""
    if isinstance(value, dict | list):
        return plain(value)
    return value if isinstance(value, str | bool) else NUMBER(value)


ROW = table(
    {
        "candidate": COUNT,
        "seed": whole(0),
        "settings": table({}, rest=_setting),
        "validation": FIGURE,
        "validation_loss": FIGURE,
        "test": FIGURE,
        "rounds": maybe(whole(0)),
        "bytes_per_client": FIGURE,
        "seconds": FIGURE,
        "diverged": truth,
        "note": text,
    }
)
SUMMARY = table(
    {
        "format": word(1),
        "metric": text,
        "command": text,
        "keys": each(text),
        "rows": each(ROW, least=1),
        "best": maybe(COUNT),
    }
)


class SweepFolder:
    """Reads and writes the folder of a sweep."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.owned = OwnedFolder(self.path, "sweep")

    def exists(self) -> bool:
        """Whether this looks like the folder of a sweep."""
        return holds(self.path, SWEEP_FILE)

    def run(self, label: str, seed: int) -> Path:
        """Return the folder of one run."""
        return inside(self.path, label, f"seed-{seed}")

    def begun_alone(self, label: str, seed: int) -> bool:
        """Whether a run has checkpoints, from which it goes on by itself; runs that are trained together have none."""
        return bool(RunFolder(self.run(label, seed)).owned.names("checkpoints", CHECKPOINT))

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep every other process from writing to the folder."""
        return self.owned.lock()

    def check(self, tables: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else, or another sweep."""
        if not self.owned.marked:
            if not self.owned.fresh:
                raise self.owned.refuse()
        elif self.exists():
            changed = difference(self.read(), dict(tables))
            if changed:
                raise CoterieError(f"{self.path} holds another sweep: {changed}; {REMEDY}")

    def write(self, tables: Mapping[str, Any]) -> None:
        """Write down what is run."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.owned.mark()
        durable_write(inside(self.path, SWEEP_FILE), dump_toml(tables).encode())

    def read(self) -> dict[str, Any]:
        """Return the sections of the file."""
        return read_toml_text(read_file(self.path, SWEEP_FILE), self.path / SWEEP_FILE, SWEEP)

    def fail(self, label: str, seed: int, sentence: str, diverged: bool, config: Mapping[str, Any]) -> None:
        """Write down why a run has no result, and with which settings."""
        record = {"failure": sentence, "diverged": diverged, "config": dict(config)}
        with storage_errors(self.path):
            inside(self.path, label).mkdir(parents=True, exist_ok=True)
        durable_write(inside(self.path, label, f"failure-{seed}.json"), json.dumps(record, indent=1).encode())

    def failure(self, label: str, seed: int) -> dict[str, Any] | None:
        """Return why a run has no result (`failure`, `diverged`); None if nothing says so."""
        name = f"failure-{seed}.json"
        if not holds(self.path, label, name):
            return None
        try:
            return read_json(inside(self.path, label), name, FAILURE)
        except Unreadable as error:
            raise CoterieError(f"{error}; remove it to train this run again") from None

    def finish(self, summary: Mapping[str, Any], csv: bytes) -> None:
        """Write the table, and last the file that makes the sweep complete."""
        durable_write(inside(self.path, "results.csv"), csv)
        durable_write(inside(self.path, SUMMARY_FILE), json.dumps({"format": 1, **summary}, indent=1).encode())

    def summary(self) -> dict[str, Any]:
        """Return the rows and the best candidate of a sweep that is complete."""
        if not holds(self.path, SUMMARY_FILE):
            raise CoterieError(f"{self.path} is not complete; continue it with `{command('resume', self.path)}`")
        return read_summary(self.path)


def _fits(value: Any) -> Any:
    """Check the rows of a sweep: all have the settings that vary, and a result or a note that says why not."""
    keys = set(SUMMARY(value)["keys"])
    for place, row in enumerate(value["rows"]):
        if row["settings"].keys() != keys:
            raise Mismatch(f"must have {', '.join(sorted(keys)) or 'no keys'}", f"rows.{place}.settings")
        complete = all(row[name] is not None for name in ("test", "rounds", "bytes_per_client", "seconds"))
        if complete == bool(row["note"]) or (row["validation"] is None) != (row["validation_loss"] is None):
            raise Mismatch("must have either all figures of a run, or a note", f"rows.{place}")
    runs = [(row["candidate"], row["seed"]) for row in value["rows"]]
    if len(set(runs)) < len(runs) or (value["best"] is not None and value["best"] not in dict(runs)):
        raise Mismatch("must name every candidate and seed once, and the best of them", "rows")
    return value


def read_summary(path: Path) -> dict[str, Any]:
    """Read sweep.json."""
    return read_json(path, SUMMARY_FILE, _fits)
