"""What a person sees during runs: bars in a terminal, plain lines without one, one line that changes in a notebook.

`shown(progress, runs)` gives the function that runs call: `progress` is None (automatic: in a terminal and in a
notebook), True, False, or a function of one's own.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from html import escape as escape_html
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["MANY_RUNS", "Screen", "shown", "shown_run"]

Show = Callable[[str, int, str, int, int, dict[str, Any]], None]
"""Called as `show(label, seed, stage, round, rounds, metrics)`."""

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
        if self.console.is_terminal and not self.console.is_jupyter:
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
        """Show one event of a run (the arguments of `Show`)."""
        if stage == "note":
            self.console.print(f"note: {metrics['note']}", markup=False)
            return
        if stage == "plan":
            self._plan(rounds, metrics["intake"])
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

    def _plan(self, runs: int, intake: Any) -> None:
        """Show what went in, and how many runs there will be."""
        self.runs = runs
        self.console.print(intake)
        if self._all is not None and self._progress is not None:
            self._progress.update(self._all, total=runs)

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


class NotebookLine:
    """Shows the progress of runs in a notebook: one line that changes.

    Args:
        runs: the number of runs.
    """

    def __init__(self, runs: int = 1):
        self.runs, self.ended = runs, 0
        self._shown: Any = None

    def update(self, label: str, seed: int, stage: str, number: int, rounds: int, metrics: dict[str, Any]) -> None:
        """Show one event of a run (the arguments of `Show`)."""
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        if stage == "note":
            display(HTML(f"<p>note: {escape_html(metrics['note'])}</p>"))
            return
        if stage == "plan":
            self.runs = rounds
            display(metrics["intake"])
            return
        ended = stage in ("end", "read")
        self.ended += ended
        score = f", score {float(metrics['test_score'].mean()):.4f}" if "test_score" in metrics else ""
        before = f"run {min(self.ended + (not ended), self.runs)} of {self.runs}, " if self.runs > 1 else ""
        share = (self.ended + (0 if ended or stage == "tune" else number / max(rounds, 1))) / self.runs
        what = "candidate" if stage == "tune" else "round"
        line = HTML(
            f"<progress value='{share:.4f}' max='1'></progress> "
            f"{escape_html(f'{before}{label} seed {seed}: {what} {number} of {rounds}{score}')}"
        )
        if self._shown is None:
            self._shown = display(line, display_id=True)
        else:
            self._shown.update(line)


@contextlib.contextmanager
def shown(progress: Show | bool | None, runs: int = 1) -> Iterator[Show | None]:
    """Give the function that shows the progress of runs, or None where nothing is shown.

    Args:
        progress: a function of one's own; True, False; None shows it in a terminal and in a notebook.
        runs: the number of runs.
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not (_in_notebook() or _in_terminal())):
        yield None
    elif _in_notebook():
        yield NotebookLine(runs).update
    else:
        with Screen(Console(stderr=True, highlight=False), runs) as screen:
            yield screen.update


@contextlib.contextmanager
def shown_run(
    progress: Callable[[str, int, int, dict[str, Any]], None] | bool | None, label: str, seed: int
) -> Iterator[Callable[[str, int, int, dict[str, Any]], None] | None]:
    """Give the function that shows the progress of one run, called as `progress(stage, round, rounds, metrics)`."""
    if callable(progress):
        yield progress
        return
    with shown(progress) as show:
        yield None if show is None else lambda *event: show(label, seed, *event)


def _in_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _in_notebook() -> bool:
    """Whether this is a notebook: IPython with a kernel, and not in a terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
