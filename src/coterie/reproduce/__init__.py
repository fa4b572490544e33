"""Experiments of papers, ready to run: the paper's figures next to ours. No JAX here.

A paper that compares methods is a function that returns a `Reproduction`. `coterie.cli.papers.PAPERS` lists it; its
parameters are the options of the command, with the help text in `Annotated`. The command runs the experiment with the
paper's settings ("as printed") and, where there is a second comparison, with ours ("tuned"), prints one table and
writes `reproduce.json` (`coterie.reproduce.record`), from which docs/results/papers.md is made.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Any, NamedTuple

from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = [
    "STATISTICS",
    "Clients",
    "Difference",
    "Methods",
    "Reproduction",
    "Rounds",
    "Seeds",
    "check_choice",
    "differences_of",
]

Methods = Annotated[tuple[str, ...], "Rows with commas between; default: the paper's table."]
Seeds = Annotated[int, "Runs of each row."]
Rounds = Annotated[int | None, "Communication rounds."]
Clients = Annotated[int | None, "Another number of clients than the paper's."]

# What can stand in a cell of the table, and in which words it is explained below the table. Each is computed in every
# run and then averaged over the runs, except `seeds`.
STATISTICS = {
    "mean": "mean over clients",
    "clients": "standard deviation over clients",
    "p10": "10th percentile over clients",
    "worst_tenth": "mean of the worst tenth of the clients",
    "own": "mean over clients when only a client's own classes compete",
    "seeds": "standard deviation of the mean over seeds",
}


class Difference(NamedTuple):
    """One way in which our experiment is not the paper's, in a sentence without a full stop.

    Attributes:
        text: the sentence.
        rows: labels of the rows it is about; empty: all.
        block: "printed" or "tuned" if it is about one of the two columns only.
    """

    text: str
    rows: tuple[str, ...] = ()
    block: str = ""


class Reproduction(NamedTuple):
    """A table of a paper: what to run, and what the paper prints for each row.

    Attributes:
        title: of our table.
        source: where the paper's figures stand, such as "Li et al. 2024, Table 2, non-IID CIFAR-10".
        tables: the comparison with the paper's settings, as in a TOML file.
        paper: for each label, what the paper prints, letter for letter ("92.21 ± 5.15", "39.7 / 36.5", "diverge");
            empty where the paper has no figures for these data.
        folder: where runs are written by default, after "reproduce-".
        differences: what is still not as in the paper; those that apply to the rows are printed below the table.
        tuned: a second comparison with our settings, chosen on validation samples, with the paper's budget of messages
            and local steps; None: there is no such column.
        columns: names of `STATISTICS` in the order in which the paper's cells have them.
        names: the paper's name of a row where it is not the label.
        decimals: of our cells.
    """

    title: str
    source: str
    tables: dict[str, Any]
    paper: dict[str, str]
    folder: str
    differences: tuple[Difference, ...] = ()
    tuned: dict[str, Any] | None = None
    columns: tuple[str, ...] = ("mean", "clients")
    names: dict[str, str] = {}  # noqa: RUF012
    decimals: int = 2


def differences_of(
    differences: Iterable[Difference],
    labels: Collection[str],
    blocks: Collection[str],
    as_printed: Collection[str] = (),
) -> list[str]:
    """Return the sentences that apply to at least one of these rows and columns.

    Of the rows `as_printed` the tuned column repeats the printed one, so what is said of tuned rows is not of them.
    """
    tuned = [label for label in labels if label not in as_printed]

    def applies(rows: tuple[str, ...], block: str) -> bool:
        there = tuned if block == "tuned" else labels
        return any(label in there for label in rows or there) and (not block or block in blocks)

    return [text for text, rows, block in differences if applies(rows, block)]


def check_choice(field: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that is not one of the known ones."""
    if value not in known:
        raise CoterieError(f"{field} must be one of {', '.join(known)}, not {value!r}{nearest(value, known)}")
