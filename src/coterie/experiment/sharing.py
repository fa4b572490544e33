"""The data of a run that several processes share: the first one reads them, and each gets its own clients' samples.

What the columns of a table are, its words and medians, and which rows are for testing, follow from the rows of all
clients. So one process reads, prepares and divides the data as a single one does, and the others receive the result:
the same to the bit. They go over the devices that all share; no copy of them is written anywhere.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from coterie.data.buckets import Split
from coterie.data.clients import PARTS, Federation
from coterie.data.mapped import PLAIN
from coterie.data.tables.preparation import Preparation
from coterie.experiment.config import Experiment
from coterie.experiment.job import needs_data
from coterie.experiment.parts import Part
from coterie.peers.broadcast import hand_out
from coterie.processes.group import Group
from coterie.storage.memory import giving_back

__all__ = ["load_together"]


def load_together(
    experiment: Experiment, group: Group, mesh: Mesh, here: Callable[[int], slice]
) -> tuple[Experiment, Federation]:
    """Load the data in the first process, and return in each what `Experiment.load` does, for its own clients.

    Args:
        experiment: whose data; in the one that is returned, the data have decided what partition "auto" is.
        group: the processes.
        mesh: their devices.
        here: says of how many clients which live in this process.
    """
    everywhere = needs_data(experiment.method.spec, experiment.graph)  # the graph is made of all clients' samples
    if group.index > 0:
        return _received(experiment, group, mesh, None if everywhere else here)
    with giving_back():  # what it took to read a table
        chosen, federation = experiment.load()
        in_one_stack = isinstance(federation.train, Split)
        whole = federation if in_one_stack else federation.in_buckets([np.arange(len(federation))])
        decided = None if chosen.partition is experiment.partition else chosen.partition
        text = np.frombuffer(described(whole, decided).encode(), np.uint8)
        group.exchange("data", str(text.size))
        hand_out(mesh, [text])
        hand_out(mesh, _samples(whole))
        kept = whole if everywhere else whole.only(here(len(whole)))
        del federation, whole
    return chosen, kept


def _received(
    experiment: Experiment, group: Group, mesh: Mesh, here: Callable[[int], slice] | None
) -> tuple[Experiment, Federation]:
    """Wait for what the first process has read, for as long as it gives signs of life."""
    text = np.zeros(int(group.exchange("data")[0]), np.uint8)
    hand_out(mesh, [text])
    about = json.loads(text.tobytes())
    clients = len(about["names"])
    rows = slice(0, clients) if here is None else here(clients)
    parts: dict[str, Any] = {part: _empty(about["parts"][part]) for part in PARTS}
    hand_out(mesh, _places(parts, range(clients)[rows]))
    decided = about["partition"]
    partition = experiment.partition if decided is None else Part.from_table("partition", decided)
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in about["plain"].items()
    }
    federation = Federation(
        tuple(about["names"]),
        **parts,
        **fields,
        groups=None if about["groups"] is None else np.asarray(about["groups"]),
        preparation=None if about["preparation"] is None else Preparation.from_dict(about["preparation"]),
        here=None if here is None else rows,
    )
    return dataclasses.replace(experiment, partition=partition), federation


def described(federation: Federation, partition: Part | None) -> str:
    """Return all but the samples of a federation in one stack, and the partition where the data have decided it."""
    about = {
        "names": federation.names,
        "plain": {name: getattr(federation, name) for name in PLAIN},
        "groups": None if federation.groups is None else np.asarray(federation.groups).tolist(),
        "preparation": None if federation.preparation is None else federation.preparation.to_dict(),
        "parts": {part: _outline(getattr(federation, part)) for part in PARTS},
        "partition": None if partition is None else partition.to_dict(),
    }
    return json.dumps(about)


def _outline(split: Split) -> dict[str, Any]:
    arrays = {name: [np.dtype(a.dtype).str, list(a.shape)] for name, a in (("x", split.x), ("y", split.y))}
    return {**arrays, "count": np.asarray(split.count).tolist()}


def _empty(outline: dict[str, Any]) -> Split:
    """Return a part of the outline, of zeros: those that nobody writes take no memory."""
    x, y = (np.zeros(shape, np.dtype(kind)) for kind, shape in (outline["x"], outline["y"]))
    return Split(x, y, np.array(outline["count"], np.int32))


def _samples(federation: Federation) -> Iterator[np.ndarray]:
    """Yield the samples and targets of each client and part, without padding."""
    for part in PARTS:
        for client in range(len(federation)):
            yield from map(np.ascontiguousarray, getattr(federation, part).rows(client))


def _places(parts: dict[str, Split], here: range) -> Iterator[np.ndarray | int]:
    """Yield where those samples go in this process; the number of bytes for clients that live elsewhere."""
    for part in PARTS:
        for client in range(len(parts[part].count)):
            for values in parts[part].rows(client):
                yield values if client in here else values.nbytes
