"""What a text file looks like: its encoding, the sign between its cells, and the line with the names of the columns."""

import csv
import io
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from coterie.data.tables.cells import read_numbers
from coterie.data.unpack import opened

__all__ = ["Layout", "sniff"]

HEAD = 1 << 18  # bytes that are looked at
LINES = 200
SEPARATORS = (",", ";", "\t", "|")
SPACES = r"\s+"
NEWLINE = re.compile(r"\r\n|\r|\n")


class Layout(NamedTuple):
    """How to read a text file: `skip` lines come before the data; `notes` say what was not as usual."""

    encoding: str
    sep: str
    names: list[str]
    skip: int
    notes: list[str]


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
    used = sep or _separator(text)
    rows = _rows(text, used, cut=len(head) == HEAD)
    counts = [len(row) for row in rows]
    width = Counter(count for row, count in zip(rows, counts, strict=True) if any(row)).most_common(1)[0][0]
    if header is not None:
        if header > len(rows):
            raise ValueError(f"header is {header} but the file has {len(rows)} lines")
        names = rows[header - 1] if header else []
        return Layout(encoding, used, names or [f"column {i + 1}" for i in range(width)], header, notes)
    if counts[0] == width - 1 and all(count == width for count in counts[1:]) and width > 1 and len(rows) > 1:
        if not any(row[-1] for row in rows[1:]):  # every row ends with a separator
            return Layout(encoding, used, [*rows[0], ""], 1, notes)
        notes.append("rows have one cell more than the first line has names: the first is taken for the row's name")
        return Layout(encoding, used, ["(row names)", *rows[0]], 1, notes)
    place = next(i for i, count in enumerate(counts) if count == width and any(rows[i]))
    if place:
        notes.append(f"the first {place} line{'s are' * (place > 1) or ' is'} no part of the table")
    names = rows[place]
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


def _separator(text: str) -> str:
    """Return the sign that divides the rows into most cells, the same number in every row."""

    def quality(sign: str) -> float:
        counts = [len(row) for row in _rows(text, sign) if any(row)]
        width, agreeing = Counter(counts).most_common(1)[0]
        return 0.0 if width == 1 else width * (agreeing / len(counts)) ** 2 * (1.0 if counts[0] >= width - 1 else 0.5)

    best = max(SEPARATORS, key=quality)
    if quality(best) > 0:
        return best
    return SPACES if len({len(row) for row in _rows(text, SPACES) if any(row)} - {1}) == 1 else ","


def _rows(text: str, sep: str, cut: bool = False) -> list[list[str]]:
    """Return the cells of the first rows, the last one not if it is `cut`; a cell in quotes may have line breaks."""
    if len(sep) > 1:  # a regular expression, as pandas takes it
        lines = NEWLINE.split(text.rstrip("\r\n"), maxsplit=LINES + 1)[: LINES + 1]
        rows = [re.split(sep, line.strip()) for line in lines]
    else:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep, skipinitialspace=True)
        rows = [[cell.strip() for cell in row] or [""] for row in islice(reader, LINES + 1)]
    return rows[:-1][:LINES] if cut and len(rows) > 1 else rows[:LINES]
