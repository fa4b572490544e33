"""One of several processes that share a mesh of devices: all run the same loop, and the first writes the files."""

import hashlib

from coterie.experiment.about import fingerprint
from coterie.experiment.job import Job
from coterie.experiment.place import Place
from coterie.experiment.sharded import orbax
from coterie.processes.group import Group, current
from coterie.processes.launch import refuse_more_than_clients
from coterie.storage.toml import dump_toml

__all__ = ["OneOfSeveral", "place_here"]


class OneOfSeveral(Place):
    """One process of a group, in which some of the clients live.

    Args:
        group: the processes.
    """

    together = True

    def __init__(self, group: Group):
        self.group, self.writes = group, group.index == 0

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """See `Place.any_of`."""
        return self.group.any_of(*flags)

    def wait(self, what: str) -> None:
        """See `Place.wait`."""
        self.group.meet(what)


def place_here(job: Job) -> OneOfSeveral | None:
    """Return the place of this process among those that share a run, all with the same job; None where it is alone."""
    group = current()
    if group is None:
        return None
    orbax()  # before anything is trained that could not be saved
    refuse_more_than_clients(group.count, len(job.federation))
    config = hashlib.sha256(dump_toml(job.config).encode()).hexdigest()[:16]
    group.refuse_differences({"config": config, "digest of the data": fingerprint(job.federation)})
    return OneOfSeveral(group)
