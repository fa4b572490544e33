"""`coterie reproduce clusters`: Table 1 of the paper on known clusters, and its comparison on real data."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import Json, Out
from coterie.cli.outcome import publish, text_table
from coterie.cli.terminal import console_for
from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["clusters_command"]

TABLE1, ALL = "table1", "all"


def clusters_command(
    study: Annotated[str, typer.Option(help="table1, donors, chem97, mathachieve, insteval, or all of them.")] = ALL,
    seeds: Annotated[int, typer.Option(help="Simulations, and divisions into training and test rows.", min=1)] = 5,
    sizes: Annotated[str, typer.Option(help="For table1: samples of a client, m.")] = "1,5,10,25,50,100,200",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Known clusters (Lyu, Hanzely, Kolar 2022): alone, one model for all, or groups that borrow strength.

    Writes figures.json, a CSV table of every error for pandas, and clusters.html.
    """
    from coterie.reproduce.clusters import studies
    from coterie.reproduce.clusters.drawing import draw
    from coterie.reproduce.clusters.table1 import summarise_table1, table1

    chosen = [TABLE1, *studies.STUDIES] if study == ALL else [study]
    if chosen[0] not in (TABLE1, *studies.STUDIES):
        known = (TABLE1, *studies.STUDIES, ALL)
        raise CoterieError(f"--study must be one of {', '.join(known)}, not {study!r}{nearest(study, known)}")
    rows = {name: studies.STUDIES[name].source.rows() for name in chosen if name != TABLE1}  # before anything runs
    console = console_for(as_json)
    figures: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    with _progress(console) as notify, _one_warning_each(console):
        for name in chosen:
            if name == TABLE1:
                tables[name] = table1(seeds, _numbers(sizes), progress=notify)
                figures[name] = summarise_table1(tables[name])
            else:
                outcome = studies.run_study(name, seeds, rows[name], progress=notify)
                tables[name] = outcome.groups
                methods = studies.summarise_study(outcome)
                title = studies.STUDIES[name].title
                figures[name] = {"title": title, "methods": methods, "variances": outcome.variances}

    def show() -> None:
        for name, figure in figures.items():
            if name == TABLE1:
                _print_table1(figure, console)
            else:
                _print_study(figure, studies.STUDIES[name], console)

    drawn = {name: _errors(studies.STUDIES[name], groups) for name, groups in tables.items() if name != TABLE1}
    page = ("clusters.html", lambda: draw(figures.get(TABLE1, []), drawn))
    publish(out or Path(f"reproduce-clusters-{study}"), figures, tables, page, show, console, as_json)


def _errors(study: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is drawn of a study: the errors of all groups by method, and what the axes say."""
    errors: dict[str, list[float]] = {}
    for row in groups:
        errors.setdefault(row["method"], []).append(row["error"])
    two = study.source.kind == "classification"
    axis = "mean log-loss of its test rows" if two else "rmse of its test rows"
    return {"title": study.title, "group": study.group, "error": axis, "log": two, "errors": errors}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise CoterieError(f"--sizes {text!r}: write whole numbers with commas between, for example 1,5,10")
    return numbers


@contextlib.contextmanager
def _progress(console: Any) -> Iterator[Callable[[str, int, int, dict[str, Any]], None]]:
    """Draw a bar on a terminal; elsewhere print a line now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        yield lambda what, done, of, _: console.print(f"{done} of {of}: {what}", markup=False, soft_wrap=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, of, _: bars.update(task, description=what, completed=done, total=of)


@contextlib.contextmanager
def _one_warning_each(console: Any) -> Iterator[None]:
    """Print the warning that groups are separated once, not for every seed with other numbers."""
    from coterie.estimators import SeparationWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SeparationWarning)
        yield
    printed: set[str] = set()
    for warning in caught:
        about = str(warning.message).split(";")[-1]
        if about not in printed:
            console.print(f"note: {warning.message}", markup=False, soft_wrap=True)
        printed.add(about)


def _print_table1(rows: list[dict[str, Any]], console: Any) -> None:
    columns = ("m", "method", "mean", "±", "sd", "max", "paper: mean", "sd", "max")
    note = "norms, where the caption says squares; ± over simulations; the paper's max 8.676 cannot be right"
    table = text_table("Table 1: |estimate - truth| over clients", columns, note)
    last = None
    for row in rows:
        if last not in (None, row["m"]):
            table.add_section()
        paper = ["" if row[f"paper_{key}"] is None else f"{row[f'paper_{key}']:.4g}" for key in ("mean", "sd", "max")]
        ours = [f"{row[key]:.3f}" for key in ("mean", "over_seeds", "sd", "max")]
        table.add_row("" if last == row["m"] else str(row["m"]), row["method"], *ours, *paper)
        last = row["m"]
    console.print(table)


def _print_study(figure: dict[str, Any], about: Any, console: Any) -> None:
    rows = figure["methods"]
    two = "all_rows_auc" in rows[0]
    error = "log-loss" if two else "rmse"
    title = f"{figure['title']}: {error} over {rows[0]['groups']:,} {about.group}s in {about.district}s"
    heads = ("method", "mean", "25 %", "50 %", "75 %", "max", "all rows", *(["AUC"] if two else []))
    table = text_table(title, heads, _lower(rows))
    for row in rows:
        numbers = [_short(row[k]) for k in ("mean", "lower_quartile", "median", "upper_quartile", "max")]
        last = [row["all_rows_log_loss"], row["all_rows_auc"]] if two else [row["all_rows_rmse"]]
        table.add_row(row["method"], *numbers, *(f"{value:.4f}" for value in last))
    console.print(table)


def _lower(rows: list[dict[str, Any]]) -> str:
    """Say by how much the mean of ours is lower than that of the others."""
    gains = []
    for row in rows:
        if row["gain"] is not None:
            error = "" if row["gain_error"] is None else f" ± {row['gain_error']:.4f}"
            gains.append(f"{row['method']}: {row['gain']:+.4f}{error}")
    return "ours is lower than " + ", ".join(gains) + " (standard error over divisions)"


def _short(value: float) -> str:
    """Write a number in at most six characters, so that a table fits the screen."""
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"
