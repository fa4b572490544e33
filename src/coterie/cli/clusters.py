"""`coterie reproduce clusters`: Table 1 of the paper on known clusters, and its comparison on real data."""

import contextlib
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.papers import papers
from coterie.cli.training import Json, Out
from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["clusters_command"]

TABLE1, ALL = "table1", "all"


@papers.command("clusters", epilog="Writes figures.json, a CSV table of every error for pandas, and clusters.html.")
def clusters_command(
    study: Annotated[str, typer.Option(help="table1, donors, chem97, mathachieve, insteval, or all of them.")] = ALL,
    seeds: Annotated[int, typer.Option(help="Simulations, and divisions into training and test rows.", min=1)] = 5,
    sizes: Annotated[str, typer.Option(help="For table1: samples of a client, m.")] = "1,5,10,25,50,100,200",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Known clusters (Lyu, Hanzely, Kolar 2022): alone, one model for all, or groups that borrow strength."""
    from rich.console import Console

    from coterie.reproduce.clusters import studies
    from coterie.reproduce.clusters.table1 import summarise_table1, table1

    asked = [TABLE1, *studies.STUDIES] if study == ALL else [study]
    if asked[0] not in (TABLE1, *studies.STUDIES):
        known = (TABLE1, *studies.STUDIES, ALL)
        raise CoterieError(f"--study must be one of {', '.join(known)}, not {study!r}{nearest(study, known)}")
    rows = {name: studies.STUDIES[name].source.rows() for name in asked if name != TABLE1}  # before anything runs
    console = Console(stderr=as_json, highlight=False)
    simulated: list[dict[str, Any]] = []
    outcomes: dict[str, Any] = {}
    with _progress(console) as tell, _one_warning_each(console):
        for name in asked:
            if name == TABLE1:
                simulated = table1(seeds, _numbers(sizes), progress=tell)
            else:
                outcomes[name] = studies.run_study(name, seeds, rows[name], progress=tell)
    figures: dict[str, Any] = {TABLE1: summarise_table1(simulated)} if simulated else {}
    for name, outcome in outcomes.items():
        figures[name] = {
            "title": studies.STUDIES[name].title,
            "methods": studies.summarise_study(outcome),
            "variances": outcome.variances,
        }
    folder = out or Path(f"reproduce-clusters-{study}")
    written = _write(folder, figures, simulated, outcomes, console)
    if as_json:
        print(json.dumps(figures | {"files": written}))
        return
    for name, found in figures.items():
        if name == TABLE1:
            _print_table1(found, console)
        else:
            _print_study(found, studies.STUDIES[name], console)
    console.print("written: " + ", ".join(written), markup=False, soft_wrap=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise CoterieError(f"--sizes {text!r}: write whole numbers with commas between, for example 1,5,10")
    return found


@contextlib.contextmanager
def _progress(console: Any) -> Iterator[Callable[[str, int, int], None]]:
    """Draw a bar on a terminal; elsewhere print a line now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        yield lambda what, done, of: console.print(f"{done} of {of}: {what}", markup=False, soft_wrap=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, of: bars.update(task, description=what, completed=done, total=of)


@contextlib.contextmanager
def _one_warning_each(console: Any) -> Iterator[None]:
    """Say once that groups were separated: every seed would say so, in other numbers."""
    from coterie.estimators import SeparationWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SeparationWarning)
        yield
    told: set[str] = set()
    for warning in caught:
        about = str(warning.message).split(";")[-1]
        if about not in told:
            console.print(f"note: {warning.message}", markup=False, soft_wrap=True)
        told.add(about)


def _write(
    folder: Path, figures: dict[str, Any], simulated: list[dict[str, Any]], outcomes: dict[str, Any], console: Any
) -> list[str]:
    """Write the figures, a table of every error and the picture; returns the files."""
    import pandas as pd

    from coterie.reproduce.clusters.studies import STUDIES
    from coterie.storage.durable import durable_write, storage_errors

    files = {"figures.json": json.dumps(figures, indent=1)}
    if simulated:
        files["table1.csv"] = pd.DataFrame(simulated).to_csv(index=False)
    drawn: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        frame = pd.DataFrame(outcome.groups)
        files[f"{name}.csv"] = frame.to_csv(index=False)
        errors = {method: held["error"].to_numpy() for method, held in frame.groupby("method", sort=False)}
        about, two = STUDIES[name], STUDIES[name].source.kind == "classification"
        axis = "mean log-loss of its test rows" if two else "rmse of its test rows"
        drawn[name] = {"title": about.title, "group": about.group, "error": axis, "log": two, "errors": errors}
    if importlib.util.find_spec("plotly") is None:
        console.print("there is no clusters.html, which needs plotly: pip install 'coterie[report]'", markup=False)
    else:
        from coterie.reproduce.clusters.drawing import draw

        files["clusters.html"] = draw(figures.get(TABLE1, []), drawn)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        durable_write(folder / name, text.encode())
    return [str(folder / name) for name in files]


def _table(title: str, columns: tuple[str, ...], caption: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    return table


def _print_table1(rows: list[dict[str, Any]], console: Any) -> None:
    columns = ("m", "method", "mean", "±", "sd", "max", "paper: mean", "sd", "max")
    note = "norms, where the caption says squares; ± over simulations; the paper's max 8.676 cannot be right"
    table = _table("Table 1: |estimate - truth| over clients", columns, note)
    last = None
    for row in rows:
        if last not in (None, row["m"]):
            table.add_section()
        paper = ["" if row[f"paper_{key}"] is None else f"{row[f'paper_{key}']:.4g}" for key in ("mean", "sd", "max")]
        ours = [f"{row[key]:.3f}" for key in ("mean", "over_seeds", "sd", "max")]
        table.add_row("" if last == row["m"] else str(row["m"]), row["method"], *ours, *paper)
        last = row["m"]
    console.print(table)


def _print_study(found: dict[str, Any], about: Any, console: Any) -> None:
    rows = found["methods"]
    two = "all_rows_auc" in rows[0]
    error = "log-loss" if two else "rmse"
    title = f"{found['title']}: {error} over {rows[0]['groups']:,} {about.group}s in {about.district}s"
    heads = ("method", "mean", "25 %", "50 %", "75 %", "max", "all rows", *(["AUC"] if two else []))
    table = _table(title, heads, _lower(rows))
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
