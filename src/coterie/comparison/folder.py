"""The folder of a comparison: one file that says what is compared, and one folder per method.

coterie.json                 the marker, written first: this is the folder of a comparison
comparison.toml              what is compared; `coterie compare` reads it, too
machine.json                 the kind and number of devices it began on
lock                         locked by the process that writes here
<label>/seed-<n>/            a run
<label>/tuning-<split>.json  what was tried and chosen before the runs of a split
<label>/failure.json         why a method has no result
"""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.comparison.tuning import read_tuning
from coterie.errors import CoterieError
from coterie.experiment.config import FORMAT
from coterie.experiment.folder import REMEDY, RunFolder
from coterie.experiment.result import Result
from coterie.experiment.schemas import read_comparison
from coterie.storage.commands import command
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.owned import OwnedFolder, Unreadable, holds, inside
from coterie.storage.schema import plain, read_json, table, text
from coterie.storage.toml import difference, dump_toml, toml_value

__all__ = ["ComparisonFolder"]

FILE = "comparison.toml"
SEED_FOLDER = re.compile(r"seed-\d{1,20}")
TUNING_FILE = re.compile(r"tuning-\d{1,6}\.json(\.tmp)?|failure\.json\.tmp")
FAILURE = table({"failure": text, "config": table({}, rest=plain)})


class ComparisonFolder:
    """The folder of a comparison: `comparison.toml`, which `coterie compare` reads too, and one folder per method."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.owned = OwnedFolder(self.path, "comparison")

    def exists(self) -> bool:
        """Whether this looks like the folder of a comparison."""
        return holds(self.path, FILE)

    def is_ours(self) -> bool:
        """Whether it may be written to: by its marker, or by what earlier versions wrote, which had none."""
        if self.owned.marked:
            return True
        try:
            return self.exists() and "format" in read_comparison(self.path)
        except CoterieError:
            return False

    def run(self, label: str, seed: int) -> Path:
        """Return the folder of one run."""
        return inside(self.path, label, f"seed-{seed}")

    def tuning_file(self, label: str, split: int) -> Path:
        """Return the file that says how the runs of a split were tuned."""
        return inside(self.path, label, f"tuning-{split}.json")

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep every other process from writing to the folder."""
        return self.owned.lock()

    def check(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else, or a comparison under other settings.

        Args:
            config: that of the first run; all but its method must be the same.
            settings: what of the `[compare]` section must be the same.
        """
        if not self.is_ours():
            if not self.owned.fresh:
                raise self.owned.refuse()
        elif self.exists():
            tables = self.read()
            written = {key: table for key, table in tables.items() if key in _common(config)}
            written["compare"] = {key: tables["compare"].get(key) for key in settings}
            changed = difference(written, {**_common(config), "compare": dict(settings)})
            if changed:
                raise CoterieError(f"{self.path} holds another comparison: {changed}; {REMEDY}")

    def write(
        self, config: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
    ) -> None:
        """Write down what is compared.

        Args:
            config: what all runs have in common (the config of the first run; its method is left out).
            methods: each label's settings, but those that are tuned.
            settings: the other keys of the `[compare]` section.
        """
        tables: dict[str, Any] = {"format": FORMAT, **_common(config)}
        tables["compare"] = {"methods": list(methods), **settings}
        tables |= {f"methods.{toml_value(label)}": dict(table) for label, table in methods.items()}
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.owned.mark()
        durable_write(inside(self.path, FILE), dump_toml(tables).encode())

    def read(self) -> dict[str, Any]:
        """Return the tables of the file."""
        return read_comparison(self.path)

    def results(self) -> dict[str, list[Result]]:
        """Return the runs of every method that did not fail, in the order of the file."""
        tables = self.read()
        first, failed = tables["run"]["seed"], self.failures()
        seeds = range(first, first + max(tables["compare"]["seeds"], tables["compare"]["splits"]))
        labels = [label for label in tables["compare"]["methods"] if label not in failed]
        for label in labels:
            if not all(RunFolder(self.run(label, seed)).complete for seed in seeds):
                raise CoterieError(f"{self.path} is not complete; continue it with `{command('resume', self.path)}`")
        return {label: [Result.read(self.run(label, seed)) for seed in seeds] for label in labels}

    def fail(self, label: str, sentence: str, config: Mapping[str, Any]) -> None:
        """Write down why a method has no result, and with which settings."""
        record = json.dumps({"failure": sentence, "config": dict(config)}, indent=1)
        with storage_errors(self.path):
            inside(self.path, label).mkdir(parents=True, exist_ok=True)
        durable_write(inside(self.path, label, "failure.json"), record.encode())

    def failure(self, label: str) -> dict[str, Any] | None:
        """Return why a method has no result (`failure`) and its `config`; None if nothing says so."""
        if not holds(self.path, label, "failure.json"):
            return None
        try:
            return read_json(inside(self.path, label), "failure.json", FAILURE)
        except Unreadable as error:
            raise CoterieError(f"{error}; remove it to train the method again") from None

    def forget(self, label: str) -> None:
        """Remove what there is of a method without a result, which is going to be tried with other settings."""
        for name in self.owned.names(label, SEED_FOLDER):
            RunFolder(inside(self.path, label, name)).remove()
        self.owned.remove(label, *self.owned.names(label, TUNING_FILE))
        self.owned.remove(label, "failure.json")  # last: it says that there is something to forget

    def failures(self) -> dict[str, str]:
        """Return the methods that have no result, and why."""
        records = {label: self.failure(label) for label in self.read()["compare"]["methods"]}
        return {label: record["failure"] for label, record in records.items() if record is not None}

    def tuning(self) -> dict[str, list[dict[str, Any]]]:
        """Return what was tried and chosen, for every method that was tuned and every split."""
        tables = self.read()["compare"]
        records = {
            label: [read_tuning(self.tuning_file(label, split)) for split in range(tables["splits"])]
            for label in tables["methods"]
        }
        return {label: [r for r in each if r is not None] for label, each in records.items() if any(each)}


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    own = ("format", "method", "codec")  # the format, and what each method has for itself
    return {section: dict(table) for section, table in config.items() if section not in own}
