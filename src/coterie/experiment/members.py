"""The members of a run on a network, kept in `members.json` of the folder of each of its sites. No JAX here.

A site's folder is that of a run with the clients that live there; in its tables the others are numbers, and this file
says who they are.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from coterie.storage.durable import durable_write
from coterie.storage.owned import holds, inside
from coterie.storage.schema import Mismatch, each, read_json, table, text, whole, word

__all__ = ["FILE", "Members", "keep_members", "read_members"]

FILE = "members.json"
FORMAT = 1
MOST = 100_000


class Members(NamedTuple):
    """Who takes part in a run."""

    names: tuple[str, ...]  # of all clients, in the order of their ids
    here: tuple[int, ...]  # ids of the clients that live here, in the order of their rows
    run: int = 0  # the number of the run, which all its frames carry; 0 until the members have met


def _schema(value: Any) -> Any:
    fields = {"format": word(FORMAT), "names": each(text, least=1, distinct=True), "run": whole(0, 2**63)}
    table({**fields, "here": each(whole(0, MOST), least=1, distinct=True)})(value)
    if max(value["here"]) >= len(value["names"]):
        raise Mismatch(f"must be below {len(value['names'])}", "here")
    return value


def read_members(folder: Path) -> Members | None:
    """Read the members of a run on a network; None for a simulation."""
    if not holds(folder, FILE):
        return None
    record = read_json(folder, FILE, _schema)
    return Members(tuple(record["names"]), tuple(record["here"]), record["run"])


def keep_members(folder: Path, members: Members) -> None:
    """Write down the members of a run on a network."""
    record = json.dumps({"format": FORMAT, **members._asdict()}, ensure_ascii=False)
    durable_write(inside(folder, FILE), record.encode(errors="replace"), run=folder)
