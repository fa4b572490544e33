"""`coterie reproduce`: run a paper's experiment and print its figures next to ours.

To add a paper that compares methods, write `coterie/reproduce/x.py` with a function that returns a `Reproduction`, and
add a row to `PAPERS`. The parameters of the function become the options of the command.
"""

import inspect
import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.clusters import clusters_command
from coterie.cli.component import component_command
from coterie.cli.options import Json, Out, Preallocate, Where, chosen_device, report_or_note, screen_for
from coterie.cli.outcome import print_record
from coterie.cli.terminal import console_for
from coterie.errors import CoterieError
from coterie.reproduce import Reproduction, pdbo, scool, spdb

__all__ = ["PAPERS", "as_command", "papers"]

Only = Annotated[
    str | None, typer.Option("--only", help="One column only: printed (the paper's settings) or tuned (ours).")
]


def as_command(paper: str, lay_out: Callable[..., Reproduction]) -> Callable[..., None]:
    """Make a command of a function that lays out a paper's experiment."""
    parameters = inspect.signature(lay_out).parameters

    def command(
        only: Only = None,
        out: Out = None,
        where: Where = "auto",
        preallocate: Preallocate = False,
        as_json: Json = False,
        **given: Any,
    ) -> None:
        from coterie.reproduce.record import repeat

        chosen = {name: _read(parameters[name], value) for name, value in given.items() if value is not None}
        laid_out = lay_out(**chosen)
        options = {name: value for name, value in chosen.items() if value != parameters[name].default}
        options |= {} if only is None else {"only": only}
        folder = out or Path(f"reproduce-{laid_out.folder}")
        _reproduce(laid_out, _blocks(laid_out, only), folder, repeat(paper, options), (where, preallocate), as_json)

    common = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [_option(parameter) for parameter in parameters.values()]
    command.__signature__ = inspect.Signature([*options, *common])  # type: ignore[attr-defined]
    command.__doc__ = lay_out.__doc__
    return command


def _blocks(laid_out: Reproduction, only: str | None) -> dict[str, dict[str, Any]]:
    """Return the comparisons to run, by column."""
    blocks = {"printed": laid_out.tables} | ({} if laid_out.tuned is None else {"tuned": laid_out.tuned})
    if only is None:
        return blocks
    if only not in blocks:
        raise CoterieError(f"--only must be one of {', '.join(blocks)} here, not {only!r}")
    return {only: blocks[only]}


def _option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as Typer wants it; a tuple is a text with commas, and a file is there."""
    hint, help_text = typing.get_args(parameter.annotation)
    kinds = (hint, *typing.get_args(hint))
    at_least = 1 if int in kinds else None  # runs, rounds, clients
    option = typer.Option(f"--{parameter.name}", help=help_text, min=at_least, exists=Path in kinds)
    if typing.get_origin(hint) is tuple:
        return parameter.replace(annotation=Annotated[str | None, option], default=None)
    return parameter.replace(annotation=Annotated[hint, option])


def _read(parameter: inspect.Parameter, value: Any) -> Any:
    """Return the value of an option as the function takes it."""
    hint, _ = typing.get_args(parameter.annotation)
    if typing.get_origin(hint) is not tuple:
        return value
    kind = typing.get_args(hint)[0]
    try:
        return tuple(kind(part.strip()) for part in value.split(",") if part.strip())
    except ValueError:
        raise CoterieError(f"--{parameter.name} {value!r}: write numbers with commas between") from None


PAPERS: dict[str, Callable[..., None]] = {
    "scool": as_command("scool", scool.reproduction),
    "spdb": as_command("spdb", spdb.reproduction),
    "pdbo": as_command("pdbo", pdbo.reproduction),
    "clusters": clusters_command,
    "component": component_command,
}

papers = typer.Typer(
    name="reproduce",
    help="Run a paper's experiment and print its figures next to ours.",
    epilog="Every method and seed is a run of its own; a second call does what is missing.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for name, command in PAPERS.items():
    papers.command(name)(command)


def _reproduce(
    laid_out: Reproduction,
    blocks: dict[str, dict[str, Any]],
    folder: Path,
    command: str,
    where: tuple[str, bool],
    as_json: bool,
) -> None:
    """Run the comparisons, one folder each, print our figures next to the paper's, and write them down."""
    from coterie.comparison.config import ComparisonConfig
    from coterie.reproduce.record import record_of, write_record

    configs = {name: ComparisonConfig.from_dict(tables) for name, tables in blocks.items()}  # before anything runs
    console = console_for(as_json)
    device = chosen_device(*where, console, folder / next(iter(blocks)))
    from coterie.comparison.compare import compare as compare_methods

    found, reports = {}, {}
    for name, config in configs.items():
        runs = max(config.seeds, config.splits or 1) * len(config.methods)
        with screen_for(console, folder / name, runs) as screen:
            found[name] = compare_methods(config, out=folder / name, device=device, progress=screen.update)
        reports[name] = report_or_note(found[name], folder / name / "report.html", console)
    record = record_of(laid_out, found, command, device.label)
    path = write_record(folder, record)
    if as_json:
        whole = {name: each.to_dict() | {"report": reports[name]} for name, each in found.items()}
        print(json.dumps(record | {"comparisons": whole, "file": str(path)}))
        return
    print_record(record, console)
    for report in (report for report in reports.values() if report is not None):
        console.print(f"report: {report}", markup=False, soft_wrap=True)
    console.print(f"figures: {path}", markup=False, soft_wrap=True)
