"""`coterie graph`: the cooperation weights of a run, for other programs."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["graph"]


def graph(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    number: Annotated[
        int | None, typer.Option("--round", help="After which round; default: the last evaluation.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .graphml or .npy file; default: graph.graphml in the folder.")
    ] = None,
) -> None:
    """Write who listens to whom in a run, as GraphML or as a NumPy matrix."""
    from coterie.result import Result

    print(f"graph: {Result.read(folder).save_graph(out or folder / 'graph.graphml', number)}")
