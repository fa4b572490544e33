"""The arrays in the folder of a run: what each file must hold, and how it is read. No JAX here.

`clients` and `slots` are lengths that all arrays of a file share; the number of clients is that of clients.json. In the
folder of a site, whose members live elsewhere, `members` is the number of them all.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coterie.errors import CoterieError
from coterie.learning.score import SCORES
from coterie.peers.ledger import Ledger
from coterie.peers.records import WATCHED, one_for_all
from coterie.storage.arrays import Array, read_npz
from coterie.storage.owned import memory_limit, read_file

__all__ = ["read_graphs", "read_ledger", "read_network", "read_scores"]

PER_SLOT, PER_CLIENT = ("clients", "slots"), ("clients",)
NEIGHBOURS = Array("iu", PER_SLOT, below="members")
GRAPH = {"neighbours": NEIGHBOURS, "present": Array("b", PER_SLOT), "weights": Array("biuf", PER_SLOT, finite=False)}
WHAT = ("messages", "bytes")
BY_SLOT = {f"{link}_{what}": Array("iu", ("rounds", *PER_SLOT), least=0) for link in ("heard", "told") for what in WHAT}
BY_HUB = {f"{link}_{what}": Array("iu", ("rounds", *PER_CLIENT), least=0) for link in ("up", "down") for what in WHAT}
FRAMES = {f"{way}_{what}": BY_HUB[f"up_{what}"] for way in ("sent", "received") for what in WHAT}
WRONG_BY_SLOT = {name: BY_SLOT["heard_messages"] for name in WATCHED if not name.startswith("hub_")}
WRONG_AT_HUB = {name: Array("iu", ("rounds", "members"), least=0) for name in WATCHED if name.startswith("hub_")}
TRAFFIC = {"rounds": Array("iu", ("rounds",), least=0), "neighbours": NEIGHBOURS, **BY_SLOT, **BY_HUB, **FRAMES}
TRAFFIC |= WRONG_BY_SLOT | WRONG_AT_HUB
NETWORK = {
    "edges": Array("iu", ("edges", 2), below="clients"),
    "weights": Array("iuf", ("edges",)),
    "lengths": Array("iuf", ("edges",)),
    "clients": Array("iu", ()),
    **{f"{link}_{what}": Array("iu", PER_CLIENT, least=0) for link in ("up", "down") for what in WHAT},
}
SCORES_FILE = {"counts": Array("iu", PER_CLIENT, least=0)}
SCORES_FILE |= {
    f"{part}.{name}": Array("f", PER_CLIENT, finite=False) for part in ("test", "validation") for name in SCORES
}
SCORES_FILE |= {f"each.{name}": Array("f", ("samples",), finite=False) for name in SCORES}

Arrays = dict[str, np.ndarray]
Record = tuple[int, str, bytes]  # round, where it is, and its content


def read_graphs(records: Iterable[Record], clients: int, members: int | None = None) -> dict[int, Arrays]:
    """Read the weights at each evaluation: by round, `neighbours`, `present` and `weights`."""
    tables, left = {}, memory_limit()
    lengths = {"clients": clients, "members": members or clients}
    for number, place, content in records:
        tables[number] = read_npz(content, place, GRAPH, GRAPH, lengths, left)
        left -= sum(array.nbytes for array in tables[number].values())
    return tables


def read_ledger(records: Iterable[Record], names: tuple[str, ...], here: tuple[int, ...] | None = None) -> Ledger:
    """Read what was sent; the first block has the neighbours, and others have their own after the graph has changed.

    `here` are the ids whose rows these are, where only some clients live here.
    """
    rows = len(names) if here is None else len(here)
    ids = None if here is None else np.array(here)
    ledger, left = Ledger(names, np.zeros((rows, 0), np.int32), ids=ids), memory_limit()
    for _, place, content in records:
        block = read_npz(content, place, TRAFFIC, ("rounds",), {"clients": rows, "members": len(names)}, left)
        block = {name: one_for_all(array) for name, array in block.items()}
        left -= sum(array.nbytes for array in block.values())
        if not ledger.blocks:
            ledger.neighbours = block.pop("neighbours", ledger.neighbours)
        _check_traffic(block, place, block.get("neighbours", ledger.neighbours).shape[1])
        ledger.blocks.append(block)
    return ledger


def _check_traffic(block: Arrays, place: str, slots: int) -> None:
    for name in (*BY_SLOT, *WRONG_BY_SLOT):
        if name in block and block[name].shape[2] != slots:
            raise CoterieError(f"{place}: {name} has {block[name].shape[2]:,} slots where {slots:,} are expected")
    for name in (*BY_SLOT, *BY_HUB):
        if name.endswith("_messages") and name in block and name.replace("_messages", "_bytes") not in block:
            raise CoterieError(f"{place} lacks the array {name.replace('_messages', '_bytes')!r}")


def read_network(folder: Path, clients: int) -> Arrays:
    """Read the graph that was made from the clients' data."""
    arrays = read_npz(read_file(folder, "network.npz"), folder / "network.npz", NETWORK, NETWORK, {"clients": clients})
    if arrays["clients"] != clients:
        raise CoterieError(f"{folder / 'network.npz'}: clients must be {clients}, not {arrays['clients']}")
    return arrays


def read_scores(folder: Path, clients: int) -> Arrays:
    """Read all scores of the kept models."""
    file = folder / "scores.npz"
    arrays = read_npz(read_file(folder, file.name), file, SCORES_FILE, ("counts",), {"clients": clients})
    for name, values in arrays.items():
        if name.startswith("each.") and len(values) != arrays["counts"].sum():
            raise CoterieError(
                f"{file}: {name} has {len(values):,} samples where counts has {arrays['counts'].sum():,}"
            )
    return arrays
