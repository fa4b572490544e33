"""Readers of the formats of public data: idx, CIFAR's binary records, npz, xz. None runs code (no pickle)."""

import io
import math
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from coterie.data.unpack import BROKEN, PACKED, first_line, read_bytes
from coterie.errors import CoterieError
from coterie.storage.memory import refuse_beyond

__all__ = ["channel_statistics", "read_cifar", "read_idx", "read_npy", "read_npz"]


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
        raise CoterieError(f"{path} cannot be read ({first_line(error)}); get the file again") from error
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
    packed = path.suffix.lower() in PACKED
    try:
        with io.BytesIO(read_bytes(path)) if packed else open(path, "rb") as file:
            return _arrays(file, path)
    except CoterieError:
        raise
    except OSError as error:
        raise CoterieError(f"{path} cannot be read ({error.strerror or first_line(error)})") from error
    except Exception as error:  # damaged bytes make zipfile and NumPy raise almost anything
        if "pickle" in str(error).lower():
            raise CoterieError(
                f"{path} holds Python objects or is not an .npz file; save plain arrays of numbers or text"
            ) from None
        raise CoterieError(f"{path} is not a readable .npz file ({first_line(error)})") from error


def read_npy(path: Path) -> np.ndarray:
    """Read the numbers of an .npy file."""
    try:
        with open(path, "rb") as file:
            _check_header(file, path.stat().st_size, str(path))
            file.seek(0)
            array = np.lib.format.read_array(file, allow_pickle=False)
    except CoterieError:
        raise
    except OSError as error:
        raise CoterieError(f"{path} cannot be read ({error.strerror or first_line(error)})") from error
    except Exception as error:  # as for .npz
        raise CoterieError(f"{path} is not a readable .npy file ({first_line(error)})") from error
    if array.dtype.kind not in "biuf":
        raise CoterieError(f"{path} holds {array.dtype}; save plain numbers")
    return array


def _arrays(file: IO[bytes], path: Path) -> dict[str, np.ndarray]:
    start = file.read(6)
    if start == b"\x93NUMPY":
        raise CoterieError(f"{path} holds a single array, not the named arrays of an .npz file")
    if not start.startswith(b"PK"):
        raise ValueError("it is no zip archive of arrays")
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        size = sum(member.file_size for member in members)
        refuse_beyond(size, f"{path}, unpacked,", "use a file with fewer samples")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise CoterieError(f"{path} holds two arrays called {name!r}; save it again")
            with archive.open(member) as stream:
                _check_header(stream, member.file_size, f"{name!r} in {path}")
            with archive.open(member) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


def _check_header(stream: IO[bytes], size: int, what: str) -> None:
    """Refuse an array whose header promises more or less than there is: NumPy would allocate what it promises."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("pickle")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise CoterieError(
            f"{what} holds {size - stream.tell():,} bytes, but its header says {shape} of {dtype}; get the file again"
        )


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
