"""`coterie init` and `coterie check`: an experiment for a table, and what it will take, before anything is trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.comparing import Client, Sources, Target, tables_of
from coterie.cli.options import Json, Preallocate, Set, TrustCode, Where, changed, chosen_device, code_of
from coterie.cli.terminal import console_for, say
from coterie.errors import CoterieError
from coterie.storage.commands import command

__all__ = ["check", "init"]


def init(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE ...]", help="A table, one for each site, a pattern or a folder."),
    ] = None,
    target: Target = None,
    client: Client = None,
    federation: Annotated[
        str | None,
        typer.Option(help="Real peers instead: how many members, or their names with commas between."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write (experiment.toml, federation.toml).")] = None,
) -> None:
    """Write a commented experiment for a table: what each column becomes, and every setting with its meaning.

    coterie init visits.csv --target died --client hospital

    coterie check experiment.toml && coterie compare experiment.toml

    With --federation, the files of real peers: federation.toml, a site.toml for each member and, for a table,
    columns.json. Without a table it is an example that works on this machine.

    coterie init --federation 4 && coterie peers federation.toml --local
    """
    if federation is not None:
        _init_federation(federation, sources or [], target, client, out or Path("federation.toml"))
        return
    if not sources or target is None:
        raise CoterieError("name a table and --target COLUMN, or --federation 4 for an example of real peers")
    from coterie.data.tables.starter import init_toml

    out = out or Path("experiment.toml")
    text = init_toml(sources[0] if len(sources) == 1 else tuple(sources), target, client)
    _write_new({out: text})
    say(f"written: {out}\nnext: {command('check', out)}, then {command('compare', out)}")


def _init_federation(members: str, sources: list[str], target: str | None, client: str | None, out: Path) -> None:
    from coterie.sites.starter import member_names, started

    files, notes = started(member_names(members), sources, target, client, out.parent)
    _write_new({(out if name == "federation.toml" else out.parent / name): text for name, text in files.items()})
    example = "columns.json" not in files
    next_step = command("peers", out, "--local") if example else "write the members' addresses into it"
    for line in [f"written: {out} and {len(files) - 1} files beside it", *notes, f"next: {next_step}"]:
        say(line)


def _write_new(files: dict[Path, str]) -> None:
    """Write files that are not there yet; if one is, none is written."""
    from coterie.storage.durable import durable_write

    for path in files:
        if path.exists():
            raise CoterieError(f"{path} exists already: choose another name with --out, or remove it")
    for path, text in files.items():
        durable_write(path, text.encode())


def check(
    sources: Sources = None,
    target: Target = None,
    client: Client = None,
    changes: Set = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    trust_code: TrustCode = False,
    site: Annotated[Path | None, typer.Option(help="Of a federation: a site's own file, to check it as well.")] = None,
    as_json: Json = False,
) -> None:
    """Say what an experiment is and what it will take: data, parameters, memory, bytes, time. Nothing is trained.

    coterie check experiment.toml

    coterie check visits.csv --target died --client hospital

    coterie check federation.toml --site site.toml           (members, addresses, keys, limits, data)
    """
    import json

    if sources and _is_federation(sources):
        _check_federation(Path(sources[0]), site, as_json, trust_code)
        return
    if site is not None:
        raise CoterieError("--site belongs to a federation: coterie check federation.toml --site site.toml")

    from coterie.comparison.config import ComparisonConfig

    tables = changed(tables_of(sources, target, client, None), {}, changes)
    console = console_for(as_json)
    with code_of(Path(sources[0] if sources else ""), trust_code):
        config = ComparisonConfig.from_dict(tables)
        device = chosen_device(where, preallocate, console)
        from coterie.data.tables.intake import describe

        experiment, federation = config.experiment.load()
        intake = describe(federation)
        if not as_json:
            console.print(intake)
        rows = _estimates(config, experiment, federation, device)
    if as_json:
        print(json.dumps({"data": intake.to_dict(), "methods": rows}))
        return
    _print(console, rows, experiment.run.rounds)


def _is_federation(sources: list[str]) -> bool:
    """Whether the command names the shared file of a federation."""
    from coterie.storage.toml import read_toml

    if len(sources) != 1 or not sources[0].endswith(".toml"):
        return False
    tables = read_toml(sources[0])
    if "site" in tables:
        check = command("check", "federation.toml", "--site", sources[0])
        raise CoterieError(f"{sources[0]} is a site's own file; check it with the shared one: {check}")
    return bool({"federation", "members"} & tables.keys())


def _check_federation(path: Path, site: Path | None, as_json: bool, trust_code: bool) -> None:
    import json

    from coterie.sites.checking import check_federation
    from coterie.sites.federation import FederationFile
    from coterie.sites.site import SiteFile

    federation = FederationFile.read(path, trust_code)
    found = check_federation(federation, None if site is None else SiteFile.read(site))
    if as_json:
        print(json.dumps({"digest": federation.hash, "lines": found.lines, "wrong": found.wrong}))
    for sentence in found.wrong:
        say(f"coterie: {sentence}", to_errors=True)
    if found.wrong:
        raise typer.Exit(2)
    if as_json:
        return
    for line in found.lines:
        say(line)
    join = command("join", path, "--site", site or "SITE.toml")
    if site is None:
        join = f"{command('peers', path, '--local')}, or at each site {join}"
    say(f"next: {command('disclose', path)}, then {join}")


def _estimates(config: Any, experiment: Any, federation: Any, device: Any) -> list[dict[str, Any]]:
    """Return what each method will take, or why it refuses."""
    import dataclasses

    from coterie.comparison.config import choice_of, with_method
    from coterie.experiment.engine import Engine
    from coterie.experiment.estimate import estimate, measure
    from coterie.experiment.job import Job, make_task
    from coterie.experiment.parts import Part

    task, rows = make_task(experiment, federation), []
    alone = dataclasses.replace(experiment, method=Part.from_table("method", {"name": "local"}))
    first = Job.of(alone, federation, task)
    engine = Engine.of(first, device)
    pace = measure(first, engine)
    for choice in map(choice_of, config.methods):
        variant = dataclasses.replace(with_method(config.experiment, choice), partition=experiment.partition)
        try:
            took = estimate(Job.of(variant, federation, task), engine, pace)._asdict()
        except CoterieError as error:
            took = {"refused": str(error)}
        rows.append({"method": choice.label, **took})
    return rows


def _print(console: Any, rows: list[dict[str, Any]], rounds: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from coterie.pages.words import bytes_text

    table = Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False)
    heads = ("method", "parameters", "memory", "sent per\nround", "received\nper round", f"{rounds} rounds,\nabout")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for row in rows:
        if "refused" in row:
            table.add_row(row["method"], *["-"] * 5)
            continue
        seconds = "solved at once" if row["seconds"] is None else f"{row['seconds']:.1f} s"
        amounts = (bytes_text(row[key]) for key in ("memory", "sent", "received"))
        table.add_row(row["method"], f"{row['parameters']:,}", *amounts, seconds)
    console.print(table)
    for row in rows:
        if "refused" in row:
            console.print(f"{row['method']}: {row['refused']}", markup=False)
    console.print(
        "Bytes are of one client, the mean over clients. The time is of one run without tuning and compilation, which "
        "takes some seconds per method.",
        markup=False,
    )
