"""`deliveries.blocks`: which messages arrived at a site, in every exchange of every round it ran.

The file is a log of what happened, in the blocks of `storage/blocks.py`, numbered 1, 2, 3, ... It is never cut. A round
that is undone because its site starts again from an older checkpoint stays in it, since others have used the messages
of that round; a record of its own says to which round the site went back. Rounds in which the site was not there have
no record. With the logs of all sites a simulation can repeat the run (`replay.py`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import CoterieError
from coterie.peers.line import Delivery
from coterie.peers.records import Arrivals
from coterie.storage.arrays import Array, npz_bytes, read_npz
from coterie.storage.blocks import append_to, read_blocks, whole_blocks
from coterie.storage.durable import storage_errors
from coterie.storage.owned import holds, inside, memory_limit, never_waiting, read_file

__all__ = ["FILE", "DeliveryLog", "Restored", "Round", "arrivals_in_round", "read_log", "write_log"]

FILE = "deliveries.blocks"
LINKS = ("edges", "up", "down", "pushed")  # an exchange between neighbours, to the hub, from the hub, with a partner
RESTORED = "restored"
ROUND = {
    "round": Array("iu", (), least=0),
    RESTORED: Array("iu", (), least=1),  # in the place of a round
    "ids": Array("iu", ("here",), below="clients"),
    "links": Array("iu", ("exchanges",), least=0),  # numbers of `LINKS`, in the order of the exchanges
    "edges": Array("b", ("between neighbours", "here", "slots")),
    "up": Array("b", ("to the hub", "clients")),  # only where the hub lives
    "down": Array("b", ("from the hub", "here")),
    "pushed": Array("b", ("from partners", "here")),  # only where a mean goes from partner to partner
}
REQUIRED = ("round", "links", "edges", "down")


class Round(NamedTuple):
    """A round that the clients `ids [C]` have run, and what arrived at them in each of its exchanges."""

    round: int
    ids: np.ndarray
    exchanges: list[Delivery]


class Restored(NamedTuple):
    """The site of the clients `ids [C]` started again with its state after this round."""

    round: int
    ids: np.ndarray


class DeliveryLog:
    """Writes the log of the clients that live at one site.

    Args:
        folder: the folder of the site's run.
        ids: the numbers of the clients living here.
        hub: whether the hub lives here.
    """

    def __init__(self, folder: str | Path, ids: Sequence[int], hub: bool):
        self._path, self._ids, self._hub = inside(Path(folder), FILE), np.asarray(ids, np.int32), hub
        self._next = 1
        with storage_errors(self._path.parent):
            if holds(self._path.parent, FILE):
                records = list(whole_blocks(read_file(self._path.parent, FILE)))
                self._next = records[-1][0] + 1 if records else 1
                with open(self._path, "rb+") as stream:  # without the record that was being written when a process died
                    stream.truncate(records[-1][2] if records else 0)

    def restored(self, number: int) -> None:
        """Say that the site continues from its state after this round."""
        self._append({"restored": np.int64(number), "ids": self._ids})

    def round(self, number: int, deliveries: Sequence[Delivery]) -> None:
        """Add a round that was run, and what arrived in it; `Line.deliveries` holds that."""
        own = [delivery for delivery in deliveries if delivery.round == number]
        self._append(_packed(number, self._ids, own, self._hub))

    def sync(self) -> None:
        """Make the log survive a power cut."""
        if holds(self._path.parent, FILE):
            with storage_errors(self._path.parent), open(self._path, "rb+") as stream:
                os.fsync(stream.fileno())

    def _append(self, arrays: dict[str, Any]) -> None:
        with storage_errors(self._path.parent), open(self._path, "ab", opener=never_waiting) as stream:
            stream.write(append_to(self._next, npz_bytes(arrays)))
        self._next += 1


def write_log(folder: Path, records: Sequence[Round | Restored]) -> None:
    """Write the records of several sites as one log."""
    log = DeliveryLog(folder, [], hub=True)
    for record in records:
        if isinstance(record, Restored):
            log._append({RESTORED: np.int64(record.round), "ids": record.ids})
        else:
            knows = any(one.up is not None for one in record.exchanges)
            log._append(_packed(record.round, record.ids, record.exchanges, knows))


def _packed(number: int, ids: np.ndarray, exchanges: list[Delivery], hub: bool) -> dict[str, Any]:
    links = [_link(one) for one in exchanges]
    by_link = {link: [np.asarray(getattr(one, link)) for one, its in zip(exchanges, links, strict=True) if its == link]
               for link in LINKS}  # fmt: skip
    empty = {"edges": (len(ids), 0), "down": (len(ids),)}
    arrays = {
        "round": np.int64(number),
        "ids": ids,
        "links": np.array([LINKS.index(link) for link in links], np.uint8),
        **{link: np.stack(by_link[link]) if by_link[link] else np.zeros((0, *shape), bool)
           for link, shape in empty.items()},
    }  # fmt: skip
    beside = [link for link in ("up", "pushed") if by_link[link] and (hub or link != "up")]
    return arrays | {link: np.stack(by_link[link]) for link in beside}


def read_log(folder: str | Path, clients: int) -> list[Round | Restored]:
    """Read the log of a site of a federation with that many clients; empty where there is none."""
    folder = Path(folder)
    if not holds(folder, FILE):
        return []
    file, left = folder / FILE, memory_limit()
    records: list[Round | Restored] = []
    for number, content in read_blocks(read_file(folder, FILE), file):
        place = f"{file}, record {number}"
        arrays = read_npz(content, place, ROUND, ("ids",), {"clients": clients}, left)
        left -= sum(array.nbytes for array in arrays.values())
        records.append(_record(arrays, place))
    return records


def _record(arrays: dict[str, np.ndarray], place: str) -> Round | Restored:
    if RESTORED in arrays:
        return Restored(int(arrays[RESTORED]), arrays["ids"])
    for name in REQUIRED:
        if name not in arrays:
            raise CoterieError(f"{place} lacks the array {name!r}")
    rows = {link: iter(arrays[link]) for link in LINKS if link in arrays}
    exchanges = []
    try:
        for link in (LINKS[number] for number in arrays["links"]):
            arrived = next(rows[link]) if link in rows else None  # only the hub's site knows what came up
            exchanges.append(Delivery(int(arrays["round"]), **{link: arrived}))
    except (IndexError, StopIteration):
        raise CoterieError(f"{place}: links names exchanges that the record does not have") from None
    return Round(int(arrays["round"]), arrays["ids"], exchanges)


# -- from deliveries to the loss that a simulation repeats --------------------------------------------------------


def arrivals_in_round(parts: Sequence[Round], clients: int) -> Arrivals:
    """Put together what arrived in one round at several sites: the loss that a simulation of all clients repeats.

    At a client of which there is no part nothing arrived. What an exchange is not about arrived.
    """
    longest = max(parts, key=lambda part: len(part.exchanges), default=Round(0, np.zeros(0, int), []))
    links = [_link(one) for one in longest.exchanges]
    slots = max((one.edges.shape[1] for part in parts for one in part.exchanges if one.edges is not None), default=0)
    shapes = {"edges": (clients, slots), "up": (clients,), "down": (clients,), "pushed": (clients,)}
    exchanges: list[dict[str, np.ndarray]] = []
    for t, link in enumerate(links):
        arrived = np.zeros(shapes[link], bool)
        for part in parts:
            if t < len(part.exchanges):
                _put(arrived, link, part, part.exchanges[t])
        if link == "down" and exchanges:  # the way back of the exchange before it
            exchanges[-1]["down"] = arrived
        else:
            exchanges.append({link: arrived})
    tables: dict[str, Any] = {
        name: np.stack([one.get(name, np.ones(shape, bool)) for one in exchanges or [{}]])
        for name, shape in shapes.items()
    }
    return Arrivals(**tables)


def _put(arrived: np.ndarray, link: str, part: Round, delivery: Delivery) -> None:
    """Enter what one site says about an exchange."""
    if _link(delivery) != link:
        raise CoterieError(
            f"the sites' deliveries of round {part.round} are not of the same run: their exchanges differ"
        )
    value = getattr(delivery, link)
    if link == "up":
        if value is not None:
            arrived |= value  # all False where the hub does not live
    elif link in ("down", "pushed"):
        arrived[part.ids] = value
    else:
        arrived[part.ids, : value.shape[1]] = value


def _link(delivery: Delivery) -> str:
    return next((link for link in LINKS if getattr(delivery, link) is not None), "up")
