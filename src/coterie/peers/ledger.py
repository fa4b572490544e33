"""The ledger: messages and bytes per edge and round, from the frames that are (or would be) sent.

Traffic with a hub has its own links: `mean` costs one model up and one down for each client that takes part.
"""

import dataclasses
from typing import Any

import numpy as np

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
    """

    names: tuple[str, ...]
    neighbours: np.ndarray
    blocks: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)

    def add(self, first: int, traffic: Any, neighbours: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Add a block that begins with round `first`; returns it. `neighbours` is its table, if the graph changed."""
        block = {name: np.asarray(value) for name, value in traffic._asdict().items() if np.any(value)}
        block["rounds"] = first + np.arange(len(traffic.up_bytes))
        if neighbours is not None and not np.array_equal(neighbours, self.neighbours):
            block["neighbours"] = neighbours
        self.blocks.append(block)
        return block

    def totals(self, what: str = "bytes") -> dict[str, np.ndarray]:
        """Return what each client `sent` and `received` over all rounds, `[K]` each."""
        sent, received = np.zeros(len(self.names), np.int64), np.zeros(len(self.names), np.int64)
        for block in self.blocks:
            for link in _EDGE_LINKS:
                if f"{link}_{what}" in block:
                    edges = block[f"{link}_{what}"].astype(np.int64).sum(0)  # [K, D]
                    here, neighbours = edges.sum(1), block.get("neighbours", self.neighbours)
                    there = np.bincount(neighbours.ravel(), edges.ravel(), len(self.names)).astype(np.int64)
                    sent += there if link == "heard" else here
                    received += here if link == "heard" else there
            if f"up_{what}" in block:
                sent += block[f"up_{what}"].astype(np.int64).sum(0)
            if f"down_{what}" in block:
                received += block[f"down_{what}"].astype(np.int64).sum(0)
        return {"sent": sent, "received": received}

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
                me = index[1]
                neighbours = block.get("neighbours", self.neighbours)
                other = neighbours[me, index[2]] if link in _EDGE_LINKS else np.full(len(me), hub)
                sender, receiver = (other, me) if link in ("heard", "down") else (me, other)
                rows = {"round": block["rounds"][index[0]], "sender": names[sender], "receiver": names[receiver]}
                rows |= {"messages": messages[index], "bytes": block[f"{link}_bytes"][index]}
                frames.append(pd.DataFrame(rows))
        empty = pd.DataFrame({"round": [], "sender": [], "receiver": [], "messages": [], "bytes": []})
        if not frames:
            return empty
        keys = ["round", "sender", "receiver"]
        return pd.concat(frames).groupby(keys, as_index=False)[["messages", "bytes"]].sum()
