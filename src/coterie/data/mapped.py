"""A federation in a folder of .npy files that are mapped into memory, not read: data may be larger than memory.

    federation.json    {"kind": "classification", "classes": 10}, and where they are known "names", "groups", "mean",
                       "std" (per channel, of images stored as bytes), "about", "class_names"
    train_x.npy        [clients, n, ...] inputs; images as bytes, the channel first
    train_y.npy        [clients, n] targets
    train_count.npy    [clients] how many of the n samples are the client's, the rest being padding; all n if missing
    test_*.npy, validation_*.npy    the same; without validation files nobody has any

`save_federation` writes such a folder. One that does not fit into memory is filled piece by piece: NumPy's
`np.lib.format.open_memmap(file, "w+", dtype, shape)` makes a file and returns an array to write to. No JAX here.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.buckets import Split
from coterie.data.clients import PARTS, Federation
from coterie.errors import CoterieError
from coterie.spec import param, spec
from coterie.storage.durable import storage_errors

__all__ = ["PLAIN", "Mapped", "is_mapped", "open_federation", "save_federation"]

ABOUT = "federation.json"
PLAIN = ("kind", "classes", "about", "class_names", "mean", "std", "planted", "target_mean", "target_std")


@spec
class Mapped:
    """A federation in a folder of mapped .npy files, whose clients are divided already (docs, Data larger than
    memory)."""

    path: str = param(help="the folder, with federation.json, train_x.npy, train_y.npy, test_x.npy, test_y.npy")

    def load(self, here: Callable[[int], slice] | None = None) -> Federation:
        """Map the files; `here` says of how many clients which are read in this process."""
        return open_federation(self.path, here)


def is_mapped(name: Any) -> bool:
    """Whether a path is such a folder."""
    try:
        return not isinstance(name, bytes) and (Path(name) / ABOUT).is_file()
    except (TypeError, ValueError, OSError):
        return False


def save_federation(federation: Federation, folder: str | Path) -> Path:
    """Write a federation to a folder from which `coterie.load` maps it; clients of all sizes are padded to one."""
    folder = Path(folder)
    if federation.preparation is not None:
        raise CoterieError("a table cannot be saved as mapped arrays: the folder would not know its columns")
    if len(federation.train.stacks) > 1:
        federation = federation.in_buckets([np.arange(len(federation))])
    about = {name: getattr(federation, name) for name in PLAIN} | {"names": list(federation.names)}
    about["groups"] = None if federation.groups is None else np.asarray(federation.groups).tolist()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            for name, array in zip(("x", "y", "count"), getattr(federation, part).stacks[0][0], strict=True):
                np.save(folder / f"{part}_{name}.npy", np.asarray(array))
        (folder / ABOUT).write_text(json.dumps(about))
    return folder


def open_federation(folder: str | Path, here: Callable[[int], slice] | None = None) -> Federation:
    """Map the arrays of a folder; nothing is read but what is checked: numbers must be finite, labels in range.

    Args:
        folder: where they are.
        here: says of how many clients which are read in this process, where several share a run.
    """
    folder = Path(folder)
    about = _about(folder)
    train, test = _part(folder, "train"), _part(folder, "test")
    clients = len(train.count)
    if (folder / "validation_x.npy").is_file():
        validation = _part(folder, "validation")
    else:
        validation = Split(train.x[:, :1], train.y[:, :1], np.zeros(clients, np.int32))
    names = tuple(about.pop("names", None) or (f"client-{i}" for i in range(clients)))
    groups = about.pop("groups", None)
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    plain |= {"groups": None if groups is None else np.asarray(groups), "here": here and here(clients)}
    return Federation(names, train, validation, test, **plain)


def _about(folder: Path) -> dict[str, Any]:
    file = folder / ABOUT
    try:
        about = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CoterieError(f"{file} cannot be read ({error}); it says what the arrays beside it are") from None
    known = {*PLAIN, "names", "groups"}
    if not isinstance(about, Mapping) or not {"kind", "classes"} <= about.keys() <= known:
        raise CoterieError(f"{file} must have kind and classes, and may have {', '.join(sorted(known))}")
    if about["kind"] not in ("classification", "regression", "next-character") or not isinstance(about["classes"], int):
        raise CoterieError(f"{file}: kind is classification, regression or next-character, classes a whole number")
    return dict(about)


def _part(folder: Path, part: str) -> Split:
    x, y = (_mapped(folder / f"{part}_{name}.npy") for name in ("x", "y"))
    if x.ndim < 2 or y.shape[:2] != x.shape[:2]:
        raise CoterieError(
            f"{folder}: {part}_x.npy {list(x.shape)} and {part}_y.npy {list(y.shape)} must both begin with "
            "[clients, samples]"
        )
    file = folder / f"{part}_count.npy"
    count = np.array(_mapped(file)) if file.is_file() else np.full(len(x), x.shape[1])
    if count.shape != (len(x),) or count.dtype.kind not in "iu" or not 0 <= count.min() <= count.max() <= x.shape[1]:
        raise CoterieError(f"{file} must have a whole number from 0 to {x.shape[1]} for each of {len(x):,} clients")
    return Split(x, y, count.astype(np.int32))


def _mapped(file: Path) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CoterieError(f"{file} cannot be mapped as an array ({error})") from None
