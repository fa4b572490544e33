"""`coterie reproduce clusters`: Tables 1 to 3 of the paper on known clusters, and its comparison on other real data."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import Json, Out
from coterie.cli.outcome import print_records, publish, text_table
from coterie.cli.terminal import console_for
from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["clusters_command"]

TABLE1, DONORS, ALL = "table1", "donors", "all"
SEEDS, SIZES = 5, "1,5,10,25,50,100,200"


def clusters_command(
    study: Annotated[str, typer.Option(help="table1, donors, chem97, mathachieve, insteval, or all of them.")] = ALL,
    seeds: Annotated[int, typer.Option(help="Simulations, and divisions into training and test rows.", min=1)] = SEEDS,
    sizes: Annotated[str, typer.Option(help="For table1: samples of a client, m.")] = SIZES,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Known clusters (Lyu, Hanzely, Kolar 2022): alone, one model for all, or groups that borrow strength.

    Its donor data are not public: donors are others, and so are the three studies after them. Writes figures.json, a
    CSV table of every error for pandas, clusters.html, and reproduce-table1.json (2, 3) for each table of the paper.
    """
    from coterie.reproduce.clusters import studies
    from coterie.reproduce.clusters.donors import donor_records
    from coterie.reproduce.clusters.drawing import draw
    from coterie.reproduce.clusters.table1 import record_table1, summarise_table1, table1
    from coterie.reproduce.record import repeat, write_record

    chosen = [TABLE1, *studies.STUDIES] if study == ALL else [study]
    if chosen[0] not in (TABLE1, *studies.STUDIES):
        known = (TABLE1, *studies.STUDIES, ALL)
        raise CoterieError(f"--study must be one of {', '.join(known)}, not {study!r}{nearest(study, known)}")
    rows = {name: studies.STUDIES[name].source.rows() for name in chosen if name != TABLE1}  # before anything runs
    console = console_for(as_json)
    options = {"study": (study, ALL), "seeds": (seeds, SEEDS), "sizes": (sizes, SIZES)}
    command = repeat("clusters", {name: value for name, (value, default) in options.items() if value != default})
    figures: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    records: dict[str, Any] = {}
    with _progress(console) as notify, _one_warning_each(console):
        for name in chosen:
            if name == TABLE1:
                tables[name] = table1(seeds, _numbers(sizes), progress=notify)
                figures[name] = summarise_table1(tables[name])
                records[name] = record_table1(figures[name], command)
            else:
                outcome = studies.run_study(name, seeds, rows[name], progress=notify)
                tables[name] = outcome.groups
                methods = studies.summarise_study(outcome)
                title = studies.STUDIES[name].title
                figures[name] = {"title": title, "methods": methods, "variances": outcome.variances}
                records |= donor_records(methods, command) if name == DONORS else {}

    def show() -> None:
        print_records(records.values(), console)
        for name, figure in figures.items():
            if name != TABLE1:
                _print_study(figure, studies.STUDIES[name], console)

    drawn = {name: _errors(studies.STUDIES[name], groups) for name, groups in tables.items() if name != TABLE1}
    page = ("clusters.html", lambda: draw(figures.get(TABLE1, []), drawn))
    folder = out or Path(f"reproduce-clusters-{study}")
    written = [write_record(folder, record, f"reproduce-{name}.json") for name, record in records.items()]
    publish(folder, figures, tables, page, show, console, as_json, written)


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
