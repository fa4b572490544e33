"""Checkpoints that several processes write together, each the rows on its own devices (Orbax); whole or not there.

    step-00000040/arrays/      the arrays, as Orbax writes them
    step-00000040/record.json  how far the run has come, the names and shapes of the arrays, and a digest of every file

The folder has another name until everything is in it and on the disk. Rows that were only added for the devices are cut
off or added when it is read, so that any number of devices and processes can go on, also a single one without a mesh.
Nothing in it is executed: Orbax's files are numbers and JSON, and the digests are checked before it opens them.
"""

import functools
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from coterie.errors import CoterieError
from coterie.experiment import snapshot as single
from coterie.experiment.engine import Engine
from coterie.experiment.snapshot import Record, Saved, Snapshot, as_text, record_of
from coterie.graphs.graph import Graph
from coterie.peers.ring import CLIENTS
from coterie.peers.shards import elsewhere, fetched
from coterie.processes.group import Group
from coterie.processes.meeting import current
from coterie.storage.checkpoint import KEPT, refuse_differences, shape_and_dtype
from coterie.storage.durable import durable_write, storage_errors, sync_folder
from coterie.storage.orbax import errors_of_the_system, orbax
from coterie.storage.owned import Unreadable, inside
from coterie.storage.schema import each, mapping, read_json, table, text, whole, word

__all__ = ["NAME", "SavedShards", "load", "newest", "remove", "save"]

FORMAT = 1
NAME = re.compile(r"step-(\d{8,15})")
LEFT = re.compile(NAME.pattern + r"\.tmp")
RECORD, ARRAYS = "record.json", "arrays"
ENTRY = table({"name": text, "shape": each(whole(0)), "dtype": text, "clients": whole(0, 1)})
SCHEMA = table(
    {"format": word(FORMAT), "step": whole(0), "record": text, "arrays": each(ENTRY), "files": mapping(text)}
)


def save(folder: Path, step: int, snapshot: Snapshot, of_clients: Snapshot, record: Record, engine: Engine) -> None:
    """Write the checkpoint of round `step`; all processes must call this.

    Args:
        folder: that of the run.
        step: the round.
        snapshot: the arrays, spread over the devices.
        of_clients: in the same structure, whether an array has a row for every client.
        record: how far the run has come.
        engine: what holds the arrays.
    """
    group = _group()
    place = inside(folder, "checkpoints")
    final, hidden = place / f"step-{step:08d}", place / f"step-{step:08d}.tmp"
    if group.index == 0:
        with storage_errors(folder):
            place.mkdir(parents=True, exist_ok=True)
            for stale in (hidden, final):
                shutil.rmtree(stale, ignore_errors=True)
            hidden.mkdir()
    group.meet("checkpoint")
    leaves = jax.tree_util.tree_flatten_with_path(snapshot._asdict())[0]
    flags = jax.tree.leaves(of_clients._asdict())
    with storage_errors(folder):
        with errors_of_the_system(hidden / ARRAYS):
            orbax().PyTreeCheckpointer().save(
                (hidden / ARRAYS).absolute(), {str(number): leaf for number, (_, leaf) in enumerate(leaves)}
            )
        digests = json.dumps(_digests(hidden, group, sync=True))
    files = {name: digest for part in group.exchange("digests", digests) for name, digest in json.loads(part).items()}
    if group.index == 0:
        entries = [
            {
                "name": jax.tree_util.keystr(path),
                "shape": [engine.size, *leaf.shape[1:]] if flag else list(leaf.shape),
                "dtype": np.dtype(leaf.dtype).name,
                "clients": int(flag),
            }
            for (path, leaf), flag in zip(leaves, flags, strict=True)
        ]
        about = {"format": FORMAT, "step": step, "record": as_text(record), "arrays": entries, "files": files}
        with storage_errors(folder):
            durable_write(hidden / RECORD, json.dumps(about).encode(), run=folder)
            for inner in (*(hidden / ARRAYS).rglob("*/"), hidden / ARRAYS, hidden):
                sync_folder(inner)
            os.rename(hidden, final)
            sync_folder(place)
            _remove_stale(place, step)
    group.meet("saved")


def _remove_stale(place: Path, step: int) -> None:
    """Keep this checkpoint and the one before; those of a single process are older than both, or damaged."""
    before = sorted(number for number in _steps(place) if number < step)[1 - KEPT :]
    for name in os.listdir(place):
        found = NAME.fullmatch(name)
        if LEFT.fullmatch(name) or (found and int(found[1]) not in (step, *before)):
            shutil.rmtree(place / name, ignore_errors=True)
        elif name.endswith(".safetensors"):
            (place / name).unlink()


def remove(folder: Path) -> None:
    """Remove all checkpoints of several processes: the run goes on without them."""
    place = inside(folder, "checkpoints")
    for name in os.listdir(place) if place.is_dir() else ():
        if NAME.fullmatch(name) or LEFT.fullmatch(name):
            shutil.rmtree(place / name, ignore_errors=True)


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint of several processes; -1 if there is none."""
    return max(_steps(inside(folder, "checkpoints")), default=-1)


def load(folder: Path, engine: Engine) -> "Saved | SavedShards | None":
    """Read the newest checkpoint that is whole, if there is any; of several processes all must call this."""
    place = inside(folder, "checkpoints")
    bad: dict[str, str] = {}
    for step in sorted(_steps(place), reverse=True):
        path = place / f"step-{step:08d}"
        try:
            about, why = _about(inside(folder, "checkpoints", path.name), step), ""
            why = _damage(path, about["files"])
        except (Unreadable, CoterieError) as error:
            why = str(error)
        group = current()
        reasons = [why] if group is None else group.exchange("whole", why)
        why = next(filter(None, reasons), "")
        if not why:
            notes = [f"{name} is corrupt ({why}): continuing from step-{step:08d}" for name, why in bad.items()]
            record = record_of({single.RECORD: about["record"]}, folder, step)
            saved = SavedShards(path / ARRAYS, step, record, about["arrays"], notes, engine)
            return saved if elsewhere(engine.plan.mesh) else saved.whole()
        bad[f"step-{step:08d}"] = why
    if not bad:
        return None
    listed = ", ".join(f"{name}: {why}" for name, why in bad.items())
    raise Unreadable(f"every checkpoint in {place} is corrupt ({listed}); start again in another folder")


class SavedShards:
    """A checkpoint of several processes: its arrays are read where they are needed.

    Attributes:
        round, record, notes: as in `Saved`.
    """

    def __init__(self, path: Path, step: int, record: Record, entries: list[dict], notes: list[str], engine: Engine):
        self.round, self.record, self.notes = step, record, notes
        self._path, self._engine = path, engine
        self._entries = {entry["name"]: (str(number), entry) for number, entry in enumerate(entries)}

    def whole(self) -> Saved:
        """Return it with all its arrays on the host, as a single process reads checkpoints."""
        found = self._read({name: orbax().RestoreArgs(restore_type=np.ndarray) for name in self._entries})
        cut = {name: entry["shape"][0] for name, (_, entry) in self._entries.items() if entry["clients"]}
        arrays = {name: np.asarray(a[: cut[name]] if name in cut else a) for name, a in found.items()}
        return Saved(self.round, self.record, arrays, self.notes)

    def has(self, field: str) -> bool:
        """See `Saved.has`."""
        return any(name.startswith(f"['{field}']") for name in self._entries)

    def graph(self) -> Graph:
        """See `Saved.graph`."""
        arrays = {name: a for name, a in self._spread.items() if name.startswith("['graph']")}
        return Saved(self.round, self.record, fetched(arrays), self.notes).graph()

    def snapshot(self, like: Snapshot) -> Snapshot:
        """See `Saved.snapshot`: the state is on the devices, each process has read its own rows; best is as kept."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(like._asdict())
        wanted = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        refuse_differences(
            {name: shape_and_dtype(leaf) for name, leaf in wanted.items()},
            {name: f"{entry['dtype']}{entry['shape']}" for name, (_, entry) in self._entries.items()},
        )
        fields = jax.tree_util.tree_unflatten(structure, [self._spread[name] for name in wanted])
        best = None if fields["best"] is None else self._engine.kept(fields["best"])
        return Snapshot(fields["state"], best, fetched(fields["graph"]))

    @functools.cached_property
    def _spread(self) -> dict[str, jax.Array]:
        """The arrays on the devices; rows that the devices need besides are copies of the last client's."""
        engine, restore = self._engine, orbax().ArrayRestoreArgs
        mesh, how = engine.plan.mesh, {}
        assert mesh is not None
        split, everywhere = NamedSharding(mesh, PartitionSpec(CLIENTS)), NamedSharding(mesh, PartitionSpec())
        of_clients = {name for name, (_, entry) in self._entries.items() if entry["clients"]}
        for name, (_, entry) in self._entries.items():
            shape = (engine.rows, *entry["shape"][1:]) if name in of_clients else tuple(entry["shape"])
            sharding = split if name in of_clients else everywhere
            how[name] = restore(sharding=sharding, global_shape=shape, strict=False)

        def filled(a: jax.Array) -> jax.Array:
            real = (np.arange(engine.rows) < engine.size).reshape(-1, *[1] * (a.ndim - 1))
            return jnp.where(real, a, a[engine.size - 1])

        fill = jax.jit(filled, out_shardings=split)
        return {name: fill(a) if name in of_clients else a for name, a in self._read(how).items()}

    def _read(self, how: dict[str, Any]) -> dict[str, Any]:
        """Let Orbax read the arrays, by name."""
        how = {self._entries[name][0]: value for name, value in how.items()}
        found = orbax().PyTreeCheckpointer().restore(self._path.absolute(), restore_args=how)
        return {name: found[key] for name, (key, _) in self._entries.items()}


def _about(path: Path, step: int) -> dict[str, Any]:
    """Read record.json of a checkpoint."""
    entries = read_json(path, RECORD, SCHEMA)
    if entries["step"] != step:
        raise Unreadable("the folder was renamed")
    return dict(entries)


def _damage(path: Path, files: dict[str, str]) -> str:
    """Say what is wrong with the files of a checkpoint; of several processes each looks at some of them."""
    there = {file.relative_to(path).as_posix() for file in _files(path)}
    if there != set(files):
        return "files are missing or added"
    found = _digests(path, current())
    return next((f"digest of {name} differs" for name, digest in found.items() if files[name] != digest), "")


def _digests(path: Path, group: Group | None, sync: bool = False) -> dict[str, str]:
    """Return digests of the files of a checkpoint, of which each process takes its share; make them durable."""
    found = {}
    for number, file in enumerate(_files(path)):
        if group is None or number % group.count == group.index:
            with open(file, "rb") as stream:
                found[file.relative_to(path).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
                if sync:
                    os.fsync(stream.fileno())
    return found


def _files(path: Path) -> list[Path]:
    """Return the plain files of a checkpoint but the record, in order; refuse links."""
    found = [file for file in sorted(path.rglob("*")) if file != path / RECORD]
    for file in found:
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise Unreadable(f"{file} is not a plain file")
    return [file for file in found if file.is_file()]


def _steps(place: Path) -> list[int]:
    try:
        return [int(name[1]) for name in map(NAME.fullmatch, os.listdir(place)) if name]
    except FileNotFoundError:
        return []


def _group() -> Group:
    group = current()
    assert group is not None, "a single process writes a single file"
    return group
