"""Checkpoints that are whole or not there: named arrays and texts in one file. What a run saves is in `snapshot.py`.

A checkpoint is one safetensors file with its own SHA-256 digest (of every byte of the file, with zeros for the digest).
It is written to a temporary file, synced, renamed and the folder synced before an older one is removed, so there is a
whole one at every moment. JAX is imported only where a tree of its arrays is taken apart or put together.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from coterie.errors import CoterieError
from coterie.storage.durable import durable_write, storage_errors, sync_folder
from coterie.storage.owned import Unreadable, inside, read_file
from coterie.storage.schema import Mismatch, mapping, table, text

__all__ = ["KEPT", "load", "pack", "refuse_differences", "save", "shape_and_dtype", "steps", "unpack"]

KEPT = 2  # checkpoints: if the newest is damaged, there is one before it
NAME = re.compile(r"step-(\d{8,15})\.safetensors")
LEFT = re.compile(NAME.pattern + r"\.tmp")  # by a process that was killed
OWN = {"coterie.sha256": text, "coterie.step": text}  # texts that every checkpoint has
DIGEST = re.compile(rb'"coterie\.sha256":"([0-9a-f]{64})"')
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


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
    place = inside(folder, "checkpoints")
    if not place.is_dir():
        with storage_errors(folder):
            place.mkdir(parents=True, exist_ok=True)
            sync_folder(folder)
    path = place / f"step-{step:08d}.safetensors"
    durable_write(path, *_encode(step, arrays, meta), run=folder)
    # Later steps, if any, were damaged: the run went back to an earlier one.
    before = sorted(number for number in steps(place) if number < step)
    stale = {file for number, file in steps(place).items() if number != step and number not in before[1 - KEPT :]}
    stale |= {file for file in place.iterdir() if LEFT.fullmatch(file.name)}
    with storage_errors(folder):
        for file in sorted(stale):
            file.unlink()
    return path


def load(folder: Path) -> tuple[int, dict[str, np.ndarray], dict[str, str], list[str]] | None:
    """Return step, arrays, meta and notes of the newest whole checkpoint; a note says which one was skipped and why."""
    files, bad = steps(inside(folder, "checkpoints")), {}
    for step in sorted(files, reverse=True):
        try:
            arrays, meta = _decode(step, read_file(folder, "checkpoints", files[step].name))
        except Unreadable as error:
            bad[f"step-{step:08d}"] = str(error)
        except ValueError as error:
            bad[f"step-{step:08d}"] = str(error)
        else:
            notes = [f"{name} is corrupt ({why}): continuing from step-{step:08d}" for name, why in bad.items()]
            return step, arrays, meta, notes
    if not bad:
        return None
    reasons = ", ".join(f"{name}: {why}" for name, why in bad.items())
    raise Unreadable(
        f"every checkpoint in {folder / 'checkpoints'} is corrupt ({reasons}); start again in another folder"
    )


def steps(folder: Path) -> dict[int, Path]:
    """Find the checkpoints in a folder by step."""
    try:
        names = [(NAME.fullmatch(name), folder / name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CoterieError(f"{folder} cannot be read ({error.strerror or error})") from None
    return {int(name[1]): file for name, file in names if name}


def _encode(step: int, arrays: dict[str, np.ndarray], meta: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return the bytes of a checkpoint, as a header with the digest, and the rest."""
    # safetensors writes an array's memory as it is, so it must be in C order.
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
    """Check the digest, then parse; a ValueError says what is wrong."""
    body = 8 + int.from_bytes(data[:8], "little")
    place = DIGEST.search(data, 8, min(body, len(data)))
    if place is None:
        raise ValueError("no digest")
    digest = hashlib.sha256(data[: place.start(1)])
    digest.update(b"0" * 64)
    digest.update(memoryview(data)[place.end(1) :])
    if digest.hexdigest().encode() != place[1]:
        raise ValueError("digest differs")
    meta = _metadata(data[8:body])
    if meta["coterie.step"] != str(step):
        raise ValueError("the file was renamed")
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None
    arrays = {}
    for name, entry in entries:
        arrays[name] = np.frombuffer(entry["data"], _dtype(entry["dtype"])).reshape(entry["shape"])
    return arrays, {key: value for key, value in meta.items() if key not in OWN}


def _metadata(header: bytes) -> dict[str, str]:
    """Return the texts in the header of a file."""
    try:
        return table({"__metadata__": table(OWN, rest=text)}, rest=mapping(lambda entry: entry))(json.loads(header))[
            "__metadata__"
        ]
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except Mismatch as wrong:
        raise ValueError(wrong.sentence("its header:")) from None


def _dtype(code: str) -> np.dtype:
    if code == "BF16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    if code not in DTYPES:
        raise ValueError(f"numbers of type {code} are not known")
    return np.dtype(DTYPES[code])


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
    refuse_differences(*({name: shape_and_dtype(a) for name, a in named.items()} for named in (expected, arrays)))
    values = []
    for name, leaf in expected.items():
        value: Any = arrays[name]
        if not isinstance(leaf, np.ndarray | np.generic):
            value = jax.numpy.array(value)  # a copy, because the state's buffers are donated
            assert value.dtype == arrays[name].dtype, f"{name} is {arrays[name].dtype}: unpack it where x64 is enabled"
        values.append(value)
    return jax.tree_util.tree_unflatten(structure, values)


def refuse_differences(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Refuse a checkpoint whose arrays have other shapes or types than this run's."""
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            raise CoterieError(
                f"the checkpoint does not fit this run: {name} is {theirs.get(name, 'absent')} in it and "
                f"{ours.get(name, 'absent')} here; resume with the config and the version of coterie that wrote it"
            )


def shape_and_dtype(leaf: Any) -> str:
    """Return the shape and type of an array as they are told to people."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return f"{array.dtype.name}{list(array.shape)}"
