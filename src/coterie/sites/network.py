"""`network.json` of a gathered run: who was there in which rounds, what did not come, what was refused."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.peers.ledger import Ledger
from coterie.peers.pushed import push_steps
from coterie.sites.counting import COUNTS, added
from coterie.sites.deliveries import Restored, Round
from coterie.storage.owned import holds
from coterie.storage.schema import each, mapping, maybe, read_json, table, text, whole, word

__all__ = ["FILE", "about_network", "read_network_record", "rounds_text", "spans"]

FILE = "network.json"
FORMAT = 1
SCHEMA = table(
    {
        "format": word(FORMAT),
        "rounds": whole(0),
        "there": mapping(each(each(whole(0), 2))),  # by member: first and last round of each time
        "restarted": mapping(each(each(whole(0), 2))),  # by member: the state it had, the first round after
        "missing": mapping(whole(0)),  # by member: messages that others expected and did not get
        "notes": each(text),
        "counts": maybe(table(COUNTS)),
    }
)


def read_network_record(folder: Path) -> dict[str, Any] | None:
    """Read what a gathered run says about its network; None for other runs."""
    return read_json(folder, FILE, SCHEMA) if holds(folder, FILE) else None


def about_network(
    names: Sequence[str],
    logs: Sequence[Sequence[Round | Restored]],
    ledgers: Sequence[Ledger],
    counts: Sequence[Mapping[str, Any] | None],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Put together what the sites' logs and counters say, one of each for each member."""
    ran = [sorted({one.round for one in log if isinstance(one, Round) and one.round > 0}) for log in logs]
    missing = np.zeros(len(names), np.int64)
    for log, ledger in zip(logs, ledgers, strict=True):
        missing += _missing(log, ledger, len(names))
    known = [record for record in counts if record is not None]
    return {
        "format": FORMAT,
        "rounds": max((numbers[-1] for numbers in ran if numbers), default=0),
        "there": {name: spans(numbers) for name, numbers in zip(names, ran, strict=True)},
        "restarted": {name: _restarts(log) for name, log in zip(names, logs, strict=True)},
        "missing": dict(zip(names, missing.tolist(), strict=True)),
        "notes": list(notes),
        "counts": added(known) if known else None,
    }


def spans(numbers: Sequence[int]) -> list[list[int]]:
    """Return the first and the last of each stretch of consecutive numbers."""
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    stretches = [[number for _, number in group] for _, group in groups]
    return [[stretch[0], stretch[-1]] for stretch in stretches]


def rounds_text(stretches: Sequence[Sequence[int]]) -> str:
    """Write stretches of rounds as a table has them: 1 to 4, 7."""
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in stretches) or "none"


def _restarts(log: Sequence[Round | Restored]) -> list[list[int]]:
    pairs = itertools.pairwise(log)
    return [[one.round, after.round] for one, after in pairs if isinstance(one, Restored) and isinstance(after, Round)]


def _missing(log: Sequence[Round | Restored], ledger: Ledger, clients: int) -> np.ndarray:
    """Count the messages that a site expected from each client and did not get.

    The hub's count for their receiver. On a graph whose links come and go, one that was not there counts, too.
    """
    tables = {block.get("neighbours", ledger.neighbours).shape[1]: block.get("neighbours", ledger.neighbours)
              for block in ledger.blocks}  # fmt: skip
    missing = np.zeros(clients, np.int64)
    for one in log:
        pushes = itertools.cycle(push_steps(clients))  # a mean takes all of its steps
        for delivery in one.exchanges if isinstance(one, Round) else ():
            if delivery.pushed is not None:
                hears = next(pushes).hears[one.ids]
                missing += np.bincount(hears[(hears >= 0) & ~delivery.pushed], minlength=clients)
            elif delivery.down is not None:
                missing[one.ids] += ~delivery.down
            elif delivery.edges is not None and delivery.edges.shape[1] in tables:
                neighbours = tables[delivery.edges.shape[1]]
                expected = neighbours != one.ids[:, None]  # an empty slot names its own client
                missing += np.bincount(neighbours[expected & ~delivery.edges], minlength=clients)
    return missing
