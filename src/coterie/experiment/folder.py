"""A run is a folder: what is in it, how it is written so that nothing is lost, how it is read back. No JAX here.

    coterie.json      the marker, written first: this is the folder of a run
    config.toml       resolved and complete: `coterie run config.toml` repeats the run
    clients.json      names, sizes and labels of the clients, and a fingerprint of their data
    preparation.json  how rows of a table become inputs, where the data are a table
    metrics.jsonl     one line per evaluation, every metric of every client; no times, so that runs can be compared
    timing.jsonl      one line per evaluation: seconds so far, and how many of them inside the compiled program
    network.npz       the graph, where it was made from the clients' data
    scores.npz        every score of the kept models, and the values per test sample of those that are means
    graph.blocks      weights over the slots at each evaluation (where the method has any)
    ledger.blocks     messages and bytes per edge and round
    checkpoints/      the last two: files, or folders where several processes write them (`sharded.py`)
    models/           one safetensors file per client, and `shared.safetensors` where a newcomer gets a shared model
    intervals.json    of a regression: how far predictions may be off (validation rows)
    profile.json      of `coterie run --profile`: where the time went; profile/ has the trace
    summary.json      written last: the run is complete
    machine.json      the kind and number of devices it began on, which a resumed run uses again
    members.json      of a run on a network: all its members, and which of them live here
    sent.jsonl        of such a run: every message that left, with its size and digest; never shortened
    lock              locked by the process that runs (the system releases it when that process dies)

Metrics, timing, graph and ledger grow during the run, and are only made durable (`sync`) before a checkpoint that
covers them; whatever is newer than the newest checkpoint is cut off at resume, torn or not. Earlier versions had no
marker, and a file of its own for each record of graph and ledger; both are still read and continued.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.clients import Federation
from coterie.data.tables.preparation import Preparation
from coterie.errors import CoterieError
from coterie.experiment import schemas
from coterie.experiment.about import about_clients
from coterie.experiment.fingerprint import earlier_fingerprint, fingerprint, is_earlier
from coterie.experiment.members import Members, keep_members
from coterie.experiment.reading import EARLIER, RunReader
from coterie.experiment.tables import read_network
from coterie.storage.arrays import npz_bytes
from coterie.storage.blocks import append_to, whole_blocks
from coterie.storage.durable import durable_write, storage_errors, sync_folder
from coterie.storage.owned import Unreadable, holds, inside, never_waiting, read_file
from coterie.storage.schema import checked, kept_lines, table, whole
from coterie.storage.toml import difference, dump_toml

__all__ = ["REMEDY", "RunFolder", "model_file"]

FOLDERS = ("checkpoints", "models")
LINES = (schemas.METRICS, schemas.TIMING)
BLOCKS = ("graph", "ledger")
REMEDY = "choose another --out or remove the folder"
MODEL = re.compile(r"\d{5}-[A-Za-z0-9._-]+\.safetensors|(all-clients|shared)\.safetensors")
INSIDE = {"checkpoints": re.compile(r"step-\d{8,15}\.safetensors(\.tmp)?"), "models": MODEL}
LOGS = ("deliveries.blocks", "sent.jsonl", "counts.json", "network.json")  # of a run on a network: what happened
FILES = ("summary.json", *LINES, "graph.blocks", "ledger.blocks", "network.npz", "scores.npz", "intervals.json", *LOGS)
FIRST_FILES = ("clients.json", "preparation.json", "machine.json", "members.json", "config.toml")
ROUND = table({"round": whole(1)}, rest=lambda value: value)


class RunFolder(RunReader):
    """Reads and writes the folder of one run."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        self._unsynced: set[Path] = set()

    def check(self, config: dict[str, Any], federation: Federation, digest: str | None = None) -> None:
        """Refuse a folder of anything but this experiment or the beginning of a run.

        `digest` is the fingerprint of the data, where it is known already.
        """
        if not self.is_ours():
            if not self.owned.fresh:
                raise self.owned.refuse()
        elif self.exists():
            self.check_same(config)
            if not self._is_of(self.clients().get("digest"), federation, digest):
                raise CoterieError(
                    f"the data are not those {self.path} was started with; bring those back, or {REMEDY}"
                )

    def _is_of(self, known: str | None, federation: Federation, digest: str | None) -> bool:
        """Whether a fingerprint in the folder is that of the data; it may be of an earlier version."""
        if known is None or not is_earlier(known):
            return known == (digest or fingerprint(federation))
        if federation.here is not None:
            raise CoterieError(
                f"{self.path} was begun by an earlier version, which had one digest of all data; continue it in a "
                "single process, with coterie resume"
            )
        return known == earlier_fingerprint(federation)

    def is_ours(self) -> bool:
        """Whether it may be written to: by its marker, or by what earlier versions wrote, which had none."""
        if self.owned.marked:
            return True
        if not self.exists() or not holds(self.path, "clients.json"):
            return False
        try:
            return "format" in schemas.read_config(self.path) and "digest" in schemas.read_clients(self.path)
        except CoterieError:
            return False

    def check_same(self, config: dict[str, Any]) -> None:
        """Refuse a folder whose run has another config, naming the first key that differs."""
        changed = difference(self.config(), config)
        if changed:
            raise CoterieError(f"{self.path} holds another experiment: {changed}; {REMEDY}")

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep every other process from writing to the folder."""
        return self.owned.lock()

    def create(
        self,
        config: dict[str, Any],
        federation: Federation,
        members: Members | None = None,
        digest: str | None = None,
    ) -> None:
        """Make the folder of a new run; config.toml comes last and says that it is complete.

        `members` are those of a run on a network, of whom `federation` has the ones that live here; `digest` is the
        fingerprint of the data, where it is known already.
        """
        about = about_clients(federation) | {"digest": digest or fingerprint(federation)}
        self.begin(config, about, federation.preparation, members)

    def begin(
        self,
        config: dict[str, Any],
        about: dict[str, Any],
        preparation: Preparation | None = None,
        members: Members | None = None,
    ) -> None:
        """Make the folder of a run of which only this is known about the clients."""
        begun = self.exists()
        if not begun:  # a folder of an earlier version is marked when it is continued
            self.owned.mark()
        for name in FOLDERS:
            self.owned.make(name)
        if not begun:
            checked(schemas.clients_schema, about, self.path / "clients.json")  # what is written can be read
            self._replace("clients.json", json.dumps(about).encode())
            if preparation is not None:
                record = json.dumps(preparation.to_dict(), ensure_ascii=False)
                self._replace("preparation.json", record.encode(errors="replace"))
            if members is not None:
                keep_members(self.path, members)
            self._replace("config.toml", dump_toml(config).encode())

    def network(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the graph that was made from the clients' data when the run began; write this one if there is none."""
        if not holds(self.path, "network.npz"):
            self._replace("network.npz", npz_bytes(arrays))
        with self._advice():
            return read_network(self.path, self._count())

    def append(self, file: str, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        self._write(inside(self.path, file), json.dumps(line).encode() + b"\n", "ab")

    def save_arrays(self, kind: str, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Add the graph or the ledger of the block that ends with round `number`."""
        self._write(inside(self.path, f"{kind}.blocks"), append_to(number, npz_bytes(arrays)), "ab")

    def save_model(self, file: str, data: bytes) -> None:
        """Write a model; all are written again at resume as long as the run is not complete."""
        self._write(inside(self.path, "models", file), data)

    def save_scores(self, arrays: dict[str, np.ndarray]) -> None:
        """Write all scores of the kept models."""
        self._write(inside(self.path, "scores.npz"), npz_bytes(arrays))

    def save_record(self, file: str, record: dict[str, Any]) -> None:
        """Write a JSON file at the end of a run."""
        self._write(inside(self.path, file), json.dumps(record).encode())

    def _write(self, path: Path, data: bytes, mode: str = "wb") -> None:
        if mode == "wb" or _has_other_names(path):  # a file that has another name may be somebody's: it is not changed
            _leave(path, copy=mode != "wb")
        with storage_errors(self.path), open(path, mode, buffering=0, opener=never_waiting) as stream:
            rest = memoryview(data)
            while rest:  # a disk that fills up takes a part, and fails at the next write
                rest = rest[stream.write(rest) :]
        self._unsynced.add(path)

    def _replace(self, file: str, data: bytes) -> None:
        durable_write(inside(self.path, file), data, run=self.path)

    def sync(self) -> None:
        """Make what was written survive a power cut, before a checkpoint or the summary says that it is there."""
        with storage_errors(self.path):
            for path in self._unsynced:
                with open(path, "rb+") as stream:
                    os.fsync(stream.fileno())
            for folder in {path.parent for path in self._unsynced}:
                sync_folder(folder)
        self._unsynced.clear()

    def cut(self, number: int, written: Mapping[str, int] | None = None) -> None:
        """Remove everything after round `number`, torn records too: the run continues from there.

        Args:
            number: the round of the checkpoint; -1 if there is none.
            written: how many records of each kind it covers; if there are fewer, nothing is changed.
        """
        with self._advice():
            lines = {file: self._kept(file, number) for file in LINES if holds(self.path, file)}
            ends = {kind: self._end(kind, number) for kind in BLOCKS}
            names = {kind: self.owned.names(kind, EARLIER) for kind in BLOCKS}
            early = {kind: [name for name in names[kind] if int(name[:-4]) <= number] for kind in BLOCKS}
            found = {schemas.METRICS: len(lines.get(schemas.METRICS, ()))}
            found |= {kind: ends[kind][0] + len(early[kind]) for kind in BLOCKS}
            for name, count in (written or {}).items():
                if found[name] != count:
                    raise Unreadable(
                        f"{self.path / name} holds {found[name]} records but the checkpoint of round {number} covers "
                        f"{count}"
                    )
        self.owned.mark()  # a folder of an earlier version is continued
        for file, kept in lines.items():
            if b"".join(kept) != read_file(self.path, file):
                self._replace(file, b"".join(kept))
        with storage_errors(self.path):
            for kind in BLOCKS:
                for name in names[kind][len(early[kind]) :]:
                    inside(self.path, kind, name).unlink()
                self._shorten(f"{kind}.blocks", ends[kind][1])

    def _kept(self, file: str, number: int) -> list[bytes]:
        data = read_file(self.path, file)
        return kept_lines(data, self.path / file, lambda line: ROUND(line)["round"] <= number)

    def _end(self, kind: str, number: int) -> tuple[int, int]:
        """Return how many whole records of a file are of rounds up to `number`, and where they end."""
        file = f"{kind}.blocks"
        records = whole_blocks(read_file(self.path, file)) if holds(self.path, file) else []
        ends = [end for at, _, end in records if at <= number]
        return len(ends), max(ends, default=0)

    def _shorten(self, file: str, size: int) -> None:
        if not holds(self.path, file) or (self.path / file).stat().st_size == size:
            return
        path = inside(self.path, file)
        if _has_other_names(path):
            _leave(path, copy=True)
        with open(path, "rb+") as stream:
            stream.truncate(size)
            os.fsync(stream.fileno())

    def remove(self) -> None:
        """Remove the files of a run, and its folder if nothing else is in it; what is not of our names stays."""
        if not self.is_ours():
            return
        self.owned.mark()
        for folder, pattern in {**INSIDE, **dict.fromkeys(BLOCKS, EARLIER)}.items():
            self.owned.remove(folder, *self.owned.names(folder, pattern))
        files = [*FILES, *FIRST_FILES, "report.html"]
        self.owned.remove("", *files, *(f"{file}.tmp" for file in files))
        self.owned.remove_folder()

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as complete."""
        self.sync()
        self._replace("summary.json", json.dumps(summary, indent=1).encode())


def _has_other_names(path: Path) -> bool:
    """Whether a file is a hard link to one that has a name elsewhere, too."""
    try:
        return os.lstat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def _leave(path: Path, copy: bool) -> None:
    """Give up a name for a file, so that writing makes a new one; with `copy` that begins with the same bytes."""
    if copy:
        durable_write(path, path.read_bytes())
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def model_file(index: int, name: str) -> str:
    """Return the file name of a client's model, safe for any client name."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "client"
    return f"{index:05d}-{slug}.safetensors"
