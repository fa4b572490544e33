"""A site's own table through the column contract: what does not fit is refused with the column named."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.labels import LARGEST
from coterie.data.samples import Samples
from coterie.data.tables.cells import cells_of, is_blank
from coterie.data.tables.columns import MISSING, STRAY, Column, Values
from coterie.data.tables.preparation import Preparation
from coterie.data.tables.read import Raw
from coterie.errors import CoterieError, shown
from coterie.sites.contract import Contract

__all__ = ["own_samples"]

UNKNOWN = 0.5  # share of words that are none of the levels, above which the column is another one


class OwnTable:
    """The rows of one site, waiting for the division into training, validation and test rows (as `Described`)."""

    def __init__(self, frame: Any, made: Preparation):
        self.frame, self.made = frame, made

    def preparation(self) -> Preparation:
        """Return what is known before the rows are divided."""
        return self.made

    def encode(
        self, y: np.ndarray, names: Sequence[str], parts: Sequence[Sequence[np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Encode the rows of one client; see `Described.encode`."""
        (name,), (train,) = names, parts[0]
        sizes = tuple(len(part[0]) for part in parts)
        made = self.made.with_client(name, self.frame.iloc[train])
        x, _ = made.transform(self.frame, name)
        mean, std = made.target.mean, made.target.std
        if made.target.kind == "regression":
            y = (y - mean) / std
        made = Preparation(**{**vars(made), "rows": sum(sizes), "clients": ((name, *sizes),)})
        return x, y, {"target_mean": mean, "target_std": std, "preparation": made}


def own_samples(raw: Raw, contract: Contract, name: str) -> Samples:
    """Read a site's rows as the contract says; everything that does not fit is said at once.

    Args:
        raw: the table.
        contract: what all sites agreed on.
        name: the member whose rows they are.
    """
    made, frame = contract.preparation, raw.frame
    try:
        made.check(frame)
    except CoterieError as error:
        raise CoterieError(f"{raw.about} does not fit the column contract: {error}") from None
    problems: list[str] = []
    y, kept = _targets(made, frame, problems)
    for column in made.columns:
        if column.used:
            absent = _fit(column, frame[column.name], made, problems)
            if made.missing == "drop-rows":
                kept &= ~absent
            elif made.missing == "refuse" and (absent & kept).any():
                row = int(np.argmax(absent & kept)) + 1
                problems.append(
                    f"column {column.name!r} has no value in row {row}, and the contract allows none missing"
                )
    if not problems and not kept.any():
        problems.append("no row is left")
    if problems:
        raise CoterieError("\n".join(f"{raw.about} does not fit the column contract: {said}" for said in problems))
    rows = int(kept.sum())
    return Samples(
        x=np.arange(rows),
        y=y[kept],
        kind=made.target.kind,
        classes=len(made.target.class_names) or 1,
        owner=np.full(rows, name),
        about=raw.about,
        class_names=made.target.class_names,
        table=OwnTable(frame[kept].reset_index(drop=True), made),
    )


def _targets(made: Preparation, frame: Any, problems: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets, and which rows have one; what is no class or no number is a problem."""
    target, nothing = made.target, frozenset(made.na)
    if target.name not in [str(name) for name in frame.columns]:
        problems.append(f"it has no target column {target.name!r}")
        return np.zeros(len(frame)), np.ones(len(frame), bool)
    series = frame[target.name]
    values = target.read(series, nothing)
    cells = cells_of(series)
    blank = is_blank(cells.words, nothing)[cells.code]
    regression = target.kind == "regression"
    wrong = ~(np.abs((values - target.mean) / target.std) <= LARGEST) & ~blank if regression else values == -2
    if wrong.any():
        row = int(np.argmax(wrong))
        known = f"classes: {', '.join(target.class_names[:10])}" if target.class_names else "it must be a number"
        problems.append(f"target column {target.name!r} has {shown(str(series.iloc[row]))} in row {row + 1}; {known}")
    known_rows = ~blank if regression else values >= 0
    return values, known_rows


def _fit(column: Column, series: Any, made: Preparation, problems: list[str]) -> np.ndarray:
    """Say what does not fit in one column; returns which rows have no value in it."""
    values = column.read(series, frozenset(made.na))
    if values.words is not None:
        return _fit_words(column, values.words, problems)
    assert values.numbers is not None
    absent = np.isnan(values.numbers[:, 0])
    _fit_numbers(column, values, series, absent, problems)
    return absent


def _fit_words(column: Column, words: np.ndarray, problems: list[str]) -> np.ndarray:
    absent = words == MISSING
    unknown = ~np.isin(words.astype(str), np.array(column.levels, str)) & ~absent
    given = int((~absent).sum())
    if unknown.sum() > UNKNOWN * given:
        row, count = int(np.argmax(unknown)), int(unknown.sum())
        levels = ", ".join(column.levels[:8]) + (", ..." if len(column.levels) > 8 else "")
        problems.append(
            f"column {column.name!r} has {shown(str(words[row]))} in row {row + 1}, and {count:,} of {given:,} cells "
            f"are none of its levels ({levels})"
        )
    return absent


def _fit_numbers(column: Column, values: Values, series: Any, absent: np.ndarray, problems: list[str]) -> None:
    what = "date" if column.kind == "date" else "number"
    stray = np.zeros(len(absent), bool) if values.stray is None else values.stray != ""
    if stray.sum() > STRAY * max(1, int((~absent | stray).sum())):
        row = int(np.argmax(stray))
        problems.append(
            f"column {column.name!r} has {shown(str(series.iloc[row]))} in row {row + 1}, which is no {what} "
            f"({int(stray.sum()):,} such cells)"
        )
    assert values.numbers is not None
    with np.errstate(invalid="ignore"):
        large = (np.abs(values.numbers) > LARGEST).any(1)
    if large.any():
        problems.append(f"column {column.name!r} has too large a number in row {int(np.argmax(large)) + 1}")
