"""Damaged files for readers: edits of bytes, and a guard that sees what a reader does with them.

An input is a file as the product writes it and a list of edits, each of three numbers, so that Hypothesis can shrink
what it finds and a plain random generator can make thousands per second.
"""

import contextlib
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jax

from coterie.errors import CoterieError

SECONDS = 20  # after which a reader hangs
FULL = 1 << 16  # places and values of an edit are below it
WORD = re.compile(rb"[A-Za-z_]+|[-+.0-9][-+.0-9eE]*")
TOKENS = (
    *(b"", b"0", b"-1", b"1.5", b"1e999", b"nan", b"-inf", b"2147483648", b"9" * 30, b"9" * 500, b"9" * 5000, b"0x1"),
    *(b"null", b"true", b"false", b"[]", b"{}", b'""', b'"x"', b"[1, 2]", b'{"a": 1}', b"[" * 3000, b"{" * 3000),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", "東京".encode(), b"<img src=x onerror=alert(1)>", b"'", b'"'),
    *(b"\n", b"\r", b",", b";", b"=", b":", b"#", b" ", b"../../outside", b"evil.py:X", b"os:system", b"[run]\n"),
    *(b'a.b = 1\n"', b"x = [\n", b"1:1:1", b"qid:9", b"NA", b"2024-01-01", b"1,5", b"e", b"\xc3"),
)
Edit = tuple[int, int, int]  # which kind, where, with what


class Reader(NamedTuple):
    """One row of the table of readers.

    Attributes:
        name: what is read.
        seeds: whole inputs to start from.
        read: reads one input, which it may first write into the folder; returns or raises `CoterieError`.
        wrap: puts damaged bytes back into a container whose checksums are right.
        weight: how many inputs it gets for one of the others; readers that take long get fewer.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes, Path], Any]
    wrap: Callable[[bytes], bytes] = bytes
    weight: float = 1.0

    def __str__(self) -> str:
        return self.name


def draw_edits(random: Random) -> list[Edit]:
    """Draw a few edits, mostly one."""
    count = min(1 + int(random.expovariate(0.9)), 8)
    return [(random.getrandbits(16), random.getrandbits(16), random.getrandbits(16)) for _ in range(count)]


def damaged(data: bytes, edits: list[Edit]) -> bytes:
    """Return the bytes after all edits."""
    for kind, place, value in edits:
        data = KINDS[kind % len(KINDS)](data, place * (len(data) + 1) // FULL, value)
    return data


def _token(value: int) -> bytes:
    return TOKENS[value % len(TOKENS)]


def _flip(data: bytes, at: int, value: int) -> bytes:
    return data if at >= len(data) else data[:at] + bytes([data[at] ^ (1 << value % 8)]) + data[at + 1 :]


def _set(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value % 256]) + data[at + 1 :]


def _cut(data: bytes, at: int, value: int) -> bytes:
    return data[:at]


def _drop(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + data[at + 1 + value % 64 :]


def _insert(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + _token(value) + data[at:]


def _repeat(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + data[at : at + 1 + value % 97] * (1 + value % 5) + data[at:]


def _replace_word(data: bytes, at: int, value: int) -> bytes:
    word = WORD.search(data, at)
    return data if word is None else data[: word.start()] + _token(value) + data[word.end() :]


def _drop_line(data: bytes, at: int, value: int) -> bytes:
    start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    return data[:start] + (b"" if end < 0 else data[end + 1 :])


KINDS = (_flip, _set, _cut, _drop, _insert, _repeat, _replace_word, _replace_word, _drop_line)


class Hang(BaseException):
    """A reader took too long."""


class Guard:
    """Sees what a reader does: files outside of a folder, programs, connections, pickles, code of the folder.

    Args:
        folder: where files may be read and written.
    """

    OPENS = ("open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate")
    NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class")

    def __init__(self, folder: Path):
        self.folder = os.path.realpath(folder)
        self.writable = (self.folder, *filter(None, [jax.config.values["jax_compilation_cache_dir"]]))
        libraries = {sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), *filter(None, sys.path)}
        system = ("/proc", "/sys", "/dev", "/etc", "/usr/share/zoneinfo")
        self.readable = (*map(os.path.realpath, libraries), *system)
        self.watching, self.seen = False, []
        (folder / "evil.py").write_text("import builtins\nbuiltins.evil_was_run = True\n\n\nclass X:\n    pass\n")
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple) -> None:
        if not self.watching:
            return
        if event in self.NEVER:
            self.seen.append(f"{event} {arguments[:2]}")
        elif event in self.OPENS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            reads = event == "open" and not (arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            allowed = path.startswith(self.writable) or (reads and path.startswith(self.readable))
            if not allowed and "__pycache__" not in path:
                self.seen.append(f"{event} {path}")

    def failure(self, reader: Reader, data: bytes) -> str | None:
        """Let a reader read; returns what went wrong, or None."""
        self.seen.clear()
        try:
            with _time_limit(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.watching = True
                reader.read(data, Path(self.folder))
        except CoterieError as error:
            if not str(error).strip():
                return "an error without a sentence"
        except (Exception, Hang, SystemExit) as error:
            where = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in where if f"{os.sep}coterie{os.sep}" in frame.filename] or where
            place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            return f"{type(error).__name__} at {place}: {str(error)[:150]}"
        finally:
            self.watching = False
        import builtins

        if vars(builtins).pop("evil_was_run", False):
            return "code of the folder was run"
        return f"touched {self.seen[0]}" if self.seen else None


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `Hang` inside after a while, where signals exist."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: Any) -> None:
        raise Hang(f"no answer after {SECONDS} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
