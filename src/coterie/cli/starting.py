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
        list[str], typer.Argument(metavar="FILE [FILE ...]", help="A table, one for each site, a pattern or a folder.")
    ],
    target: Annotated[str, typer.Option(help="The column that is predicted.")],
    client: Client = None,
    out: Annotated[Path, typer.Option(help="The experiment to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented experiment for a table: what each column becomes, and every setting with its meaning.

    coterie init visits.csv --target died --client hospital

    coterie check experiment.toml && coterie compare experiment.toml
    """
    from coterie.data.tables.starter import init_toml
    from coterie.storage.durable import durable_write

    if out.exists():
        raise CoterieError(f"{out} exists already: choose another name with --out, or remove it")
    text = init_toml(sources[0] if len(sources) == 1 else tuple(sources), target, client)
    durable_write(out, text.encode())
    say(f"written: {out}\nnext: {command('check', out)}, then {command('compare', out)}")


def check(
    sources: Sources = None,
    target: Target = None,
    client: Client = None,
    changes: Set = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Say what an experiment is and what it will take: data, parameters, memory, bytes, time. Nothing is trained.

    coterie check experiment.toml

    coterie check visits.csv --target died --client hospital
    """
    import json

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
