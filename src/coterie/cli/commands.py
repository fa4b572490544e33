"""The commands of `coterie`. Nothing heavy is imported before one needs it: `--help` and `list` answer at once."""

from typing import Annotated

import typer

from coterie.cli import (
    catalogue,
    comparing,
    disclosing,
    gathering,
    graphs,
    keys,
    launching,
    network,
    papers,
    serving,
    starting,
    sweeping,
    training,
)
from coterie.cli.guard import Guarded

__all__ = ["app"]

app = typer.Typer(
    cls=Guarded,
    name="coterie",
    help="Personal models for every member of a group that cannot pool its data.",
    epilog="Begin with `coterie compare`: it asks whether cooperation would help, on embedded data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from coterie import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


app.command()(training.run)
app.command()(launching.launch)
app.command()(comparing.compare)
app.command()(sweeping.sweep)
app.command()(starting.init)
app.command()(starting.check)
app.command()(training.resume)
app.command()(training.report)
app.command()(serving.predict)
app.command()(serving.export)
app.command("join-trained")(serving.join_trained)
app.command()(disclosing.disclose)
app.command()(network.join)
app.command()(network.peers)
app.command()(gathering.gather)
app.command()(gathering.replay)
app.add_typer(keys.keys)
app.add_typer(papers.papers)
app.command()(graphs.graph)
app.command("list")(catalogue.list_names)
app.command()(catalogue.show)
