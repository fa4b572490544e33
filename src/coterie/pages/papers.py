"""What a paper needs of a comparison, as files: the table in LaTeX, Markdown or CSV, all numbers, and figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import CoterieError, shown
from coterie.spec import nearest

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["FIGURES", "write_figures", "write_tables"]

FIGURES = ("pdf", "svg")


def write_tables(what: "Comparison | Sequence[str | Path]", folder: str | Path, form: str) -> list[Path]:
    """Write the table of a comparison, or of folders of runs, as table.tex, table.md or table.csv; returns the files.

    With "csv" also results.csv: every number of every run, as `Comparison.to_long` returns them.
    """
    from coterie.comparison.publishing import FORMATS
    from coterie.storage.csv_text import csv_bytes
    from coterie.storage.durable import durable_write, storage_errors

    if form not in FORMATS:
        raise CoterieError(f"--format must be one of {', '.join(FORMATS)}, not {shown(form)}{nearest(form, FORMATS)}")
    comparison, folder = _read(what), Path(folder)
    name, write = FORMATS[form]
    files = {name: write(comparison).encode()}
    if form == "csv":
        files["results.csv"] = csv_bytes(comparison.to_long())
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        durable_write(folder / name, data)
    return [folder / name for name in files]


def write_figures(what: "Comparison | Sequence[str | Path]", folder: str | Path, form: str) -> list[Path]:
    """Write the figures of a comparison, or of folders of runs, as PDF or SVG; returns the files."""
    if form not in FIGURES:
        raise CoterieError(f"--figures must be one of {', '.join(FIGURES)}, not {shown(form)}{nearest(form, FIGURES)}")
    from coterie.pages.drawing import draw_figures

    return draw_figures(_read(what), folder, "pdf" if form == "pdf" else "svg")


def _read(what: "Comparison | Sequence[str | Path]") -> "Comparison":
    from coterie.comparison.comparison import Comparison

    return what if isinstance(what, Comparison) else Comparison.read(what)
