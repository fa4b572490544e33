"""Small files of federations and sites, to be changed by a test."""

from pathlib import Path

from coterie.sites.federation import FederationFile
from coterie.sites.site import SiteFile

__all__ = ["federation_of", "federation_tables", "site_of"]

NAMES = ("north", "east", "south", "west")


def federation_tables(**changes):
    """Return the tables of a federation of four on loopback; a keyword changes keys of a section, or all members."""
    tables = {
        "format": 1,
        "federation": {"name": "compass"},
        "members": [{"name": name, "address": f"127.0.0.1:{7447 + i}"} for i, name in enumerate(NAMES)],
        "data": {"name": "digits"},
        "partition": {"name": "iid"},
        "model": {"name": "linear"},
        "method": {"name": "gossip-sgd"},
        "graph": {"name": "ring"},
        "run": {"rounds": 2, "mode": "exact"},
    }
    for section, values in changes.items():
        tables[section] = values if section == "members" else {**tables.get(section, {}), **values}
    return tables


def federation_of(path=Path("federation.toml"), **changes):
    """Return a federation that was read."""
    return FederationFile.from_dict(federation_tables(**changes), path)


def site_of(name="north", path=Path("site.toml"), **sections):
    """Return a site that was read."""
    tls = {"key": "site.key", "certificate": "site.crt", "ca": "ca.crt"}
    return SiteFile.from_dict({"site": {"name": name}, "tls": tls, **sections}, path)
