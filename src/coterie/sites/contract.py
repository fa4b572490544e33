"""The column contract, `columns.json`: what all sites agreed on before training, where each has a table of its own.

It holds what each column is, its levels, the target with its classes, and the numbers it is standardised with; no rows,
no names of clients, and nothing about any one site that is not in the file for everybody to read.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.samples import Samples
from coterie.data.tables.columns import Column
from coterie.data.tables.preparation import ALL, Preparation
from coterie.data.tables.target import Target
from coterie.experiment.schemas import preparation_schema
from coterie.storage.schema import Mismatch, read_json

__all__ = ["Contract"]


@dataclasses.dataclass(frozen=True)
class Contract:
    """How rows of any site become inputs."""

    preparation: Preparation

    @classmethod
    def read(cls, path: Path) -> "Contract":
        """Read columns.json."""
        return cls(Preparation.from_dict(read_json(path.parent, path.name, _schema)))

    @classmethod
    def of(cls, samples: Samples) -> "Contract":
        """Make a contract of a table that was read: of some sites' rows, or of an example that looks like them.

        Every number gets an input for "missing" and every column of words one for "other", since another site may have
        what this table lacks. With "local" standardisation, each site uses statistics of its own training rows.
        """
        described, rows = samples.table, np.arange(len(samples))
        owner = np.zeros(len(rows)) if samples.owner is None else samples.owner
        parts = [rows[owner == name] for name in np.unique(owner)]
        empty = [rows[:0]] * len(parts)
        _, _, fields = described.encode(samples.y, [str(i) for i in range(len(parts))], (parts, empty, empty))
        made: Preparation = fields["preparation"]
        flagged = made.missing == "median+indicator"
        return cls(
            Preparation(
                columns=tuple(_agreed(column, flagged) for column in made.columns),
                target=dataclasses.replace(made.target, why=_task(made.target)),
                standardise=made.standardise,
                missing=made.missing,
                statistics={ALL: made.statistics[ALL]} if made.standardise != "local" else {},
                na=made.na,
            )
        )

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the contract, whatever the layout of its file."""
        text = json.dumps(self.preparation.to_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the file: one line for each column, so that people can read and compare it."""
        record = self.preparation.to_dict()
        columns = ",\n".join(f"    {json.dumps(column, ensure_ascii=False)}" for column in record.pop("columns"))
        rest = json.dumps(record, ensure_ascii=False, indent=2).removeprefix("{\n")
        return f'{{\n  "columns": [\n{columns}\n  ],\n{rest}\n'


def _agreed(column: Column, flagged: bool) -> Column:
    """Return what all sites need to know of a column, without what is only true of the table it was judged by."""
    number = column.kind in ("number", "date")
    other = max(1, column.other) if column.kind == "words" else 0
    indicator = flagged and number
    return dataclasses.replace(column, note="", missing=0.0, warning="", other=other, indicator=indicator)


def _task(target: Target) -> str:
    if target.kind == "regression":
        return f"regression: {target.name!r}"
    names = ", ".join(target.class_names[:10]) + (", ..." if len(target.class_names) > 10 else "")
    return f"classification, {len(target.class_names)} classes: {names}"


def _schema(value: Any) -> Any:
    """Check a contract: a preparation that knows of no site."""
    preparation_schema(value)
    for field in ("clients", "sent", "warnings"):
        if value.get(field):
            raise Mismatch("must be empty: a contract says nothing about any one site", field)
    agreed = set(value["statistics"])
    if value.get("standardise") == "local":
        if agreed:
            raise Mismatch('must be empty where standardise is "local"', "statistics")
    elif agreed != {ALL}:
        raise Mismatch("must be those that hold for every site, and no others", "statistics")
    names = [column["name"] for column in value["columns"]] + [value["target"]["name"]]
    if len(set(names)) != len(names):
        raise Mismatch("must not name a column twice", "columns")
    if not any(column["kind"] in ("number", "words", "date") for column in value["columns"]):
        raise Mismatch("must have a column that becomes an input", "columns")
    if value["target"]["kind"] == "classification" and len(value["target"].get("class_names", [])) < 2:
        raise Mismatch("must have at least two entries", "target.class_names")
    return value
