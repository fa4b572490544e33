"""How rows of a table become inputs, as a record: plain data that fits into a JSON file and needs no scikit-learn.

`encode.py` fits the statistics with scikit-learn's transformers; the numbers here are the same to the last bit.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.data.labels import LARGEST
from coterie.data.tables.columns import MISSING, Column
from coterie.data.tables.target import Target
from coterie.errors import CoterieError, shown
from coterie.spec import nearest

__all__ = ["ALL", "Preparation", "Sent", "Statistics"]

ALL = ""  # the key of statistics that hold for every client


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of every number input: what a missing value becomes, what is subtracted, by what is divided."""

    fill: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Sent:
    """Bytes that one client sent to the hub, and received from it, to agree on the inputs."""

    up: int
    down: int


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How rows of a table become inputs.

    Attributes:
        columns: what each column is and becomes.
        target: what is predicted.
        client: the column that says whose row it is, if there is one.
        standardise: "federated", "local" or "none".
        missing: what is done about missing values.
        statistics: by client, or one for all (`ALL`).
        na: words that mean "no value", besides the usual ones.
        warnings: sentences a person should read.
        source: what the table is, in a few words.
        rows: rows that are used.
        clients: name, and number of rows for training, validation and testing, of every client.
        sent: by client, the bytes of the statistics that were shared.
    """

    columns: tuple[Column, ...]
    target: Target
    client: str | None = None
    standardise: str = "federated"
    missing: str = "median+indicator"
    statistics: Mapping[str, Statistics] = dataclasses.field(default_factory=dict)
    na: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source: str = ""
    rows: int = 0
    clients: tuple[tuple[Any, ...], ...] = ()
    sent: Mapping[str, Sent] = dataclasses.field(default_factory=dict)

    @property
    def task(self) -> str:
        """What is predicted, in one sentence."""
        return self.target.why

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs: numbers, then what is missing, then levels of words."""
        flags = [f"{column.name} missing" for column in self.columns if column.used and column.indicator]
        numbers = [name for column in self.columns for name in column.numbers]
        return (*numbers, *flags, *(name for column in self.columns for name in column.words))

    @property
    def sent_bytes(self) -> dict[str, tuple[int, int]]:
        """By client, the bytes to the hub and back that it took to agree on the inputs."""
        return {name: (sent.up, sent.down) for name, sent in self.sent.items()}

    def transform(self, frame: Any, client: str | None = None) -> tuple[np.ndarray, list[str]]:
        """Turn rows into inputs.

        Args:
            frame: a DataFrame with the table's columns, in any order; further columns are ignored.
            client: whose rows they are; it matters where each client has statistics of its own.

        Returns:
            The inputs `[n, features]`, and for each row what a person should know of it ("" if nothing).
        """
        self.check(frame)
        notes: list[list[str]] = [[] for _ in range(len(frame))]
        numbers, levels, flagged = [np.zeros((len(frame), 0))], [], []
        places: list[str] = []  # the column of each number
        for column in (column for column in self.columns if column.used):
            values = column.read(frame[column.name], frozenset(self.na))
            if values.words is not None:
                levels.append(_levels(column, values.words, notes))
                continue
            assert values.numbers is not None
            _note_absent(column, np.isnan(values.numbers[:, 0]), values.stray, notes)
            numbers.append(values.numbers)
            flagged += [len(places)] * column.indicator
            places += [column.name] * len(column.numbers)
        table = np.concatenate(numbers, axis=1)
        own = self._statistics(table, client, notes)
        for row, place in np.argwhere(_too_large(table, own)):
            cell = frame[places[place]].iloc[row]
            notes[row].append(f"{shown(str(cell))} in {places[place]!r} is too large a number")
            table[row, place] = np.nan
        scaled = (np.where(np.isnan(table), own.fill, table) - np.asarray(own.mean)) / np.asarray(own.scale)
        x = np.concatenate([scaled, np.isnan(table[:, flagged]), *levels], axis=1)
        return x.astype(self.dtype), ["; ".join(said) for said in notes]

    @property
    def dtype(self) -> Any:
        """The type of the inputs: numbers that are not centred keep all their digits."""
        return np.float64 if self.standardise == "none" else np.float32

    def check(self, frame: Any) -> None:
        """Refuse a table that lacks columns, naming all of them."""
        have = [str(name) for name in frame.columns]
        lacking = [column.name for column in self.columns if column.used and column.name not in have]
        if lacking:
            guess = nearest(lacking[0], [name for name in have if name not in self.names]) if len(lacking) == 1 else ""
            word = "column" if len(lacking) == 1 else "columns"
            raise CoterieError(f"the table lacks the {word} {', '.join(map(repr, lacking))}{guess}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that become inputs."""
        return tuple(column.name for column in self.columns if column.used)

    def _statistics(self, numbers: np.ndarray, client: str | None, notes: list[list[str]]) -> Statistics:
        own = self.statistics.get(ALL) or self.statistics.get(client or ALL)
        if own is None:
            own = _statistics_of(numbers)
            for note in notes:
                note.append("numbers are standardised with the statistics of these rows")
        return own

    def targets(self, frame: Any) -> np.ndarray:
        """Return the targets of rows as training uses them: class numbers, or standardised numbers."""
        if self.target.name not in [str(name) for name in frame.columns]:
            raise CoterieError(f"the table lacks the target column {self.target.name!r}")
        values = self.target.read(frame[self.target.name], frozenset(self.na))
        if self.target.kind == "regression":
            values = (values - self.target.mean) / self.target.std
        wrong = ~(np.abs(values) <= LARGEST) if self.target.kind == "regression" else values < 0
        if wrong.any():
            row = int(np.argmax(wrong))
            word = frame[self.target.name].iloc[row]
            known = f"; classes: {', '.join(self.target.class_names)}" if self.target.class_names else ""
            raise CoterieError(f"target column {self.target.name!r}, row {row + 1}: {word!r} cannot be used{known}")
        return values

    def only(self, client: str) -> "Preparation":
        """Return what one client needs: without the statistics, sizes and bytes of others."""
        shared = {key: value for key, value in self.statistics.items() if key in (ALL, client)}
        sent = {key: value for key, value in self.sent.items() if key == client}
        mine = tuple(record for record in self.clients if record[0] == client)
        return dataclasses.replace(self, statistics=shared, sent=sent, clients=mine)

    def with_client(self, client: str, frame: Any) -> "Preparation":
        """Return it with the statistics of a new client's rows, where each client has its own; otherwise unchanged."""
        if ALL in self.statistics or client in self.statistics:
            return self
        self.check(frame)
        columns = [column for column in self.columns if column.used and column.kind != "words"]
        read = [column.read(frame[column.name], frozenset(self.na)).numbers for column in columns]
        numbers = np.concatenate([np.zeros((len(frame), 0)), *(part for part in read if part is not None)], axis=1)
        return dataclasses.replace(self, statistics={**self.statistics, client: _statistics_of(numbers)})

    def intake(self) -> Any:
        """Return "what went in": the task, the columns, the clients and the warnings, for screen and report."""
        from coterie.data.tables.intake import Intake

        return Intake.of_preparation(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Preparation":
        """Read it back."""
        try:
            values = dict(record)
            values["columns"] = tuple(_record(Column, column) for column in values["columns"])
            values["target"] = _record(Target, values["target"])
            values["statistics"] = {key: _record(Statistics, value) for key, value in values["statistics"].items()}
            values["sent"] = {key: Sent(**value) for key, value in values["sent"].items()}
            values["clients"] = tuple((str(name), *map(int, sizes)) for name, *sizes in values["clients"])
            return _record(cls, values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CoterieError(f"the preparation of the table is damaged ({error}); restore it from a copy") from None


def _record(cls: Any, values: Mapping[str, Any]) -> Any:
    """Make a record of plain values; lists become tuples."""
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _levels(column: Column, words: np.ndarray, notes: list[list[str]]) -> np.ndarray:
    """Return one 0/1 column per level; a word that is none of them counts as "other" where there is such an input."""
    place = {level: i for i, level in enumerate(column.levels)}
    other = len(column.levels)  # its place, whether there is such an input or not
    where = np.array([place.get(word, other) for word in words], np.int64)
    for row in np.flatnonzero(where == other):
        said = f"{words[row]!r} in {column.name!r} was not seen" + " or is rare" * bool(column.other)
        notes[row].append(f"no value in {column.name!r}" if words[row] == MISSING else said)
    return where[:, None] == np.arange(len(column.words))


def _note_absent(column: Column, absent: np.ndarray, stray: np.ndarray | None, notes: list[list[str]]) -> None:
    for row in np.flatnonzero(absent):
        if stray is not None and stray[row]:
            what = "date" if column.kind == "date" else "number"
            notes[row].append(f"{stray[row]!r} in {column.name!r} is no {what}")
        else:
            notes[row].append(f"no value in {column.name!r}")


def _too_large(numbers: np.ndarray, own: Statistics) -> np.ndarray:
    """Say which numbers are infinite, or become so once they are standardised and written in 32 bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        standardised = (numbers - np.asarray(own.mean)) / np.asarray(own.scale)
    return ~np.isnan(numbers) & ~(np.abs(standardised) <= LARGEST)


def _statistics_of(numbers: np.ndarray) -> Statistics:
    """Return the statistics of some rows, as scikit-learn's SimpleImputer and StandardScaler fit them."""
    numbers = np.where(np.abs(numbers) > LARGEST, np.nan, numbers)  # those count as missing
    fill = [float(np.median(column[~np.isnan(column)])) if not np.isnan(column).all() else 0.0 for column in numbers.T]
    filled = np.where(np.isnan(numbers), fill, numbers)
    scale = filled.std(0)
    return Statistics(tuple(fill), tuple(filled.mean(0).tolist()), tuple(np.where(scale > 0, scale, 1.0).tolist()))
