"""`counts.json`: what a member counted on the network, over all its starts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.peers.counts import Counts
from coterie.peers.ledger import HUB as HUB_NAME
from coterie.peers.line import HUB
from coterie.storage.durable import durable_write
from coterie.storage.owned import holds, inside
from coterie.storage.schema import each, mapping, read_json, table, text, whole, word

__all__ = ["COUNTS", "CountsFile", "added", "read_counts"]

FORMAT = 1
FILE = "counts.json"
SINGLE = ("copies", "overhead", "repeated")  # bytes
BY_MEMBER = ("bytes", "late", "duplicate")  # bytes by sender, messages by sender
COUNTS = {
    **dict.fromkeys(SINGLE, whole(0)),
    **dict.fromkeys(BY_MEMBER, mapping(whole(0))),
    "refused": each(table({"sender": text, "reason": text, "messages": whole(1)})),
}


class CountsFile:
    """The counts of a member; what it counted before it was started again is kept.

    Args:
        folder: the folder of the member's run.
    """

    def __init__(self, folder: Path):
        self._folder, self._before = folder, read_counts(folder)

    def save(self, counts: Counts, names: Sequence[str]) -> None:
        """Write down everything counted so far; `names` are those of all clients."""
        with counts.lock:
            now = _plain(counts, names)
        record = {"format": FORMAT, **(now if self._before is None else added([self._before, now]))}
        durable_write(inside(self._folder, FILE), json.dumps(record).encode(), run=self._folder)


def _plain(counts: Counts, names: Sequence[str]) -> dict[str, Any]:
    sent: Counter[str] = Counter()
    for (sender, _), size in counts.bytes.items():
        sent[HUB_NAME if sender == HUB else names[sender]] += size
    refused = [{"sender": who, "reason": why, "messages": n} for (who, why), n in sorted(counts.refused.items())]
    by_member = {"bytes": dict(sent), "late": dict(counts.late), "duplicate": dict(counts.duplicate)}
    return {name: getattr(counts, name) for name in SINGLE} | by_member | {"refused": refused}


def added(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of several records."""
    total: dict[str, Any] = {name: sum(record[name] for record in records) for name in SINGLE}
    for name in BY_MEMBER:
        total[name] = dict(sum((Counter(record[name]) for record in records), Counter()))
    refused: Counter[tuple[str, str]] = Counter()
    for record in records:
        for entry in record["refused"]:
            refused[entry["sender"], entry["reason"]] += entry["messages"]
    entries = [{"sender": who, "reason": why, "messages": n} for (who, why), n in sorted(refused.items())]
    return total | {"refused": entries}


def read_counts(folder: Path) -> dict[str, Any] | None:
    """Read what a member counted; None where it wrote nothing down."""
    if not holds(folder, FILE):
        return None
    record = read_json(folder, FILE, table({"format": word(FORMAT), **COUNTS}))
    return {name: value for name, value in record.items() if name != "format"}
