"""The tables of a paper: mean and deviation over runs, emphasis, daggers from the paired tests, and all numbers."""

import csv
import io

import numpy as np
import pytest

from coterie.comparison.publishing import csv_table, latex, lines, long_frame, markdown
from support.report_cases import make_clients, make_comparison


@pytest.fixture(scope="module")
def comparison():
    return make_comparison(seeds=3)


def means(comparison, method):
    return [np.mean(result.final["test_score"]) for result in comparison.results[method]]


def test_mean_and_deviation_are_over_runs(comparison):
    table = {line.method: line for line in lines(comparison)}
    for method in comparison.results:
        assert table[method].mean == pytest.approx(np.mean(means(comparison, method)), abs=1e-12)
        assert table[method].std == pytest.approx(np.std(means(comparison, method), ddof=1), abs=1e-12)
        assert table[method].runs == 3
    frame = comparison.to_frame()
    assert frame.loc["fedavg", "std_over_runs"] == pytest.approx(np.std(means(comparison, "fedavg"), ddof=1))
    assert make_comparison(seeds=1).to_frame()["std_over_runs"].isna().all()


def test_the_best_two_that_need_no_pooled_data_are_marked(comparison):
    order = sorted(("local", "fedavg", "gossip-sgd"), key=lambda name: -np.mean(means(comparison, name)))
    ranks = {line.method: line.rank for line in lines(comparison)}
    assert ranks == {order[0]: 1, order[1]: 2, order[2]: 0, "pooled": 0}


def test_daggers_are_the_paired_intervals(comparison):
    board = {row["method"]: row for row in comparison.leaderboard()}
    marks = {line.method: line.mark for line in lines(comparison)}
    for method, row in board.items():
        expected = "" if row["low"] is None else "better" if row["low"] > 0 else "worse" if row["high"] < 0 else ""
        assert marks[method] == expected
    assert "better" in marks.values()


def test_latex(comparison):
    text = latex(comparison)
    assert text.count(r"\\") == 1 + len(comparison.results)
    assert text.count(r"\textbf{") == 1
    assert text.count(r"\underline{") == 1
    best = max(("local", "fedavg", "gossip-sgd"), key=lambda name: np.mean(means(comparison, name)))
    value = rf"{100 * np.mean(means(comparison, best)):.2f} $\pm$ {100 * np.std(means(comparison, best), ddof=1):.2f}"
    assert rf"{best} & \textbf{{{value}}}$^{{\dagger}}$ & $+" in text
    assert text.isascii()  # every LaTeX takes it
    for opened, closed in ((r"\begin{table}", r"\end{table}"), (r"\begin{tabular}", r"\end{tabular}"), ("{", "}")):
        assert text.count(opened) == text.count(closed)


def test_latex_prints_names_as_they_are():
    comparison = make_comparison(methods=("local", r"my_method & 50%\x"))
    assert r"my\_method \& 50\%\textbackslash{}x & " in latex(comparison)


def test_markdown_says_what_its_numbers_are(comparison):
    text = markdown(comparison)
    table, _, words = text.partition("\n\n")
    assert len(table.splitlines()) == 2 + len(comparison.results)
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "mean ± standard deviation over 3 runs of the mean over 12 clients" in words
    assert "† better, ‡ worse than training alone (local)" in words


def test_an_error_is_better_when_it_is_small():
    comparison = make_comparison(make_clients(kind="regression"), seeds=2)
    best = next(line for line in lines(comparison) if line.rank == 1)
    assert best.mean == min(np.mean(means(comparison, name)) for name in ("local", "fedavg", "gossip-sgd"))
    assert "Lower is better" in markdown(comparison)


def test_csv_has_plain_numbers(comparison):
    rows = list(csv.DictReader(io.StringIO(csv_table(comparison))))
    assert [row["method"] for row in rows] == [line.method for line in lines(comparison)]
    assert float(rows[0]["mean"]) == pytest.approx(np.mean(means(comparison, rows[0]["method"])))


def test_as_pfllib_counts_by_samples_in_the_best_test_round():
    clients = make_clients(count=3)
    clients["sizes"]["test"] = [1, 2, 7]
    comparison = make_comparison(clients, methods=("local", "fedavg"), seeds=2)
    for result in comparison.results["fedavg"]:
        for row, score in zip(
            result.rows, ([0.1, 0.2, 0.3], [0.9, 0.8, 0.7], [1, 0, 0.5], [0.5, 0.5, 0.5]), strict=True
        ):
            row["test_score"] = score
    frame = comparison.as_pfllib()
    assert frame.loc["fedavg", "optimistic"] == pytest.approx((0.9 + 2 * 0.8 + 7 * 0.7) / 10)
    assert frame.loc["fedavg", "ours"] == pytest.approx(0.5)
    assert frame.loc["fedavg", "optimistic_std"] == pytest.approx(0)


def test_every_number_is_in_the_long_table(comparison):
    frame = long_frame(comparison)
    assert list(frame.columns) == ["method", "seed", "split", "client", "round", "metric", "value"]
    result = comparison.results["fedavg"][2]
    chosen = frame.query("method == 'fedavg' and seed == 2 and metric == 'test_score' and round == 10")
    assert chosen["client"].tolist() == list(result.names)
    assert chosen["value"].tolist() == result.rows[1]["test_score"]
    assert not frame.duplicated(["method", "seed", "split", "client", "round", "metric"]).any()
