"""Data: load samples and divide them among clients.

`load` names a data set and a partition, or takes a table; `federation` takes one pair of arrays or one DataFrame for
each client, `pool` takes arrays that are still to be divided. Nothing here imports JAX.
"""

import dataclasses
import os
from typing import Any

from coterie import registry
from coterie.data.arrays import federation, is_frame, pool
from coterie.data.clients import Federation
from coterie.data.mapped import is_mapped, open_federation
from coterie.data.partition import DataDefault, divide
from coterie.data.samples import Samples
from coterie.data.tables.read import looks_like_a_table
from coterie.data.tables.source import Table, from_frames
from coterie.errors import CoterieError
from coterie.spec import build, nearest

__all__ = ["Samples", "federation", "load", "pool"]


def load(
    name: Any = "digits", partition: Any = None, clients: int | None = None, seed: int = 0, **options: Any
) -> Federation:
    """Load a data set and divide it among clients.

    Args:
        name: a data set by name (`coterie list datasets`), one that is already configured, or a pool of samples. Or a
            table: a DataFrame, a file such as "visits.csv", a pattern such as "sites/*.csv", a folder, or a list. Or a
            folder of mapped arrays (`coterie.data.mapped`), whose clients are divided already.
        partition: a partition by name (`coterie list partitions`) or configured; if None, "natural" where the data
            say whose sample it is and "classes" elsewhere.
        clients: number of clients, 20 if None; for "natural" an upper limit, without which every owner is a client.
        seed: of the partition, and of the data if they are random.
        **options: settings of the data set and of the partition, by name.

    Example:
        >>> load("digits", "classes", clients=20, classes=3).names[0]
        'client-0'

        >>> load("visits.csv", target="died", client="hospital")  # doctest: +SKIP
    """
    if is_mapped(name):
        if partition is not None or clients is not None or options:
            raise CoterieError(
                f"the clients of {os.fspath(name)} are divided already: give no partition and no settings"
            )
        return open_federation(name)
    if is_frame(name):
        name, options = _of_frame(name, options), {k: v for k, v in options.items() if k not in _settings(Table)}
    elif looks_like_a_table(name) or (isinstance(name, list | tuple) and all(map(looks_like_a_table, name))):
        options = {
            "path": name if isinstance(name, str | os.PathLike) else [os.fspath(part) for part in name],
            **options,
        }
        name = "table"
    source = registry.load("datasets", name) if isinstance(name, str) else name
    rows = registry.load("partitions", partition) if isinstance(partition, str) else partition or DataDefault
    options = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in options.items()}
    mine, theirs = _sort(options, _settings(source), _settings(rows))
    samples = _samples(source, mine, name, clients, seed)
    if isinstance(rows, type):
        rows = build(rows, theirs, "partition")
    return divide(rows, samples, clients, seed)


def _of_frame(frame: Any, options: dict[str, Any]) -> Samples:
    """Describe a DataFrame with the settings of a table among the options."""
    own = {key: value for key, value in options.items() if key in _settings(Table) and key != "path"}
    return from_frames(frame, build(Table, {"path": "", **own}, "table"))


def _settings(thing: Any) -> list[str]:
    """List the settings that can still be given: those of a class; a configured object has none."""
    return [field.name for field in dataclasses.fields(thing) if field.init] if isinstance(thing, type) else []


def _samples(source: Any, options: dict[str, Any], name: Any, clients: int | None, seed: int) -> Samples:
    if isinstance(source, Samples):
        return source
    if isinstance(source, type):
        known = _settings(source)
        given = {"seed": seed} | ({} if clients is None else {"clients": clients})
        source = build(source, {k: v for k, v in given.items() if k in known} | options, str(name))
    if not hasattr(source, "load"):
        raise CoterieError(f"{name!r} is not a data set (it has no load()); give a name, a data set or a pool")
    return source.load()


def _sort(options: dict[str, Any], ours: list[str], theirs: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the settings of the data set (`ours`) from those of the partition (`theirs`)."""
    for key in options:
        if key in ours and key in theirs:
            raise CoterieError(f"both the data set and the partition have a setting {key}; configure one of them first")
        if key not in ours and key not in theirs:
            known = list(dict.fromkeys([*ours, *theirs]))
            listing = f"; known: {', '.join(known)}" if known else "; nothing can be set here"
            raise CoterieError(f"unknown setting {key}{nearest(key, known) or listing}")
    return {k: v for k, v in options.items() if k in ours}, {k: v for k, v in options.items() if k in theirs}
