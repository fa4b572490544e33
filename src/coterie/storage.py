"""A run is a folder. What is in it, how it is written so that nothing is lost, and how it is read back. No JAX here.

    config.toml       resolved and complete: `coterie run config.toml` repeats the run
    clients.json      names, sizes and labels of the clients
    metrics.jsonl     one line an evaluation, every metric of every client; no times, so that runs can be compared
    timing.jsonl      one line a block of rounds: seconds, and how many of them inside the compiled program
    graph/            weights over the slots at each evaluation (where the method has any)
    ledger/           messages and bytes per edge and round
    checkpoints/      the last two
    models/           one safetensors file a client
    summary.json      written last: the run is complete
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from coterie.checkpoint import cut_lines, durable_write, storage_errors
from coterie.clients import Federation
from coterie.config import dump_toml, read_toml
from coterie.errors import CoterieError
from coterie.ledger import Ledger

__all__ = ["RunFolder", "about_clients", "model_file"]


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    # -- writing ----------------------------------------------------------------------------------------------

    def create(self, config: dict[str, Any], federation: Federation) -> None:
        """Make the folder, or accept one that holds the same experiment; refuse any other."""
        if self.exists():
            self.check_same(config)
            return
        if self.path.exists() and not self._only_begun():
            raise CoterieError(f"{self.path} exists and is not the folder of a run; choose another --out")
        with storage_errors(self.path):
            for name in ("graph", "ledger", "checkpoints"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        durable_write(self.path / "clients.json", json.dumps(about_clients(federation)).encode())
        durable_write(self.path / "config.toml", dump_toml(config).encode())

    def exists(self) -> bool:
        """Whether this is the folder of a run."""
        return (self.path / "config.toml").is_file()

    def _only_begun(self) -> bool:
        """Whether there is nothing but what a run leaves that was killed while it made its folder."""
        begun = {"graph", "ledger", "checkpoints", "clients.json", "clients.json.tmp", "config.toml.tmp"}
        return self.path.is_dir() and all(file.name in begun for file in self.path.iterdir())

    def check_same(self, config: dict[str, Any]) -> None:
        """Refuse to continue a run with another experiment, naming the first key that differs."""
        held = read_toml(self.path / "config.toml")
        for section in sorted(held.keys() | config.keys()):
            ours, theirs = config.get(section), held.get(section)
            if not isinstance(ours, dict) or not isinstance(theirs, dict):
                ours, theirs = {"": ours}, {"": theirs}
            for key in sorted(ours.keys() | theirs.keys()):
                if ours.get(key) != theirs.get(key):
                    name = f"{section}.{key}".rstrip(".")
                    raise CoterieError(
                        f"{self.path} holds another experiment: {name} is {theirs.get(key)!r} there and {ours.get(key)!r} "
                        "here; choose another --out or remove the folder"
                    )

    def append(self, file: str, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        with storage_errors(self.path), open(self.path / file, "a") as stream:
            stream.write(json.dumps(line) + "\n")

    def save_arrays(self, folder: str, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the graph or the ledger of the block that ends with round `number`."""
        with storage_errors(self.path):
            np.savez_compressed(self.path / folder / f"{number:08d}.npz", **arrays)  # type: ignore[arg-type]

    def cut(self, number: int) -> None:
        """Forget everything after round `number`, torn lines too: the run continues from there."""
        for file in ("metrics.jsonl", "timing.jsonl"):
            cut_lines(self.path / file, lambda line: line["round"] <= number)
        for folder in ("graph", "ledger"):
            for file_path in (self.path / folder).glob("*"):
                if not file_path.stem.isdigit() or int(file_path.stem) > number:
                    file_path.unlink()

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as complete."""
        durable_write(self.path / "summary.json", json.dumps(summary, indent=1).encode())

    # -- reading ----------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether the run has ended."""
        return (self.path / "summary.json").is_file()

    def config(self) -> dict[str, Any]:
        """Return the config of the run."""
        if not self.exists():
            raise CoterieError(f"{self.path} is not the folder of a run: it has no config.toml")
        return read_toml(self.path / "config.toml")

    def clients(self) -> dict[str, Any]:
        """Return names, sizes and labels of the clients."""
        return self._json("clients.json")

    def summary(self) -> dict[str, Any]:
        """Return the summary of a complete run."""
        return self._json("summary.json")

    def _json(self, file: str) -> dict[str, Any]:
        try:
            return json.loads((self.path / file).read_text())
        except (OSError, ValueError) as error:
            raise CoterieError(f"{self.path / file} cannot be read ({error}); the run is not complete") from None

    def lines(self, file: str) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl or timing.jsonl (a torn last one is left out)."""
        path = self.path / file
        found = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def graphs(self) -> dict[int, dict[str, np.ndarray]]:
        """Return `neighbours`, `present` and `weights` by round."""
        found = {}
        for file in sorted((self.path / "graph").glob("*.npz")):
            with np.load(file) as arrays:
                found[int(file.stem)] = dict(arrays)
        return found

    def ledger(self) -> Ledger:
        """Return what was sent."""
        names = tuple(self.clients()["names"])
        files = sorted((self.path / "ledger").glob("[0-9]*.npz"))
        neighbours = np.zeros((len(names), 0), np.int32)
        if files:
            with np.load(files[0]) as arrays:
                neighbours = arrays["neighbours"] if "neighbours" in arrays else neighbours
        return Ledger.read(names, neighbours, files)


def model_file(index: int, name: str) -> str:
    """Return the file name of a client's model: any client name makes a safe one."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "client"
    return f"{index:05d}-{slug}.safetensors"


def about_clients(federation: Federation) -> dict[str, Any]:
    """Return names, sizes, labels and groups of the clients, as plain values."""
    return {
        "names": list(federation.names),
        "kind": federation.kind,
        "classes": federation.classes,
        "about": federation.about,
        "groups": None if federation.groups is None else np.asarray(federation.groups).tolist(),
        "sizes": {part: np.asarray(getattr(federation, part).count).tolist() for part in ("train", "validation", "test")},
        "label_counts": federation.label_counts().tolist() if len(federation) <= 5000 else [],
    }
