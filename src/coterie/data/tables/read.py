"""Read tables: one file, a pattern, a folder or a list of files, a DataFrame, or one of these for each site.

Cells of text files stay text until a column is described (`columns.py`): 007, 07 and 7 are three clients. Tables of
several sites are joined by the names of their columns.
"""

import glob
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.data.tables.sniff import sniff
from coterie.data.unpack import existing, first_line, opened, place_of
from coterie.errors import CoterieError
from coterie.storage.memory import refuse_beyond

__all__ = ["ENDINGS", "Raw", "join", "looks_like_a_table", "of_frame", "read", "site_files"]

TEXT = (".csv", ".tsv", ".txt", ".tab")
PACKED = ("", ".gz", ".bz2", ".xz", ".zip")
PARQUET = (".parquet", ".pq")
ENDINGS = (*(ending + packed for ending in TEXT for packed in PACKED), *PARQUET)
CELL = 64  # bytes of memory that a cell takes while a table is read, without its letters
INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls the numbers of rows that it writes to Parquet


class Raw(NamedTuple):
    """A table as it was read.

    Attributes:
        frame: a pandas DataFrame; columns of text files are text, others have the type of the source.
        site: the site of every row `[N]`, where there is one table per site, else None.
        about: what it is, in a few words.
        notes: what was not as usual, one sentence each.
    """

    frame: Any
    site: np.ndarray | None
    about: str
    notes: list[str]


def looks_like_a_table(name: Any) -> bool:
    """Whether a name is that of a table file, a pattern of such files, or a folder, rather than of a data set."""
    if not isinstance(name, str | os.PathLike):
        return False
    text = os.fspath(name)
    if not isinstance(text, str) or ":" in text.rpartition("/")[2]:
        return False
    return text.lower().endswith(ENDINGS) or (("/" in text or not isinstance(name, str)) and os.path.isdir(text))


def read(
    path: str | Sequence[str],
    *,
    sep: str | None = None,
    encoding: str | None = None,
    header: int | None = None,
) -> Raw:
    """Read what a path names; a pattern, a folder or a list is one table per site."""
    files, several = _files(path)
    parts = {}
    for file in files:
        name = _stem(file)
        if name in parts:
            raise CoterieError(
                f"path: two files are called {name}, and a file's name is the client; rename one of them"
            )
        parts[name] = _read_file(file, sep, encoding, header)
    if not several:
        return next(iter(parts.values()))
    return join(parts, f"{len(files)} files in {files[0].parent}")


def site_files(path: str | Sequence[str]) -> dict[str, Path]:
    """Return the files that a path names, by the client that each stands for where there is one file per site."""
    return {_stem(file): file for file in _files(path)[0]}


def of_frame(frame: Any, about: str = "a data frame") -> Raw:
    """Take a DataFrame as it is; an index with a name is a column."""
    if frame.index.name is not None and frame.index.name not in frame.columns:
        frame = frame.reset_index()
    _refuse_twins(frame, about)
    return Raw(frame.rename(columns=str).reset_index(drop=True), None, about, [])


def join(parts: Mapping[str, Raw], about: str, roles: Sequence[str] = ()) -> Raw:
    """Join the tables of several sites by the names of their columns; what not all sites have is left out, and said.

    Args:
        parts: the table of each site.
        about: what they are together.
        roles: columns that every site must have.
    """
    import pandas as pd

    for site, part in parts.items():
        _refuse_twins(part.frame, f"the table of {site!r}")
    columns = {site: list(part.frame.columns) for site, part in parts.items()}
    first = next(iter(columns.values()))
    everywhere = [name for name in first if all(name in names for names in columns.values())]
    if not everywhere:
        sites = ", ".join(f"{site} has {', '.join(names[:5])}" for site, names in list(columns.items())[:3])
        raise CoterieError(f"the sites have no column in common ({sites}); columns are joined by name")
    for role in roles:
        lacking = [site for site, names in columns.items() if role not in names]
        if lacking:
            raise CoterieError(f"{_listing(lacking)} {'has' if len(lacking) == 1 else 'have'} no column {role!r}")
    notes = list(_differences(columns, everywhere))
    for site, part in parts.items():
        notes += [f"{site}: {note}" for note in part.notes if note not in notes]
    frame = pd.concat([_joinable(part.frame[everywhere]) for part in parts.values()], ignore_index=True)
    return Raw(frame, np.repeat(np.array(list(parts), dtype=str), [len(p.frame) for p in parts.values()]), about, notes)


def _joinable(frame: Any) -> Any:
    """Columns with categories, which may differ from site to site, become plain ones."""
    return frame.astype({name: object for name in frame.columns if str(frame[name].dtype) == "category"})


def _differences(columns: Mapping[str, list[str]], everywhere: list[str]) -> list[str]:
    """Say which sites lack which columns."""
    notes = []
    every = dict.fromkeys(name for names in columns.values() for name in names)
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in every:
        if name not in everywhere:
            sites = tuple(site for site, names in columns.items() if name not in names)
            lacking.setdefault(sites, []).append(name)
    for sites, names in lacking.items():
        word = "column" if len(names) == 1 else "columns"
        verb = "has" if len(sites) == 1 else "have"
        notes.append(f"{_listing(sites)} {verb} no {word} {', '.join(map(repr, names))}: left out everywhere")
    return notes


def _listing(sites: Sequence[str]) -> str:
    return ", ".join(sites[:5]) + (f" and {len(sites) - 5} more sites" if len(sites) > 5 else "")


def _files(path: str | Sequence[str]) -> tuple[list[Path], bool]:
    """Return the files that a path names, and whether each of them is a site."""
    if not isinstance(path, str):
        return [existing(name) for name in path], True
    place = place_of(path)
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if file.name.lower().endswith(ENDINGS) and file.is_file())
        if not files:
            raise CoterieError(f"path: {place} is a folder without tables; they end in .csv, .tsv, .txt or .parquet")
        return [place_of(str(file)) for file in files], True
    if glob.has_magic(path) and not place.exists():
        files = sorted(Path(name) for name in glob.glob(str(place)) if os.path.isfile(name))
        if not files:
            raise CoterieError(f"path: no file matches {path}")
        return [place_of(str(file)) for file in files], True
    return [existing(path)], False


def _stem(file: Path) -> str:
    """Return a file's name without its ending."""
    ending = max((e for e in ENDINGS if file.name.lower().endswith(e)), key=len, default=file.suffix)
    return file.name[: len(file.name) - len(ending)] or file.name


def _read_file(path: Path, sep: str | None, encoding: str | None, header: int | None) -> Raw:
    ending = path.suffix.lower()
    if ending in (".xlsx", ".xls", ".ods", ".zst", ".tar", ".7z", ".rar"):
        raise CoterieError(f"{path}: {ending} files are not read; save the table as .csv, also packed as .csv.gz")
    form = "CSV"
    try:
        with open(path, "rb") as stream:
            start = stream.read(4)
        if ending in PARQUET or start == b"PAR1":
            form = "Parquet"
            return _read_parquet(path)
        return _read_text(path, sep, encoding, header)
    except CoterieError:
        raise
    except Exception as error:  # damaged bytes make pandas, pyarrow and the unpackers raise almost anything
        said = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise CoterieError(f"{path} is not a readable {form} table ({said})") from error


def _read_text(path: Path, sep: str | None, encoding: str | None, header: int | None) -> Raw:
    import pandas as pd

    try:
        layout = sniff(path, sep, encoding, header)
        per_line = CELL * len(layout.names)
        with opened(path, 2, per_line) as stream, warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than others would be cut
            frame = pd.read_csv(
                stream,
                sep=layout.sep,
                encoding=layout.encoding,
                header=None,
                names=range(len(layout.names)),
                skiprows=layout.skip,
                dtype=object,
                na_filter=False,
                index_col=False,
                skipinitialspace=True,
                **({"engine": "c", "low_memory": False} if len(layout.sep) == 1 else {"engine": "python"}),
            )
    except UnicodeDecodeError:
        if encoding is not None:
            raise
        return _read_text(path, sep, "cp1252", header)  # a letter far down in the file is not UTF-8
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame(columns=range(len(layout.names)))
    frame.columns = [name.strip().strip("\ufeff") or f"(column {i + 1})" for i, name in enumerate(layout.names)]
    _refuse_twins(frame, str(path))
    return Raw(frame, None, path.name, [f"{path.name}: {note}" for note in layout.notes])


def _read_parquet(path: Path) -> Raw:
    import pandas as pd

    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise CoterieError("reading Parquet needs pyarrow: pip install 'coterie[parquet]'") from error
    with pq.ParquetFile(path) as file:
        cells = file.metadata.num_rows * file.metadata.num_columns
        refuse_beyond(CELL * cells, f"{path}, with {cells:,} cells,", "use a file with fewer rows or columns")
        table = file.read()
    table.validate(full=True)  # text that is not UTF-8 would fail only when it is looked at
    # What pandas notes in the file about its own types may be damaged, and is not needed; whole numbers with gaps
    # stay whole, for floats keep 16 digits only.
    whole = {f"{sign}int{bits}": f"{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    frame = table.replace_schema_metadata(None).to_pandas(
        types_mapper=lambda kind: pd.array([], dtype=whole[str(kind)]).dtype if str(kind) in whole else None
    )
    return of_frame(frame[[name for name in frame.columns if not INDEX.fullmatch(str(name))]], path.name)


def _refuse_twins(frame: Any, what: str) -> None:
    twice = sorted(name for name, count in Counter(map(str, frame.columns)).items() if count > 1)
    if twice:
        raise CoterieError(f"{what} has two columns called {', '.join(map(repr, twice))}; rename one of them")
