"""The data of one site: its own table through the column contract, or its part of data that the shared file names."""

import dataclasses

import numpy as np

from coterie.data.clients import Federation
from coterie.data.partition import divide
from coterie.data.tables.read import read
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.sites.contract import Contract
from coterie.sites.federation import FederationFile
from coterie.sites.own_table import own_samples
from coterie.sites.site import SiteFile

__all__ = ["load_everyone", "load_site"]


def load_everyone(federation: FederationFile) -> tuple[Experiment, Federation]:
    """Load the data of all members, where the shared file names them; they have the members' names.

    In the experiment returned, the data have decided what partition "auto" is.
    """
    if federation.contract is not None:
        raise CoterieError(f"{federation.path} leaves the data to each site: nobody has those of all members")
    experiment, everyone = federation.experiment.load()
    members = len(federation.members)
    if len(everyone) != members:
        raise CoterieError(
            f"the data of {federation.path} are of {len(everyone):,} clients, not {members:,}, as members"
        )
    groups = _groups(federation)
    groups = everyone.groups if groups is None else groups
    return experiment, dataclasses.replace(everyone, names=federation.names, groups=groups, redraw=None)


def load_site(federation: FederationFile, site: SiteFile) -> tuple[Experiment, Federation]:
    """Load this site's data as a federation of one client; refuse fewer training rows than the site allows."""
    number = federation.number(site.name)
    if federation.contract is not None:
        experiment, own = federation.experiment, _own_table(federation, federation.contract, site, number)
    else:
        experiment, everyone = load_everyone(federation)
        own = everyone.select([number])
    rows = int(own.train.count[0])
    if rows < site.limits.training_rows:
        raise CoterieError(
            f"{site.name} has {rows:,} training rows, and {site.path} asks for {site.limits.training_rows:,} "
            "(limits.training_rows)"
        )
    return experiment, own


def _own_table(federation: FederationFile, contract: Contract, site: SiteFile, number: int) -> Federation:
    """Read the site's own table and divide its rows, as those of every client are divided."""
    if site.data is None:
        raise CoterieError(f"{site.path} must name this site's table: write [data] and path = ... below it")
    raw = read(site.data.path, sep=site.data.sep, encoding=site.data.encoding, header=site.data.header)
    partition = federation.experiment.partition
    assert partition is not None  # a file always has one
    own = divide(partition.spec, own_samples(raw, contract, site.name), None, partition.common.seed)
    groups = _groups(federation)
    if groups is None:
        return dataclasses.replace(own, redraw=None)
    count = int(groups.max()) + 1
    return dataclasses.replace(own, redraw=None, groups=groups[[number]], group_count=count)


def _groups(federation: FederationFile) -> np.ndarray | None:
    """Return the members' known groups, numbered without gaps."""
    given = [member.group for member in federation.members if member.group is not None]
    return np.unique(np.array(given), return_inverse=True)[1] if given else None
