"""What is wrong with a federation, and with one site of it, before anything starts: one sentence each."""

from typing import NamedTuple

from coterie.errors import CoterieError
from coterie.sites.certificates import wrong_certificate
from coterie.sites.data import load_site
from coterie.sites.federation import FederationFile
from coterie.sites.members import Address
from coterie.sites.outline import Outline
from coterie.sites.site import SiteFile

__all__ = ["Checked", "check_federation"]

MANY = 5  # pairs that are named


class Checked(NamedTuple):
    """What was found: what is wrong, and what a person should know of a federation that is not."""

    wrong: list[str]
    lines: list[str]


def check_federation(federation: FederationFile, site: SiteFile | None = None) -> Checked:
    """Look at the shared file, and at a site's own one with its keys and data, as `coterie join` would use them."""
    wrong, lines, outline = _unreachable_seeds(federation), _described(federation), None
    if federation.experiment.run.patience:
        wrong.append("run.patience needs the validation scores of all members, and nobody has them; set it to 0")
    try:
        outline = Outline.of(federation)
        wrong += _unreachable_pairs(federation, outline)
        lines.append(_bytes(federation, outline))
        lines += _few_to_compare(federation, outline)
    except CoterieError as error:
        wrong.append(str(error))
    if site is not None:
        wrong += site.wrong(federation)
        wrong += _wrong_keys(federation, site)
        wrong += [] if outline is None else _wrong_receivers(federation, site, outline)
        try:
            _, own = load_site(federation, site)
            rows = {part: int(getattr(own, part).count[0]) for part in ("train", "validation", "test")}
            lines.append(f"{site.name}: " + ", ".join(f"{count:,} {part}" for part, count in rows.items()) + " rows")
        except CoterieError as error:
            wrong += [sentence for sentence in str(error).split("\n") if sentence not in wrong]
    return Checked(wrong, lines)


def _described(federation: FederationFile) -> list[str]:
    run, members = federation.experiment, federation.members
    reached = sum(bool(member.reachable) for member in members)
    hub = "no hub" if federation.hub is None else f"hub {federation.hub}"
    tls = "mutual TLS" if federation.settings.tls else "no TLS, on this machine only"
    return [
        f"{federation.settings.name}: {len(members)} members, {reached} can be reached; {hub}; {tls}",
        f"{run.method.name}, {run.run.rounds:,} rounds, seed {run.run.seed}",
        f"digest {federation.hash}",
    ]


def _bytes(federation: FederationFile, outline: Outline) -> str:
    numbers = range(len(federation.members))
    each = max(outline.round_bytes(i) for i in numbers)
    total = max(outline.total_bytes(i) for i in numbers)
    return f"a member sends at most {each:,} bytes per round, {total:,} in all"


def _unreachable_seeds(federation: FederationFile) -> list[str]:
    """Say which members nobody can find: those to connect to first must be reachable, and one must be."""
    if not any(member.reachable for member in federation.members):
        return ["no member can be reached: give at least one an address that the others can connect to"]
    lost = [name for name in federation.settings.seeds if not federation.member(name).reachable]
    return [f"federation.seeds names {name}, which cannot be reached; name another" for name in lost]


def _unreachable_pairs(federation: FederationFile, outline: Outline) -> list[str]:
    """Say who exchanges messages with whom, and neither can be reached."""
    members = federation.members
    pairs = sorted({(min(pair), max(pair)) for pair in outline.pairs()})
    lost = [(members[i].name, members[j].name) for i, j in pairs if not (members[i].reachable or members[j].reachable)]
    said = [
        f"{a} and {b} exchange messages, and neither can be reached: make one reachable, or choose a graph or a hub "
        "that keeps them apart"
        for a, b in lost[:MANY]
    ]
    return said + ([f"and so do {len(lost) - MANY} more pairs"] if len(lost) > MANY else [])


def _few_to_compare(federation: FederationFile, outline: Outline) -> list[str]:
    """Say for whom robust sums cannot tell who is the attacker."""
    if federation.experiment.run.robust is None:
        return []
    heard = outline.graph.present.sum(1)
    few = [member.name for member, count in zip(federation.members, heard, strict=True) if 0 < count < 3]
    if not few:
        return []
    names = ", ".join(few[:MANY]) + (f" and {len(few) - MANY} more" if len(few) > MANY else "")
    return [
        f"run.robust: {names}: fewer than three neighbours, so one attacker is at least half of what is heard, and an "
        "honest neighbour may be clipped in its place; choose a graph with more neighbours"
    ]


def _wrong_keys(federation: FederationFile, site: SiteFile) -> list[str]:
    if not federation.settings.tls or site.tls is None:
        return []
    member = federation.member(site.name)
    host = Address.parse(member.address).host if member.reachable and member.address is not None else None
    return wrong_certificate(site.tls, site.name, federation.names, host)


def _wrong_receivers(federation: FederationFile, site: SiteFile, outline: Outline) -> list[str]:
    """Say to whom a site would send although it may not."""
    if site.limits.receivers is None:
        return []
    own = federation.number(site.name)
    to = [federation.names[j] for j in sorted(j for i, j in outline.pairs() if i == own)]
    return [
        f"{site.name} would send to {name}, which {site.path} does not allow (limits.receivers)"
        for name in to
        if name not in site.limits.receivers
    ]
