"""A method of a comparison with its own graph and number of rounds, and with values to choose from."""

import pytest

from coterie.comparison.compare import compare
from coterie.comparison.config import ComparisonConfig, choice_of, with_method
from coterie.storage.toml import read_toml

TABLES = {
    "partition": {"clients": 6},
    "model": {"name": "linear"},
    "graph": {"name": "complete"},
    "run": {"rounds": 2, "keep": "last"},
    "compare": {"methods": ["on-a-ring", "gossip-sgd"], "splits": 1, "tune": "score"},
    "methods": {
        "on-a-ring": {"name": "gossip-sgd", "graph": {"name": "ring"}, "rounds": 3, "lr": [0.01, 0.2]},
        "gossip-sgd": {"lr": [0.1]},
    },
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "out"
    return compare(ComparisonConfig.from_dict(TABLES), out=folder, device="cpu", progress=False), folder


def test_runs_have_the_graph_and_rounds_of_their_method(done):
    comparison, _ = done
    own, common = (comparison.results[label][0] for label in ("on-a-ring", "gossip-sgd"))
    assert (own.config["graph"]["name"], own.config["run"]["rounds"], own.rows[-1]["round"]) == ("ring", 3, 3)
    assert (common.config["graph"]["name"], common.config["run"]["rounds"]) == ("complete", 2)
    assert own.graphs[3]["present"].sum(1).tolist() == [2] * 6
    assert common.graphs[2]["present"].sum(1).tolist() == [5] * 6


def test_only_the_values_given_are_tried_and_the_last_round_is_kept(done):
    comparison, _ = done
    (record,) = comparison.tuning["on-a-ring"]
    trials = {trial["settings"]["lr"]: trial for trial in record["candidates"]}
    assert trials.keys() == {0.01, 0.2}
    assert {trial["rounds"] for trial in trials.values()} == {trial["best_round"] for trial in trials.values()} == {3}
    assert record["chosen"]["lr"] == max(trials, key=lambda lr: trials[lr]["validation_score"])
    final = comparison.results["on-a-ring"][0].final  # the run is its best candidate once more
    kept = trials[record["chosen"]["lr"]]["validation_score"]
    assert kept == pytest.approx(final["validation_score"].mean(), abs=1e-3)  # clients' sizes differ by one sample
    assert comparison.results["on-a-ring"][0].config["method"]["lr"] == record["chosen"]["lr"]
    assert comparison.results["on-a-ring"][0].best_round == 3  # tuning alone would keep the best one
    assert "gossip-sgd" not in comparison.tuning  # one value is no choice
    assert comparison.results["gossip-sgd"][0].config["method"]["lr"] == 0.1


def test_the_folder_says_all_of_it_and_the_same_call_reads_it(done):
    comparison, folder = done
    written = read_toml(folder / "comparison.toml")
    assert written["graph"]["name"] == "complete"
    assert written["run"]["rounds"] == 2
    own = written["methods"]["on-a-ring"]
    assert (own["graph"]["name"], own["rounds"], own["lr"]) == ("ring", 3, [0.01, 0.2])
    times = {file: file.stat().st_mtime_ns for file in folder.rglob("*.jsonl")}
    for config in (TABLES, written):  # what was asked, and what the folder says
        again = compare(ComparisonConfig.from_dict(config), out=folder, device="cpu", progress=False)
        assert again.scores("on-a-ring").tolist() == comparison.scores("on-a-ring").tolist()
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.jsonl")} == times
    assert "on-a-ring.rounds=3" in comparison.command


def test_a_list_for_a_setting_that_is_one_is_no_choice():
    choice = choice_of(("spdb", {"personal": ["layers.1"], "lr": [0.1, 0.2]}))
    assert choice.candidates == {"lr": (0.1, 0.2)}
    experiment = ComparisonConfig.from_dict({}).experiment
    assert with_method(experiment, choice).method.spec.personal == ("layers.1",)
