"""Named arrays in files, .npz and safetensors, which may come from anybody.

Of an .npz file the names, types and shapes are read first and must be those expected; lengths that several arrays share
must agree. Only then is memory allocated, and never more than the file can hold or the machine has. No pickles.
"""

import io
import math
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from coterie.errors import CoterieError
from coterie.storage.owned import Unreadable, memory_limit, read_file
from coterie.storage.schema import FARTHEST

__all__ = ["Array", "narrowed", "npz_bytes", "read_npz", "read_tensors"]

DENSEST = 1040  # bytes that one byte can become: deflate's best is 1032
SMALL = 4096  # a compressed entry of few bytes is not judged by its ratio
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
WORDS = {"b": "true or false", "iu": "whole numbers", "f": "numbers", "iuf": "numbers", "biuf": "numbers"}


class Array(NamedTuple):
    """What an array must be.

    Attributes:
        kinds: NumPy's letters of the types allowed.
        shape: each length, or the name of a length that other arrays share.
        below: the name of a length that all values are below, and not negative: numbers of clients.
        finite: whether NaN and infinity are refused.
        least: the smallest value allowed.
    """

    kinds: str
    shape: tuple[int | str, ...]
    below: str | None = None
    finite: bool = True
    least: float | None = None


class _Entry(NamedTuple):
    """An array as its header describes it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    size: int


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the file of some arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return whole numbers, none negative, in the narrowest type that holds them: quicker to write, and to read."""
    if values.dtype.kind not in "iu" or not values.size:
        return values
    return values.astype(np.min_scalar_type(int(values.max())))


def read_npz(
    data: bytes,
    file: object,
    expected: Mapping[str, Array],
    required: Iterable[str],
    lengths: Mapping[str, int],
    most: int | None = None,
) -> dict[str, np.ndarray]:
    """Read the arrays of a file.

    Args:
        data: the file.
        file: its name, for messages.
        expected: the arrays that it may have.
        required: those that it must have.
        lengths: what is known of the shared lengths, the number of clients, say.
        most: bytes that the arrays may take; default: what the machine allows.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            _check_names(names, file, expected, required)
            entries = {name: _header(archive, info) for name, info in zip(names, archive.infolist(), strict=True)}
            _check_shapes(entries, file, expected, dict(lengths), memory_limit() if most is None else most)
            arrays = {name: _content(archive, f"{name}.npy", entry) for name, entry in entries.items()}
    except CoterieError:
        raise
    except Exception as error:  # zipfile, zlib and the parser of headers raise a dozen kinds
        raise Unreadable(f"{file} cannot be read ({str(error)[:100] or type(error).__name__})") from None
    for name, array in arrays.items():
        _check_values(array, f"{file}: {name}", expected[name], len_of(entries, expected, lengths))
    return arrays


def read_tensors(root: Path, *names: str) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file below a folder."""
    path = root.joinpath(*names)
    try:
        return safetensors.numpy.load(read_file(root, *names))
    except Unreadable:
        raise CoterieError(f"{path} cannot be read as a saved model (it is not there, or damaged)") from None
    except (safetensors.SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that NumPy lacks
        raise CoterieError(f"{path} cannot be read as a saved model ({error})") from None


def _check_names(names: list[str], file: object, expected: Mapping[str, Array], required: Iterable[str]) -> None:
    for name in names:
        if name not in expected:
            raise CoterieError(f"{file} has an array {name[:40]!r}, which does not belong there")
    if len(set(names)) != len(names):
        raise CoterieError(f"{file} has two arrays of the same name")
    for name in required:
        if name not in names:
            raise CoterieError(f"{file} lacks the array {name!r}")


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    """Read what an entry says it is, and refuse what cannot be in so few bytes."""
    if info.compress_type not in METHODS or info.file_size > DENSEST * info.compress_size + SMALL:
        raise ValueError(f"{info.filename} cannot be as large as it says")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or stream.tell() + size != info.file_size:
            raise ValueError(f"{info.filename} is not an array of numbers of the size it says")
    return _Entry(dtype, shape, fortran, size)


def _check_shapes(
    entries: Mapping[str, _Entry], file: object, expected: Mapping[str, Array], lengths: dict[str, int], most: int
) -> None:
    for name, entry in entries.items():
        wanted = expected[name]
        if entry.dtype.kind not in wanted.kinds:
            raise CoterieError(f"{file}: {name} must be {WORDS[wanted.kinds]}, not {entry.dtype}")
        if len(entry.shape) != len(wanted.shape):
            raise CoterieError(f"{file}: {name} must have {len(wanted.shape)} axes, not {len(entry.shape)}")
        for length, known in zip(entry.shape, wanted.shape, strict=True):
            needed = known if isinstance(known, int) else lengths.setdefault(known, length)
            if length != needed:
                what = "" if isinstance(known, int) else f" {known}"
                raise CoterieError(f"{file}: {name} has {length:,}{what} where {needed:,} are expected")
    total = sum(entry.size for entry in entries.values())
    if total > most:
        raise CoterieError(f"{file} would take {total / 1e9:,.1f} GB of memory, more than this machine has to spare")


def _content(archive: zipfile.ZipFile, name: str, entry: _Entry) -> np.ndarray:
    with archive.open(name) as stream:
        stream.read(archive.getinfo(name).file_size - entry.size)
        flat = np.frombuffer(stream.read(), entry.dtype)
    order: Any = "F" if entry.fortran else "C"
    return flat.reshape(entry.shape, order=order).astype(entry.dtype.newbyteorder("="), order="C")


def len_of(entries: Mapping[str, _Entry], expected: Mapping[str, Array], lengths: Mapping[str, int]) -> dict[str, int]:
    """Return all shared lengths by name."""
    found = dict(lengths)
    for name, entry in entries.items():
        found |= {
            known: n for known, n in zip(expected[name].shape, entry.shape, strict=True) if isinstance(known, str)
        }
    return found


def _check_values(array: np.ndarray, what: str, wanted: Array, lengths: Mapping[str, int]) -> None:
    if not array.size:
        return
    if wanted.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CoterieError(f"{what} has a value that is not a finite number")
    if array.dtype.kind == "f" and array.itemsize > 4 and np.any(np.isfinite(array) & (np.abs(array) > FARTHEST)):
        raise CoterieError(f"{what} has a number beyond {FARTHEST:g}")
    if wanted.least is not None and array.min() < wanted.least:
        raise CoterieError(f"{what} has {array.min()}, and must be at least {wanted.least:g}")
    if wanted.below is not None and not 0 <= array.min() <= array.max() < lengths[wanted.below]:
        wrong = array.min() if array.min() < 0 else array.max()
        raise CoterieError(f"{what} names number {wrong}, where there are {lengths[wanted.below]:,} {wanted.below}")
