"""The column contract, `columns.json`: what all sites agreed on before training, where each has a table of its own.

It holds what each column is, its levels, the target with its classes and the numbers it is standardised with; no rows,
no names of clients and nothing about any one site.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from coterie.data.tables.preparation import ALL, Preparation
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

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the contract, whatever the layout of its file."""
        text = json.dumps(self.preparation.to_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


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
    if not any(column["kind"] in ("number", "words", "date") for column in value["columns"]):
        raise Mismatch("must have a column that becomes an input", "columns")
    return value
