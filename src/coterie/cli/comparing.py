"""`coterie compare`: would cooperation help these clients, with whom, and at what price?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import (
    CodecName,
    Devices,
    Flags,
    Json,
    Memory,
    Out,
    Preallocate,
    Precision,
    Rounds,
    Set,
    TrustCode,
    Where,
    WorldDropout,
    WorldLate,
    WorldParticipation,
    WorldSlow,
    changed,
    chosen_device,
    code_of,
    refuse_sweep,
    report_or_note,
    screen_for,
)
from coterie.cli.terminal import console_for
from coterie.errors import CoterieError
from coterie.storage.commands import command

__all__ = ["Client", "Sources", "Target", "compare", "run_comparison", "tables_of"]

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE ...]",
        help="A table (CSV, Parquet), one for each site, a pattern or a folder of them; or an experiment (TOML). "
        "Without any: the demonstration.",
    ),
]
Target = Annotated[str | None, typer.Option(help="Of a table: the column that is predicted.")]
Client = Annotated[
    str | None,
    typer.Option(help="Of a table: the column that says whose row it is; without it, a file is a client."),
]
Watch = Annotated[bool, typer.Option("--watch", help="Serve a page on this computer that grows while it trains.")]
Port = Annotated[int, typer.Option(help="Where --watch serves its page; 0 is any port that is free.")]


def compare(
    sources: Sources = None,
    target: Target = None,
    client: Client = None,
    methods: Annotated[str | None, typer.Option(help="Methods with commas between; FILE.py:CLASS is one, too.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each method, with different seeds.")] = None,
    splits: Annotated[int | None, typer.Option(help="Draws of train and test samples (5 where they are few).")] = None,
    tune: Annotated[
        bool | None, typer.Option("--tune/--no-tune", help="Tune every method on validation samples (the default).")
    ] = None,
    rounds: Rounds = None,
    out: Out = None,
    data: Annotated[str | None, typer.Option(help="A data set by name (coterie list datasets).")] = None,
    partition: Annotated[str | None, typer.Option(help="A partition by name (coterie list partitions).")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    model: Annotated[str | None, typer.Option(help="A model by name (coterie list models).")] = None,
    codec: CodecName = None,
    participation: WorldParticipation = None,
    dropout: WorldDropout = None,
    slow: WorldSlow = None,
    late: WorldLate = None,
    precision: Precision = None,
    memory: Memory = None,
    changes: Set = None,
    where: Where = "auto",
    devices: Devices = None,
    preallocate: Preallocate = False,
    watch: Watch = False,
    port: Port = 0,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Would cooperation help these clients, with whom, and at what price?

    coterie compare visits.csv --target died --client hospital

    coterie compare 'sites/*.csv' --target died            (one file per site: its name is the client)

    coterie compare experiment.toml --methods local,ditto --seeds 3

    Every method, training alone too, is tuned on validation samples and then trained; the answer, a leaderboard and
    report.html come at the end. The same command continues a comparison that was stopped, and adds methods and seeds.
    """
    from coterie.comparison.config import ComparisonConfig
    from coterie.sites.federation import simulated

    names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    flags: Flags = {
        "data": {"name": data},
        "partition": {"name": partition, "clients": clients},
        "model": {"name": model},
        "codec": {"name": codec},
        "run": {"rounds": rounds, "precision": precision, "memory": memory},
        "world": {"participation": participation, "dropout": dropout, "slow": slow, "late": late},
        "compare": {"methods": names, "seeds": seeds, "splits": splits, "tune": tune},
    }
    tables = simulated(changed(tables_of(sources, target, client, data), flags, changes))
    refuse_sweep(tables, Path(sources[0] if sources else ""))
    with code_of(Path(sources[0] if sources else ""), trust_code):
        config = ComparisonConfig.from_dict(tables)
        folder, at = out or Path("comparison"), port if watch else None
        run_comparison(config, folder, where, preallocate, as_json, at, trust_code, devices)


def tables_of(sources: list[str] | None, target: str | None, client: str | None, data: str | None) -> dict[str, Any]:
    """Return the sections of an experiment that a command line names: a TOML file, tables, a data set, or nothing."""
    from coterie.comparison.config import DEFAULT_TABLES
    from coterie.storage.toml import read_toml

    roles = {key: value for key, value in (("target", target), ("client", client)) if value is not None}
    if not sources:
        if roles:
            raise CoterieError(f"--{next(iter(roles))} names a column of a table: name the table's file, too")
        return dict(DEFAULT_TABLES) if data in (None, DEFAULT_TABLES["data"]["name"]) else {}
    if data is not None:
        raise CoterieError(f"--data {data} and {sources[0]} are both data; give one of them")
    if any(source.endswith(".toml") for source in sources):
        if len(sources) > 1:
            raise CoterieError(f"one experiment at a time: give {sources[0]} alone, or tables without a TOML file")
        tables = read_toml(Path(sources[0]))
        return tables | ({"data": {**tables.get("data", {}), **roles}} if roles else {})
    if target is None:
        raise CoterieError(f"which column of {sources[0]} is predicted? Name it with --target COLUMN")
    path: Any = sources[0] if len(sources) == 1 else list(sources)
    return {"data": {"name": "table", "path": path, **roles}}


def run_comparison(
    config: Any,
    folder: Path,
    where: str,
    preallocate: bool,
    as_json: bool,
    port: int | None = None,
    trust_code: bool = False,
    devices: int | None = None,
) -> tuple[Any, Any]:
    """Run a comparison with progress bars and show its result; returns it, and the console to print more.

    With a `port` (0: any that is free) a page on this computer shows the curves while they grow. With `trust_code`,
    methods that the folder has already may be code of its own.
    """
    console = console_for(as_json)
    device = chosen_device(where, preallocate, console, folder, devices)
    from coterie.cli.watch import watched
    from coterie.comparison.compare import compare as compare_methods

    runs = max(config.seeds, config.splits or 1) * len(config.methods)
    with watched(config, folder, runs, port, console) as live:
        with screen_for(console, folder, runs) as screen:
            progress = screen.update if live is None else live.beside(screen.update)
            comparison = compare_methods(config, out=folder, device=device, progress=progress, trust_code=trust_code)
        path = report_or_note(comparison, folder / "report.html", console)
        if live is not None and path is not None:
            live.finish(Path(path).read_text(encoding="utf-8"))
    if as_json:
        print(json.dumps(comparison.to_dict() | {"report": path}))
    else:
        _show(comparison, folder, path, console)
    return comparison, console


def _show(comparison: Any, folder: Path, report: str | None, console: Any) -> None:
    """Print the leaderboard, the answer with what to know about it, and what to do next."""
    from coterie.cli.screen import print_leaderboard
    from coterie.comparison.who import with_whom

    judgement = comparison.judgement()
    print_leaderboard(console, comparison.leaderboard())
    console.print(judgement.sentence, markup=False, style="bold")
    if partners := with_whom(comparison):
        console.print(partners, markup=False, style="bold")
    for note in judgement.notes:
        console.print(note, markup=False)
    if report is not None:
        console.print(f"report: {report}", markup=False, soft_wrap=True)
    if partners:
        console.print(f"partners: {command('graph', folder, '--out', 'who.csv')}", markup=False, soft_wrap=True)
    if comparison.clients.get("features"):
        console.print(f"predict: {command('predict', folder, 'NEW.csv')}", markup=False, soft_wrap=True)
