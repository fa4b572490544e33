"""Readers of the formats of public data: idx, CIFAR's binary records, npz, xz. None runs code (no pickle)."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coterie.errors import CoterieError

__all__ = ["BROKEN", "channel_statistics", "read_bytes", "read_cifar", "read_idx", "read_npz"]

BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in .gz, .xz or .bz2."""
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as file:
                return file.read()
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        if path.suffix == ".bz2":
            with bz2.open(path) as file:
                return file.read()
        return path.read_bytes()
    except FileNotFoundError:
        raise CoterieError(f"there is no file {path}") from None
    except BROKEN as error:
        raise CoterieError(
            f"{path} cannot be read ({str(error) or type(error).__name__}); get the file again"
        ) from error


def read_idx(data: bytes, name: str) -> np.ndarray:
    """Read an array of bytes in LeCun's idx format."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise CoterieError(f"{name} is not an idx file of bytes; get the file again")
    dimensions = data[3]
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise CoterieError(f"{name} is cut short; get the file again")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) - header != int(np.prod(shape, dtype=np.int64)):
        raise CoterieError(f"{name} holds {len(data) - header} bytes but its header says {shape}; get the file again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_cifar(path: Path, members: Sequence[str], labels: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read members of a CIFAR binary archive, or of the folder it unpacks to.

    Returns:
        for each member `(images [n, 3, 32, 32], labels [n, labels])`; CIFAR-10 has one label per record, CIFAR-100 the
        coarse and the fine one.
    """
    content: dict[str, bytes] = {}
    try:
        if path.is_dir():
            content = {name: (path / Path(name).name).read_bytes() for name in members}
        else:
            with tarfile.open(path, "r|gz") as archive:  # as a stream: the archive is unpacked once, in memory
                for member in archive:
                    file = archive.extractfile(member) if member.name in members else None
                    if file is not None:
                        content[member.name] = file.read()
    except BROKEN as error:
        raise CoterieError(
            f"{path} cannot be read ({str(error) or type(error).__name__}); get the file again"
        ) from error
    record = labels + 3 * 32 * 32
    arrays = {}
    for name in members:
        if name not in content or len(content[name]) == 0 or len(content[name]) % record:
            what = "holds no" if name not in content else "has a broken"
            raise CoterieError(f"{path} {what} {name}; get the file again")
        rows = np.frombuffer(content[name], np.uint8).reshape(-1, record)
        arrays[name] = (rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, :labels])
    return arrays


def read_npz(path: Path) -> Mapping[str, np.ndarray]:
    """Read the arrays of an .npz file, which may be inside one xz stream (.npz.xz)."""
    data = read_bytes(path)
    try:
        content = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise CoterieError(f"{path} holds a single array, not the named arrays of an .npz file")
        with content as arrays:
            return {name: arrays[name] for name in arrays.files}
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise CoterieError(
                f"{path} holds Python objects or is not an .npz file; save plain arrays of numbers or text"
            ) from None
        raise CoterieError(f"{path} is not a readable .npz file ({error})") from error
    except BROKEN as error:
        raise CoterieError(f"{path} is not a readable .npz file ({str(error) or type(error).__name__})") from error


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of byte images `[N, C, H, W]`, in units of 255."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), 4096):  # in pieces: counting turns bytes into 8-byte integers
            counts += np.bincount(images[start : start + 4096, channel].ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        means.append(mean)
        stds.append(float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum())))
    return tuple(means), tuple(stds)
