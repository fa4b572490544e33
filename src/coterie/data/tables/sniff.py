"""What a text file looks like: its encoding, the sign between its cells, and the line with the names of the columns."""

import bz2
import contextlib
import csv
import gzip
import lzma
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from coterie.data.tables.cells import read_numbers
from coterie.errors import CoterieError

__all__ = ["Layout", "opened", "sniff"]

HEAD = 1 << 18  # bytes that are looked at
LINES = 200
SEPARATORS = (",", ";", "\t", "|")
SPACES = r"\s+"
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Layout(NamedTuple):
    """How to read a text file: `skip` lines come before the data; `notes` say what was not as usual."""

    encoding: str
    sep: str
    names: list[str]
    skip: int
    notes: list[str]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked where its ending says that it is packed."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if not name.endswith("/")]
            if len(members) != 1:
                raise CoterieError(f"{path} holds {len(members)} files; it must hold one table")
            with archive.open(members[0]) as stream:
                yield stream
        return
    with OPENERS.get(path.suffix, open)(path, "rb") as stream:
        yield stream


def sniff(path: Path, sep: str | None, encoding: str | None, header: int | None) -> Layout:
    """Look at the beginning of a file; what is given is not guessed."""
    with opened(path) as stream:
        head = stream.read(HEAD)
    encoding, notes = (encoding, []) if encoding else _encoding(head)
    try:
        text = head.decode(encoding, errors="ignore" if len(head) == HEAD else "strict")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text in {encoding}") from error
    if "\x00" in text or not text.strip():
        raise ValueError("it is empty" if not text.strip() else "it holds bytes that are no text")
    lines = text.splitlines()
    lines = lines[:-1] if len(head) == HEAD and len(lines) > 1 else lines
    lines = lines[:LINES]
    used = sep or _separator(lines)
    counts = [len(_cells(line, used)) for line in lines]
    width = Counter(count for line, count in zip(lines, counts, strict=True) if line.strip()).most_common(1)[0][0]
    if header is not None:
        place = header - 1 if header else 0
        if header > len(lines):
            raise ValueError(f"header is {header} but the file has {len(lines)} lines")
        names = _cells(lines[place], used) if header else []
        return Layout(encoding, used, names or [f"column {i + 1}" for i in range(width)], header, notes)
    if counts[0] == width - 1 and all(count == width for count in counts[1:]) and width > 1 and len(lines) > 1:
        if not any(_cells(line, used)[-1] for line in lines[1:]):  # every row ends with a separator
            return Layout(encoding, used, [*_cells(lines[0], used), ""], 1, notes)
        notes.append("rows have one cell more than the first line has names: the first is taken for the row's name")
        return Layout(encoding, used, ["(row names)", *_cells(lines[0], used)], 1, notes)
    place = next(i for i, count in enumerate(counts) if count == width and lines[i].strip())
    if place:
        notes.append(f"the first {place} line{'s are' * (place > 1) or ' is'} no part of the table")
    names = _cells(lines[place], used)
    if width > 1 and not read_numbers(names, ".").stray.any() and all(names):
        notes.append(
            "the first line holds numbers, so columns are called column 1, column 2, ...; header = 1 says else"
        )
        return Layout(encoding, used, [f"column {i + 1}" for i in range(width)], place, notes)
    return Layout(encoding, used, names, place + 1, notes)


def _encoding(head: bytes) -> tuple[str, list[str]]:
    for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if head.startswith(mark):
            if name == "utf-16" and "\n" not in head.decode(name, errors="ignore"):
                break
            return name, []
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(head) < HEAD or error.start < HEAD - 4:  # not just a letter cut in two by the end of the head
            return "cp1252", ["it is not UTF-8 and is read as Windows-1252; set encoding if letters look wrong"]
    return "utf-8", []


def _separator(lines: list[str]) -> str:
    """Return the sign that divides the lines into most cells, the same number in every line."""

    def quality(sign: str) -> float:
        counts = [len(_cells(line, sign)) for line in lines if line.strip()]
        width, agreeing = Counter(counts).most_common(1)[0]
        return 0.0 if width == 1 else width * (agreeing / len(counts)) ** 2 * (1.0 if counts[0] >= width - 1 else 0.5)

    best = max(SEPARATORS, key=quality)
    if quality(best) > 0:
        return best
    return SPACES if len({len(_cells(line, SPACES)) for line in lines if line.strip()} - {1}) == 1 else ","


def _cells(line: str, sep: str) -> list[str]:
    if len(sep) > 1:  # a regular expression, as pandas takes it
        return re.split(sep, line.strip())
    return [cell.strip() for cell in next(csv.reader([line], delimiter=sep, skipinitialspace=True), [""])]
