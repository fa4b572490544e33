"""What a person sees after runs: the leaderboard."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.learning.score import score_named
from coterie.pages.words import bytes_text

__all__ = ["print_leaderboard"]


def print_leaderboard(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print one line per method."""
    first = rows[0]
    score = score_named(first["metric"])
    title = f"mean\n{score.label}" + ("" if score.higher_is_better else "\n(low is\ngood)")
    compared = any(row["beat_alone"] is not None for row in rows)
    heads = ["method", title, "std", first["worst_label"].replace(" ", "\n"), *(["beat\nalone"] if compared else [])]
    heads += ["bytes per\nclient", "seconds"]

    lines = []
    for row in rows:
        beat = "-" if row["beat_alone"] is None else f"{row['beat_alone']} of {row['clients']}"
        cells = [escape(row["method"]), *(score.text(row[key]) for key in ("mean", "std", "worst"))]
        cells += [beat] if compared else []
        lines.append([*cells, bytes_text(row["bytes_per_client"]), f"{row['seconds']:.1f}"])
    table = Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=bool(place), overflow="fold")
    for row, line in zip(rows, lines, strict=True):
        if row["pooled"]:
            table.add_section()
        table.add_row(*line)
    console.print(table)
    for row in rows:
        if row["pooled"]:
            console.print(f"{row['method']} is one model on all data: it needs them in one place", markup=False)
