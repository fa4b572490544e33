"""`coterie reproduce pdbo` and `spdb`: the papers' settings and figures, and what is said to differ."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.comparison.config import ComparisonConfig, choice_of, with_method
from coterie.experiment.result import Result
from coterie.reproduce import differences_of, pdbo, spdb

# Table 2 of Terashita and Hara 2023: inner steps, L2, learning rate, batch, outer steps, learning rate, L2, and M.
TABLE_2 = {
    "emnist": (600, 0.001, 0.5, 128, 5, 1.0, 0.01, 200),
    "cifar10": (1200, 0.001, 0.1, 128, 10, 1.0, 0.01, 20),
    "cifar100": (1200, 0.001, 0.2, 128, 10, 1.0, 0.01, 20),
    "shakespeare": (1200, 0.001, 10.0, 128, 10, 1.0, 0.01, 20),
}


def methods_of(tables):
    """Return the method and the number of rounds of every row, as they would be run."""
    planned = ComparisonConfig.from_dict(tables)
    experiments = {label: with_method(planned.experiment, choice_of((label, own))) for label, own in planned.methods}
    return {label: (each.method.spec, each.run.rounds) for label, each in experiments.items()}, planned.experiment


@pytest.mark.parametrize("dataset", TABLE_2)
def test_the_settings_are_those_of_table_2(dataset):
    rows, experiment = methods_of(pdbo.reproduction(dataset).tables)
    steps, penalty, lr, batch, outer, outer_lr, outer_penalty, depth = TABLE_2[dataset]
    for label, (method, rounds) in rows.items():
        assert getattr(method, "least_weight", 0) == 0  # gradient push as published
        drawn = 0 if dataset == "shakespeare" else batch  # 0: all, where no client has as many
        assert (method.weight_decay, method.lr, method.batch_size) == (penalty, lr, drawn)
        if label in ("sgp", "local"):
            each = method.pushes if label == "sgp" else method.steps
            assert rounds * each == steps
            falls = [float(method.at_round(number).lr) for number in range(1, rounds + 1)]
            assert falls == pytest.approx([lr] * (rounds - 2) + [lr / 10, lr / 100])
            assert each == 50  # so that the learning rate falls 100 and 50 steps before the end
        else:
            assert (method.pushes, method.settle, method.inner, rounds) == (steps, 100, "restart", outer + 1)
            assert (method.outer_lr, method.outer_decay, method.upper) == (outer_lr, outer_penalty, "train")
    assert rows["pdbo-mtl"][0].estimator == "hgp"
    assert rows["pdbo-mtl"][0].depth == depth
    assert rows["pdbo-mtl-local"][0].estimator == "local"
    assert experiment.model.common.members == 3


@pytest.mark.parametrize("rounds", [None, 1, 3])
@pytest.mark.parametrize("dataset", pdbo.DATASETS)
def test_no_row_stops_early(dataset, rounds):
    """Patience only says that the evaluation with the best validation accuracy is scored: rows have unequal rounds."""
    laid_out = pdbo.reproduction(dataset, rounds=rounds)
    for tables in (laid_out.tables, laid_out.tuned):
        rows, experiment = methods_of(tables)
        evaluations = max(own for _, own in rows.values()) / max(1, experiment.run.evaluate_every)
        assert experiment.run.patience >= evaluations


def test_the_papers_table_1_stands_beside_it():
    printed = {data: pdbo.reproduction(data).paper for data in pdbo.PAPER_COLUMNS}
    assert printed["shakespeare"] == {
        "sgp": "28.8 / 24.6", "local": "27.0 / 20.9", "pdbo-mtl-local": "38.9 / 34.8", "pdbo-mtl": "39.7 / 36.5"
    }  # fmt: skip
    assert printed["emnist"]["pdbo-mtl"] == "82.8 / 75.2"
    assert printed["cifar10"]["pdbo-mtl-local"] == printed["cifar10"]["sgp"] == "73.0 / 64.2"
    assert printed["cifar100"]["local"] == "39.1 / 30.6"
    assert pdbo.reproduction("digits").paper == {}
    assert pdbo.reproduction("emnist").columns == ("mean", "p10")
    assert [record["needs"] for record in pdbo.expected()] == ["EMNIST", "CIFAR10", "CIFAR100", ""]


def test_the_partitions_are_the_papers():
    parts = {data: pdbo.reproduction(data).tables["partition"] for data in TABLE_2}
    split = {data: (part["validation"], part["test"]) for data, part in parts.items()}
    assert split == {"emnist": (0.2, 0.2), "cifar10": (0.1, 0.6), "cifar100": (0.1, 0.6), "shakespeare": (0.2, 0.2)}
    assert {data: part["clients"] for data, part in parts.items()} == {
        "emnist": 100, "cifar10": 20, "cifar100": 20, "shakespeare": 20
    }  # fmt: skip
    assert pdbo.reproduction("shakespeare").tables["data"]["length"] == 200


def test_the_tuned_column_has_the_same_budget():
    laid_out = pdbo.reproduction("fashion-mnist")
    printed, _ = methods_of(laid_out.tables)
    tuned, _ = methods_of(laid_out.tuned)
    budget = printed["pdbo-mtl"][0].pushes * printed["pdbo-mtl"][1]
    for label, (method, rounds) in tuned.items():
        assert rounds * method.steps * getattr(method, "pushes", 1) == budget, label
    texts = differences_of(laid_out.differences, list(tuned), ["printed"])
    assert not any("from its last solution" in text for text in texts)


@pytest.mark.soak
def test_pdbo_runs(tmp_path):
    command = ["reproduce", "pdbo", "--seeds", "1", "--rounds", "2", "--clients", "4", "--out", str(tmp_path / "pdbo")]
    outcome = CliRunner().invoke(app, [*command, "--methods", "sgp,pdbo-mtl-local"])
    assert outcome.exit_code == 0, outcome.output
    assert "PDBO-MTL on digits" in outcome.output
    first = Result.read(tmp_path / "pdbo" / "printed" / "pdbo-mtl-local" / "seed-0")
    assert "mixture" in dict(first.model(0).variables.params.__dict__)


def test_spdb_shows_what_is_left_of_the_errors_of_dsgd():
    """Table 1: 22.0 to 21.4, 12.6 to 12.4, 22.8 to 19.9, 21.3 to 18.7."""
    laid_out = spdb.reproduction(speech=Path("speech.npz"))
    assert laid_out.paper["gossip-sgd"] == "22.0 12.6 22.8 21.3"
    assert laid_out.paper["spdb"] == "21.4 12.4 19.9 18.7"
    for label in ("spdb", "d2"):
        rates, base = ([float(rate) for rate in laid_out.paper[name].split()] for name in (label, "gossip-sgd"))
        less = [f"{100 * (1 - rate / of):.1f}" for rate, of in zip(rates, base, strict=True)]
        assert f"{', '.join(less[:3])} and {less[3]} %" in laid_out.differences[0].text
    rows, _ = methods_of(laid_out.tables)
    method = rows["spdb"][0]
    assert method.lr / method.personal_lr == pytest.approx(1.0 / 0.02)  # the paper's ratio
    assert method.batch_size == 256
    assert rows["gossip-sgd"][0].order == "mix-and-step"
    assert len(spdb.expected()) == 1
