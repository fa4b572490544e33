"""`coterie reproduce clusters` at a small size, and the studies' data; the studies themselves where the data are."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.data.studies import Chem97, Donors, InstEval, MathAchieve, Rows
from coterie.errors import CoterieError
from coterie.estimators import HierarchicalLinearRegression
from coterie.reproduce.clusters import expected
from coterie.reproduce.clusters.donors import donor_records
from coterie.reproduce.clusters.iteration import simplified_l2gd
from coterie.reproduce.clusters.studies import CROSS_VALIDATED, METHODS, hold_out, run_study, summarise_study
from coterie.reproduce.clusters.table1 import record_table1, summarise_table1, table1


def real(test):
    """Mark a test that needs the real tables."""
    absent = not os.environ.get("COTERIE_DATA")
    return pytest.mark.data(pytest.mark.skipif(absent, reason="COTERIE_DATA is not set")(test))


def school_rows(kind="regression", seed=0):
    """Draw 24 schools in 4 districts, the last with too few rows to be scored."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(24), [15] * 23 + [4])
    x = rng.normal(size=(len(group), 2))
    own = rng.normal(scale=1.5, size=24)
    y = x @ [1.0, -0.5] + own[group] + rng.normal(size=len(group))
    target = y if kind == "regression" else (y > 0).astype(int)
    return Rows(pd.DataFrame(x, columns=["a", "b"]), target, group, group % 4)


def test_a_fifth_of_every_group_is_held_out_and_small_groups_are_trained_on_only():
    group = np.random.default_rng(1).permutation(np.repeat([7, 3, 9, 4], [4, 5, 14, 20]))
    test_rows = hold_out(group, np.random.default_rng(0))
    assert {label: int(test_rows[group == label].sum()) for label in (7, 3, 9, 4)} == {7: 0, 3: 1, 9: 2, 4: 4}
    assert (test_rows != hold_out(group, np.random.default_rng(1))).any()


def test_errors_of_a_study_are_those_of_an_independent_computation():
    rows = school_rows()
    outcome = run_study("", seeds=1, rows=rows, kind="regression")
    test_rows = hold_out(rows.group, np.random.default_rng(0))
    x = np.column_stack([np.ones(len(test_rows)), rows.features])
    everybody = np.linalg.lstsq(x[~test_rows], rows.target[~test_rows], rcond=None)[
        0
    ]  # units do not matter to least squares
    for method, coefficients in (("single model", None), ("locally trained", rows.group)):
        errors = {row["group"]: row["error"] for row in outcome.groups if row["method"] == method}
        assert set(errors) == set(range(23))
        for label, error in errors.items():
            train, test = (rows.group == label) & ~test_rows, (rows.group == label) & test_rows
            beta = everybody
            if coefficients is not None:
                beta = np.linalg.lstsq(x[train], rows.target[train], rcond=None)[0]
            expected = np.sqrt(np.mean((rows.target[test] - x[test] @ beta) ** 2))
            assert error == pytest.approx(expected, rel=1e-9)
    summary = {row["method"]: row for row in summarise_study(outcome)}
    single = [row["error"] for row in outcome.groups if row["method"] == "single model"]
    quartiles = [summary["single model"][key] for key in ("lower_quartile", "median", "upper_quartile")]
    np.testing.assert_allclose(quartiles, np.percentile(single, [25, 50, 75]))
    assert summary["single model"]["max"] == max(single)
    assert summary["single model"]["gain"] == pytest.approx(np.mean(single) - summary["ours"]["mean"])
    assert summary["ours"]["mean"] < min(summary["single model"]["mean"], summary["locally trained"]["mean"])


@pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning")
def test_two_classes_are_scored_by_log_loss_and_auc():
    from sklearn.metrics import log_loss, roc_auc_score

    from coterie.estimators import PooledLogisticRegression

    rows = school_rows("classification")
    outcome = run_study("", seeds=1, rows=rows, kind="classification")
    test_rows = hold_out(rows.group, np.random.default_rng(0))
    model = PooledLogisticRegression().fit(rows.features[~test_rows], rows.target[~test_rows])
    probability = model.predict_proba(rows.features[test_rows])[:, 1]
    scores = next(row for row in outcome.overall if row["method"] == "single model")
    assert scores["log_loss"] == pytest.approx(log_loss(rows.target[test_rows], probability), rel=1e-6)
    assert scores["auc"] == pytest.approx(roc_auc_score(rows.target[test_rows], probability))
    assert {row["method"] for row in outcome.overall} == {*METHODS, CROSS_VALIDATED}
    by_group = [
        np.mean((probability > 0.5)[rows.group[test_rows] == label] == rows.target[test_rows & (rows.group == label)])
        for label in range(23)
    ]
    summary = {row["method"]: row for row in summarise_study(outcome)}
    accuracy = summary["single model"]["accuracy"]
    assert accuracy["mean"] == pytest.approx(np.mean(by_group))
    assert accuracy["median"] == np.median(by_group)
    ours = [row["accuracy"] for row in outcome.groups if row["method"] == "ours"]
    assert accuracy["ratio"] == np.mean(np.array(ours) >= by_group)
    assert summary["ours"]["accuracy"]["ratio"] == 1
    losses = [row["error"] for row in outcome.groups if row["method"] == "locally trained"]
    assert summary["locally trained"]["above_1"] == sum(loss > 1 for loss in losses)
    records = donor_records(list(summary.values()), "coterie reproduce clusters --study donors")
    table2, table3 = ({row["row"]: row for row in records[name]["rows"]} for name in ("table2", "table3"))
    assert table2["ours"]["paper"] == "0.215 ± 0.179"
    assert table2["ours, maximum"]["paper"] == "2.668"
    assert table2["ours"]["printed"] == f"{summary[CROSS_VALIDATED]['mean']:.3f} ± {summary[CROSS_VALIDATED]['sd']:.3f}"
    assert table2["single model, above 1"]["paper"] == "202"
    assert table3["single model"]["printed"] == f"{np.mean(by_group):.3f} ± {np.std(by_group):.3f}"
    assert table3["single model, performance ratio"]["paper"] == "0.986"
    assert "OTHER DATA" in records["table2"]["differences"][0]


def test_the_papers_iteration_is_that_of_one_coin_for_all():
    # The steps one after the other, as the paper has them; two clusters of 2 and 3 clients.
    rng = np.random.default_rng(0)
    x, y, cluster = rng.normal(size=(5, 4, 3)), rng.normal(size=(5, 4)), np.array([1, 0, 1, 0, 1])
    gamma, lam, p, step = 0.7, 1.3, 0.3, 0.02
    theta = np.zeros((5, 3))
    for heads in np.random.default_rng(7).random(40) < p:
        if heads:
            own = [theta[cluster == j].mean(0) for j in (0, 1)]
            alpha = [lam / (lam + gamma * size) for size in (2, 3)]
            centre = (2 * alpha[0] * own[0] + 3 * alpha[1] * own[1]) / (2 * alpha[0] + 3 * alpha[1])
            near = np.array([alpha[j] * centre + (1 - alpha[j]) * own[j] for j in cluster])
            theta = theta - step * gamma / p * (theta - near)
        else:
            slope = np.array([a.T @ (a @ t - b) for a, b, t in zip(x, y, theta, strict=True)])
            theta = theta - step / (1 - p) * slope
    found = simplified_l2gd(x, y, cluster, np.random.default_rng(7), gamma, lam, p, step, 40)
    np.testing.assert_allclose(found, theta, rtol=1e-10)


def test_the_papers_iteration_ends_near_the_exact_solution():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 8, 3)), rng.normal(size=(6, 8))  # y has variance 1, as the penalties of 1 assume
    group, cluster = np.repeat(np.arange(6), 8), np.arange(6) // 3
    exact = HierarchicalLinearRegression(
        fit_intercept=False, residual_variance=1.0, group_variance=1.0, within_variance=1.0
    ).fit(x.reshape(-1, 3), y.ravel(), groups=group, within=cluster[group])
    found = simplified_l2gd(x, y, cluster, rng, step=1e-4, iterations=300_000)
    np.testing.assert_allclose(found, exact.coef_, atol=0.02)


def test_all_printed_figures_of_the_paper_are_there():
    first, second, third = expected()
    cells = {row["row"]: row["paper"] for row in first["rows"]}
    assert cells["m = 10, locally trained"] == "4.50 ± 0.981 / 8.224"
    assert cells["m = 10, single cluster"] == "4.46 ± 0.958 / 8.112"
    assert cells["m = 10, single model"] == "6.11 ± 0.968 / 9.025"
    assert cells["m = 100, single model"] == "6.243 ± 1.003 / 9.479"
    assert cells["m = 100, single cluster"] == "0.494 ± 0.093 / 0.763"
    assert cells["m = 100, locally trained"] == "0.494 ± 0.093 / 0.768"
    assert len(cells) == 8
    assert [row["paper"] for row in second["rows"][:3]] == ["0.413 ± 0.932", "0.173 / 0.247 / 0.313", "6"]
    assert [row["paper"] for row in third["rows"][6:]] == ["0.942 ± 0.066", "0.921 / 0.948 / 1", "1"]


def test_table_1_at_a_small_size():
    rows = table1(seeds=2, sizes=(3, 30), clusters=6, clients=6, dimension=4)
    summary = {(row["m"], row["method"]): row for row in summarise_table1(rows)}
    for m in (3, 30):
        means = [row["mean"] for row in rows if row["m"] == m and row["method"] == "ours"]
        assert summary[m, "ours"]["mean"] == pytest.approx(np.mean(means))
        assert summary[m, "ours"]["mean"] < summary[m, "locally trained"]["mean"] < summary[m, "single model"]["mean"]
    record = record_table1(list(summary.values()), "coterie reproduce clusters --study table1")
    assert {row["paper"] for row in record["rows"]} == {""}  # the paper has other m
    # With 30 samples least squares has E|error|^2 = 4 / (30 - 4 - 1): close to its mean over 72 clients.
    assert summary[30, "locally trained"]["mean"] == pytest.approx(np.sqrt(4 / 25), rel=0.15)


def test_the_command_prints_the_papers_figures_and_writes_files(tmp_path):
    words = ["reproduce", "clusters", "--study", "table1", "--seeds", "1", "--sizes", "10", "--out", str(tmp_path)]
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    for text in ("Table 1", "locally", "8.676", "as printed", "1 of 1: table 1", "differs: cells are norms"):
        assert text in outcome.output
    figures = json.loads((tmp_path / "figures.json").read_text())["table1"]
    ours, exact = (next(row for row in figures if row["method"] == name) for name in ("ours", "ours, exact"))
    assert abs(exact["mean"] - 3.393) < 0.15  # the population value, and 4 standard deviations of a run's mean
    assert ours["mean"] == pytest.approx(exact["mean"], rel=0.02)
    record = json.loads((tmp_path / "reproduce-table1.json").read_text())
    assert record["command"] == "coterie reproduce clusters --study table1 --seeds 1 --sizes 10"
    row = next(row for row in record["rows"] if row["row"] == "m = 10, ours")
    assert row["printed"] == f"{ours['mean']:.3f} ± {ours['sd']:.3f} / {ours['max']:.3f}"
    assert row["paper"] == "3.46 ± 0.689 / 8.676"
    frame = pd.read_csv(tmp_path / "table1.csv")
    assert frame.groupby("method")["mean"].mean()["ours"] == pytest.approx(ours["mean"])
    assert "plotly" in (tmp_path / "clusters.html").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--study", "donor"], "donors"),
        (["--study", "table1", "--sizes", "1,x"], "--sizes"),
        (["--study", "chem97"], "mlmRev_Chem97.csv is missing: put that table"),
    ],
)
def test_mistakes_are_one_sentence(more, words, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    outcome = CliRunner().invoke(app, ["reproduce", "clusters", *more, "--out", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert words in outcome.output
    assert not (tmp_path / "out").exists()


def test_tables_are_read_from_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    (tmp_path / "tabular").mkdir()
    pupils = {"lea": [1, 1, 2], "school": [1, 1, 2], "score": [4, 10, 6], "gender": ["F", "M", "F"]}
    pupils |= {"age": [3, -3, 0], "gcsecnt": [0.3, 1.3, -0.4]}
    pd.DataFrame(pupils).to_csv(tmp_path / "tabular" / "mlmRev_Chem97.csv", index=False)
    rows = Chem97().rows()
    assert rows.features["female"].tolist() == [1, 0, 1]
    assert (rows.group.tolist(), rows.district.tolist()) == ([1, 1, 2], [1, 1, 2])
    samples = Chem97().load()
    assert samples.group == {"1": 0, "2": 1}
    np.testing.assert_allclose(samples.x.mean(axis=0), 0, atol=1e-6)
    pd.DataFrame(pupils).drop(columns="age").to_csv(tmp_path / "tabular" / "mlmRev_Chem97.csv", index=False)
    with pytest.raises(CoterieError, match="no column 'age'"):
        Chem97().rows()


def test_areas_are_rows_with_the_same_census_values_in_bands_of_equal_size(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    incomes = [10, 20, 30, 40]  # four areas of 2 rows, one row of a fifth, one row without census values
    table = pd.DataFrame({"median_hhincome": [*np.repeat(incomes, 2), 50, np.nan]})
    for column in ("pwhite", "pblack", "page18_39", "ave_hh_sz", "powner", "psch_atlstba", "pop_propurban"):
        table[column] = 0.5
    table = table.assign(mrm2=1.0, freq=3, out_gavedum=0)
    table.to_csv(tmp_path / "karlan_list_2007.csv", index=False)
    rows = Donors(at_least=2, bands=2).rows()
    assert rows.district.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(np.unique(rows.group)) == 4
    np.testing.assert_allclose(rows.features, [[np.log(1.5 * 365.25 / 12), np.log(3)]] * 8)


def test_areas_are_grouped_by_the_income_classes_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    table = pd.DataFrame({"median_hhincome": [200_001, 32_048, 32_049, 53_413, 53_414, 106_828]})
    for column in ("pwhite", "pblack", "page18_39", "ave_hh_sz", "powner", "psch_atlstba", "pop_propurban"):
        table[column] = 0.5
    table.assign(mrm2=0, freq=[0, 1, 1, 1, 1, 1], out_gavedum=0).to_csv(tmp_path / "karlan_list_2007.csv", index=False)
    rows = Donors(at_least=1).rows()
    assert rows.district.tolist() == [3, 0, 1, 1, 2, 3]
    np.testing.assert_allclose(rows.features, [[np.log(0.5 * 365.25 / 12), 0]] * 6)  # nothing is minus infinity


@real
@pytest.mark.parametrize(
    ("study", "rows", "groups", "districts"),
    [(Chem97, 31022, 2410, 131), (MathAchieve, 7185, 160, 2), (InstEval, 73421, 1128, 14), (Donors, 34045, 2976, 4)],
)
def test_the_studies_have_the_known_sizes(study, rows, groups, districts):
    table = study().rows()
    assert len(table.features) == len(table.target) == rows
    assert len(np.unique(table.group)) == groups
    assert len(np.unique(table.district)) == districts
    assert len(study().load().group) == groups


@real
@pytest.mark.parametrize("name", ["chem97", "mathachieve", "insteval"])
def test_borrowing_strength_beats_alone_and_one_for_all(name):
    summary = {row["method"]: row["mean"] for row in summarise_study(run_study(name, seeds=1))}
    assert summary["ours"] < min(summary["locally trained"], summary["single model"])


@real
def test_schools_are_clients_in_known_groups():
    federation = coterie.load("math-achieve")
    assert len(federation) == 160
    assert np.bincount(federation.groups).tolist() == [70, 90]
