"""Open files of the user's, unpacked where they are packed; what unpacks to more than memory holds is refused."""

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from coterie.errors import CoterieError
from coterie.storage.memory import available, in_words

__all__ = ["BROKEN", "PACKED", "existing", "first_line", "opened", "place_of", "read_bytes"]

BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BLOCK = 1 << 20
LONGEST = 200  # letters of what another program says


def place_of(name: str, field: str = "path") -> Path:
    """Return the path that a user names; what can be no path is refused."""
    try:
        name.encode()
        path = Path(name).expanduser()
        path.exists()  # asks the system, which refuses names that are too long or not to be read
        return path
    except UnicodeEncodeError:
        raise CoterieError(f"{field}: the name {name!a} is not UTF-8; rename the file") from None
    except RuntimeError:
        raise CoterieError(f"{field}: {name[:80]} names a home folder that does not exist") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise CoterieError(f"{field}: {name[:80]!r} cannot be opened ({said})") from None


def existing(name: str, field: str = "path") -> Path:
    """Return the path of an existing file, or raise an error that names the field."""
    path = place_of(name, field)
    if not path.is_file():
        raise CoterieError(f"{field}: {path} is not a file" if path.exists() else f"{field}: there is no file {path}")
    return path


class _Counted(io.RawIOBase):
    """A stream that counts, and refuses to go on when what was read needs more memory than is free."""

    def __init__(self, stream: IO[bytes], path: Path, per_byte: int, per_line: int):
        self.stream, self.path, self.per_byte, self.per_line = stream, path, per_byte, per_line
        self.free, self.bytes, self.lines = available() // 2, 0, 0  # the other half is for what is made of it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.stream.read(len(buffer))
        buffer[: len(block)] = block
        self.bytes += len(block)
        self.lines += block.count(b"\n") if self.per_line else 0
        needed = self.per_byte * self.bytes + self.per_line * self.lines
        if needed > self.free:
            lines = f"{self.lines:,} lines or " if self.per_line else ""
            raise CoterieError(
                f"{self.path} holds more than {lines}{in_words(self.bytes)}, which need {in_words(needed)} of memory, "
                f"and {in_words(self.free)} are free; use a file with fewer rows or columns"
            )
        return len(block)


@contextlib.contextmanager
def opened(path: Path, per_byte: int = 1, per_line: int = 0) -> Iterator[IO[bytes]]:
    """Open a file, unpacked where its ending says that it is packed.

    Args:
        path: the file.
        per_byte, per_line: the memory that its bytes and lines will take; what does not fit is refused while reading.
    """
    with contextlib.ExitStack() as stack:
        if path.suffix.lower() == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = [name for name in archive.namelist() if not name.endswith("/")]
            if len(members) != 1:
                raise CoterieError(f"{path} holds {len(members)} files; it must hold one")
            stream = stack.enter_context(archive.open(members[0]))
        else:
            stream = stack.enter_context(PACKED.get(path.suffix.lower(), open)(path, "rb"))
        yield io.BufferedReader(_Counted(stream, path, per_byte, per_line), BLOCK)


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in .gz, .xz or .bz2; it is taken twice, as bytes and as what they mean."""
    try:
        with opened(path, per_byte=2) as stream:
            return stream.read()
    except FileNotFoundError:
        raise CoterieError(f"there is no file {path}") from None
    except BROKEN as error:
        raise CoterieError(f"{path} cannot be read ({first_line(error)}); get the file again") from error


def first_line(error: Exception) -> str:
    """Return what an error of another program says, in one short line."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return said if len(said) <= LONGEST else said[:LONGEST] + "..."
