"""The user's own data: arrays in an .npz file, or a table with a column that names the client of each row.

Class labels may be any numbers or words; they are numbered in sorted order. Targets that are not whole numbers make a
regression, unless `kind` says otherwise.
"""

import abc
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.data.clients import Kind
from coterie.data.formats import read_npz
from coterie.data.samples import Samples, encode, inputs, numbers
from coterie.errors import CoterieError
from coterie.spec import nearest, param, spec

__all__ = ["Csv", "Npz", "Parquet", "existing"]

WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}

MOST_WORDS = 1000  # each distinct word of a column becomes one input


@spec
class Npz:
    """Arrays from an .npz file (or .npz.xz).

    Either `x`, `y` and optionally `client`, `split` and `group` of every sample; or `x_train`, `y_train`,
    `x_test`, `y_test` and optionally `client_train` and `client_test`. Images are bytes `[N, C, H, W]`; grey ones may
    be `[N, H, W]`.
    """

    path: str = param(help="the file")
    kind: Literal["auto", "classification", "regression", "next-character"] = param("auto", "what is predicted")
    channels: Literal["first", "last"] = param("first", "where the channels of images are in the file")

    def load(self) -> Samples:
        """Read the arrays."""
        path = existing(self.path)
        arrays = dict(read_npz(path))
        layout = ("x_train", "y_train", "x_test", "y_test") if "x_train" in arrays else ("x", "y")
        for name in layout:
            if name not in arrays:
                raise CoterieError(
                    f"{path} holds no array {name!r} (it has {', '.join(arrays) or 'none'}); it needs x and y, "
                    "or x_train, y_train, x_test and y_test"
                )
        y = arrays[layout[1]]
        kind = _kind(self.kind, y, arrays[layout[0]])
        if kind == "next-character":
            return self._text(arrays, layout, path)
        targets = [arrays[name] for name in layout[1::2]]
        if any(len(t.shape) == 0 for t in targets):
            raise CoterieError(f"{path}: y must have one entry per sample, not be a single value")
        encoded, classes = _targets(np.concatenate(targets), kind, f"y in {path}")
        x = [self._inputs(arrays[name], f"{name} in {path}") for name in layout[::2]]
        return self._samples(arrays, x, np.split(encoded, [len(targets[0])]), kind, classes, path)

    def _text(self, arrays: dict[str, np.ndarray], layout: tuple[str, ...], path: Path) -> Samples:
        for name in layout:
            if arrays[name].dtype.kind not in "iu" or arrays[name].ndim != 2:
                raise CoterieError(
                    f"{name} in {path} must be integers [N, T] for next-character, not {arrays[name].dtype}"
                )
        x, y = ([arrays[n].astype(np.int32) for n in layout[start::2]] for start in (0, 1))
        classes = 1 + max(int(a.max(initial=0)) for a in x + y)
        return self._samples(arrays, x, y, "next-character", classes, path)

    def _samples(
        self, arrays: dict[str, np.ndarray], x: list, y: list, kind: Kind, classes: int, path: Path
    ) -> Samples:
        official = len(x) == 2
        client = arrays.get("client_train" if official else "client")
        split, group = arrays.get("split"), arrays.get("group")
        if official and (split is not None or group is not None):
            raise CoterieError(f"{path}: split and group belong to the layout x, y; leave them out beside x_train")
        return Samples(
            x=x[0],
            y=y[0],
            kind=kind,
            classes=classes,
            test=(x[1], y[1]) if official else None,
            owner=client,
            test_owner=arrays.get("client_test") if official else None,
            ready=None if split is None else _marks(split, f"split in {path}"),
            group=_groups(client, group, f"group in {path}"),
            about=path.name,
        )

    def _inputs(self, x: np.ndarray, what: str) -> np.ndarray:
        if x.ndim == 4 and self.channels == "last":
            x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        return inputs(x, what)


@spec
class Table(abc.ABC):
    """Base of CSV and Parquet tables; every column without a role is an input."""

    path: str = param(help="the file")
    target: str = param(help="the column that is predicted")
    client: str | None = param(None, "the column with the client of each row")
    split: str | None = param(None, "the column that says train, validation or test")
    group: str | None = param(None, "the column with the client's known group")
    drop: tuple[str, ...] = param((), "columns that are not used")
    kind: Literal["auto", "classification", "regression"] = param("auto", "what is predicted")
    standardise: bool = param(
        True,
        "scale number columns to mean 0 and deviation 1 over the rows marked train (all rows without split)",
    )

    def load(self) -> Samples:
        """Read the table.

        Words become one column of 0 and 1 for each distinct word. With `standardise` every number column is shifted
        and scaled by the mean and the (population) standard deviation of the rows marked train; without a split
        column, of all rows, since the training rows are not known yet. A constant column becomes 0. Targets and one-hot
        columns are not changed.
        """
        path = existing(self.path)
        table = self._read(path)
        if len(table) == 0:
            raise CoterieError(f"{path} has no rows")
        roles = [name for name in (self.target, self.client, self.split, self.group) if name is not None]
        for name in (*roles, *self.drop):
            if name not in table.columns:
                guess = nearest(name, map(str, table.columns))
                raise CoterieError(
                    f"{path} has no column {name!r}{guess or '; it has ' + ', '.join(map(str, table.columns))}"
                )
        if len(set(roles)) != len(roles):
            raise CoterieError(f"one column of {path} has two roles; target, client, split and group must differ")
        for name in table.columns:
            if name not in self.drop and table[name].isna().any():
                row = int(np.flatnonzero(table[name].isna().to_numpy())[0]) + 1
                raise CoterieError(f"{path} has no value in column {name!r}, row {row} of the data; fill it or drop it")
        target = table[self.target].to_numpy()
        kind = _kind(self.kind, target, None)
        y, classes = _targets(target, kind, f"column {self.target!r} of {path}")
        ready = None if self.split is None else _marks(table[self.split].to_numpy(), f"column {self.split!r} of {path}")
        owner = None if self.client is None else table[self.client].astype(str).to_numpy().astype(str)
        group = None if self.group is None else table[self.group].to_numpy()
        features = [name for name in table.columns if name not in roles and name not in self.drop]
        return Samples(
            x=self._features(table, features, ready, path),
            y=y,
            kind=kind,
            classes=classes,
            owner=owner,
            ready=ready,
            group=_groups(owner, group, f"column {self.group!r} of {path}"),
            about=path.name,
        )

    @abc.abstractmethod
    def _read(self, path: Path) -> Any:
        """Read the file into a pandas table."""

    def _features(self, table: Any, names: list[str], ready: np.ndarray | None, path: Path) -> np.ndarray:
        from pandas.api import types

        if not names:
            raise CoterieError(f"{path} has no column left to predict from")
        known = np.ones(len(table), bool) if ready is None else ready == "train"
        if not known.any():
            raise CoterieError(f"{path} has no row marked train")
        columns = []
        for name in names:
            column = table[name]
            if types.is_bool_dtype(column) or types.is_numeric_dtype(column):
                values = column.to_numpy(np.float64)
                if not np.isfinite(values).all():
                    row = int(np.flatnonzero(~np.isfinite(values))[0]) + 1
                    raise CoterieError(
                        f"{path} has an infinite number in column {name!r}, row {row} of the data; replace it"
                    )
                if self.standardise:
                    deviation = values[known].std()
                    values = (values - values[known].mean()) / (deviation if deviation > 0 else 1.0)
                columns.append(values[:, None])
            elif types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
                raise CoterieError(f"column {name!r} of {path} holds times; turn them into numbers or drop the column")
            else:
                codes, words = encode(column.astype(str).to_numpy().astype(str))
                if len(words) > MOST_WORDS:
                    raise CoterieError(
                        f"column {name!r} of {path} holds {len(words)} different words, too many to learn from; drop it"
                    )
                columns.append(np.eye(len(words))[codes])
        return np.concatenate(columns, axis=1).astype(np.float32)


@spec
class Csv(Table):
    """A CSV table (also .csv.gz and .csv.xz) with a column that names the client of each row."""

    def _read(self, path: Path) -> Any:
        import pandas as pd

        try:
            return pd.read_csv(path)
        except (OSError, EOFError, ValueError, UnicodeError) as error:
            raise CoterieError(f"{path} is not a readable CSV table ({_first_line(error)})") from error


@spec
class Parquet(Table):
    """A Parquet table with a column that names the client of each row."""

    def _read(self, path: Path) -> Any:
        import pandas as pd

        try:
            return pd.read_parquet(path)
        except ImportError as error:
            raise CoterieError("reading Parquet needs pyarrow: pip install 'coterie[parquet]'") from error
        except (OSError, EOFError, ValueError) as error:
            raise CoterieError(f"{path} is not a readable Parquet table ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def existing(name: str, field: str = "path") -> Path:
    """Return the path of an existing file, or raise an error that names the field."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise CoterieError(f"{field}: {path} is not a file" if path.exists() else f"{field}: there is no file {path}")
    return path


def _kind(setting: Literal["auto"] | Kind, y: np.ndarray, x: np.ndarray | None) -> Kind:
    """Return what is predicted: the user's setting, or what the targets look like."""
    if setting != "auto":
        return setting
    if y.dtype.kind == "f":
        return "regression"
    if x is not None and y.ndim == 2 and x.shape == y.shape and x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return "next-character"
    return "classification"


def _targets(y: np.ndarray, kind: Kind, what: str) -> tuple[np.ndarray, int]:
    """Return targets as the program reads them, and the number of classes or outputs."""
    if kind == "classification":
        if y.ndim != 1:
            raise CoterieError(f"{what} must have one label per sample, not shape {y.shape[1:]}")
        if y.dtype.kind == "O":
            y = y.astype(str)
        codes, labels = encode(y)
        return codes, len(labels)
    values = numbers(y, what).astype(np.float32)
    return values, int(np.prod(values.shape[1:], dtype=np.int64))


def _marks(values: np.ndarray, what: str) -> np.ndarray:
    """Read the words for train, validation and test."""
    words = {word: mark for mark, several in WORDS.items() for word in several}
    marks = np.array([words.get(str(value).strip().lower(), "") for value in values])
    if np.any(marks == ""):
        row = int(np.flatnonzero(marks == "")[0])
        raise CoterieError(f"{what} says {str(values[row])!r} in row {row + 1}; it must be train, validation or test")
    return marks


def _groups(owner: np.ndarray | None, group: np.ndarray | None, what: str) -> dict[str, int] | None:
    """Number the groups in sorted order and return each client's; a client must be in one group only."""
    if group is None:
        return None
    if owner is None:
        raise CoterieError(f"{what} needs to know whose sample it is: name the client column as well")
    if len(group) != len(owner):
        raise CoterieError(f"{what} has {len(group)} entries for {len(owner)} samples; they must match")
    codes, words = encode(group.astype(str) if group.dtype.kind == "O" else group)
    of_client: dict[str, int] = {}
    for name, code in zip(owner.astype(str).tolist(), codes.tolist(), strict=True):
        if of_client.setdefault(name, code) != code:
            raise CoterieError(
                f"{what}: client {name!r} is in groups {words[of_client[name]]} and {words[code]}; it must be in one"
            )
    return of_client
