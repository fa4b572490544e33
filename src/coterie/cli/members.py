"""What a person sees of a run on a network: one member with its neighbours, or all members of a machine."""

import dataclasses
import json
import time
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coterie.sites.federation import FederationFile
from coterie.sites.local import Event
from coterie.sites.place import Site, Status

__all__ = ["FederationScreen", "MemberScreen"]

SHOWN = 12  # neighbours with their weights
PAUSE = 0.1  # seconds between two reports of rounds without an evaluation
STATES = {"start": "compiling", "round": "", "end": "done", "result": "done", "exit": "ended"}


class _Screen:
    """Something that changes in a terminal, or lines where there is none."""

    def __init__(self, console: Console):
        self.console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.is_jupyter:
            self._live = Live(console=self.console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, sentence: str) -> None:
        """Show a sentence that stays."""
        self.console.print(sentence, markup=False, soft_wrap=True)


class MemberScreen(_Screen):
    """One member: who is connected, the round, its loss and score, whom it weighs how, what it refused.

    Args:
        console: where to show it.
        federation: what is run.
        me: the member.
        as_json: print every report as a line of JSON.
    """

    def __init__(self, console: Console, federation: FederationFile, me: str, as_json: bool = False):
        super().__init__(console)
        self._federation, self._me, self._as_json = federation, me, as_json
        self._site: Site | None = None
        self._shown = 0.0
        self._there: list[str] = []  # who was connected when it was last said, where there is no terminal

    def watch(self, site: Site) -> None:
        """Show this member from now on."""
        self._site = site

    def update(self, stage: str, number: int, rounds: int, metrics: dict[str, Any]) -> None:
        """Show an event of the run; see `Progress`."""
        status = Status() if self._site is None else self._site.status
        if stage == "round" and not metrics and time.monotonic() - self._shown < PAUSE:
            return
        self._shown = time.monotonic()
        if self._as_json:
            if stage == "note":
                report: dict[str, Any] = {"event": "note", "note": metrics["note"]}
            else:
                report = {"event": stage, "rounds": rounds, **dataclasses.asdict(status), "round": number}
            print(json.dumps(report), flush=True)
        elif stage == "note":
            self.note(f"note: {metrics['note']}")
        elif self._live is not None:
            self._live.update(self._panel(status, number, rounds))
        elif stage == "round":
            self._lines(status, number, rounds, bool(metrics))

    def _lines(self, status: Status, number: int, rounds: int, evaluated: bool) -> None:
        """Print who is there when that has changed, and an evaluation."""
        if status.connected != self._there:
            self._there, gone = status.connected, self._gone(status)
            away = f"; not there: {', '.join(gone)}" if gone else ""
            self.note(f"{self._me}: round {number}, connected: {', '.join(status.connected) or 'nobody'}{away}")
        if evaluated:
            weights = f", cooperates with {_weights(status)}" if status.weights else ""
            self.note(f"{self._me}: {_line(status, number, rounds)}{weights}")

    def _gone(self, status: Status) -> list[str]:
        return [name for name in self._federation.names if name not in (self._me, *status.connected)]

    def _panel(self, status: Status, number: int, rounds: int) -> Any:
        gone = self._gone(status)
        lines = [f"[bold]{escape(self._me)}[/bold] in {escape(self._federation.settings.name)}"]
        lines += [f"{_line(status, number, rounds)}"]
        lines += [f"connected: {escape(', '.join(status.connected)) or 'nobody'}"]
        lines += [f"[red]not there: {escape(', '.join(gone))}[/red]"] if gone else []
        lines += [f"cooperates with: {escape(_weights(status))}"] if status.weights else []
        lines += [f"[yellow]refused {count}: {escape(what)}[/yellow]" for what, count in status.refused.items()]
        return Group(*(Text.from_markup(line) for line in lines))


class FederationScreen(_Screen):
    """All members of a machine in one table.

    Args:
        console: where to show it.
        federation: what is run.
        as_json: print every report as a line of JSON.
    """

    def __init__(self, console: Console, federation: FederationFile, as_json: bool = False):
        super().__init__(console)
        self._as_json, self._rounds = as_json, federation.experiment.run.rounds
        self._reports: dict[str, dict[str, Any]] = {name: {"event": "starting"} for name in federation.names}

    def update(self, event: Event) -> None:
        """Show an event."""
        report = dict(event.report) if event.exit is None else {"event": "exit", "exit": event.exit}
        if self._as_json:
            print(json.dumps({"member": event.name, **report}), flush=True)
            return
        if report.get("event") == "note":
            self.note(f"{event.name}: {report['note']}")
            return
        self._reports[event.name] = self._reports[event.name] | report
        if self._live is not None:
            self._live.update(self._table())
        elif report.get("event") == "result":
            self.note(f"{event.name}: score {report['mean']:.4f}")

    def _table(self) -> Table:
        table = Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for head in ("member", "round", "loss", "score", "connected", "refused", "waited", ""):
            table.add_column(head, justify="left" if head in ("member", "") else "right")
        for name, report in self._reports.items():
            numbers = [_number(report.get(key)) for key in ("loss", "score")]
            connected = str(len(report["connected"])) if "connected" in report else "-"
            refused = str(sum(report.get("refused", {}).values()))
            progress = f"{report.get('round', '-')} of {self._rounds}"
            state = STATES.get(report["event"], report["event"])
            waited = f"{report.get('waited', 0.0):.1f} s"
            table.add_row(escape(name), progress, *numbers, connected, refused, waited, escape(state))
        return table


def _line(status: Status, number: int, rounds: int) -> str:
    return f"round {number} of {rounds}, loss {_number(status.loss)}, score {_number(status.score)}"


def _weights(status: Status) -> str:
    """Return the neighbours that weigh most, with their weights."""
    ordered = sorted(status.weights.items(), key=lambda pair: -pair[1])[:SHOWN]
    return ", ".join(f"{name} {weight:.2f}" for name, weight in ordered)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
