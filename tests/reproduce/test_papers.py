"""`coterie reproduce scool` at a small size: runs, the table next to the paper's, and a second call that only reads."""

import json

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.comparison.config import ComparisonConfig, choice_of, with_method
from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.reproduce import differences_of, scool

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
METHODS = ["--methods", "local,gossip-sgd-5-epochs,scool-attention", "--only", "printed"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce") / "scool"
    outcome = CliRunner().invoke(app, [*COMMAND, *METHODS, "--out", str(folder)])
    assert outcome.exit_code == 0, outcome.output
    return folder, outcome.output


@pytest.mark.soak
def test_the_table_has_every_method_and_the_budget(done):
    _, text = done
    for words in ("local", "gossip-sgd-5-epochs", "scool-attention-30pc", "SCooL on digits, sbm", "over alone"):
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
def test_a_run_records_the_quality_of_its_graph_and_the_kept_edges(done, tmp_path):
    folder, _ = done
    result = Result.read(folder / "printed" / "scool-attention-30pc" / "seed-0")
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
    whole = folder / "printed" / "scool-attention-30pc" / "seed-0"
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


def test_scool_prints_table_2_of_the_paper():
    printed = {
        (dataset, setting): scool.reproduction(dataset, setting).paper
        for dataset in ("cifar10", "cifar100")
        for setting in ("noniid", "sbm")
    }
    assert printed["cifar10", "noniid"]["local"] == "87.5 ± 7.02"  # one decimal in the paper
    assert printed["cifar10", "noniid"]["scool-sbm"] == "91.37 ± 5.03"  # not the README of the authors' program
    assert printed["cifar10", "noniid"]["gossip-sgd-1-step"] == "83.01 ± 7.34"
    assert printed["cifar10", "noniid"]["gossip-sgd-5-epochs"] == "75.89 ± 6.65"
    assert printed["cifar10", "sbm"]["scool-sbm"] == "94.14 ± 2.28"
    assert printed["cifar10", "sbm"]["cga-5-epochs"] == "diverge"
    assert printed["cifar10", "sbm"]["fedavg"] == "71.59 ± 12.85"
    assert printed["cifar100", "noniid"]["scool-attention"] == "59.47 ± 4.95"
    assert printed["cifar100", "sbm"]["spdb-1-step"] == "55.71 ± 6.02"
    mini = scool.reproduction("miniimagenet", "sbm", file="images.npz")
    assert mini.paper["meta-l2c"] == "49.95 ± 1.97"
    assert {len(row.split(" | ")) for row in scool.PAPER.values()} == {6}
    assert scool.reproduction("digits").paper == {}


def test_scool_has_the_papers_settings():
    laid_out = scool.reproduction("cifar10", "sbm")
    planned = ComparisonConfig.from_dict(laid_out.tables)
    choices = {label: choice_of((label, own)) for label, own in planned.methods}
    runs = {label: with_method(planned.experiment, choice) for label, choice in choices.items()}
    assert list(runs) == list(scool.METHODS)
    assert laid_out.tables["partition"] == {"clients": 100, "name": "groups", "groups": 5, "samples": 500}
    for label, run in runs.items():
        spec = run.method.spec
        assert (spec.batch_size, spec.weight_decay, spec.momentum) == (10, 5e-4, 0)
        assert spec.steps == 1 if label.endswith("1-step") else (spec.epochs, spec.steps) == (5, 0)
    for label, choice in choices.items():
        assert choice.candidates == ({} if label.startswith("scool") else {"lr": (0.01, 0.05, 0.1)})
    rounds = {label: run.run.rounds for label, run in runs.items()}
    assert rounds["fedavg"] * 5 > 1000  # epochs
    for label in ("gossip-sgd-1-step", "cga-1-step", "spdb-1-step"):
        assert rounds[label] == 500 * 45  # 500 epochs of 450 images in batches of 10
    others = {label for label in rounds if label != "fedavg" and not label.endswith("1-step")}
    assert {rounds[label] for label in others} == {100}
    assert [runs[label].method.spec.participation for label in ("fedavg", "ditto")] == [0.1, 0.1]
    for label in ("fomo", "dada", "meta-l2c", "pfedgraph"):
        assert runs[label].graph.spec.build(100).present.sum(1).tolist() == [10] * 100
    for label in ("gossip-sgd-1-step", "cga-5-epochs", "spdb-5-epochs"):
        assert (runs[label].graph.name, runs[label].graph.spec.neighbours) == ("bipartite", 10)
    assert runs["gossip-sgd-5-epochs"].method.spec.order == "mix-and-step"
    for label in ("scool-sbm", "scool-attention", "scool-mmsbm"):
        spec = runs[label].method.spec
        assert (spec.lr, spec.m_step, spec.fraction, spec.sparsify_after) == (0.01, "first-order", 0.1, 10)
        assert runs[label].graph.name == "auto"  # complete
    assert runs["scool-attention"].method.spec.widths == (10, 5)
    assert (runs["scool-attention"].method.spec.encoder_lr, runs["scool-attention"].method.spec.encoder_decay) == (
        0.1,
        0.01,
    )


def test_one_step_takes_as_many_steps_as_five_epochs():
    """50 images of a client, 5 of them for validation: 5 batches; 1,257 digits of 10 clients: 125 each, 13 batches."""
    for dataset, batches in (("mnist", 5), ("digits", 13)):
        laid_out = scool.reproduction(dataset, clients=10, rounds=3, methods=("cga-1-step",))
        assert laid_out.tables["methods"]["cga-1-step"]["rounds"] == 3 * 5 * batches


def test_scool_tuned_has_the_budget_of_the_paper():
    laid_out = scool.reproduction("cifar10", budgets=(2, 10))
    printed, tuned = (
        {
            label: with_method(planned.experiment, choice_of((label, own)))
            for planned in [ComparisonConfig.from_dict(tables)]
            for label, own in planned.methods
        }
        for tables in (laid_out.tables, laid_out.tuned)
    )
    assert list(printed) == list(tuned)
    assert "scool-mmsbm-2pc" in tuned
    for label, run in tuned.items():
        theirs, ours = printed[label].method.spec, run.method.spec
        assert (run.run.rounds, run.graph) == (printed[label].run.rounds, printed[label].graph)
        assert (ours.epochs, ours.steps, ours.batch_size) == (theirs.epochs, theirs.steps, theirs.batch_size)
        for setting in ("participation", "fraction", "sparsify_after"):
            assert getattr(ours, setting, None) == getattr(theirs, setting, None)
    assert tuned["scool-sbm-2pc"].method.spec.fraction == 0.02
    assert laid_out.tuned["compare"]["tune"] == "score"
    for label, last in (("scool-sbm", 100), ("fedavg", 220), ("gossip-sgd-1-step", 22_500)):
        spec = tuned[label].method.spec
        assert float(spec.at_round(last // 2).lr) == pytest.approx(0.01)  # the first value to choose from
        assert float(spec.at_round(last).lr) == pytest.approx(0.04 * 0.01, rel=1e-3)


def test_scool_with_all_neighbours_says_so():
    laid_out = scool.reproduction("digits", neighbours="all", methods=("fomo", "gossip-sgd"))
    assert "graph" not in laid_out.tables["methods"]["fomo"]
    assert list(laid_out.tables["methods"]) == ["fomo", "gossip-sgd-1-step", "gossip-sgd-5-epochs"]
    said = differences_of(laid_out.differences, laid_out.tables["compare"]["methods"], ["printed"])
    assert any("hear everyone" in sentence for sentence in said)
    assert not any("instead of" in sentence for sentence in said)
    short = scool.reproduction("digits", rounds=7, clients=10)
    assert [each.text for each in short.differences[:2]] == ["7 rounds instead of 30", "10 clients instead of 20"]
    late = [any("from round 11 on" in each.text for each in table.differences) for table in (short, laid_out)]
    assert late == [False, True]
    (longer,) = (each.text for each in short.differences if each.rows == ("fedavg",))
    assert longer.startswith("fedavg: 75 epochs")  # five in each of 2.2 x 7 rounds
    assert not any("SCooL:" in sentence or "fedavg:" in sentence for sentence in said)  # rows that are not there


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["reproduce", "scol"], "No such command 'scol'"),
        (["reproduce", "scool", "--dataset", "cifar11"], "did you mean cifar10"),
        (["reproduce", "scool", "--setting", "iid"], "setting must be noniid or sbm"),
        (["reproduce", "scool", "--budgets", "0"], "write percentages"),
        (["reproduce", "scool", "--neighbours", "some"], "neighbours must be one of 10, all"),
        (["reproduce", "scool", "--dataset", "miniimagenet"], "needs --file"),
        (["reproduce", "scool", "--only", "printd"], "--only must be one of printed, tuned"),
        (["reproduce", "pdbo", "--dataset", "emmist"], "did you mean emnist"),
    ],
)
def test_bad_input(options, words):
    outcome = CliRunner().invoke(app, options)
    assert outcome.exit_code == 2
    assert words in outcome.stderr


def test_a_setting_is_refused_in_python_too():
    with pytest.raises(CoterieError, match="dataset must be one of"):
        scool.reproduction("nothing")


@pytest.mark.parametrize("options", [["spdb", "--speech"], ["scool", "--dataset", "miniimagenet", "--file"]])
def test_a_file_that_is_not_there_is_named_with_its_option(options):
    outcome = CliRunner().invoke(app, ["reproduce", *options, "nothing.npz"])
    assert outcome.exit_code == 2
    assert options[-1] in outcome.output
    assert "nothing.npz" in outcome.output


@pytest.mark.parametrize("option", ["--seeds", "--rounds", "--clients"])
def test_a_count_is_at_least_one(option):
    outcome = CliRunner().invoke(app, ["reproduce", "scool", option, "0"])
    assert outcome.exit_code == 2
    assert option in outcome.output
