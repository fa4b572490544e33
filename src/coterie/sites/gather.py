"""Join the folders of the sites of one run into one folder: metrics, ledger, graph, deliveries; never data.

    folder = gather(["runs/north", "runs/south"], "runs/together")

The folder is that of any run, with all members as clients: `coterie report` and everything else that reads runs can
read it. A site that was away, started again or never came to the end is told about in `network.json` and the report.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import CoterieError
from coterie.experiment.figures import role_of
from coterie.experiment.folder import REMEDY, RunFolder, model_file
from coterie.experiment.members import FILE as MEMBERS
from coterie.experiment.members import Members
from coterie.experiment.result import Result
from coterie.sites.counting import read_counts
from coterie.sites.deliveries import FILE as DELIVERIES
from coterie.sites.deliveries import read_log, write_log
from coterie.sites.joined import join_clients, join_graphs, join_ledgers, join_rows, join_scores
from coterie.sites.network import FILE as NETWORK
from coterie.sites.network import about_network, rounds_text, spans
from coterie.storage.owned import holds, inside, read_file
from coterie.storage.toml import difference

__all__ = ["Member", "gather", "read_members", "site_folders"]


class Member(NamedTuple):
    """The folder of one site."""

    folder: RunFolder
    members: Members
    names: tuple[str, ...]  # of its clients

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder.path


def site_folders(paths: Sequence[str | Path]) -> list[Path]:
    """Return folders of runs; in the place of one that holds folders of sites (`coterie peers --local`), these."""
    found: list[Path] = []
    for path in map(Path, paths):
        inner = [] if holds(path, "config.toml") or not path.is_dir() else sorted(path.iterdir())
        found += [folder for folder in inner if holds(folder, MEMBERS)] or [path]
    return found


def read_members(paths: Sequence[str | Path]) -> list[Member]:
    """Open the folders of all sites of one run, in the order of their clients' numbers; refuse any others."""
    sites: list[Member] = []
    for path in site_folders(paths):
        folder = RunFolder(path)
        config, members = folder.config(), folder.members()
        if members is None:
            raise CoterieError(
                f"{path} is not the folder of a site: it has no members.json, which `coterie join` writes"
            )
        if sites:
            first = sites[0]
            changed = difference(first.folder.config(), config)
            if changed or members.names != first.members.names or members.run != first.members.run:
                why = changed or "their members or the number of the run differ"
                raise CoterieError(f"{first.path} and {path} are not of the same run: {why}")
        sites.append(Member(folder, members, tuple(folder.clients()["names"])))
    seen: dict[int, Path] = {}
    for site in sites:
        for client in site.members.here:
            if client in seen:
                raise CoterieError(f"{seen[client]} and {site.path} are both of {site.members.names[client]}")
            seen[client] = site.path
    missing = [name for client, name in enumerate(sites[0].members.names) if client not in seen] if sites else []
    if missing:
        raise CoterieError(f"the folders of {', '.join(missing)} are missing: name those of all members")
    sites = sorted(sites, key=lambda site: site.members.here)
    if [client for site in sites for client in site.members.here] != list(range(len(seen))):
        raise CoterieError("the clients of a site must have consecutive numbers; name folders of sites with one each")
    return sites


def gather(paths: Sequence[str | Path], out: str | Path, with_models: bool = False) -> Path:
    """Join the folders of all sites of a run.

    Args:
        paths: the folders, or the one that holds them all.
        out: the folder to write.
        with_models: whether the models go along; without, they stay where they are.

    Returns:
        The folder.
    """
    sites, target = read_members(paths), RunFolder(out)
    if target.exists() or not target.owned.fresh:
        raise CoterieError(f"{out} exists already; {REMEDY}")
    names = sites[0].members.names
    ended = [site for site in sites if site.folder.complete]
    if not ended:
        raise CoterieError("no site has come to the end of the run; continue it with `coterie join`")
    about = join_clients([site.folder.clients() for site in sites])
    rows = join_rows([site.folder.lines("metrics.jsonl") for site in sites])
    if not rows:
        raise CoterieError(f"{_never(sites)} has not been evaluated once: there is nothing to join")
    logs = [read_log(site.path, len(names)) for site in sites]
    ledgers = [site.folder.ledger() for site in sites]
    result = _result(sites, ended, rows, join_ledgers(names, ledgers))
    notes = _notes(sites, logs, rows[-1]["round"])
    with target.lock():
        target.begin(sites[0].folder.config(), about)
        for row in rows:
            target.append("metrics.jsonl", row)
        _write_tables(target, result, [site.folder.scores() for site in sites])
        write_log(target.path, [record for log in logs for record in log])
        counts = [read_counts(site.path) for site in sites]
        target.save_record(NETWORK, about_network(names, logs, ledgers, counts, notes))
        if with_models:
            _copy_models(sites, target)
        target.finish(result.summary() | {"round": rows[-1]["round"]})
    return target.path


def _result(sites: Sequence[Member], ended: Sequence[Member], rows: list[dict[str, Any]], ledger: Any) -> Result:
    """Return the result of the whole run, without models."""
    config, summary = sites[0].folder.config(), ended[0].folder.summary()
    seconds = [site.folder.summary()["seconds"] for site in ended]
    return Result(
        config=config,
        names=sites[0].members.names,
        rows=rows,
        ledger=ledger,
        graphs=join_graphs([site.folder.graphs() for site in sites]),
        seconds={part: max(one[part] for one in seconds) for part in seconds[0]},
        best_round=rows[-1]["round"],
        metric=summary["metric"],
        device=", ".join(sorted({site.folder.summary()["device"] for site in ended})),
        role=role_of(summary, config),
        learns_weights=summary.get("learns_weights", False),
    )


def _write_tables(target: RunFolder, result: Result, scores: Sequence[Any]) -> None:
    for place, block in enumerate(result.ledger.blocks):
        first = {"neighbours": result.ledger.neighbours} if place == 0 else {}
        target.save_arrays("ledger", int(block["rounds"][-1]), first | block)
    for number, tables in result.graphs.items():
        target.save_arrays("graph", number, tables)
    joined = join_scores(scores)
    if joined is not None:
        target.save_scores(joined)


def _copy_models(sites: Sequence[Member], target: RunFolder) -> None:
    for site in sites:
        for place, client in enumerate(site.members.here):
            if site.folder.complete:
                file = inside(site.path, "models", model_file(place, site.names[place]))
                target.save_model(model_file(client, site.names[place]), read_file(file.parent, file.name))


def _never(sites: Sequence[Member]) -> str:
    return next(str(site.path) for site in sites if not site.folder.lines("metrics.jsonl"))


def _notes(sites: Sequence[Member], logs: Sequence[Any], last: int) -> list[str]:
    """Say what is not as in a run without trouble."""
    notes = []
    for site, log in zip(sites, logs, strict=True):
        name = " and ".join(site.names)
        ran = {record.round for record in log if hasattr(record, "exchanges")}
        away = spans([number for number in range(1, last + 1) if number not in ran])
        if not log:
            notes.append(f"{name} has no {DELIVERIES}: what arrived there is not known.")
        elif away:
            notes.append(f"{name} was away in rounds {rounds_text(away)}: its last figures before stand for these.")
        if not site.folder.complete:
            notes.append(f"{name} did not come to the end.")
        elif (kept := site.folder.summary()["round"]) != last:
            notes.append(f"The model that {name} keeps is that of round {kept}; the figures are of round {last}.")
    return notes
