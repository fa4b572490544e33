"""Progress in Python: bars in a terminal, one line in a notebook, nothing in a script's log."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from coterie.experiment import screen
from coterie.experiment.screen import Screen, shown, shown_run

SCORES = {"test_score": np.array([0.25, 0.75])}


def play(show):
    show("ditto", 3, "start", 0, 4, {})
    show("ditto", 3, "round", 2, 4, SCORES)
    show("ditto", 3, "end", 4, 4, SCORES)


def terminal(monkeypatch):
    """Make standard error a terminal that remembers what it showed."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.fixture
def notebook(monkeypatch):
    """IPython with a kernel; returns what was displayed, each line with its later forms."""
    lines = []

    def display(page, display_id=False):
        lines.append([page])
        return SimpleNamespace(update=lines[-1].append)

    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    return lines


def test_nothing_is_shown_where_nobody_looks(capsys):
    with shown(None) as show:
        assert show is None
    with shown_run(None, "ditto", 0) as show:
        assert show is None
    with shown(True) as show:  # unless it is asked for: then in lines
        play(show)
    assert capsys.readouterr().err == "ditto seed 3: round 2 of 4, score 0.5000\n"


def test_a_terminal_shows_bars_unless_told_not_to(monkeypatch):
    stream = terminal(monkeypatch)
    with shown(False) as show:
        assert show is None
    with shown_run(None, "ditto", 3) as show:
        show("round", 2, 4, SCORES)
        show("end", 4, 4, SCORES)
    assert "ditto seed 3" in stream.getvalue()
    assert "4/4" in stream.getvalue()


def test_a_notebook_shows_one_line_that_changes(notebook):
    with shown(None, runs=2) as show:
        play(show)
        show("<b>", 0, "round", 1, 4, {})
        show("<b>", 0, "note", 1, 4, {"note": "1 < 2"})
    assert len(notebook) == 2
    assert (
        notebook[0][1]
        == "<progress value='0.2500' max='1'></progress> run 1 of 2, ditto seed 3: round 2 of 4, score 0.5000"
    )
    assert "value='0.5000'" in notebook[0][2]
    assert "run 2 of 2, &lt;b&gt; seed 0: round 1 of 4" in notebook[0][3]
    assert notebook[1] == ["<p>note: 1 &lt; 2</p>"]


def test_ones_own_function_is_called_as_it_is(monkeypatch):
    stream, events = terminal(monkeypatch), []
    with shown_run(lambda *event: events.append(event), "ditto", 3) as show:
        show("round", 2, 4, {})
    with shown(lambda *event: events.append(event), 5) as show:
        show("ditto", 3, "round", 2, 4, {})
    assert events == [("round", 2, 4, {}), ("ditto", 3, "round", 2, 4, {})]
    assert stream.getvalue() == ""


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))
    assert not screen._in_notebook()


def test_several_runs_have_a_bar_for_all():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with Screen(console, 2) as both:
        play(both.update)
    assert "all runs" in stream.getvalue()
