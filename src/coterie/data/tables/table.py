"""A table that was read and described, waiting to be divided: then it is encoded with statistics of training rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.codecs.frame import HEADER
from coterie.data.tables.columns import MISSING, Column
from coterie.data.tables.encode import Encoder, fit_levels
from coterie.data.tables.preparation import Preparation, Sent
from coterie.data.tables.target import Target

__all__ = ["Described"]

NUMBER = 8  # bytes of a number that is sent


@dataclasses.dataclass(frozen=True, eq=False)
class Described:
    """The rows of a table that are used, and what its columns are.

    Attributes:
        columns: all columns without a role, in the order of the file.
        target: what is predicted.
        numbers: `[N, P]` number inputs before they are filled and scaled, NaN where missing.
        words: one `[N]` array of text per column of words.
        levels: scikit-learn's OneHotEncoder for each of them.
        client: the column that says whose row it is.
        owners: rows of each owner, before the table is divided.
        standardise, missing, na: the settings.
        warnings: sentences a person should read.
        source: what the table is.
    """

    columns: tuple[Column, ...]
    target: Target
    numbers: np.ndarray
    words: tuple[np.ndarray, ...]
    levels: tuple[Any, ...]
    client: str | None
    owners: Mapping[str, int]
    standardise: str
    missing: str
    na: tuple[str, ...]
    warnings: tuple[str, ...]
    source: str

    @classmethod
    def of(cls, columns: Sequence[Column], words: Sequence[np.ndarray], **fields: Any) -> "Described":
        """Find the levels of the word columns; `words` are in the order of these columns."""
        levels = tuple(fit_levels(values, f"w{i}") for i, values in enumerate(words))
        kept = iter(levels)
        described = [_with_levels(column, next(kept)) if column.kind == "words" else column for column in columns]
        return cls(columns=tuple(described), words=tuple(words), levels=levels, **fields)

    def preparation(self) -> Preparation:
        """Return what is known before the table is divided."""
        clients = tuple((name, size, 0, 0) for name, size in self.owners.items())
        return Preparation(
            columns=self.columns,
            target=self.target,
            client=self.client,
            standardise=self.standardise,
            missing=self.missing,
            na=self.na,
            warnings=self.warnings,
            source=self.source,
            rows=len(self.numbers),
            clients=clients,
        )

    def encode(
        self, y: np.ndarray, names: Sequence[str], parts: Sequence[Sequence[np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Encode the table for one division into clients.

        Args:
            y: class numbers or numbers `[N]`.
            names: the clients.
            parts: for training, validation and testing, the rows of every client.

        Returns:
            Inputs and targets of all rows, and the federation's fields `target_mean`, `target_std`, `preparation`.
        """
        train = dict(zip(names, parts[0], strict=True))
        rows = {name: np.concatenate(own) for name, own in zip(names, zip(*parts, strict=True), strict=True)}
        used = [column for column in self.columns if column.used]
        encoder = Encoder(used, self.numbers, self.words, self.levels, self.standardise)
        x, statistics = encoder.encode(train, rows)
        mean, std = 0.0, 1.0
        if self.target.kind == "regression" and self.standardise != "none":
            seen = y[np.concatenate(parts[0])].astype(np.float64)
            mean, std = float(seen.mean()), float(seen.std()) or 1.0
            y = (y - mean) / std
        preparation = dataclasses.replace(
            self.preparation(),
            target=dataclasses.replace(self.target, mean=mean, std=std),
            statistics=statistics,
            warnings=(*self.warnings, *self._about_classes(y, names, parts[0])),
            rows=sum(map(len, rows.values())),
            clients=tuple((n, *(len(part[i]) for part in parts)) for i, n in enumerate(names)),
            sent=self._sent(train),
        )
        return x, y, {"target_mean": mean, "target_std": std, "preparation": preparation}

    def _about_classes(self, y: np.ndarray, names: Sequence[str], train: Sequence[np.ndarray]) -> list[str]:
        """Say which classes are in nobody's training rows, and how many clients lack one in theirs."""
        if self.target.kind != "classification":
            return []
        labels = self.target.class_names
        seen = np.stack([np.bincount(y[part], minlength=len(labels)) > 0 for part in train])
        said = [f"no training row has the class {labels[i]!r}" for i in np.flatnonzero(~seen.any(0))]
        lacking = np.flatnonzero(~seen.all(1))
        if lacking.size == 1:
            absent = ", ".join(repr(labels[i]) for i in np.flatnonzero(~seen[lacking[0]]))
            said.append(f"the training rows of client {names[lacking[0]]!r} have no {absent}")
        elif lacking.size:
            some = ", ".join(repr(names[i]) for i in lacking[:3]) + (", ..." if lacking.size > 3 else "")
            said.append(f"the training rows of {lacking.size} of {len(names)} clients lack a class ({some})")
        return said

    def _sent(self, train: Mapping[str, np.ndarray]) -> dict[str, Sent]:
        """Count the bytes of the statistics: one message of each client to the hub, and one back.

        Up: of every number input count, median, sum and sum of squares ("federated"; only count and median with
        "none", nothing with "local"), the levels of words with their counts, the target's sums or classes. Down: what
        the hub makes of them.
        """
        per_number = {"federated": (4, 3), "none": (2, 1), "local": (0, 0)}[self.standardise]
        numbers = self.numbers.shape[1]
        agreed = sum(len(level.encode()) for column in self.columns for level in column.levels)
        agreed += sum(len(name.encode()) for name in self.target.class_names)
        target = 3 if self.target.kind == "regression" and self.standardise != "none" else 0
        down = HEADER + NUMBER * (per_number[1] * numbers + min(target, 2)) + agreed
        sent = {}
        for name, rows in train.items():
            up = HEADER + NUMBER * (per_number[0] * numbers + target)
            for words in self.words:
                own = set(words[rows].tolist()) - {MISSING}
                up += sum(len(str(word).encode()) + NUMBER for word in own)
            sent[name] = Sent(up, down)
        return sent


def _with_levels(column: Column, encoder: Any) -> Column:
    """Write down which levels have an input of their own, in scikit-learn's order."""
    rare = encoder.infrequent_categories_[0]
    grouped = set() if rare is None else set(rare.tolist())
    kept = tuple(str(level) for level in encoder.categories_[0] if level not in grouped)
    note = column.note + (f", {len(grouped):,} rare ones share one input" if grouped else "")
    return dataclasses.replace(column, levels=kept, other=len(grouped), note=note)
