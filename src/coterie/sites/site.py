"""A site's own file, `site.toml`: its data, its keys, where it listens, and limits that only narrow the shared file.

    format = 1
    [site]
    name = "north"
    listen = "0.0.0.0:7447"           # default: the member's address
    out = "runs/north"

    [tls]
    key = "keys/north.key"
    certificate = "keys/north.crt"
    ca = "keys/ca.crt"

    [data]                            # only where federation.toml names columns
    path = "visits.csv"

    [limits]
    methods = ["gossip-sgd", "ditto"]
    rounds = 100

Paths are relative to the file. It never leaves the site.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, shown
from coterie.sites.federation import FederationFile
from coterie.sites.members import Address, wrong_name
from coterie.sites.pem import TlsFiles
from coterie.spec import build, nearest, param, spec
from coterie.storage.toml import read_toml

__all__ = ["Limits", "SiteData", "SiteFile", "SiteSettings"]

FORMAT = 1


@spec
class SiteSettings:
    """The section `[site]`."""

    name: str = param(help="which member this is")
    listen: str | None = param(None, "HOST:PORT to listen on; default: the member's address")
    out: str | None = param(None, "the folder of the run; default: runs/ and the names of federation and member")

    def __post_init__(self) -> None:
        if wrong := wrong_name(self.name):
            raise CoterieError(f"name {wrong}")
        if self.listen is not None:
            Address.parse(self.listen, "listen")


@spec
class SiteData:
    """The section `[data]`: this site's table; what its columns are, the contract says."""

    path: str = param(help="the table of this site, CSV (packed or not) or Parquet")
    sep: str | None = param(None, "the sign between cells; found if left out")
    encoding: str | None = param(None, "of a text file, for example latin-1; found if left out")
    header: int | None = param(
        None, "the line with the names of the columns, 0 for none; found if left out", at_least=0
    )


@spec
class Limits:
    """The section `[limits]`: what this site takes part in. Whatever goes beyond it is refused before the start."""

    methods: tuple[str, ...] | None = param(None, "methods it takes part in; default: any")
    receivers: tuple[str, ...] | None = param(None, "members it may send to; default: all")
    rounds: int | None = param(None, "rounds at most", at_least=1)
    training_rows: int = param(
        1, "training rows that this site has at least, so that no model is of a few people", at_least=1
    )


SECTIONS = {"site": SiteSettings, "tls": TlsFiles, "data": SiteData, "limits": Limits}


@dataclasses.dataclass(frozen=True)
class SiteFile:
    """A site.toml that was read and checked; paths are whole.

    Attributes:
        path: the file.
        name: which member this is.
        listen: where it listens, if not at the member's address.
        out: the folder of its run, if the file names one.
        tls: key, certificate and authority; None where the federation needs none (loopback only).
        data: the site's table, where each site has its own.
        limits: what it takes part in.
    """

    path: Path
    name: str
    listen: str | None = None
    out: Path | None = None
    tls: TlsFiles | None = None
    data: SiteData | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)

    @classmethod
    def read(cls, path: str | Path) -> "SiteFile":
        """Read and check the file."""
        path = Path(path)
        return cls.from_dict(read_toml(path), path)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], path: str | Path) -> "SiteFile":
        """Check parsed tables; paths in them are relative to the folder of `path`."""
        path = Path(path)
        parts: dict[str, Any] = {}
        for key, table in tables.items():
            if key == "format":
                if table != FORMAT:
                    raise CoterieError(f"format must be {FORMAT}, not {shown(table)}: this file is for another version")
            elif key not in SECTIONS:
                raise CoterieError(f"unknown section [{key}] in {path}{nearest(key, SECTIONS)}")
            elif not isinstance(table, Mapping):
                raise CoterieError(f"{key} must be a section: write [{key}] and its keys below it")
            else:
                parts[key] = build(SECTIONS[key], table, key)
        if "site" not in parts:
            raise CoterieError(f"{path} must say which member it is of: write [site] and name = ... below it")
        own, beside = parts["site"], path.parent
        tls, data = parts.get("tls"), parts.get("data")
        return cls(
            path,
            own.name,
            own.listen,
            None if own.out is None else beside / own.out,
            None if tls is None else dataclasses.replace(tls, **_whole(tls, beside, ("key", "certificate", "ca"))),
            None if data is None else dataclasses.replace(data, **_whole(data, beside, ("path",))),
            parts.get("limits", Limits()),
        )

    def address(self, federation: FederationFile) -> str | None:
        """Return where this site listens; None: it only opens connections itself."""
        return self.listen or federation.member(self.name).address

    def folder(self, federation: FederationFile) -> Path:
        """Return the folder of this site's run."""
        return self.out or self.path.parent / "runs" / f"{federation.settings.name}-{self.name}"

    def wrong(self, federation: FederationFile) -> list[str]:
        """Say what keeps this site from taking part, one sentence each; of what can be known without its data."""
        said, limits, run = [], self.limits, federation.experiment
        federation.number(self.name)
        if limits.methods is not None and run.method.name not in limits.methods:
            allowed = ", ".join(limits.methods) or "none"
            said.append(f"the method is {run.method.name}, and {self.path} allows only {allowed} (limits.methods)")
        if limits.rounds is not None and run.run.rounds > limits.rounds:
            said.append(f"run.rounds is {run.run.rounds:,}, and {self.path} allows {limits.rounds:,} (limits.rounds)")
        for name in limits.receivers or ():
            if name not in federation.names:
                said.append(f"limits.receivers of {self.path} names {shown(name)}, which is no member")
        if federation.settings.tls and self.tls is None:
            said.append(f"{self.path} must name key, certificate and ca: write [tls] and these below it")
        address = self.address(federation)
        if not federation.settings.tls and address is not None and not Address.parse(address).loopback:
            said.append(f"site.listen is {address}, which is not this machine alone, and federation.tls is false")
        if federation.contract is not None and self.data is None:
            said.append(f"{self.path} must name this site's table: write [data] and path = ... below it")
        if federation.contract is None and self.data is not None:
            said.append(f"{self.path} names data, but {federation.path} names those of all sites; leave [data] out")
        return said


def _whole(part: Any, folder: Path, fields: tuple[str, ...]) -> dict[str, str]:
    return {field: str(folder / getattr(part, field)) for field in fields}
