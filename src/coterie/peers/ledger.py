"""The ledger: messages and bytes per edge and round, from the frames that are (or would be) sent.

Traffic with a hub has its own links: `mean` costs one model up and one down for each client that takes part.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.peers.records import over_rounds

__all__ = ["HUB", "Ledger"]

HUB = "hub"
_EDGE_LINKS = ("heard", "told")  # from a neighbour to me, from me to a neighbour
_HUB_LINKS = ("up", "down")


@dataclasses.dataclass
class Ledger:
    """What was sent, in blocks of rounds.

    Attributes:
        names: the clients' names.
        neighbours: `[K, D]` ids by slot.
        blocks: one for each call of the program: `rounds [R]` and for each link `messages` and `bytes`, `[R, K, D]`
            or `[R, K]`; round 0 is what the start cost. After the graph has changed a block has its own `neighbours`.
        ids: whose rows these are, where only some clients live here; None: everybody's. Such a ledger does not know
            what others counted of a client here, so its blocks have the frames that left and came, `[R, C]`:
            `sent_messages`, `sent_bytes`, `received_messages`, `received_bytes`.
    """

    names: tuple[str, ...]
    neighbours: np.ndarray
    blocks: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    ids: np.ndarray | None = None

    def add(
        self,
        first: int,
        traffic: Any,
        neighbours: np.ndarray | None = None,
        frames: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Add a block that begins with round `first`; returns it. `neighbours` is its table, if the graph changed."""
        counts = {**traffic._asdict(), **(frames or {})}
        last = self.blocks[-1] if self.blocks else {}
        block = {name: _shared(np.asarray(value), last.get(name)) for name, value in counts.items() if np.any(value)}
        block["rounds"] = first + np.arange(len(traffic.up_bytes))
        if neighbours is not None and not np.array_equal(neighbours, self.neighbours):
            block["neighbours"] = neighbours
        self.blocks.append(block)
        return block

    def totals(self, what: str = "bytes") -> dict[str, np.ndarray]:
        """Return what each client (of those that live here) `sent` and `received` over all rounds, `[K]` each."""
        if self.ids is not None:
            return {way: self._frames(f"{way}_{what}") for way in ("sent", "received")}
        sent, received = np.zeros(len(self.names), np.int64), np.zeros(len(self.names), np.int64)
        for block in self.blocks:
            for link in _EDGE_LINKS:
                if f"{link}_{what}" in block:
                    edges = over_rounds(block[f"{link}_{what}"])  # [K, D]
                    here, neighbours = edges.sum(1), block.get("neighbours", self.neighbours)
                    there = np.bincount(neighbours.ravel(), edges.ravel(), len(self.names)).astype(np.int64)
                    sent += there if link == "heard" else here
                    received += here if link == "heard" else there
            if f"up_{what}" in block:
                sent += over_rounds(block[f"up_{what}"])
            if f"down_{what}" in block:
                received += over_rounds(block[f"down_{what}"])
        return {"sent": sent, "received": received}

    def _frames(self, name: str) -> np.ndarray:
        assert self.ids is not None
        none = np.zeros(len(self.ids), np.int64)
        return sum((over_rounds(block[name]) for block in self.blocks if name in block), start=none)

    def went_wrong(self, what: str) -> np.ndarray:
        """Return how many messages of each client were `lost`, `refused` or `clipped`, by sender `[K]`.

        Only a run with faults or with robust sums counts them. A message that the hub sent counts for its receiver.
        """
        return self._by_sender(what, f"hub_{what}")

    def to_others(self) -> np.ndarray:
        """Return how many messages of each client others took into their sums: to listeners and to the hub, `[K]`.

        Of those to the hub, a ledger of some clients only has these clients' own.
        """
        return self._by_sender("heard_messages", "up_messages")

    def _by_sender(self, by_slot: str, by_client: str) -> np.ndarray:
        """Sum counts that receivers have by slot, and those that are there for each sender."""
        senders = np.zeros(len(self.names), np.int64)
        for block in self.blocks:
            if by_slot in block:
                edges = over_rounds(block[by_slot])
                neighbours = block.get("neighbours", self.neighbours)
                senders += np.bincount(neighbours.ravel(), edges.ravel(), len(self.names)).astype(np.int64)
            if by_client in block:
                of_each = over_rounds(block[by_client])
                rows = slice(None) if self.ids is None or len(of_each) == len(senders) else self.ids
                senders[rows] += of_each
        return senders

    def bytes_per_client(self) -> float:
        """Return the mean over clients of bytes sent and received."""
        totals = self.totals()
        return float((totals["sent"] + totals["received"]).mean())

    def edges(self) -> Any:
        """Return a DataFrame with one row for each round and each directed edge that carried something."""
        import pandas as pd

        frames = []
        names = np.array([*self.names, HUB], dtype=object)
        hub = len(self.names)
        for block in self.blocks:
            for link in (*_EDGE_LINKS, *_HUB_LINKS):
                if f"{link}_messages" not in block:
                    continue
                messages = block[f"{link}_messages"]
                index = np.nonzero(messages)
                row = index[1]
                me = row if self.ids is None else self.ids[row]
                neighbours = block.get("neighbours", self.neighbours)
                other = neighbours[row, index[2]] if link in _EDGE_LINKS else np.full(len(me), hub)
                sender, receiver = (other, me) if link in ("heard", "down") else (me, other)
                # Files hold counts in the narrowest type that fits; a table is the same, read or not.
                rounds, count, size = (
                    values.astype(np.int64)
                    for values in (block["rounds"][index[0]], messages[index], block[f"{link}_bytes"][index])
                )
                rows = {"round": rounds, "sender": names[sender], "receiver": names[receiver]}
                rows |= {"messages": count, "bytes": size}
                frames.append(pd.DataFrame(rows))
        empty = pd.DataFrame({"round": [], "sender": [], "receiver": [], "messages": [], "bytes": []})
        if not frames:
            return empty
        keys = ["round", "sender", "receiver"]
        return pd.concat(frames).groupby(keys, as_index=False)[["messages", "bytes"]].sum()


def _shared(values: np.ndarray, last: np.ndarray | None) -> np.ndarray:
    """Return values in the memory of the block before, where they are the same: a ledger then grows with what changes,
    not with rounds x edges."""
    repeats = values.size > 0 and values.strides[0] == 0
    if last is None or not repeats or last.strides[0] or last.shape[1:] != values.shape[1:]:
        return values
    return np.broadcast_to(last[:1], values.shape) if np.array_equal(last[0], values[0]) else values
