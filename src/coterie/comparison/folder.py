"""The folder of a comparison: one file that says what is compared, and one folder per method.

comparison.toml              what is compared; `coterie compare` reads it, too
machine.json                 the kind and number of devices it began on
lock                         locked by the process that writes here
<label>/seed-<n>/            a run
<label>/tuning-<split>.json  what was tried and chosen before the runs of a split
<label>/failure.json         why a method has no result
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.comparison.tuning import read_tuning
from coterie.errors import CoterieError
from coterie.experiment.config import FORMAT
from coterie.experiment.folder import REMEDY, RunFolder
from coterie.experiment.result import Result
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.toml import difference, dump_toml, read_toml, toml_value

__all__ = ["ComparisonFolder"]

FILE = "comparison.toml"
BEFORE = {"splits": 1, "tune": False}  # what a comparison was that does not say: it was written by coterie 0.1


class ComparisonFolder:
    """The folder of a comparison: `comparison.toml`, which `coterie compare` reads too, and one folder per method."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def exists(self) -> bool:
        """Whether this is the folder of a comparison."""
        return (self.path / FILE).is_file()

    def run(self, label: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.path / label / f"seed-{seed}"

    def tuning_file(self, label: str, split: int) -> Path:
        """Return the file that says how the runs of a split were tuned."""
        return self.path / label / f"tuning-{split}.json"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from writing to the folder."""
        with RunFolder(self.path).lock():
            yield

    def check(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else, or a comparison under other settings.

        Args:
            config: that of the first run; all but its method must be the same.
            settings: what of the `[compare]` section must be the same.
        """
        if self.exists():
            tables = self.read()
            written = {key: table for key, table in tables.items() if key in _common(config)}
            written["compare"] = {key: tables["compare"].get(key) for key in settings}
            changed = difference(written, {**_common(config), "compare": dict(settings)})
            if changed:
                raise CoterieError(f"{self.path} holds another comparison: {changed}; {REMEDY}")
        elif self.path.exists() and (not self.path.is_dir() or any(map(_foreign, self.path.iterdir()))):
            raise CoterieError(f"{self.path} exists and is not the folder of a comparison; choose another --out")

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
        durable_write(self.path / FILE, dump_toml(tables).encode())

    def read(self) -> dict[str, Any]:
        """Return the tables of the file."""
        tables = read_toml(self.path / FILE)
        tables["compare"] = BEFORE | tables.get("compare", {})
        return tables

    def results(self) -> dict[str, list[Result]]:
        """Return the runs of every method that did not fail, in the order of the file."""
        tables = self.read()
        first, failed = tables["run"]["seed"], self.failures()
        seeds = range(first, first + max(tables["compare"]["seeds"], tables["compare"]["splits"]))
        paths = {
            label: [self.run(label, seed) for seed in seeds]
            for label in tables["compare"]["methods"]
            if label not in failed
        }
        for path in (path for each in paths.values() for path in each):
            if not RunFolder(path).complete:
                raise CoterieError(f"{self.path} is not complete; continue it with `coterie resume {self.path}`")
        return {label: [Result.read(path) for path in each] for label, each in paths.items()}

    def fail(self, label: str, sentence: str, config: Mapping[str, Any]) -> None:
        """Write down why a method has no result, and with which settings."""
        with storage_errors(self.path):
            (self.path / label).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"failure": sentence, "config": dict(config)}, indent=1)
        durable_write(self.path / label / "failure.json", text.encode())

    def failure(self, label: str) -> dict[str, Any] | None:
        """Return why a method has no result (`failure`) and its `config`; None if nothing says so."""
        path = self.path / label / "failure.json"
        if not path.exists():
            return None
        try:
            record = json.loads(path.read_bytes())
            return {"failure": str(record["failure"]), "config": dict(record["config"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoterieError(f"{path} cannot be read ({error}); remove it to train the method again") from None

    def forget(self, label: str) -> None:
        """Remove what there is of a method without a result, which is going to be tried with other settings."""
        with storage_errors(self.path):
            shutil.rmtree(self.path / label)

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


def _foreign(file: Path) -> bool:
    """Whether a file says that its folder is not one that a comparison has begun to make."""
    return file.suffix != ".tmp" and file.name != "lock"


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    own = ("format", "method", "codec")  # the format, and what each method has for itself
    return {section: dict(table) for section, table in config.items() if section not in own}
