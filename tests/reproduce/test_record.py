"""A paper's figures beside ours: statistics by hand, cells, the differences that apply, the table and its file."""

import json
import runpy
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from coterie.cli.papers import as_command
from coterie.comparison.comparison import Comparison
from coterie.errors import CoterieError
from coterie.learning.score import SCORES
from coterie.reproduce import Difference, Reproduction, differences_of
from coterie.reproduce.cells import cell, cost_cell
from coterie.reproduce.record import better_as_printed, expected, merged, over_clients, repeat, with_rows

ACCURACY, RMSE = SCORES["accuracy"], SCORES["rmse"]
PAGE = Path(__file__).parents[2] / "docs" / "_build" / "papers.py"
TABLES = {
    "partition": {"clients": 4, "classes": 2},
    "model": {"name": "linear"},
    "run": {"rounds": 2},
    "compare": {"methods": ["local", "guess"], "seeds": 2, "splits": 1, "tune": False},
    "method": {"lr": 0.2},
}


def small(title: Annotated[str, "Of the table."] = "A paper on digits"):
    """Guessing beside training alone."""
    return Reproduction(
        title,
        "Somebody 2017, Table 1, MNIST",
        TABLES,
        {"guess": "97.0 / 95.5"},
        "small",
        (Difference("digits stand in for MNIST"), Difference("no ditto", ("ditto",)), Difference("x", block="tuned")),
        TABLES | {"method": {"lr": 0.1}},
        ("mean", "p10"),
        {"guess": "Majority"},
        1,
    )


def command():
    app = Typer()
    app.command("paper")(as_command("paper", small))
    app.command("other")(lambda: None)  # with one command alone its name would not be a word
    return app


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / "out"
    outcome = CliRunner().invoke(command(), ["paper", "--out", str(folder), "--only", "printed", "--device", "cpu"])
    assert outcome.exit_code == 0, outcome.output
    return folder, outcome.output


def test_the_table_stands_beside_the_papers_figures(done):
    _, text = done
    for words in (
        "A paper on digits",
        "ours, as printed",
        "over alone",
        "97.0 / 95.5",
        "Somebody 2017, Table 1, MNIST",
    ):
        assert words in text
    assert "differs: digits stand in for MNIST" in text
    assert "no ditto" not in text
    assert "differs: x" not in text
    assert "ours, tuned" not in text
    assert "10th percentile over clients" in text


def test_the_file_has_every_figure_and_the_command(done):
    folder, _ = done
    record = json.loads((folder / "reproduce.json").read_text())
    assert record["command"] == "coterie reproduce paper --only printed"
    assert (record["seeds"], record["differences"]) == (2, ["digits stand in for MNIST"])
    rows = {row["row"]: row for row in record["rows"]}
    assert list(rows) == ["local", "guess"]  # in the order of the paper
    assert (rows["guess"]["name"], rows["guess"]["paper"], rows["local"]["paper"]) == ("Majority", "97.0 / 95.5", "")
    ours, alone = (rows[label]["figures"]["printed"] for label in ("guess", "local"))
    gaps = np.subtract(ours["runs"], alone["runs"])
    assert ours["gain"] == pytest.approx(gaps.mean())
    assert ours["gain_error"] == pytest.approx(abs(gaps[0] - gaps[1]) / 2)  # sd / sqrt(2) of two values
    assert alone["gain"] is None
    assert rows["local"]["gain"] == ""


class Run:
    """A run with one validation score per client."""

    def __init__(self, *scores):
        self.final = {"validation_score": np.array(scores)}


def test_a_row_that_validates_better_as_printed_is_tuned_so(monkeypatch):
    """Of three rows, `b` validates better as printed, on average over its runs; `c` has no validation samples."""

    def compared(b, tried):
        results = {"a": [Run(0.5, 0.6)], "b": b, "c": [Run(np.nan, np.nan)]}
        return Comparison(results, {}, None, "", tuning={"b": [{"chosen": {"lr": tried}}]})

    monkeypatch.setattr(Comparison, "score", ACCURACY)
    printed, tuned = compared([Run(0.9, 0.9), Run(0.5, np.nan)], 1.0), compared([Run(0.8, 0.8), Run(0.4, 0.4)], 2.0)
    assert better_as_printed({"printed": printed, "tuned": tuned}) == ["b"]
    assert better_as_printed({"tuned": tuned}) == []
    failing = Comparison({"a": tuned.results["a"]}, {}, None, "", failures={"b": "training diverged", "d": "no result"})
    assert better_as_printed({"printed": printed, "tuned": failing}) == ["b"]
    assert with_rows(failing, printed, ["b"]).failures == {"d": "no result"}
    mixed = with_rows(tuned, printed, ["b"])
    assert mixed.results == tuned.results | {"b": printed.results["b"]}
    assert mixed.tuning == printed.tuning
    monkeypatch.setattr(Comparison, "score", RMSE)  # lower is better
    assert better_as_printed({"printed": printed, "tuned": tuned}) == []
    assert better_as_printed({"printed": tuned, "tuned": printed}) == ["b"]


def test_what_a_row_costs():
    sent = {"printed": {"bytes_per_client": 2.5e6}, "tuned": {"bytes_per_client": 1234.5e6}}
    assert cost_cell(sent) == "2.5 / 1,234"
    assert cost_cell({"tuned": sent["printed"], "printed": sent["printed"]}) == "2.5"
    assert cost_cell({"printed": {"failed": "diverged"}}) == ""


def test_a_column_that_is_not_there_is_refused():
    outcome = CliRunner().invoke(command(), ["paper", "--only", "all"])
    assert isinstance(outcome.exception, CoterieError)
    assert "--only must be one of printed, tuned" in str(outcome.exception)


def test_statistics_by_hand():
    """Twenty clients with 1 to 20 per cent: mean 10.5, tenth percentile 2.9, the worst two 1 and 2."""
    figures = over_clients(np.random.default_rng(0).permutation(np.arange(1.0, 21)))
    assert figures["mean"] == pytest.approx(10.5)
    assert figures["clients"] == pytest.approx(np.sqrt((20**2 - 1) / 12))
    assert (figures["p10"], figures["worst_tenth"]) == pytest.approx((2.9, 1.5))
    errors = over_clients(np.arange(1.0, 21), higher_is_better=False)
    assert (errors["p10"], errors["worst_tenth"]) == pytest.approx((18.1, 19.5))


def test_cells_and_sentences():
    figures = {"mean": 91.234, "clients": 5.0, "p10": 80.06, "seeds": 0.127}
    assert cell(figures, ("mean", "clients")) == "91.23 ± 5.00 [0.13]"
    assert cell(figures | {"seeds": None}, ("mean", "p10"), 1) == "91.2 / 80.1"
    assert cell({"failed": "training diverged in round 3"}, ("mean",)) == "diverged"
    listed = (Difference("all"), Difference("a", ("a",)), Difference("b", ("b",)), Difference("t", block="tuned"))
    assert differences_of(listed, ["a", "c"], ["printed"]) == ["all", "a"]
    assert differences_of(listed, ["b"], ["printed", "tuned"]) == ["all", "b", "t"]
    assert differences_of(listed, ["b"], ["printed", "tuned"], as_printed=["b"]) == ["all", "b"]
    assert differences_of(listed, ["a", "b"], ["printed", "tuned"], as_printed=["b"]) == ["all", "a", "b", "t"]
    assert repeat("x", {"dataset": "digits", "budgets": (2.0, 5.5), "restart": True}) == (
        "coterie reproduce x --dataset digits --budgets 2,5.5 --restart"
    )


def test_the_page_in_the_docs_is_that_of_the_records():
    build = runpy.run_path(str(PAGE))
    written = build["PAGE"].read_text(encoding="utf-8")
    assert build["page"](build["read_expected"](), build["read_results"]()) == written, "run docs/_build/papers.py"


def test_the_page_has_what_was_run_and_what_was_not(done):
    folder, _ = done
    record = json.loads((folder / "reproduce.json").read_text()) | {"file": "2026-01-01-reproduce-x.json"}
    other = expected(small("The same on photographs"), "coterie reproduce paper --big", "CIFAR-10")
    planned = expected(small(), "coterie reproduce paper")
    text = runpy.run_path(str(PAGE))["page"]({"paper": [planned, other]}, {record["title"]: record})
    assert "| row | paper | as printed | over alone | MB | seeds |" in text
    assert text.count("| `guess` (Majority) | 97.0 / 95.5 |") == 2  # run, and only printed by the paper
    assert "needs CIFAR-10: `coterie reproduce paper --big`" in text
    assert "(../../benchmarks/results/2026-01-01-reproduce-x.json)" in text


def test_rows_of_the_paper_that_were_not_run_stand_below_those_that_were():
    page = runpy.run_path(str(PAGE))["page"]
    laid_out = small()._replace(paper={"guess": "97.0 / 95.5", "local": "90.1 / 80.2"})
    planned = expected(laid_out, "coterie reproduce paper")
    row = next(row for row in planned["rows"] if row["row"] == "guess")
    done = planned | {"rows": [row | {"printed": "12.3 / 4.5"}], "seeds": 1, "file": "x.json"}
    lines = page({"paper": [planned]}, {done["title"]: done}).splitlines()
    assert "| `guess` (Majority) | 97.0 / 95.5 | 12.3 / 4.5 | 1 |" in lines
    assert "| `local` | 90.1 / 80.2 | not run |  |" in lines
    other = done | {"rows": [row | {"row": "guess, round 2", "printed": "12.3 / 4.5"}]}  # rows that are named otherwise
    assert "| not run |" not in page({"paper": [planned]}, {other["title"]: other})


def test_rows_that_several_commands_ran_make_one_record():
    def part(command, labels, notes):
        return {"title": "A paper", "command": command, "rows": [{"row": r, "printed": command} for r in labels]} | {
            "differences": notes
        }

    parts = [
        part("a", ["sgp", "local"], ["x", "y", "local: u"]),
        part("b", ["pdbo", "sgp"], ["y", "z", "tuned: sgp v"]),
    ]
    whole = merged(parts)
    assert whole["command"].splitlines() == ["a", "b"]
    assert [(row["row"], row["printed"]) for row in whole["rows"]] == [("sgp", "b"), ("local", "a"), ("pdbo", "b")]
    # Those of one command name its rows, unless they do so themselves.
    assert whole["differences"] == ["y", "local: u", "tuned: sgp v", "sgp, local: x", "pdbo, sgp: z"]


def test_columns_of_one_row_are_put_together():
    def column(name, text, seconds):
        blank = {"printed": "", "tuned": "", "row": "sgp", "figures": {name: {"seconds": seconds}}}
        return {"command": name, "rows": [blank | {name: text}], "differences": []}

    (row,) = merged([column("printed", "27.8", 1), column("tuned", "30.1", 2), column("printed", "27.9", 3)])["rows"]
    assert (row["printed"], row["tuned"]) == ("27.9", "30.1")
    assert row["figures"] == {"printed": {"seconds": 3}, "tuned": {"seconds": 2}}
