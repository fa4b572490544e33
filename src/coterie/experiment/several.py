"""One of several processes that share a mesh of devices: all run the same loop, and the first writes the files.

Each has the samples of its own clients only. Where the files allow it (`data/mapped.py`) it reads them itself;
otherwise the first process reads all data, and sends them (`sharing.py`).
"""

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh

from coterie.data.clients import Federation
from coterie.data.mapped import Mapped
from coterie.experiment.config import Experiment
from coterie.experiment.device import Device
from coterie.experiment.fingerprint import digest_of_common, joined, sum_of_digests
from coterie.experiment.job import Job
from coterie.experiment.place import Place
from coterie.experiment.sharing import load_together
from coterie.peers.ring import CLIENTS
from coterie.peers.shards import fetched, my_rows, rows_placed, spread_rows
from coterie.processes.group import Group
from coterie.processes.launch import refuse_more_than_clients
from coterie.processes.meeting import current
from coterie.storage.orbax import orbax
from coterie.storage.toml import dump_toml

__all__ = ["OneOfSeveral", "loading", "place_here"]


class OneOfSeveral(Place):
    """One process of a group, in which some of the clients live.

    Args:
        group: the processes.
        digest: the fingerprint of all clients' data.
    """

    together = True

    def __init__(self, group: Group, digest: str):
        self.group, self.writes, self._digest = group, group.index == 0, digest

    def fingerprint(self, federation: Federation) -> str:
        """See `Place.fingerprint`: nobody here has all data."""
        return self._digest

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """See `Place.any_of`."""
        return self.group.any_of(*flags)

    def agree_to_stop(self) -> None:
        """See `Place.agree_to_stop`."""
        self.group.agreed = True

    def wait(self, what: str) -> None:
        """See `Place.wait`."""
        self.group.meet(what)


def loading(device: Device) -> Callable[[Experiment], tuple[Experiment, Federation]]:
    """Return what loads the data of an experiment, as `Experiment.load` does: those of this process's clients."""
    group = current()
    if group is None or group.count == 1:
        return Experiment.load
    here, mesh = _clients_here(device), _mesh(device)

    def load(experiment: Experiment) -> tuple[Experiment, Federation]:
        group.refuse_differences({"config": _digest(experiment)})  # before one waits for data that the other maps
        if isinstance(experiment.data.spec, Mapped):
            return experiment.load(here)
        return load_together(experiment, group, mesh, here)

    return load


def _clients_here(device: Device) -> Callable[[int], slice]:
    """Return what says of how many clients which live in this process."""
    mesh = _mesh(device)

    def here(clients: int) -> slice:
        rows = my_rows(mesh, spread_rows(mesh.size, clients))
        return slice(min(rows.start, clients - 1), min(rows.stop, clients))  # rows without a client repeat the last

    return here


def place_here(job: Job, device: Device) -> tuple[Job, OneOfSeveral | None]:
    """Return the job with the samples of this process's clients, and its place among those that share the run.

    All must have the same job; where this process is alone, it stays as it is and there is no place.
    """
    group = current()
    if group is None:
        return job, None
    orbax()  # before anything is trained that could not be saved
    clients, mesh = len(job.federation), _mesh(device)
    refuse_more_than_clients(group.count, clients)
    here = _clients_here(device)(clients)
    federation = job.federation if job.federation.here == here else job.federation.only(here)
    common = digest_of_common(federation)
    group.refuse_differences({"config": _digest(job.experiment), "digest of the clients' names and sizes": common[:16]})
    rows = spread_rows(mesh.size, clients)
    own = sum_of_digests(federation, range(clients)[my_rows(mesh, rows)])
    digest = joined(common, [int(text, 16) for text in group.exchange("digests", f"{own:x}")])
    if federation.kind == "classification":
        known = rows_placed(federation.label_counts(), mesh, rows, slice(0, clients))
        federation = dataclasses.replace(federation, counted=fetched(known)[:clients])
    return dataclasses.replace(job, federation=federation), OneOfSeveral(group, digest)


def _digest(experiment: Experiment) -> str:
    return hashlib.sha256(dump_toml(experiment.to_dict()).encode()).hexdigest()[:16]


def _mesh(device: Device) -> Mesh:
    return Mesh(np.array(device.devices), (CLIENTS,))
