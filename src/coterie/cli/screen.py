"""What a person sees during and after runs: progress bars (plain lines without a terminal) and the leaderboard."""

from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from coterie.learning.score import score_named
from coterie.pages.words import bytes_text

__all__ = ["MANY_RUNS", "Screen", "print_leaderboard"]

MANY_RUNS = 25  # with more, the bar of a finished run is removed


class Screen:
    """Shows the progress of runs, and remembers the last round.

    Args:
        console: where to show it.
        runs: the number of runs; with more than one there is also a bar for all of them.
    """

    def __init__(self, console: Console, runs: int = 1):
        self.console, self.runs = console, runs
        self.round = 0
        self._bars: dict[tuple[str, int], Any] = {}
        self._progress: Progress | None = None
        self._all: Any = None

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, TextColumn("{task.fields[score]}"), console=self.console)
            self._progress.start()
            if self.runs > 1:
                self._all = self._progress.add_task("all runs", total=self.runs, score="")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, label: str, seed: int, stage: str, number: int, rounds: int, metrics: dict[str, Any]) -> None:
        """Show one event of a run (see `coterie.comparison.compare.ComparisonProgress`)."""
        if stage == "note":
            self.console.print(f"note: {metrics['note']}", markup=False)
            return
        if stage == "tune":
            if self._progress is not None:
                self._draw(label, seed, stage, number, rounds, "tuning")
            return
        self.round = number
        score = f"score {float(metrics['test_score'].mean()):.4f}" if "test_score" in metrics else ""
        if self._progress is not None:
            self._draw(label, seed, stage, number, rounds, score)
        elif stage == "read":
            self.console.print(f"{label} seed {seed}: complete already, {score}", markup=False, soft_wrap=True)
        elif stage == ("round" if self.runs == 1 else "end"):
            self.console.print(
                f"{label} seed {seed}: round {number} of {rounds}, {score}", markup=False, soft_wrap=True
            )

    def _draw(self, label: str, seed: int, stage: str, number: int, rounds: int, score: str) -> None:
        assert self._progress is not None
        key = (label, seed)
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(escape(f"{label} seed {seed}"), total=rounds, score="")
        if stage == "start":
            self._progress.reset(self._bars[key], total=rounds)  # its candidates have been counted until now
        ended = stage in ("end", "read")
        self._progress.update(self._bars[key], completed=rounds if ended else number, score=score)
        if ended and self._all is not None:
            self._progress.advance(self._all)
            if self.runs > MANY_RUNS:
                self._progress.update(self._bars[key], visible=False)


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
        if row["ceiling"]:
            table.add_section()
        table.add_row(*line)
    console.print(table)
    for row in rows:
        if row["ceiling"]:
            console.print(f"{row['method']} is the ceiling: needs all data in one place", markup=False)
