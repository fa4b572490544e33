"""What several sites have written about one run, put together as if all clients had lived in one place.

Every site has the rows of its own clients. Where it was away its tables have a gap: it sent and heard nothing in these
rounds, and its model stayed as it was.
"""

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.experiment.about import joined_digest
from coterie.peers.ledger import Ledger
from coterie.peers.records import WATCHED

__all__ = ["join_clients", "join_graphs", "join_ledgers", "join_rows", "join_scores"]

Rows = list[dict[str, Any]]
Arrays = dict[str, np.ndarray]

BY_SLOT = ("heard_messages", "heard_bytes", "told_messages", "told_bytes", "lost", "refused", "clipped")
BY_CLIENT = ("up_messages", "up_bytes", "down_messages", "down_bytes")
AT_HUB = tuple(name for name in WATCHED if name.startswith("hub_"))  # by client, known at the hub's site
PER_CLIENT = ("groups", "label_counts")


def join_clients(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join what clients.json of each site says; the sites are in the order of their clients' numbers."""
    whole = dict(records[0])
    whole["names"] = [name for record in records for name in record["names"]]
    for name in PER_CLIENT:
        known = all(record.get(name) for record in records)
        whole[name] = [row for record in records for row in record[name]] if known else ([], None)[name == "groups"]
    parts = whole["sizes"]
    whole["sizes"] = {part: [n for record in records for n in record["sizes"][part]] for part in parts}
    if all("digest" in record for record in records):
        whole["digest"] = joined_digest([record["digest"] for record in records])
    return whole


def join_rows(sites: Sequence[Rows]) -> Rows:
    """Join the evaluations: every round after which everybody has been evaluated once.

    For a site that lacks a round, that of its last evaluation before stands: its model has not changed since.
    """
    rounds = [[row["round"] for row in rows] for rows in sites]
    if not all(rounds):
        return []
    first = max(numbers[0] for numbers in rounds)
    joined = []
    for number in sorted(set(itertools.chain(*rounds))):
        if number < first:
            continue
        rows = [rows[bisect.bisect_right(numbers, number) - 1] for rows, numbers in zip(sites, rounds, strict=True)]
        shared = [name for name in rows[0] if all(isinstance(row.get(name), list) for row in rows)]
        joined.append({"round": number} | {name: [v for row in rows for v in row[name]] for name in shared})
    return joined


def join_scores(sites: Sequence[Arrays | None]) -> Arrays | None:
    """Join all scores of the kept models; None where a site has none."""
    known = [arrays for arrays in sites if arrays is not None]
    if len(known) < len(sites):
        return None
    shared = [name for name in known[0] if all(name in arrays for arrays in known)]
    return {name: np.concatenate([arrays[name] for arrays in known]) for name in shared}


def join_graphs(sites: Sequence[Mapping[int, Arrays]]) -> dict[int, Arrays]:
    """Join the weights at every evaluation that all sites have, on the same graph."""
    shared = set.intersection(*(set(graphs) for graphs in sites)) if sites else set()
    joined = {}
    for number in sorted(shared):
        tables = [graphs[number] for graphs in sites]
        if len({table["neighbours"].shape[1] for table in tables}) == 1:
            joined[number] = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return joined


def join_ledgers(names: tuple[str, ...], ledgers: Sequence[Ledger]) -> Ledger:
    """Join what each site has sent and heard, round by round."""
    by_round = [dict(_rounds(ledger)) for ledger in ledgers]
    joined = Ledger(names, np.concatenate([ledger.neighbours for ledger in ledgers]))
    latest = [ledger.neighbours for ledger in ledgers]
    run: list[tuple[int, np.ndarray, Arrays]] = []
    for number in sorted(set().union(*by_round)):
        found = [rounds.get(number) for rounds in by_round]
        width = max(one["neighbours"].shape[1] for one in found if one is not None)
        latest = [
            one["neighbours"] if one is not None else _as_wide(last, width)
            for one, last in zip(found, latest, strict=True)
        ]
        neighbours = np.concatenate(latest)
        if run and not np.array_equal(run[-1][1], neighbours):
            joined.blocks.append(_block(run, joined.neighbours))
            run = []
        run.append((number, neighbours, _one_round(found, latest, len(names))))
    if run:
        joined.blocks.append(_block(run, joined.neighbours))
    return joined


def _rounds(ledger: Ledger) -> Iterator[tuple[int, Arrays]]:
    """Yield the arrays of each round of a ledger, without the axis of rounds."""
    for block in ledger.blocks:
        neighbours = block.get("neighbours", ledger.neighbours)
        names = [name for name in (*BY_SLOT, *BY_CLIENT, *AT_HUB) if name in block]
        for place, number in enumerate(block["rounds"].tolist()):
            yield number, {"neighbours": neighbours} | {name: block[name][place] for name in names}


def _as_wide(neighbours: np.ndarray, width: int) -> np.ndarray:
    """Return a table with that many slots, for a site that was away when the graph changed; its slots stay empty."""
    cut = neighbours[:, :width]
    return np.pad(cut, ((0, 0), (0, width - cut.shape[1])))


def _one_round(found: Sequence[Arrays | None], neighbours: Sequence[np.ndarray], clients: int) -> Arrays:
    arrays: Arrays = {}
    for name in (*BY_SLOT, *BY_CLIENT):
        rows = []
        for one, table in zip(found, neighbours, strict=True):
            shape = table.shape if name in BY_SLOT else table.shape[:1]
            rows.append(np.zeros(shape, np.int64) if one is None or name not in one else one[name])
        arrays[name] = np.concatenate(rows)
    for name in AT_HUB:
        known = [one[name].astype(np.int64) for one in found if one is not None and name in one]
        arrays[name] = sum(known, np.zeros(clients, np.int64))
    return arrays


def _block(run: Sequence[tuple[int, np.ndarray, Arrays]], first: np.ndarray) -> Arrays:
    """Return a block of rounds that used the same graph; what nobody sent is left out."""
    block = {name: np.stack([arrays[name] for _, _, arrays in run]) for name in run[0][2]}
    block = {name: array for name, array in block.items() if array.any()}
    block["rounds"] = np.array([number for number, _, _ in run])
    return block if np.array_equal(run[0][1], first) else block | {"neighbours": run[0][1]}
