"""What the commands that reproduce a paper print and write: tables, figures, CSV files and a page."""

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["names_in", "print_record", "print_records", "publish", "text_table"]

WORDS = ("method", "row", "codec", "setting", "network")  # columns that hold words; others hold numbers


def names_in(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a text with commas, or the default where there is no text."""
    return default if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def text_table(title: str, columns: Sequence[str], caption: str, wrap: bool = False) -> Any:
    """Return an empty table for the terminal; with `wrap` wide cells take several lines, else they are cut off."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in WORDS else "right", no_wrap=not wrap)
    return table


def print_record(record: Mapping[str, Any], console: Any) -> None:
    """Print a record of `coterie.reproduce.record`: a table, and below it what the cells are and what differs."""
    from coterie.reproduce.cells import BLOCKS, cost_cell

    columns = {"row": "row", "paper": "paper", **BLOCKS, "gain": "over alone", "cost": "MB"}
    full = [row | {"cost": cost_cell(row["figures"])} for row in record["rows"]]
    shown = {key: head for key, head in columns.items() if any(row[key] for row in full)}
    rows = [[row[key] or "-" for key in shown] for row in full]
    words = record["statistics"]
    if sum(max(map(len, cells)) + 2 for cells in zip(shown.values(), *rows, strict=True)) > console.width:
        rows = [[re.sub(r" \[.*\]", "", text) for text in row] for row in rows]  # the spread over seeds
        words = re.sub(r" \[.*\]", "", words)
    table = text_table(record["title"], list(shown.values()), "", wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if "paper" in shown:
        console.print(f"paper: {record['source']}", markup=False, soft_wrap=True)
    cost = "; MB: sent and received by a client" if "cost" in shown else ""
    console.print(f"cells: {words}{cost}; seeds: {record['seeds']}", markup=False, soft_wrap=True)
    for line in record["differences"]:
        console.print(f"differs: {line}", markup=False, soft_wrap=True)


def print_records(records: Iterable[Mapping[str, Any]], console: Any) -> None:
    """Print several records; what differs in several of them is said once."""
    said: set[str] = set()
    for record in records:
        new = [line for line in record["differences"] if line not in said]
        said.update(new)
        print_record({**record, "differences": new}, console)


def publish(
    folder: Path,
    figures: dict[str, Any],
    tables: Mapping[str, Any],
    page: tuple[str, Callable[[], str]],
    show: Callable[[], None],
    console: Any,
    as_json: bool,
    also: Sequence[Path] = (),
) -> None:
    """Write the figures as JSON, every table as CSV, and a page where Plotly is installed; then show the figures.

    `page` is the name of the HTML file and the function that returns its text. With `as_json` the figures and the names
    of the files are printed as JSON; otherwise `show` prints the figures. `also` are files that were written before.
    """
    import pandas as pd

    from coterie.storage.durable import durable_write, storage_errors

    files = {"figures.json": json.dumps(figures, indent=1)}
    files |= {f"{name}.csv": pd.DataFrame(rows).to_csv(index=False) for name, rows in tables.items()}
    if importlib.util.find_spec("plotly") is None:
        console.print(f"there is no {page[0]}, which needs plotly: pip install 'coterie[report]'", markup=False)
    else:
        files[page[0]] = page[1]()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        durable_write(folder / name, text.encode())
    written = [str(folder / name) for name in files] + [str(path) for path in also]
    if as_json:
        print(json.dumps(figures | {"files": written}))
        return
    show()
    console.print("written: " + ", ".join(written), markup=False, soft_wrap=True)
