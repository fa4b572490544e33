"""The data sets `table`, `csv` and `parquet`: files of any site, described and read in one pass."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from coterie.data.files import groups_of, marks_of
from coterie.data.labels import LONGEST
from coterie.data.samples import Samples
from coterie.data.tables.cells import cells_of, is_blank, is_empty
from coterie.data.tables.columns import Column, Options, Values, judge
from coterie.data.tables.leaks import CERTAIN, gives_away
from coterie.data.tables.read import Raw, join, of_frame, read
from coterie.data.tables.table import Described
from coterie.data.tables.target import judge_target
from coterie.errors import CoterieError
from coterie.spec import nearest, param, spec

__all__ = ["Csv", "Parquet", "Table", "from_frames", "samples_of"]

MARK = "(part)"  # the column that marks the rows of test frames


@spec
class Table:
    """A table as it is: CSV (any separator, packed or not) or Parquet; a file, a pattern, a folder, one file per site.

    Every column without a role is an input, if it can be one: what becomes of each is said before training
    (`coterie check`). In Python a DataFrame will do as well: `coterie.load(frame, target=..., client=...)`.
    """

    path: str | tuple[str, ...] = param(help="a file; or a pattern, a folder or a list of files, one for each site")
    target: str = param(help="the column that is predicted")
    client: str | None = param(None, "the column with the client of each row; without it, a site's file is the client")
    split: str | None = param(None, "the column that says train, validation or test")
    group: str | None = param(None, "the column with the client's known group")
    drop: tuple[str, ...] = param((), "columns that are not used")
    keep: tuple[str, ...] = param((), "columns that are used even if they look like identifiers")
    kind: Literal["auto", "classification", "regression"] = param("auto", "what is predicted")
    missing: Literal["median+indicator", "drop-rows", "refuse"] = param(
        "median+indicator", "missing values: filled with the median and marked; rows left out; or refused"
    )
    standardise: Literal["federated", "local", "none"] | bool = param(
        "federated", "numbers to mean 0, deviation 1 over training rows: of all sites, of each site, or not at all"
    )
    sep: str | None = param(None, "the sign between cells; found if left out")
    decimal: Literal[".", ","] | None = param(None, "the decimal sign; found if left out")
    encoding: str | None = param(None, "of text files, for example latin-1; found if left out")
    header: int | None = param(
        None, "the line with the names of the columns, 0 for none; found if left out", at_least=0
    )
    na: tuple[str, ...] = param(
        (), "words that mean no value, besides empty cells and, among numbers and dates, NA, NaN and null"
    )

    def __post_init__(self) -> None:
        if isinstance(self.standardise, bool):
            object.__setattr__(self, "standardise", "federated" if self.standardise else "none")

    def load(self) -> Samples:
        """Read and describe the table; its rows become inputs when it is divided among clients."""
        raw = read(self.path, sep=self.sep, encoding=self.encoding, header=self.header)
        return samples_of(raw, self)


@spec
class Csv(Table):
    """A CSV table (also packed, also one file per site) with a column that names the client of each row."""


@spec
class Parquet(Table):
    """A Parquet table (also one file per site) with a column that names the client of each row."""


def from_frames(frames: Mapping[str, Any] | Any, settings: Table, tests: Mapping[str, Any] | None = None) -> Samples:
    """Make samples of a DataFrame, or of one for each site and, if given, test rows of each site."""
    if not isinstance(frames, Mapping):
        return samples_of(of_frame(frames), settings)
    parts = {str(site): of_frame(frame) for site, frame in frames.items()}
    if not tests:
        return samples_of(join(parts, f"{len(parts)} data frames", [settings.target]), settings)
    if settings.split is not None:
        raise CoterieError("test rows are given, so split must be left out")
    marked = {site: of_frame(_marked(part.frame, tests[site])) for site, part in parts.items()}
    raw = join(marked, f"{len(parts)} data frames", [settings.target])
    return samples_of(raw, dataclasses.replace(settings, split=MARK))


def _marked(train: Any, test: Any) -> Any:
    """Put a site's test rows below its others, and mark both."""
    raw = join(
        {
            "training rows": of_frame(train.assign(**{MARK: "train"})),
            "test rows": of_frame(test.assign(**{MARK: "test"})),
        },
        "",
    )
    return raw.frame


def samples_of(raw: Raw, settings: Table) -> Samples:
    """Describe a table; everything that is wrong with it is said at once."""
    frame = raw.frame
    problems: list[str] = []
    _check_roles(raw, settings)
    roles = [name for name in (settings.target, settings.client, settings.split, settings.group) if name is not None]
    options = Options(settings.decimal, frozenset(settings.na), settings.keep, settings.drop)
    judged = [judge(str(name), frame[name], options, problems) for name in frame.columns if name not in roles]
    owner = _owners(raw, settings, problems)
    kept, warnings = _kept_rows(judged, owner, settings, problems, len(frame))
    warnings += [] if owner is not None else ["no client column is named: rows are dealt out to made-up clients"]
    target, y, known = judge_target(
        settings.target, frame[settings.target], settings.kind, settings.decimal, frozenset(settings.na), problems
    )
    if not known.all():
        row, count = int(np.argmin(known)) + 1, int((~known).sum())
        if settings.missing == "refuse":
            problems.append(f"has no value in the target column {settings.target!r}, row {row} of the data")
        warnings.append(f"{count:,} row{'s' * (count > 1)} without a value of {settings.target!r} left out")
    named = [label for label in target.class_names if is_empty([label])[0]]
    if named:
        warnings.append(f"{named[0]!r} is a class of {settings.target!r}; na = [{named[0]!r}] makes it no value")
    kept &= known
    if not any(column.used for column, _ in judged):
        ids = [column.name for column, _ in judged if column.kind == "identifier"]
        hint = f"; {', '.join(map(repr, ids))} left out as identifiers: name them in keep to use them" if ids else ""
        problems.append(f"has no column left to predict from{hint}")
    roles_of_rows = _roles_of_rows(raw, settings, owner, kept, problems)
    if not kept.any() and not problems:
        problems.append("has no row left")
    if problems:
        raise CoterieError("\n".join(f"{raw.about} {problem}" for problem in problems))
    columns = [dataclasses.replace(c, indicator=c.indicator and settings.missing != "drop-rows") for c, _ in judged]
    columns = [_suspected(c, v, y, kept, target.kind) for c, (_, v) in zip(columns, judged, strict=True)]
    numbers = [v.numbers[kept] for c, v in judged if c.used and v.numbers is not None]
    words = [v.words[kept] for c, v in judged if c.used and v.words is not None]
    owners = {} if owner is None else dict(zip(*np.unique(owner[kept], return_counts=True), strict=True))
    table = Described.of(
        columns,
        words,
        target=target,
        numbers=np.concatenate(numbers, axis=1) if numbers else np.zeros((int(kept.sum()), 0)),
        client=settings.client,
        owners={str(name): int(size) for name, size in owners.items()},
        standardise=settings.standardise,
        missing=settings.missing,
        na=settings.na,
        warnings=(*raw.notes, *warnings, *(c.warning for c in columns if c.warning)),
        source=raw.about,
    )
    return Samples(
        x=np.arange(int(kept.sum())),
        y=y[kept],
        kind=target.kind,
        classes=len(target.class_names) or 1,
        owner=None if owner is None else owner[kept],
        about=raw.about,
        class_names=target.class_names,
        table=table,
        **roles_of_rows,
    )


def _check_roles(raw: Raw, settings: Table) -> None:
    """Refuse a table without rows or without the columns that were named; all of them at once."""
    names = [str(name) for name in raw.frame.columns]
    wanted = {field: getattr(settings, field) for field in ("target", "client", "split", "group")}
    asked = [name for name in (*wanted.values(), *settings.drop, *settings.keep) if name is not None]
    said = []
    for name in dict.fromkeys(asked):
        if name not in names:
            guess = nearest(name, names)
            said.append(f"{raw.about} has no column {name!r}{guess or '; it has ' + ', '.join(names)}")
    if len(raw.frame) == 0:
        said.append(f"{raw.about} has no rows")
    roles = [name for name in wanted.values() if name is not None]
    if len(set(roles)) != len(roles):
        said.append(f"one column of {raw.about} has two roles; target, client, split and group must differ")
    if said:
        raise CoterieError("\n".join(said))


def _owners(raw: Raw, settings: Table, problems: list[str]) -> np.ndarray | None:
    """Return the client of every row, exactly as written; only an empty cell is none."""
    if settings.client is None:
        if raw.site is not None and len(set(raw.site.tolist())) < 2:
            problems.append("is the table of one site only; cooperation needs at least two")
        return raw.site
    cells = cells_of(raw.frame[settings.client])
    empty = is_blank(cells.words)
    if empty.any() and settings.missing != "drop-rows":
        count = int(empty[cells.code].sum())
        problems.append(
            f"has no value in column {settings.client!r}, row {cells.row(empty)} of the data"
            + (f" ({count} such rows)" if count > 1 else "")
            + ", so that nobody knows whose row it is; fill it or remove the row"
        )
    if (~empty).sum() == 1:
        problems.append(
            f"has one client only, {cells.words[~empty][0]!r}, in column {settings.client!r}; cooperation needs two"
        )
    longest = max(cells.words, key=len)
    if len(longest) > LONGEST:
        row = cells.row(cells.words == longest)
        problems.append(f"has a client name of {len(longest):,} letters in row {row}; at most {LONGEST} can be used")
        return None
    return cells.text.astype(str)


def _kept_rows(
    judged: list[tuple[Column, Values]], owner: np.ndarray | None, settings: Table, problems: list[str], rows: int
) -> tuple[np.ndarray, list[str]]:
    """Return which rows are used, and what to say about the others."""
    kept = np.ones(rows, bool)
    for column, values in judged:
        if not column.used or column.missing == 0:
            continue
        absent = _absent(column, values)
        kept &= ~absent
        if settings.missing == "refuse":
            row, count = int(np.argmax(absent)) + 1, int(absent.sum())
            problems.append(
                f"has no value in column {column.name!r}, row {row} of the data"
                + (f" (and {count - 1} more)" if count > 1 else "")
                + "; fill it, drop the column, or set missing to median+indicator or drop-rows"
            )
    if settings.missing != "drop-rows":
        return np.ones(rows, bool), []
    kept &= True if owner is None else np.char.strip(owner) != ""
    left_out = rows - int(kept.sum())
    said = [f"{left_out:,} of {rows:,} rows with a missing value left out"] if left_out else []
    return kept, said


def _absent(column: Column, values: Values) -> np.ndarray:
    from coterie.data.tables.columns import MISSING

    if values.words is not None:
        return values.words == MISSING
    assert values.numbers is not None
    return np.isnan(values.numbers[:, 0])


def _roles_of_rows(
    raw: Raw, settings: Table, owner: np.ndarray | None, kept: np.ndarray, problems: list[str]
) -> dict[str, Any]:
    """Read the columns that say which part a row belongs to, and the group of its client."""
    fields: dict[str, Any] = {}
    try:
        if settings.split is not None:
            words = cells_of(raw.frame[settings.split]).text
            fields["ready"] = marks_of(words, f"column {settings.split!r}")[kept]
            if not np.any(fields["ready"] == "train"):
                problems.append("has no row marked train")
        if settings.group is not None:
            cells = cells_of(raw.frame[settings.group])
            empty = is_blank(cells.words)[cells.code] & kept
            if empty.any():
                row = int(np.argmax(empty)) + 1
                raise CoterieError(f"column {settings.group!r} has no group in row {row} of the data; fill it")
            words, what = cells.text, f"column {settings.group!r}"
            fields["group"] = groups_of(None if owner is None else owner[kept], words[kept], what)
    except CoterieError as error:
        problems.append(f"is not right: {error}")
    return fields


def _suspected(column: Column, values: Values, y: np.ndarray, kept: np.ndarray, kind: str) -> Column:
    """Warn of a column that alone predicts the target almost perfectly; it is kept."""
    if not column.used:
        return column
    array = values.words if values.words is not None else values.numbers
    assert array is not None
    array = array[kept] if array.ndim == 1 else array[kept, 0]
    if gives_away(array, y[kept], kind) < CERTAIN:
        return column
    said = f"{column.name!r} alone predicts the target almost perfectly: drop it if it is not known beforehand"
    return dataclasses.replace(column, note=(column.note + ", suspicious").strip(", "), warning=said)
