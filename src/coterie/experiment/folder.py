"""A run is a folder: what is in it, how it is written so that nothing is lost, how it is read back. No JAX here.

    config.toml       resolved and complete: `coterie run config.toml` repeats the run
    clients.json      names, sizes and labels of the clients, and a fingerprint of their data
    preparation.json  how rows of a table become inputs, where the data are a table
    metrics.jsonl     one line per evaluation, every metric of every client; no times, so that runs can be compared
    timing.jsonl      one line per evaluation: seconds so far, and how many of them inside the compiled program
    network.npz       the graph, where it was made from the clients' data
    scores.npz        every score of the kept models, and the values per test sample of those that are means
    graph/            weights over the slots at each evaluation (where the method has any)
    ledger/           messages and bytes per edge and round
    checkpoints/      the last two
    models/           one safetensors file per client, and `shared.safetensors` where a newcomer gets a shared model
    intervals.json    of a regression: how far predictions may be off (validation rows)
    summary.json      written last: the run is complete
    machine.json      the kind and number of devices it began on, which a resumed run uses again
    lock              locked by the process that runs (the system releases it when that process dies)

Metrics, timing, graph and ledger grow during the run, and are only made durable (`sync`) before a checkpoint that
covers them; whatever is newer than the newest checkpoint is cut off at resume, torn or not.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.clients import Federation
from coterie.data.tables.preparation import Preparation
from coterie.errors import CoterieError
from coterie.peers.ledger import Ledger
from coterie.storage.durable import cut_lines, durable_write, storage_errors, sync_folder
from coterie.storage.toml import difference, dump_toml, read_toml

__all__ = ["REMEDY", "RunFolder", "about_clients", "fingerprint", "model_file"]

FOLDERS = ("graph", "ledger", "checkpoints", "models")
REMEDY = "choose another --out or remove the folder"


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._unsynced: set[Path] = set()

    # -- writing ----------------------------------------------------------------------------------------------

    def check(self, config: dict[str, Any], federation: Federation) -> None:
        """Refuse a folder of anything but this experiment or the beginning of a run."""
        if not self.exists():
            if self.path.exists() and not self._is_half_made():
                raise CoterieError(f"{self.path} exists and is not the folder of a run; choose another --out")
            return
        self.check_same(config)
        if self.clients().get("digest") != fingerprint(federation):
            raise CoterieError(f"the data are not those {self.path} was started with; bring those back, or {REMEDY}")

    def check_same(self, config: dict[str, Any]) -> None:
        """Refuse a folder whose run has another config, naming the first key that differs."""
        changed = difference(self.config(), config)
        if changed:
            raise CoterieError(f"{self.path} holds another experiment: {changed}; {REMEDY}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from writing to the folder."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            stream = open(self.path / "lock", "a")  # noqa: SIM115 (open beyond this block)
        with stream:
            if not _lock_file(stream.fileno()):
                raise CoterieError(
                    f"{self.path} is in use by another process; wait until that has ended, or choose another --out"
                )
            yield

    def create(self, config: dict[str, Any], federation: Federation) -> None:
        """Make the folder of a new run; config.toml comes last and says that it is complete."""
        with storage_errors(self.path):
            for name in FOLDERS:
                (self.path / name).mkdir(exist_ok=True)
            sync_folder(self.path.absolute().parent)
        if not self.exists():
            about = about_clients(federation) | {"digest": fingerprint(federation)}
            durable_write(self.path / "clients.json", json.dumps(about).encode())
            if federation.preparation is not None:
                record = json.dumps(federation.preparation.to_dict(), ensure_ascii=False)
                durable_write(self.path / "preparation.json", record.encode(errors="replace"))
            durable_write(self.path / "config.toml", dump_toml(config).encode())

    def exists(self) -> bool:
        """Whether this is the folder of a run."""
        return (self.path / "config.toml").is_file()

    def _is_half_made(self) -> bool:
        """Whether it only has what a run leaves that was killed while it made its folder."""
        early = {*FOLDERS, "lock", "clients.json", "clients.json.tmp", "config.toml.tmp"}
        early |= {"preparation.json", "preparation.json.tmp"}
        return self.path.is_dir() and all(file.name in early for file in self.path.iterdir())

    def network(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the graph that was made from the clients' data when the run began; write this one if there is none."""
        path = self.path / "network.npz"
        if not path.exists():
            durable_write(path, _npz_bytes(arrays), run=self.path)
        return _read_arrays(path)

    def append(self, file: str, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        self._write(self.path / file, json.dumps(line).encode() + b"\n", "ab")

    def save_arrays(self, folder: str, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the graph or the ledger of the block that ends with round `number`."""
        self._write(self.path / folder / f"{number:08d}.npz", _npz_bytes(arrays))

    def save_model(self, file: str, data: bytes) -> None:
        """Write a model; all are written again at resume as long as the run is not complete."""
        self._write(self.path / "models" / file, data)

    def save_scores(self, arrays: dict[str, np.ndarray]) -> None:
        """Write all scores of the kept models."""
        self._write(self.path / "scores.npz", _npz_bytes(arrays))

    def save_record(self, file: str, record: dict[str, Any]) -> None:
        """Write a JSON file at the end of a run."""
        self._write(self.path / file, json.dumps(record).encode())

    def _write(self, path: Path, data: bytes, mode: str = "wb") -> None:
        with storage_errors(self.path), open(path, mode, buffering=0) as stream:
            rest = memoryview(data)
            while rest:  # a disk that fills up takes a part, and fails at the next write
                rest = rest[stream.write(rest) :]
        self._unsynced.add(path)

    def sync(self) -> None:
        """Make what was written survive a power cut, before a checkpoint or the summary says that it is there."""
        with storage_errors(self.path):
            for path in self._unsynced:
                with open(path, "rb+") as stream:
                    os.fsync(stream.fileno())
            for folder in {path.parent for path in self._unsynced}:
                sync_folder(folder)
        self._unsynced.clear()

    def cut(self, number: int) -> None:
        """Remove everything after round `number`, torn lines too: the run continues from there."""
        for file in ("metrics.jsonl", "timing.jsonl"):
            cut_lines(self.path / file, lambda line: line["round"] <= number)
        with storage_errors(self.path):
            for path in [*(self.path / "graph").iterdir(), *(self.path / "ledger").iterdir()]:
                if not path.stem.isdigit() or int(path.stem) > number:
                    path.unlink()

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as complete."""
        self.sync()
        durable_write(self.path / "summary.json", json.dumps(summary, indent=1).encode())

    # -- reading ----------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether the run has ended."""
        return (self.path / "summary.json").is_file()

    def config(self) -> dict[str, Any]:
        """Return the config of the run."""
        if not self.exists():
            half_made = self.path.exists() and self._is_half_made()
            why = (
                "the run was stopped before its folder was made, start it again"
                if half_made
                else "it has no config.toml"
            )
            raise CoterieError(f"{self.path} is not the folder of a run: {why}")
        return read_toml(self.path / "config.toml")

    def clients(self) -> dict[str, Any]:
        """Return names, sizes and labels of the clients."""
        return self._json("clients.json")

    def preparation(self) -> Preparation | None:
        """Return how rows of a table become inputs; None where the data were no table."""
        if not (self.path / "preparation.json").exists():
            return None
        return Preparation.from_dict(self._json("preparation.json"))

    def summary(self) -> dict[str, Any]:
        """Return the summary of a complete run."""
        return self._json("summary.json")

    def _json(self, file: str) -> dict[str, Any]:
        try:
            return json.loads((self.path / file).read_bytes())
        except (OSError, ValueError) as error:
            raise CoterieError(f"{self.path / file} cannot be read ({error}); restore it from a copy") from None

    def lines(self, file: str) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl or timing.jsonl."""
        path = self.path / file
        records = []
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
            try:
                records.append(json.loads(line))
            except ValueError:
                raise CoterieError(f"line {number} of {path} is damaged; restore the file from a copy") from None
        return records

    def graphs(self) -> dict[int, dict[str, np.ndarray]]:
        """Return `neighbours`, `present` and `weights` by round."""
        return {int(file.stem): _read_arrays(file) for file in sorted((self.path / "graph").glob("*.npz"))}

    def scores(self) -> dict[str, np.ndarray] | None:
        """Return all scores of the kept models; None for a run of version 0.1, which has only its metric."""
        path = self.path / "scores.npz"
        return _read_arrays(path) if path.exists() else None

    def ledger(self) -> Ledger:
        """Return what was sent."""
        names = tuple(self.clients()["names"])
        blocks = [_read_arrays(file) for file in sorted((self.path / "ledger").glob("*.npz"))]
        no_slots = np.zeros((len(names), 0), np.int32)
        return Ledger(names, blocks[0].pop("neighbours", no_slots) if blocks else no_slots, blocks)


def _npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(file.read_bytes())) as arrays:  # given a path, NumPy leaves a damaged file open
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CoterieError(f"{file} cannot be read ({error}); restore it from a copy") from None


def _lock_file(handle: int) -> bool:
    """Lock an open file for this process; False if another one has it."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: the folder is not protected there
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a network file system without locks
    return True


def model_file(index: int, name: str) -> str:
    """Return the file name of a client's model, safe for any client name."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "client"
    return f"{index:05d}-{slug}.safetensors"


def about_clients(federation: Federation) -> dict[str, Any]:
    """Return names, sizes, labels and groups of the clients, as plain values."""
    parts = {part: getattr(federation, part) for part in ("train", "validation", "test")}
    return {
        "names": list(federation.names),
        "kind": federation.kind,
        "classes": federation.classes,
        "about": federation.about,
        "groups": None if federation.groups is None else np.asarray(federation.groups).tolist(),
        "planted": federation.planted,
        "sizes": {part: np.asarray(split.count).tolist() for part, split in parts.items()},
        "label_counts": federation.label_counts().tolist() if len(federation) <= 5000 else [],
        "class_names": list(federation.class_names),
        "sample_shape": list(federation.sample_shape),
        "mean": [float(value) for value in federation.mean],
        "std": [float(value) for value in federation.std],
        "target_mean": federation.target_mean,
        "target_std": federation.target_std,
        "dtype": np.dtype(federation.train.x.dtype).name,
    }


def fingerprint(federation: Federation) -> str:
    """Return a digest of all clients' names and data, so that a run is not continued with other data."""
    scale = [float(value) for value in (*federation.mean, *federation.std)]
    digest = hashlib.sha256(repr((federation.names, federation.kind, federation.classes, scale)).encode())
    if federation.preparation is not None:
        unit = (federation.class_names, federation.target_mean, federation.target_std, federation.preparation.features)
        digest.update(repr(unit).encode())
    for array in (*federation.train, *federation.validation, *federation.test):
        ordered = np.ascontiguousarray(array)
        digest.update(f"{ordered.dtype.str}{ordered.shape}".encode())
        digest.update(ordered.data if ordered.size else b"")
    return digest.hexdigest()[:16]
