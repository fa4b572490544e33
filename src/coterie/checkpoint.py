"""Nothing lost: checkpoints that are whole or not there, and files that survive a kill or a full disk.

A checkpoint is one safetensors file that holds its own SHA-256 digest (of every byte of the file, the digest's place
taken as zeros). It is written beside, synced, renamed and the folder synced, before an older one is removed; so at
every moment a whole one exists. JAX is imported only where a tree of its arrays is taken apart or put together.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from coterie.errors import CoterieError, StorageError

__all__ = ["cut_lines", "durable_write", "load", "pack", "save", "storage_errors", "sync_folder", "unpack"]

KEPT = 2  # checkpoints: should the newest be damaged, there is one before it
NAME = re.compile(r"step-(\d+)\.safetensors")
DIGEST = re.compile(rb'"coterie\.sha256":"([0-9a-f]{64})"')
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file is too large",
}
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


@contextlib.contextmanager
def storage_errors(run: Path) -> Iterator[None]:
    """Turn a failure to write into the sentence a user can act on; `run` is the folder to resume."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            where = error.filename or run
            raise StorageError(
                f"{FULL[error.errno]} while writing {where}; what was saved before is whole: "
                f"once there is space, `coterie resume {run}` continues"
            ) from error
        raise CoterieError(f"{error.filename or run} cannot be written ({error.strerror or error})") from error


def durable_write(path: Path, *parts: Any, run: Path | None = None) -> None:
    """Write bytes so that after a kill or a power cut the file is either the old one or the new one, whole.

    Args:
        path: the file.
        parts: buffers, written one after the other.
        run: the folder of the run, for the sentence about a full disk; by default the folder of the file.
    """
    beside = path.with_name(path.name + ".tmp")
    with storage_errors(run or path.parent):
        try:
            with open(beside, "wb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)  # a failed write does not name the file
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    if os.name == "nt":  # Windows can not open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(folder: Path, step: int, arrays: dict[str, np.ndarray], meta: dict[str, str]) -> Path:
    """Write a checkpoint into `folder/checkpoints`, then remove all but it and the one before.

    Args:
        folder: the folder of the run.
        step: the round it was taken after.
        arrays: any names; booleans, integers and floats.
        meta: what else is needed to continue, as text.
    """
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES.values():
            raise CoterieError(
                f"{name} has dtype {array.dtype}, which a checkpoint cannot hold; use a number or a boolean"
            )
    held = folder / "checkpoints"
    if not held.is_dir():
        with storage_errors(folder):
            held.mkdir(parents=True, exist_ok=True)
            sync_folder(folder)
    path = held / f"step-{step:08d}.safetensors"
    durable_write(path, *_encode(step, arrays, meta), run=folder)
    # Later steps, if any, were damaged and belong to a past this run did not continue from.
    before = sorted(number for number in _steps(held) if number < step)
    stale = {file for number, file in _steps(held).items() if number != step and number not in before[1 - KEPT :]}
    with storage_errors(folder):
        for file in [*stale, *held.glob("step-*.tmp")]:
            file.unlink()
    return path


def load(folder: Path) -> tuple[int, dict[str, np.ndarray], dict[str, str], list[str]] | None:
    """Return step, arrays, meta and notes of the newest whole checkpoint; a note says which one was skipped and why."""
    found, bad = _steps(folder / "checkpoints"), {}
    for step in sorted(found, reverse=True):
        try:
            arrays, meta = _decode(step, found[step].read_bytes())
        except OSError as error:
            bad[f"step-{step:08d}"] = error.strerror or str(error)
        except ValueError as error:
            bad[f"step-{step:08d}"] = str(error)
        else:
            notes = [f"{name} is corrupt ({why}): continuing from step-{step:08d}" for name, why in bad.items()]
            return step, arrays, meta, notes
    if not bad:
        return None
    reasons = ", ".join(f"{name}: {why}" for name, why in bad.items())
    raise CoterieError(
        f"every checkpoint in {folder / 'checkpoints'} is corrupt ({reasons}); restore one from a copy, or start again "
        "in another folder"
    )


def _steps(folder: Path) -> dict[int, Path]:
    """Find the checkpoints in a folder by step."""
    names = ((NAME.fullmatch(file.name), file) for file in folder.glob("step-*"))
    return {int(name[1]): file for name, file in names if name}


def _encode(step: int, arrays: dict[str, np.ndarray], meta: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return the bytes of a checkpoint, as a header that holds the digest, and the rest."""
    # safetensors writes an array's memory as it lies there, so it must be in C order.
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    own = {"coterie.sha256": "0" * 64, "coterie.step": str(step)}
    blank = safetensors.numpy.save(ordered, metadata=meta | own)
    body = 8 + int.from_bytes(blank[:8], "little")
    header, rest = blank[:body], memoryview(blank)[body:]
    place = DIGEST.search(header)
    assert place is not None, "safetensors no longer writes its metadata as compact JSON"
    digest = hashlib.sha256(header)
    digest.update(rest)
    return header[: place.start(1)] + digest.hexdigest().encode() + header[place.end(1) :], rest


def _decode(step: int, data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Check the digest before anything is parsed; ValueError says what is wrong."""
    body = 8 + int.from_bytes(data[:8], "little")
    place = DIGEST.search(data, 8, min(body, len(data)))
    if place is None:
        raise ValueError("no digest")
    digest = hashlib.sha256(data[: place.start(1)])
    digest.update(b"0" * 64)
    digest.update(memoryview(data)[place.end(1) :])
    if digest.hexdigest().encode() != place[1]:
        raise ValueError("digest differs")
    meta = json.loads(data[8:body])["__metadata__"]
    del meta["coterie.sha256"]
    if meta.pop("coterie.step") != str(step):
        raise ValueError("the file was renamed")
    arrays = {}
    for name, entry in safetensors.deserialize(data):
        arrays[name] = np.frombuffer(entry["data"], _dtype(entry["dtype"])).reshape(entry["shape"])
    return arrays, meta


def _dtype(code: str) -> np.dtype:
    if code == "BF16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(DTYPES[code])


def cut_lines(path: Path, keep: Callable[[dict], bool]) -> None:
    """Drop the torn last line of a .jsonl file, and every line that `keep` refuses; without a file do nothing.

    What is not JSON and has no kept line after it was being written when the process died, and goes too; before a kept
    line it is damage, and an error.
    """
    if not path.exists():
        return
    kept, broken = [], 0
    data = path.read_bytes()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            wanted = keep(_json_object(line))
        except ValueError:
            broken = broken or number
            continue
        if wanted and broken:
            raise CoterieError(f"line {broken} of {path} is damaged; restore the file from a copy")
        if wanted:
            kept.append(line + b"\n")
    if b"".join(kept) != data:
        durable_write(path, *kept)


def _json_object(line: bytes) -> dict:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def pack(tree: Any) -> dict[str, np.ndarray]:
    """Take a pytree of arrays apart into named NumPy arrays; the names are the paths, as `keystr` writes them."""
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    if len(named) != len(leaves):
        raise CoterieError("two arrays of the state have the same path; rename one of its fields")
    return named


def unpack(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """Put the arrays of `pack` into the structure of `like`, whose leaves give the shapes and dtypes expected.

    A leaf becomes a NumPy array where `like` has one, else a JAX array (never weakly typed).
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    for name in [*expected, *arrays]:
        ours = _shape_and_dtype(expected[name]) if name in expected else "absent"
        theirs = _shape_and_dtype(arrays[name]) if name in arrays else "absent"
        if ours != theirs:
            raise CoterieError(
                f"the checkpoint does not fit this run: {name} is {theirs} in it and {ours} here; "
                "resume with the config and the version of coterie that wrote it"
            )
    found = []
    for name, leaf in expected.items():
        value: Any = arrays[name]
        if not isinstance(leaf, np.ndarray | np.generic):
            value = jax.numpy.array(value)  # a copy: the state's buffers are donated, and must not be ours
            assert value.dtype == arrays[name].dtype, f"{name} is {arrays[name].dtype}: unpack it where x64 is enabled"
        found.append(value)
    return jax.tree_util.tree_unflatten(structure, found)


def _shape_and_dtype(leaf: Any) -> str:
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return f"{array.dtype.name}{list(array.shape)}"
