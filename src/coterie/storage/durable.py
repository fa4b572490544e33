"""Files that survive a kill, a power cut or a full disk: each is the old one or the new one, whole."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, StorageError
from coterie.storage.commands import command

__all__ = ["durable_write", "storage_errors", "sync_folder"]

SITE = "members.json"  # is in the folder of a member of a federation
OURS = ("coterie.json", "coterie.json.tmp", "config.toml", "comparison.toml")  # one is in every folder of ours

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file is too large",
}


@contextlib.contextmanager
def storage_errors(run: Path) -> Iterator[None]:
    """Turn a failure to write into the sentence a user can act on; `run` is the folder to resume."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            where = error.filename or run
            site = (run / SITE).exists()  # of a federation: it goes on together with the others
            again = "start this member again" if site else f"`{command('resume', run)}` continues"
            raise StorageError(
                f"{FULL[error.errno]} while writing {where}; what was saved before is whole: once there is space, "
                f"{again}"
            ) from error
        raise CoterieError(f"{error.filename or run} cannot be written ({error.strerror or error})") from error


def durable_write(path: Path, *parts: Any, run: Path | None = None) -> None:
    """Write bytes so that after a kill or a power cut the file is either the old one or the new one, whole.

    Args:
        path: the file.
        parts: buffers, written one after the other.
        run: the folder of the run, for the sentence about a full disk; by default the folder of the file.
    """
    temporary = path.with_name(path.name + ".tmp")
    with storage_errors(run or path.parent):
        if os.path.lexists(temporary):
            if _in_our_folder(path):
                os.unlink(temporary)  # what a kill left, or a link that somebody else put there
            else:
                temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # the user has a file of that name
        try:
            with open(temporary, "xb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)  # a failed write does not name the file
            raise
        sync_folder(path.parent)


def _in_our_folder(path: Path) -> bool:
    """Whether a file lies in the folder of a run or a comparison, or one level below."""
    return any(os.path.lexists(folder / name) for folder in path.absolute().parents[:2] for name in OURS)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
