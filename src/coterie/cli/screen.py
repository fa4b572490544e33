"""What a person sees after runs: the leaderboard."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.learning.score import Score, score_named
from coterie.pages.words import bytes_text

__all__ = ["print_leaderboard"]


def print_leaderboard(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print one line per method, the gain over training alone first; what has no result is said below."""
    scored = [row for row in rows if row.get("mean") is not None]
    if scored:
        console.print(_table(scored))
    for row in scored:
        if row["pooled"]:
            console.print(f"{row['method']} is one model on all data: it needs them in one place", markup=False)
    for row in rows:
        if row.get("failed"):
            console.print(f"{row['method']} has no result: {row['failed']}", markup=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    first = rows[0]
    score = score_named(first["metric"])
    title = f"mean\n{score.label}" + ("" if score.higher_is_better else "\n(low is\ngood)")
    compared = any(row["mean_gain"] is not None for row in rows)
    heads = ["method", *(["gain over\nalone"] if compared else []), title]
    heads += [first["worst_label"].replace(" ", "\n"), *(["beat\nalone"] if compared else [])]
    table = Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for place, head in enumerate([*heads, "bytes per\nclient", "seconds"]):
        table.add_column(head, justify="right" if place else "left", no_wrap=bool(place), overflow="fold")
    for row in rows:
        if row["role"] in ("guess", "pooled"):
            table.add_section()
        table.add_row(*_cells(row, score, compared))
    return table


def _cells(row: dict[str, Any], score: Score, compared: bool) -> list[str]:
    gain = "-" if row["mean_gain"] is None else score.gain(row["mean_gain"])
    beat = "-" if row["beat_alone"] is None else f"{row['beat_alone']}/{row['clients']}"
    scores = [score.text(row[key]) for key in ("mean", "worst")]
    cells = [escape(row["method"]), *([gain] if compared else []), *scores, *([beat] if compared else [])]
    return [*cells, bytes_text(row["bytes_per_client"]), f"{row['seconds']:.1f}"]
