"""The shared file of a federation, `federation.toml`: equal at every site, to the last setting.

    format = 1
    [federation]
    name = "north-south"
    hub = "none"                      # or the name of a member
    deadline = 60                     # seconds that a round may wait for messages
    # columns = "columns.json"        # every site has its own table, prepared as this file says

    [[members]]
    name = "north"
    address = "north.example.org:7447"

    [[members]]
    name = "south"                    # opens connections itself; nobody can connect to it

    [method] ...                      # all other sections are those of `coterie run`

The members are clients 0, 1, 2, ... in the order of the file. Either the file names data that are divided among as many
clients as there are members (for trying out: every site loads all of them and takes its own), or `columns` names the
column contract and each site.toml names a table of its own.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, shown
from coterie.experiment.config import Experiment
from coterie.experiment.parts import Part
from coterie.methods.base import Solved
from coterie.registry import names_from
from coterie.sites.contract import Contract
from coterie.sites.members import Address, Member
from coterie.spec import build, nearest, param, spec, to_dict
from coterie.storage.toml import read_toml

__all__ = ["EACH_SITE", "FederationFile", "FederationSettings", "simulated"]

EACH_SITE = "each-site"  # the name of data that every site has of its own
NO_HUB = "none"
MOST_MEMBERS = 1000  # the engine's limit of sessions


@spec
class FederationSettings:
    """The section `[federation]`."""

    name: str = param("federation", "what the federation is called")
    hub: str = param(NO_HUB, "the member that averages for the others; none: every member does it for itself")
    deadline: float = param(60.0, "seconds that a round may wait for messages", above=0, at_most=86_400)
    start_deadline: float = param(
        600.0, "seconds that a member waits for the others to start", above=0, at_most=604_800
    )
    seeds: tuple[str, ...] = param((), "members to connect to first, before the others that can be reached")
    tls: bool = param(True, "mutual TLS; false only where every address is on this machine (loopback)")
    columns: str | None = param(None, "the column contract, a file beside this one, where each site has its own table")
    samples_may_leave: bool = param(False, "allow a method that sends samples (pooled)")


@dataclasses.dataclass(frozen=True)
class FederationFile:
    """A federation.toml that was read and checked.

    Attributes:
        path: the file.
        settings: its section `[federation]`.
        members: in the order of the file, which numbers the clients.
        experiment: the run, exactly as `coterie run` reads it.
        contract: how each site's table becomes inputs; None where the file names the data.
    """

    path: Path
    settings: FederationSettings
    members: tuple[Member, ...]
    experiment: Experiment
    contract: Contract | None = None

    @classmethod
    def read(cls, path: str | Path, trust_code: bool = False) -> "FederationFile":
        """Read and check the file, and the column contract that it names.

        The file comes from somebody else, as a rule: code that it names (FILE.py:CLASS) is refused unless trusted.
        """
        path = Path(path)
        tables = read_toml(path)
        with names_from(path, trust_code):
            return cls.from_dict(tables, path)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], path: str | Path) -> "FederationFile":
        """Check parsed tables; files that they name lie beside `path`."""
        path = Path(path)
        settings, members = _federation(tables, path)
        run = _run(tables, members, settings)
        if settings.columns is None:
            experiment = Experiment.from_dict(run)
            _refuse_method(experiment.method, settings)
            return cls(path, settings, members, experiment)
        if "data" in run:
            raise CoterieError(
                "federation.columns says that each site has its own data, and [data] names some; keep one"
            )
        contract = Contract.read(path.parent / settings.columns)
        experiment = Experiment.from_dict(run | {"partition": _own_rows(run.get("partition", {}))})
        _refuse_method(experiment.method, settings)
        data = Part(EACH_SITE, None, about={"columns": contract.digest})
        return cls(path, settings, members, dataclasses.replace(experiment, data=data), contract)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members; a member's place is its number."""
        return tuple(member.name for member in self.members)

    @property
    def hub(self) -> str | None:
        """The member that is the hub, or None."""
        return None if self.settings.hub == NO_HUB else self.settings.hub

    def number(self, name: str) -> int:
        """Return the number of a member; refuse a name that is none."""
        if name not in self.names:
            guess = nearest(name, self.names) or f"; members: {', '.join(self.names[:20])}"
            raise CoterieError(f"{shown(name)} is not a member of {self.path}{guess}")
        return self.names.index(name)

    def member(self, name: str) -> Member:
        """Return a member; refuse a name that is none."""
        return self.members[self.number(name)]

    def dials(self, name: str) -> tuple[str, ...]:
        """Return the addresses that a member connects to: the seeds first.

        Of two members exactly one calls the other: who cannot be reached calls, otherwise the later one in the list. If
        both called, the engine would keep two links, and one that outlives a cut of the network would hide from one of
        the two that the other has begun anew. Members tell each other nothing about third ones, so that each pair has a
        link of its own.
        """
        own = self.number(name)
        calls = range(own if self.members[own].reachable else len(self.members))
        others = [self.members[i] for i in calls if i != own and self.members[i].reachable]
        first = sorted(others, key=lambda member: member.name not in self.settings.seeds)
        return tuple(member.address for member in first if member.address is not None)

    def linked(self, name: str) -> tuple[str, ...]:
        """Return the members that one has a connection with when all are there: one of the two can be reached."""
        own = self.member(name)
        return tuple(each.name for each in self.members if each != own and (each.reachable or own.reachable))

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved, complete configuration as plain values."""
        run = self.experiment.to_dict()
        members = [to_dict(member) for member in self.members]
        return {"format": run.pop("format"), "federation": to_dict(self.settings), "members": members, **run}

    @functools.cached_property
    def hash(self) -> str:
        """A digest of the complete configuration, column contract included: peers start only if theirs are equal."""
        contract = None if self.contract is None else self.contract.digest
        text = json.dumps([self.to_dict(), contract], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


def simulated(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a run that simulates a federation; those of an ordinary experiment come back unchanged."""
    if not {"federation", "members"} & tables.keys():
        return dict(tables)
    settings, members = _federation(tables, Path("federation.toml"))
    run = _run(tables, members, settings)
    if settings.columns is not None and "data" not in run:
        raise CoterieError(
            "federation.columns leaves the data to each site, and a simulation needs them in one place: name them, for "
            "example --set data.name=table --set data.path='sites/*.csv' --set data.target=COLUMN"
        )
    return run


def _federation(tables: Mapping[str, Any], path: Path) -> tuple[FederationSettings, tuple[Member, ...]]:
    """Read the two sections that a run does not have."""
    rows = tables.get("members")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows) or len(rows) < 2:
        raise CoterieError(
            f"{path} must list at least two members: write [[members]] and name = ... below it, for each"
        )
    if len(rows) > MOST_MEMBERS:
        raise CoterieError(f"{path} lists {len(rows):,} members, and at most {MOST_MEMBERS:,} can be connected")
    section = tables.get("federation", {})
    if not isinstance(section, Mapping):
        raise CoterieError("federation must be a section: write [federation] and its keys below it")
    settings = build(FederationSettings, section, "federation")
    members = tuple(build(Member, row, f"members.{place}") for place, row in enumerate(rows, 1))
    _refuse_same([(member.name.casefold(), member.name) for member in members], "name")
    _refuse_same([(address.lower(), address) for m in members if (address := m.address) is not None], "address")
    groups = [member.group for member in members]
    if any(group is None for group in groups) and any(group is not None for group in groups):
        raise CoterieError(f"members.{groups.index(None) + 1}.group is missing; give every member a group, or none")
    names = [member.name for member in members]
    for field, chosen in (("hub", [settings.hub] * (settings.hub != NO_HUB)), ("seeds", settings.seeds)):
        for name in chosen:
            if name not in names:
                raise CoterieError(f"federation.{field} names {shown(name)}, which is no member{nearest(name, names)}")
    _refuse_plaintext(settings, members)
    return settings, members


def _refuse_same(pairs: Sequence[tuple[str, str]], field: str) -> None:
    """Refuse two members with the same name or address, whatever the case of its letters."""
    first: dict[str, int] = {}
    for place, (key, value) in enumerate(pairs, 1):
        if key in first:
            raise CoterieError(f"two members have the {field} {shown(value)}; each needs its own")
        first[key] = place


def _refuse_plaintext(settings: FederationSettings, members: Sequence[Member]) -> None:
    for member in members:
        if not settings.tls and member.address is not None and not Address.parse(member.address).loopback:
            raise CoterieError(
                f"federation.tls is false, but {member.name} listens on {member.address}, which is not this machine "
                "alone; set tls to true"
            )


def _run(tables: Mapping[str, Any], members: Sequence[Member], settings: FederationSettings) -> dict[str, Any]:
    """Return the sections of the run; its clients are the members."""
    run = {key: value for key, value in tables.items() if key not in ("federation", "members")}
    if settings.hub == NO_HUB and isinstance(run.get("run", {}), Mapping):
        run["run"] = {**run.get("run", {}), "hub": NO_HUB}
    partition = run.get("partition", {})
    if isinstance(partition, Mapping):
        clients = partition.get("clients", len(members))
        if clients != len(members):
            raise CoterieError(
                f"partition.clients is {shown(clients)}, but there are {len(members)} members; leave it out"
            )
        run["partition"] = {**partition, "clients": len(members)}
    return run


def _refuse_method(part: Part, settings: FederationSettings) -> None:
    """Refuse a method that needs everybody's data in one process, or that sends samples."""
    method = part.spec
    if isinstance(method, Solved) and method.topology != "none":
        raise CoterieError(
            f"{part.name} solves the problem of all clients in one process, so that it runs in a simulation only; "
            "choose another method"
        )
    if method.role == "pooled" and not settings.samples_may_leave:
        raise CoterieError(
            f"{part.name} sends every member's samples to the others; choose another method, or set "
            "federation.samples_may_leave to true"
        )


def _own_rows(partition: Any) -> Any:
    """Return the section that divides a site's own rows: they belong to nobody else."""
    if not isinstance(partition, Mapping):
        return partition
    if partition.get("name", "natural") not in ("natural", "auto"):
        raise CoterieError(
            f"partition.name is {shown(partition['name'])}, but each site has its own rows; leave it out or set natural"
        )
    return {**partition, "name": "natural"}
