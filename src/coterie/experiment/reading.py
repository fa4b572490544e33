"""Reading the folder of a run (`experiment/folder.py` says what is in it); nothing is changed here. No JAX here."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.tables.preparation import Preparation
from coterie.errors import CoterieError
from coterie.experiment import schemas
from coterie.experiment.members import Members, read_members
from coterie.experiment.tables import read_graphs, read_ledger, read_scores
from coterie.peers.ledger import Ledger
from coterie.storage.blocks import read_blocks
from coterie.storage.owned import OwnedFolder, Unreadable, holds, read_file

__all__ = ["EARLIER", "RunReader"]

EARLIER = re.compile(r"\d{8,15}\.npz")  # a record of graph/ or ledger/, as earlier versions wrote them


class RunReader:
    """Reads the folder of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.owned = OwnedFolder(self.path, "run")

    def exists(self) -> bool:
        """Whether this looks like the folder of a run."""
        return holds(self.path, "config.toml")

    @contextlib.contextmanager
    def _advice(self) -> Iterator[None]:
        """Say what to do about a damaged file; of a folder from somebody else there is no copy."""
        try:
            yield
        except Unreadable as error:
            advice = "; restore it from a copy" if self.owned.marked else ""
            raise CoterieError(f"{error}{advice}") from None

    @property
    def complete(self) -> bool:
        """Whether the run has ended."""
        return holds(self.path, "summary.json")

    def config(self) -> dict[str, Any]:
        """Return the config of the run."""
        if not self.exists():
            begun = self.owned.marked or (self.path.is_dir() and self.owned.fresh)
            why = "the run was stopped before its folder was made, start it again" if begun else "it has no config.toml"
            raise CoterieError(f"{self.path} is not the folder of a run: {why}")
        with self._advice():
            return schemas.read_config(self.path)

    def clients(self) -> dict[str, Any]:
        """Return names, sizes and labels of the clients."""
        with self._advice():
            return schemas.read_clients(self.path)

    def members(self) -> Members | None:
        """Return the members of a run on a network; None for a simulation."""
        with self._advice():
            return read_members(self.path)

    def _count(self) -> int:
        return len(self.clients()["names"])

    def preparation(self) -> Preparation | None:
        """Return how rows of a table become inputs; None where the data were no table."""
        with self._advice():
            return schemas.read_preparation(self.path)

    def summary(self) -> dict[str, Any]:
        """Return the summary of a complete run."""
        with self._advice():
            return schemas.read_summary(self.path)

    def lines(self, file: str) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl or timing.jsonl."""
        with self._advice():
            return schemas.read_rows(self.path, file, self._count())

    def _records(self, kind: str) -> Iterator[tuple[int, str, bytes]]:
        """Yield round, place and content of every record of a kind of `BLOCKS`, in the order of rounds."""
        for name in self.owned.names(kind, EARLIER):
            yield int(name[:-4]), str(self.path / kind / name), read_file(self.path, kind, name)
        file = f"{kind}.blocks"
        if holds(self.path, file):
            for number, content in read_blocks(read_file(self.path, file), self.path / file):
                yield number, f"{self.path / file}, round {number}", content

    def graphs(self) -> dict[int, dict[str, np.ndarray]]:
        """Return `neighbours`, `present` and `weights` by round."""
        members = self.members()
        with self._advice():
            return read_graphs(self._records("graph"), self._count(), members and len(members.names))

    def scores(self) -> dict[str, np.ndarray] | None:
        """Return all scores of the kept models; None for a run of version 0.1, which has only its metric."""
        if not holds(self.path, "scores.npz"):
            return None
        with self._advice():
            return read_scores(self.path, self._count())

    def ledger(self) -> Ledger:
        """Return what was sent."""
        members = self.members()
        with self._advice():
            if members is None:
                return read_ledger(self._records("ledger"), tuple(self.clients()["names"]))
            return read_ledger(self._records("ledger"), members.names, members.here)
