"""Download a public file once, from its official address, and verify its checksum.

Files are in the folder `COTERIE_DATA`, or in the platform's cache if that is not set; each data set has its own
sub-folder. A download goes to a temporary file in the same folder, is checked against the known checksum and then
renamed, so that a file with the right name is complete. `COTERIE_MIRROR` is an address whose `SET/FILE` is used instead
of the official ones (a copy of the folder behind any web server is a mirror).
"""

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from coterie.errors import CoterieError, StorageError

__all__ = ["Progress", "Remote", "fetch", "folder", "locate", "places"]

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes received and the total (None if the server does not say)."""

BLOCK = 1 << 18
TIMEOUT = 30.0  # seconds without an answer


class Remote(NamedTuple):
    """A public file: its set, its local name, its addresses, and its checksum as "md5:..." or "sha256:..."."""

    set: str
    name: str
    addresses: tuple[str, ...]
    checksum: str


def folder() -> Path:
    """Return the folder of public data: `COTERIE_DATA`, or the platform's cache."""
    chosen = os.environ.get("COTERIE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("coterie"))


def places(set_: str) -> tuple[Path, ...]:
    """Return the folders that may have a data set's files: its own sub-folder, then the folder of public data."""
    return folder() / set_, folder()


def locate(names: Iterable[str], places: Iterable[Path]) -> Path | None:
    """Return the first file that exists, trying the places in order."""
    names = tuple(names)
    return next((place / name for place in places for name in names if (place / name).is_file()), None)


def fetch(remote: Remote, *, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """Return the path of a public file; download it if it does not exist.

    Args:
        remote: the file.
        mirror: an address to use instead of the official ones; `COTERIE_MIRROR` if None.
        progress: called while bytes arrive; a bar is drawn on a terminal if None.
    """
    target = folder() / remote.set / remote.name
    if target.is_file():
        return target
    mirror = mirror or os.environ.get("COTERIE_MIRROR")
    addresses = (f"{mirror.rstrip('/')}/{remote.set}/{remote.name}",) if mirror else remote.addresses
    reasons = []
    for address in addresses:
        reason = _download(address, target, remote, progress)
        if reason is None:
            return target
        reasons.append(f"{address}: {reason}")
    raise CoterieError(
        f"{remote.set} could not be downloaded ({'; '.join(reasons)}); put the file {remote.name} into "
        f"{target.parent}, or set COTERIE_DATA to the folder that holds {remote.set}/{remote.name}"
    )


def _download(address: str, target: Path, remote: Remote, progress: Progress | None) -> str | None:
    """Download to `target`; return None, or why it failed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f"{remote.name}.", suffix=".part")
    except OSError as error:
        raise StorageError(
            f"{target.parent} cannot be written ({error.strerror}); set COTERIE_DATA to another folder"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            reason = _copy(address, file, remote.checksum, progress)
        if reason is None:
            os.replace(part, target)
    except OSError as error:  # the disk; failures of the network are in `reason`
        raise StorageError(
            f"{target} cannot be written ({error.strerror}); free some space or set COTERIE_DATA"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return reason


def _copy(address: str, file: IO[bytes], checksum: str, progress: Progress | None) -> str | None:
    """Copy the content of the address into the file; return None, or why the copy cannot be used."""
    kind, _, expected = checksum.partition(":")
    digest, done = hashlib.new(kind, usedforsecurity=False), 0
    try:
        with contextlib.ExitStack() as stack:
            answer = stack.enter_context(_open(address))
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            report = progress or stack.enter_context(_bar(address))
            while block := _read(answer):
                file.write(block)
                digest.update(block)
                done += len(block)
                report(done, total)
    except _NetworkError as error:
        return str(error)
    if total is not None and done != total:
        return f"the download ended after {done} of {total} bytes"
    if digest.hexdigest() != expected:
        return f"its {kind} checksum is {digest.hexdigest()}, not {expected}, so it is another file"
    file.flush()
    os.fsync(file.fileno())
    return None


class _NetworkError(Exception):
    """A failure of the network, in words, as opposed to an OSError of the disk."""


def _open(address: str) -> Any:
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "coterie"})
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _NetworkError(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _NetworkError(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _NetworkError(f"no usable answer ({str(error) or type(error).__name__})") from error


def _read(answer: Any) -> bytes:
    try:
        return answer.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _NetworkError(f"the connection broke ({str(error) or type(error).__name__})") from error


@contextlib.contextmanager
def _bar(address: str) -> Iterator[Progress]:
    """Draw a progress bar on a terminal; elsewhere stay silent."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(address.rsplit("/", 1)[-1], total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
