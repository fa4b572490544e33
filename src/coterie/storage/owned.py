"""Ours and theirs: which folders coterie may write to, and links that are not followed.

A folder is ours by its marker, `coterie.json`, which is written before anything else. A folder without it is taken only
if it is empty. Inside, files are reached through `inside`, which refuses links that lead out of the folder: it may come
from somebody else. A link that the user names as the folder itself is followed.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.storage.durable import durable_write, storage_errors, sync_folder
from coterie.storage.memory import available

__all__ = ["MARKER", "OwnedFolder", "Unreadable", "holds", "inside", "memory_limit", "read_file"]

MARKER = "coterie.json"
FORMAT = 1
LEAST_MEMORY = 1 << 30  # bytes that may always be used
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Unreadable(CoterieError):  # noqa: N818 (as Diverged)
    """A file that is missing or damaged; one of the user's own can be restored from a copy."""


def inside(root: Path, *names: str) -> Path:
    """Return a path below a folder; refuse one that a link leads out of it."""
    path = root.joinpath(*names)
    base, real = os.path.realpath(root), os.path.realpath(path)
    if real != base and not real.startswith(os.path.join(base, "")):
        raise CoterieError(f"{path} is a link to a place outside of {root}, which is not followed; put a copy there")
    return path


def holds(root: Path, *names: str) -> bool:
    """Whether there is a file, a folder or a link of this name."""
    path = root.joinpath(*names)
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in ABSENT:
            return False
        raise CoterieError(f"{path} cannot be read ({error.strerror or error})") from None
    return True


def read_file(root: Path, *names: str) -> bytes:
    """Return the bytes of a plain file below a folder."""
    path = inside(root, *names)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):  # reading a pipe would wait for ever
                raise CoterieError(f"{path} cannot be read (it is not a plain file)")
            if about.st_size > memory_limit():
                raise CoterieError(f"{path} cannot be read ({about.st_size:,} bytes are too many for this machine)")
            with open(handle, "rb", closefd=False) as stream:
                return stream.read()
        finally:
            os.close(handle)
    except OSError as error:
        kind = Unreadable if error.errno in (*ABSENT, errno.EIO) else CoterieError
        raise kind(f"{path} cannot be read ({error.strerror or error})") from None


def memory_limit() -> int:
    """Return how many bytes one file may take in memory: half of what is free."""
    return max(LEAST_MEMORY, available() // 2)


class OwnedFolder:
    """A folder with a marker.

    Args:
        path: the folder.
        kind: what it is the folder of: "run" or "comparison".
    """

    def __init__(self, path: str | Path, kind: str):
        self.path, self.kind = Path(path), kind

    @property
    def marked(self) -> bool:
        """Whether the marker says that this is a folder of ours and of this kind."""
        if not holds(self.path, MARKER):
            return False
        try:
            record = json.loads(read_file(self.path, MARKER))
        except (CoterieError, ValueError, RecursionError):
            return False
        if not isinstance(record, dict) or record.get("kind") != self.kind:
            return False
        if record.get("format") != FORMAT:
            raise CoterieError(f"{self.path / MARKER} is of a newer format; use a newer version of coterie")
        return True

    @property
    def fresh(self) -> bool:
        """Whether there is nothing, or only what is left if a process dies between `lock` and `mark`."""
        if not holds(self.path):
            return True
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:  # a link to nowhere
            return True
        except NotADirectoryError:
            return False
        except OSError as error:
            raise CoterieError(f"{self.path} cannot be read ({error.strerror or error})") from None
        return all(name in self._first and self._only_begins(name) for name in names)

    @property
    def _first(self) -> dict[str, bytes]:
        return {"lock": b"", MARKER + ".tmp": self._marker}

    @property
    def _marker(self) -> bytes:
        return json.dumps({"format": FORMAT, "kind": self.kind}).encode() + b"\n"

    def _only_begins(self, name: str) -> bool:
        path = self.path / name
        if not stat.S_ISREG(os.lstat(path).st_mode) or path.stat().st_size > len(self._first[name]):
            return False
        return self._first[name].startswith(path.read_bytes())

    def refuse(self) -> CoterieError:
        """Return the error for a folder that is not ours."""
        return CoterieError(f"{self.path} exists and is not the folder of a {self.kind}; choose another --out")

    def mark(self) -> None:
        """Write the marker."""
        if not self.marked:
            durable_write(inside(self.path, MARKER), self._marker)
            with storage_errors(self.path):
                sync_folder(self.path.absolute().parent)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from writing to the folder, which is made if there is none."""
        known = holds(self.path)
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if not known and not self.fresh and not self.marked:  # nowhere/../theirs is there once `nowhere` is made
            raise self.refuse()
        with storage_errors(self.path):
            stream = open(inside(self.path, "lock"), "a", opener=never_waiting)  # noqa: SIM115 (open beyond this block)
        with stream:
            if not _lock_file(stream.fileno()):
                raise CoterieError(
                    f"{self.path} is in use by another process; wait until that has ended, or choose another --out"
                )
            yield

    def make(self, name: str) -> None:
        """Make a sub-folder."""
        with storage_errors(self.path):
            inside(self.path, name).mkdir(exist_ok=True)

    def remove(self, folder: str, *names: str) -> None:
        """Remove files of a sub-folder ("": of the folder), and the sub-folder if nothing is left in it."""
        place = inside(self.path, folder)
        with storage_errors(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place / name)
            if folder:
                with contextlib.suppress(OSError):
                    place.rmdir()

    def remove_folder(self) -> None:
        """Remove the folder if only its marker and its lock are left."""
        with storage_errors(self.path):
            if {*os.listdir(self.path)} <= {MARKER, "lock"}:
                self.remove("", "lock", MARKER)
                self.path.rmdir()

    def names(self, folder: str, pattern: Any) -> list[str]:
        """List the names in a sub-folder that match a regular expression from start to end, in order."""
        if not holds(self.path, folder):
            return []
        place = inside(self.path, folder)
        try:
            return sorted(name for name in os.listdir(place) if pattern.fullmatch(name))
        except OSError as error:
            raise CoterieError(f"{place} cannot be read ({error.strerror or error})") from None


def never_waiting(path: str, flags: int) -> int:
    """Open a file for writing; a pipe without a reader is an error instead of a wait."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


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
