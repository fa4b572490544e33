"""Experiments of papers, ready to run: the paper's figures next to ours. No JAX here.

A paper that compares methods is a function that returns a `Reproduction`. `coterie.cli.papers.PAPERS` lists it; its
parameters are the options of the command, with the help text in `Annotated`.
"""

from collections.abc import Collection
from typing import Annotated, Any, NamedTuple

from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["Clients", "Methods", "Reproduction", "Rounds", "Seeds", "check_choice"]

Methods = Annotated[tuple[str, ...], "Methods with commas between; default: the paper's table."]
Seeds = Annotated[int, "Runs of each method."]
Rounds = Annotated[int | None, "Communication rounds."]
Clients = Annotated[int | None, "Another number of clients than the paper's."]


class Reproduction(NamedTuple):
    """An experiment of a paper: the comparison to run, and what the paper reports for each method."""

    title: str
    tables: dict[str, Any]  # a comparison, as in a TOML file
    paper: dict[str, float]  # mean accuracy in percent by label; empty where the paper has no figure
    note: str
    folder: str  # where runs are written by default, after "reproduce-"


def check_choice(field: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that is not one of the known ones."""
    if value not in known:
        raise CoterieError(f"{field} must be one of {', '.join(known)}, not {value!r}{nearest(value, known)}")
