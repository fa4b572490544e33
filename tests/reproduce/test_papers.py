"""`coterie reproduce scool` at a small size: runs, the table next to the paper's, and a second call that only reads."""

import json

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.cli.papers import paired_rows
from coterie.comparison.comparison import Comparison
from coterie.comparison.config import ComparisonConfig, choice_of, with_method
from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.reproduce import pdbo, scool

COMMAND = [
    "reproduce",
    "scool",
    "--seeds",
    "2",
    "--rounds",
    "12",
    "--clients",
    "10",
    "--budgets",
    "30",
    "--setting",
    "sbm",
]
METHODS = ["--methods", "local,gossip-sgd,scool-attention"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce") / "scool"
    outcome = CliRunner().invoke(app, [*COMMAND, *METHODS, "--out", str(folder)])
    assert outcome.exit_code == 0, outcome.output
    return folder, outcome.output


@pytest.mark.soak
def test_the_table_has_every_method_and_the_budget(done):
    _, text = done
    for words in ("local", "gossip-sgd", "scool-attention", "SCooL on digits, sbm", "over alone"):
        assert words in text


@pytest.mark.soak
def test_a_second_call_does_only_what_is_missing(done):
    folder, _ = done
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("metrics.jsonl")}
    assert len(before) == 2 * 4
    outcome = CliRunner().invoke(app, [*COMMAND, *METHODS, "--out", str(folder), "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("metrics.jsonl")} == before


@pytest.mark.soak
def test_differences_are_paired_by_seed(done):
    folder, _ = done
    comparison = Comparison.read([folder])
    rows = {row["method"]: row for row in paired_rows(comparison)}
    score = {
        label: [100 * sum(r.final["test_score"]) / 10 for r in results] for label, results in comparison.results.items()
    }
    gaps = [a - b for a, b in zip(score["scool-attention"], score["local"], strict=True)]
    assert rows["scool-attention"]["gain"] == pytest.approx(sum(gaps) / 2)
    assert rows["scool-attention"]["error"] == pytest.approx(abs(gaps[0] - gaps[1]) / 2)  # sd / sqrt(2) of two values
    assert rows["local"]["gain"] is None


@pytest.mark.soak
def test_a_run_records_the_quality_of_its_graph_and_the_kept_edges(done, tmp_path):
    folder, _ = done
    result = Result.read(folder / "scool-attention-30pc" / "seed-0")
    last = next(row for row in result.rows if row["round"] == 12)
    assert {"graph_l1", "graph_auroc", "graph_ari"} <= last.keys()
    assert result.graphs[10]["present"].sum() == 10 * 9  # everyone hears everyone until round 10
    assert result.graphs[12]["present"].sum(1).tolist() == [3] * 10  # then ceil(0.3 x 10)
    carried = result.ledger.edges()
    late = carried[(carried["round"] == 12) & (carried.receiver != "hub") & (carried.sender != "hub")]
    senders = {(row.sender, row.receiver) for row in late.itertuples()}
    kept = {(u, v) for u, v in result.graph(12).edges}
    assert senders == kept | {(v, u) for u, v in kept}  # questions go the other way
    path = result.save_graph(tmp_path / "graph.graphml", 10)
    assert path.read_text().count("<edge ") == 90
    assert "graph_auroc" in result.metrics.columns


@pytest.mark.soak
def test_resuming_after_the_graph_was_cut_gives_the_same_bits(done, tmp_path):
    folder, _ = done
    whole = folder / "scool-attention-30pc" / "seed-0"
    again = tmp_path / "again"
    for file in whole.rglob("*"):
        if file.is_file() and "checkpoints" not in file.parts and file.name not in ("summary.json", "report.html"):
            (again / file.relative_to(whole)).parent.mkdir(parents=True, exist_ok=True)
            (again / file.relative_to(whole)).write_bytes(file.read_bytes())
    (again / "checkpoints").mkdir()
    for file in (whole / "checkpoints").iterdir():
        (again / "checkpoints" / file.name).write_bytes(file.read_bytes())
    outcome = CliRunner().invoke(app, ["resume", str(again), "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)
    for file in sorted((whole / "models").iterdir()):
        assert (again / "models" / file.name).read_bytes() == file.read_bytes()


def test_the_papers_figures_stand_beside_cifar10():
    laid_out = scool.reproduction("cifar10", "sbm", budgets=(2, 10))
    assert laid_out.paper["scool-sbm"] == 94.14  # Table 2, not the README of the authors' program
    assert scool.reproduction("cifar100").paper["scool-attention"] == 59.47
    assert laid_out.tables["partition"] == {"clients": 100, "name": "groups", "groups": 5, "samples": 500}
    labels = [label for label, _ in ComparisonConfig.from_dict(laid_out.tables).methods]
    assert "scool-mmsbm-2pc" in labels
    assert set(scool.METHODS) <= set(labels)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["reproduce", "scol"], "No such command 'scol'"),
        (["reproduce", "scool", "--dataset", "cifar11"], "did you mean cifar10"),
        (["reproduce", "scool", "--setting", "iid"], "setting must be noniid or sbm"),
        (["reproduce", "scool", "--budgets", "0"], "write percentages"),
        (["reproduce", "pdbo", "--dataset", "emmist"], "did you mean emnist"),
    ],
)
def test_bad_input(options, words):
    outcome = CliRunner().invoke(app, options)
    assert outcome.exit_code == 2
    assert words in outcome.stderr


def test_pdbo_gives_every_method_the_same_predictors_and_minibatches():
    laid_out = pdbo.reproduction("fashion-mnist")
    planned = ComparisonConfig.from_dict(laid_out.tables)
    assert planned.experiment.model.common.members == 3
    methods = {
        label: with_method(planned.experiment, choice_of((label, own))).method.spec for label, own in planned.methods
    }
    assert set(methods) == set(pdbo.METHODS)
    steps = {label: spec.steps * getattr(spec, "pushes", 1) for label, spec in methods.items()}
    assert set(steps.values()) == {20}  # 30 rounds of 20: the paper's 600 inner steps
    assert {spec.batch_size for spec in methods.values()} == {32}
    assert {methods[label].estimator for label in pdbo.LABELS} == {"neumann", "hgp", "local"}
    assert all(methods[label].inner == "warm" for label in pdbo.LABELS)


@pytest.mark.parametrize("dataset", pdbo.DATASETS)
def test_pdbo_dampens_less_than_it_learns(dataset):
    planned = ComparisonConfig.from_dict(pdbo.reproduction(dataset).tables)
    methods = [with_method(planned.experiment, choice_of(method)).method.spec for method in planned.methods]
    estimators = [spec for spec in methods if getattr(spec, "estimator", "local") != "local"]
    assert len(estimators) == 2
    for spec in estimators:
        assert spec.damping == pdbo.DATASETS[dataset].damping
        assert spec.damping < spec.lr / 2  # with the whole learning rate the series grew wherever it was measured


def test_pdbo_restarts_as_the_paper_does():
    laid_out = pdbo.reproduction("emnist", restart=True)
    own = laid_out.tables["methods"]["pdbo-mtl"]
    assert (own["inner"], own["pushes"], own["settle"]) == ("restart", 600, 100)
    assert laid_out.tables["run"]["rounds"] == 6  # five outer updates and the last evaluation
    assert laid_out.tables["method"] == {"lr": 0.5, "batch_size": 128, "weight_decay": 0.001}


@pytest.mark.soak
def test_pdbo_runs(tmp_path):
    command = ["reproduce", "pdbo", "--seeds", "1", "--rounds", "2", "--clients", "4", "--out", str(tmp_path / "pdbo")]
    outcome = CliRunner().invoke(app, [*command, "--methods", "sgp,pdbo-mtl"])
    assert outcome.exit_code == 0, outcome.output
    assert "PDBO-MTL on digits" in outcome.output
    first = Result.read(tmp_path / "pdbo" / "pdbo-mtl" / "seed-0")
    assert "mixture" in dict(first.model(0).variables.params.__dict__)


def test_a_setting_is_refused_in_python_too():
    with pytest.raises(CoterieError, match="dataset must be one of"):
        scool.reproduction("nothing")
