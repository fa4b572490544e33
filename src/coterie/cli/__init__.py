"""The command line. Nothing heavy is imported before a command needs it: `--help` and `list` answer at once.

Input that cannot be used is one sentence on standard error and exit status 2, wherever it is found; Ctrl-C says how to
go on and is exit status 130.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coterie.cli import catalogue, graphs, papers, training
from coterie.errors import CoterieError

__all__ = ["app", "main"]


class _Guarded(TyperGroup):
    """Turns the errors a user may see into sentences."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CoterieError as error:
            print(f"coterie: {error}", file=sys.stderr)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Guarded,
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
app.command()(training.compare)
app.command()(training.resume)
app.command()(training.report)
app.add_typer(papers.papers)
app.command()(graphs.graph)
app.command("list")(catalogue.list_names)
app.command()(catalogue.show)


def main() -> None:
    """Run the command line."""
    app()
