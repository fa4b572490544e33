"""The folder of a comparison: one file that says what is compared, and one folder per method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.experiment.config import FORMAT
from coterie.experiment.folder import REMEDY, RunFolder
from coterie.experiment.result import Result
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.toml import difference, dump_toml, read_toml, toml_value

__all__ = ["ComparisonFolder"]

FILE = "comparison.toml"


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

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else, or a comparison under other settings than this run's config."""
        if self.exists():
            written = {key: table for key, table in self.read().items() if key in _common(config)}
            changed = difference(written, _common(config))
            if changed:
                raise CoterieError(f"{self.path} holds another comparison: {changed}; {REMEDY}")
        elif self.path.exists() and (not self.path.is_dir() or any(f.suffix != ".tmp" for f in self.path.iterdir())):
            raise CoterieError(f"{self.path} exists and is not the folder of a comparison; choose another --out")

    def write(
        self, config: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]], seeds: int, command: str
    ) -> None:
        """Write down what is compared.

        Args:
            config: what all runs have in common (the config of the first run; its method is left out).
            methods: each label's complete settings.
            seeds: runs of each method.
            command: the command that repeats the comparison.
        """
        tables: dict[str, Any] = {"format": FORMAT, **_common(config)}
        tables["compare"] = {"methods": list(methods), "seeds": seeds, "command": command}
        tables |= {f"methods.{toml_value(label)}": dict(table) for label, table in methods.items()}
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        durable_write(self.path / FILE, dump_toml(tables).encode())

    def read(self) -> dict[str, Any]:
        """Return the tables of the file."""
        return read_toml(self.path / FILE)

    def results(self) -> list[tuple[str, Result]]:
        """Return every run with its label, in the order of the file."""
        tables = self.read()
        first = tables["run"]["seed"]
        paths = [
            (label, self.run(label, seed))
            for label in tables["compare"]["methods"]
            for seed in range(first, first + tables["compare"]["seeds"])
        ]
        for _, path in paths:
            if not RunFolder(path).complete:
                raise CoterieError(f"{self.path} is not complete; continue it with `coterie resume {self.path}`")
        return [(label, Result.read(path)) for label, path in paths]


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    own = ("format", "method", "codec")  # the format, and what each method has for itself
    return {section: dict(table) for section, table in config.items() if section not in own}
