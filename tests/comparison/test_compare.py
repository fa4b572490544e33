"""Comparing methods: fair settings, folders, and that a second call does only what is missing."""

import json
import shlex
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.cli.options import changed
from coterie.comparison.compare import compare
from coterie.comparison.comparison import Comparison
from coterie.comparison.config import DEFAULT_METHODS, DEFAULT_TABLES, ComparisonConfig, choice_of, with_method
from coterie.comparison.plan import Asked, Plan
from coterie.comparison.repeat import repeat_command
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job
from coterie.experiment.parts import Part
from coterie.experiment.run import execute

TINY = {
    "partition": {"clients": 6},
    "model": {"name": "linear"},
    "method": {"lr": 0.2},
    "run": {"rounds": 3},
    "compare": {"methods": ["local", "fedavg", "gossip-sgd", "pooled"], "seeds": 2},
    "methods": {"gossip-sgd": {"lr": 0.1}},
}


# -- who is compared, with which settings ------------------------------------------------------------------------------


def test_settings_of_local_training_hold_for_every_method_and_tables_of_its_own_override_them():
    planned = ComparisonConfig.from_dict(
        {
            "method": {"name": "ditto", "lr": 0.3, "batch_size": 7, "tie": 0.9},
            "compare": {"methods": ["local", "ditto", "fedprox", "strong"], "seeds": 2},
            "methods": {
                "fedprox": {"mu": 0.5, "lr": 0.01},
                "strong": {"name": "ditto", "tie": 5.0},
                "fedavg": {"lr": 1.0},
            },
        }
    )
    parts = {
        label: with_method(planned.experiment, choice_of((label, table))).method for label, table in planned.methods
    }
    assert [parts[m].spec.lr for m in ("local", "ditto", "fedprox", "strong")] == [0.3, 0.3, 0.01, 0.3]
    assert {part.spec.batch_size for part in parts.values()} == {7}
    assert (parts["ditto"].spec.tie, parts["strong"].spec.tie, parts["fedprox"].spec.mu) == (0.9, 5.0, 0.5)
    assert parts["strong"].name == "ditto"
    assert planned.seeds == 2


def test_the_default_methods_are_those_of_the_first_page():
    assert [label for label, _ in ComparisonConfig.from_dict({}).methods] == list(DEFAULT_METHODS)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"compare": {"methods": ["dpsgd"]}}, "differentially private"),
        ({"compare": {"methods": ["dito"]}}, "there is no method called 'dito'; did you mean ditto?"),
        ({"compare": {"seeds": 0}}, "compare.seeds must be at least 1"),
        ({"compare": {"sedes": 2}}, "unknown key compare.sedes; did you mean seeds?"),
        ({"compare": 3}, "compare must be a section"),
        ({"methods": {"ditto": 3}}, "methods.ditto must be a section"),
        ({"methods": {"dito": {"tie": 1}}}, "there is no method called 'dito'"),
        ({"method": {"tie": 1.0}}, "write methods.NAME.tie"),
        ({"methd": {}}, "unknown section [methd]; did you mean method?"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tables, sentence):
    with pytest.raises(CoterieError) as caught:
        ComparisonConfig.from_dict(tables)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "options", "sentence"),
    [
        ([], {}, "methods is empty"),
        (["local", "local"], {}, "methods names local twice"),
        ([("ditto", {"ty": 1})], {}, "ditto: unknown key method.ty"),
        ([("a/b", {"name": "ditto"})], {}, "'a/b' cannot be a method's label"),
        (["local"], {"seeds": 0}, "seeds must be an integer of at least 1"),
        ([("ditto", {"lr": [0.1, 0.2]})], {"tune": False}, "ditto: lr is a list to choose from, and tune is off"),
        ([("ditto", {"lr": [0.1, -1.0]})], {}, "ditto: method.lr must be greater than 0"),
        ([("ditto", {"rounds": 0})], {}, "ditto: run.rounds must be at least 1"),
        ([("gossip-sgd", {"graph": "rink"})], {}, "gossip-sgd: there is no graph called 'rink'; did you mean ring?"),
        (["local"], {"rounds": 3}, "rounds belongs to the experiment"),
    ],
)
def test_mistakes_are_found_before_anything_runs(methods, options, sentence, tmp_path):
    with pytest.raises(CoterieError) as caught:
        compare(ComparisonConfig.from_dict(TINY).experiment, methods, out=tmp_path / "out", **options)
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_experiment_is_parsed_once_whatever_the_number_of_methods(monkeypatch):
    counts = Counter()

    def counted(cls, function):
        real = getattr(cls, function).__func__

        def call(cls, *arguments):
            counts[function if function == "from_dict" else arguments[0]] += 1
            return real(cls, *arguments)

        monkeypatch.setattr(cls, function, classmethod(call))

    counted(Experiment, "from_dict")
    counted(Part, "from_table")
    planned = ComparisonConfig.from_dict(DEFAULT_TABLES)
    plan = Plan.of(Asked.of(planned, None, 1, 3, True, {}), None)
    methods, splits = len(DEFAULT_METHODS), plan.splits
    configs = [plan.experiment(label, split).to_dict() for label in plan.variants for split in range(splits)]
    assert len({(config["method"]["name"], config["partition"]["seed"]) for config in configs}) == methods * splits
    assert counts["from_dict"] == counts["data"] == counts["codec"] == 1
    assert counts["model"] == counts["partition"] == 2  # once more for the defaults that the command may leave out
    assert counts["method"] == 1 + 3 * methods  # before and after the data are loaded, and for the command


# -- real comparisons --------------------------------------------------------------------------------------------------


def run_tiny(out, events=None, **changes):
    planned = ComparisonConfig.from_dict(TINY | changes)
    tell = None if events is None else lambda *event: events.append(event[:3])
    return compare(planned.experiment, planned.methods, planned.seeds, out, "cpu", tell, tune=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "out"
    events = []
    return run_tiny(folder, events), folder, events


def started(events):
    return [(label, seed) for label, seed, stage in events if stage == "start"]


def test_every_method_and_seed_is_a_run_of_its_own(done):
    comparison, folder, events = done
    labels = TINY["compare"]["methods"]
    assert started(events) == [(label, seed) for seed in (0, 1) for label in labels]
    assert list(comparison.results) == labels
    for label in labels:
        assert [r.config["run"]["seed"] for r in comparison.results[label]] == [0, 1]
        assert all((folder / label / f"seed-{seed}" / "summary.json").is_file() for seed in (0, 1))
    assert comparison.results["gossip-sgd"][0].config["method"]["lr"] == 0.1
    assert comparison.results["pooled"][0].config["method"]["lr"] == 0.2
    assert comparison.baseline == "local"
    assert comparison.clients["names"] == [f"client-{i}" for i in range(6)]


def test_a_shared_engine_gives_the_numbers_of_a_run_alone_and_compiles_once_per_method(done, tmp_path):
    comparison, folder, _ = done
    for label in ("fedavg", "gossip-sgd"):
        planned = ComparisonConfig.from_dict(TINY)
        entry = choice_of((label, dict(planned.methods)[label]))
        alone = with_method(planned.experiment, entry).replace({"run": {"seed": 1}})
        execute(Job.of(alone), out=tmp_path / label, device="cpu")
        ours = (folder / label / "seed-1" / "metrics.jsonl").read_bytes()
        assert (tmp_path / label / "metrics.jsonl").read_bytes() == ours
    assert all(runs[1].seconds["compile"] == 0 for runs in comparison.results.values())


def test_a_second_call_does_only_what_is_missing(done, tmp_path):
    comparison, folder, _ = done
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "fedavg" / "seed-1")
    events = []
    again = run_tiny(copy, events)
    assert started(events) == [("fedavg", 1)]
    assert sum(stage == "read" for _, _, stage in events) == 7
    for label in comparison.results:
        np.testing.assert_array_equal(again.scores(label), comparison.scores(label))


def test_a_folder_with_another_comparison_is_refused(done, tmp_path):
    _, folder, _ = done
    with pytest.raises(
        CoterieError, match=r"holds another comparison: run.rounds is 3 there and 4 here; choose another --out"
    ):
        run_tiny(folder, run={"rounds": 4})
    written = (folder / "comparison.toml").read_bytes()
    with pytest.raises(CoterieError, match=r"holds another experiment: method.lr is 0.2 there and 0.3 here"):
        run_tiny(folder, method={"lr": 0.3})
    assert (folder / "comparison.toml").read_bytes() == written
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CoterieError, match="exists and is not the folder of a comparison"):
        run_tiny(tmp_path)


def test_what_was_compared_can_be_read_back(done, tmp_path):
    comparison, folder, _ = done
    read = Comparison.read([folder])
    assert read.leaderboard() == comparison.leaderboard()
    assert (read.verdict(), read.command, read.clients) == (
        comparison.verdict(),
        comparison.command,
        comparison.clients,
    )
    runs = Comparison.read([folder / "local" / "seed-0", folder / "local" / "seed-1", folder / "fedavg" / "seed-0"])
    assert {label: len(seeds) for label, seeds in runs.results.items()} == {"local": 2, "fedavg": 1}
    with pytest.raises(CoterieError, match="given twice"):
        Comparison.read([folder, folder / "local" / "seed-0"])
    with pytest.raises(CoterieError, match=r"is not the folder of a run"):
        Comparison.read([tmp_path])
    with pytest.raises(CoterieError, match="nothing to compare"):
        Comparison.read([])


def test_a_comparison_of_version_0_1_is_read(done, tmp_path):
    comparison, folder, _ = done
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    for file in old.rglob("scores.npz"):
        file.unlink()
    for file in old.rglob("summary.json"):
        file.write_text(file.read_text().replace('"role": "pooled"', '"role": "ceiling"'))
    lines = (old / "comparison.toml").read_text().splitlines()
    (old / "comparison.toml").write_text("\n".join(line for line in lines if not line.startswith(("splits", "tune"))))
    read = Comparison.read([old])
    assert [row["role"] for row in read.leaderboard()][-1] == "pooled"
    for method in comparison.results:
        np.testing.assert_allclose(read.scores(method, "accuracy"), comparison.scores(method, "accuracy"), atol=1e-6)
    assert read.judgement().interval.mean == pytest.approx(comparison.judgement().interval.mean, abs=0.02)


def test_the_same_method_with_other_settings_gets_a_label_that_says_which(done, tmp_path):
    _, folder, _ = done
    other = ComparisonConfig.from_dict(TINY).experiment.replace({"method": {"name": "fedavg", "lr": 0.5}})
    execute(Job.of(other), out=tmp_path / "run", device="cpu")
    labels = list(Comparison.read([folder, tmp_path / "run"]).results)
    assert labels == ["local", "fedavg (lr=0.2)", "fedavg (lr=0.5)", "gossip-sgd", "pooled"]


def test_other_clients_cannot_be_compared(done, tmp_path):
    _, folder, _ = done
    other = ComparisonConfig.from_dict(TINY | {"partition": {"clients": 6, "seed": 1}})
    execute(Job.of(other.experiment), out=tmp_path / "run", device="cpu")
    with pytest.raises(CoterieError, match=r"has other clients than .*: partition.seed is 1 there and 0 here"):
        Comparison.read([folder, tmp_path / "run"])


def test_a_run_with_the_fingerprint_of_an_earlier_version_is_compared_by_all_else(done, tmp_path):
    _, folder, _ = done
    old = shutil.copytree(folder, tmp_path / "old")
    file = old / "fedavg" / "seed-0" / "clients.json"
    about = json.loads(file.read_text()) | {"digest": "0123456789abcdef"}
    file.write_text(json.dumps(about))
    assert list(Comparison.read([old]).results) == list(Comparison.read([folder]).results)
    about["label_counts"][0] = about["label_counts"][0][::-1]
    file.write_text(json.dumps(about))
    with pytest.raises(CoterieError, match="the data have changed between the two"):
        Comparison.read([old])


def test_an_incomplete_comparison_says_how_to_continue(done, tmp_path):
    shutil.copytree(done[1], tmp_path / "copy")
    (tmp_path / "copy" / "pooled" / "seed-1" / "summary.json").unlink()
    with pytest.raises(CoterieError, match=r"is not complete; continue it with `coterie resume .*copy`"):
        Comparison.read([tmp_path / "copy"])


@pytest.mark.soak
def test_data_from_python_are_compared_in_memory_and_in_a_folder(tmp_path):
    federation = ct.load("planted-groups", clients=4, groups=2, train_size=8, test_size=8)
    methods = ["local", ct.methods.Ditto(tie=0.5, lr=0.2)]
    inside = ct.compare(federation, methods, model="linear", rounds=2, device="cpu", tune=False)
    assert inside.results["ditto"][0].config["method"]["tie"] == 0.5
    assert inside.results["ditto"][0].model("client-1")(federation.test.x[1]).shape == (8, 4)
    outside = ct.compare(
        federation, methods[:1], model="linear", rounds=2, device="cpu", tune=False, out=tmp_path / "out"
    )
    np.testing.assert_array_equal(inside.scores("local"), outside.scores("local"))
    other = ct.load("planted-groups", clients=4, groups=2, train_size=8, test_size=8, seed=1)
    with pytest.raises(CoterieError, match=r"data.digest"):
        ct.compare(other, methods[:1], model="linear", rounds=2, device="cpu", tune=False, out=tmp_path / "out")


@pytest.mark.soak
def test_a_regression_in_double_precision_is_compared():
    tables = {
        "data": {"name": "hierarchical-linear", "clusters": 2, "clients_per_cluster": 2, "dimension": 3},
        "model": {"name": "linear"},
        "run": {"rounds": 2, "precision": "float64"},
        "compare": {"methods": ["local", "fedavg"]},
    }
    planned = ComparisonConfig.from_dict(tables)
    comparison = compare(planned.experiment, planned.methods, device="cpu", tune=False)
    assert (comparison.metric, comparison.higher_is_better) == ("rmse", False)
    assert comparison.results["local"][0].model(0).variables.params.weight.dtype == np.float64
    gains = comparison.scores("local") - comparison.scores("fedavg")
    np.testing.assert_allclose(comparison.gains("fedavg"), gains)
    assert "in RMSE" in comparison.verdict()


def test_the_report_is_written_from_a_comparison_or_its_folder(done, tmp_path):
    comparison, folder, _ = done
    for what in (comparison, folder, [folder]):
        path = ct.report(what, tmp_path / "report.html")
        assert "gossip-sgd" in path.read_text()
        path.unlink()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 500), st.floats(1e-4, 1), st.integers(1, 9), st.floats(0, 2))
def test_the_command_names_everything_that_was_changed(rounds, lr, seeds, tie):
    # Reading the command's own words back must lead to the same experiments; running it is tested in test_cli.
    planned = ComparisonConfig.from_dict(
        {
            "run": {"rounds": rounds},
            "method": {"lr": lr},
            "partition": {"name": "iid", "clients": 5},
            "compare": {"methods": ["local", "ditto", "mild"], "seeds": seeds},
            "methods": {"ditto": {"tie": tie}, "mild": {"name": "ditto", "tie": 0.01}},
        }
    )
    entries = [choice_of(method) for method in planned.methods]
    words = shlex.split(repeat_command(planned.experiment, entries, planned.seeds))
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    flags = {flag: value for flag, value in pairs if flag != "--set"}
    assert flags.keys() == {"--methods", "--seeds", "--data"}
    asked = {"compare": {"methods": flags["--methods"].split(","), "seeds": int(flags["--seeds"])}}
    again = ComparisonConfig.from_dict(changed({}, asked, [value for flag, value in pairs if flag == "--set"]))
    for first, second in zip(planned.methods, again.methods, strict=True):
        assert with_method(planned.experiment, choice_of(first)) == with_method(again.experiment, choice_of(second))
    assert again.seeds == seeds
