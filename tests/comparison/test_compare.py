"""Comparing methods: statistics, leaderboard, fair settings, and that a second call does only what is missing."""

import json
import shlex
import shutil
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.cli.training import _changed
from coterie.comparison.compare import _jobs, compare
from coterie.comparison.comparison import Comparison, baseline_of
from coterie.comparison.config import DEFAULT_METHODS, DEFAULT_TABLES, ComparisonConfig, choice_of, with_method
from coterie.comparison.repeat import repeat_command
from coterie.comparison.verdict import paired_interval, verdict
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job
from coterie.experiment.parts import Part
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.learning.score import SCORES
from coterie.peers.ledger import Ledger
from support.report_cases import ROLES

TINY = {
    "partition": {"clients": 6},
    "model": {"name": "linear"},
    "method": {"lr": 0.2},
    "run": {"rounds": 3},
    "compare": {"methods": ["local", "fedavg", "gossip-sgd", "pooled"], "seeds": 2},
    "methods": {"gossip-sgd": {"lr": 0.1}},
}


def made_up(method, scores, seed=0, metric="accuracy", sent=0, seconds=(3.0, 1.0)):
    """Return a result whose clients have these final scores; earlier ones must not count."""
    names = tuple(f"c{i}" for i in range(len(scores)))
    rows = [{"round": n, "test_score": list(s)} for n, s in ((1, [0.0] * len(scores)), (2, scores))]
    block = {
        "rounds": np.array([1, 2]),
        "up_bytes": np.full((2, len(names)), sent),
        "up_messages": np.ones((2, len(names))),
    }
    return Result(
        config={"method": {"name": method}, "run": {"seed": seed}},
        names=names,
        rows=rows,
        ledger=Ledger(names, np.zeros((len(names), 0), np.int32), [block]),
        graphs={},
        seconds={"wall": seconds[0], "compile": seconds[1], "program": 0.5},
        best_round=2,
        metric=metric,
        role=ROLES.get(method, "cooperates"),
        device="cpu",
    )


def together(baseline="local", **results):
    by_label = {name.replace("_", "-"): runs for name, runs in results.items()}
    names = list(next(iter(by_label.values()))[0].names)
    return Comparison(by_label, {"names": names}, baseline, "")


# -- statistics --------------------------------------------------------------------------------------------------------


def test_the_interval_of_a_case_done_by_hand():
    # 1, 2, 3: mean 2, standard deviation 1, error 1/sqrt(3); a table of Student's t says 4.303 for 2 degrees
    interval = paired_interval(np.array([1.0, 2.0, 3.0]))
    assert interval.mean == 2
    assert interval.error == pytest.approx(1 / np.sqrt(3))
    assert interval.high - 2 == pytest.approx(4.303 / np.sqrt(3), abs=3e-4)
    assert interval.low + interval.high == pytest.approx(4)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.integers(1, 20))
def test_the_interval_agrees_with_scipy_and_shares_the_risk(values, choices):
    differences = np.array(values)
    if np.ptp(differences) < 1e-6:
        return
    expected = scipy.stats.ttest_1samp(differences, 0).confidence_interval(1 - 0.05 / choices)
    interval = paired_interval(differences, choices=choices)
    np.testing.assert_allclose([interval.low, interval.high], [expected.low, expected.high], rtol=1e-8, atol=1e-12)


def test_one_client_says_nothing_about_others():
    interval = paired_interval(np.array([0.5]))
    assert (interval.low, interval.high) == (-np.inf, np.inf)


def test_the_verdict_rarely_sees_help_where_there_is_none():
    # Five methods without any effect: in at most 2.5 % of all comparisons one may seem to help (5 % on both sides).
    draw, names = np.random.default_rng(0), [f"c{i}" for i in range(15)]
    trials = 2000
    claims = sum(
        verdict({f"m{j}": draw.standard_normal(15) for j in range(5)}, names, SCORES["accuracy"]).startswith(
            "Cooperation helps"
        )
        for _ in range(trials)
    )
    assert claims < trials * 0.025 + 4 * np.sqrt(trials * 0.025 * 0.975)
    assert claims > 0  # nor is it blind


NAMES = [f"c{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("gains", "parts"),
    [
        (
            {"ditto": np.linspace(0.02, 0.06, 10), "fedavg": np.linspace(-0.1, 0.1, 10)},
            [
                "Cooperation helps these clients: with ditto",
                "+4.0 points of accuracy",
                "among 2 methods",
                "10 of 10 clients",
            ],
        ),
        (
            {"fedavg": np.linspace(-0.06, -0.02, 10)},
            [
                "Cooperation does not help",
                "with the best method, fedavg",
                "-4.0 points",
                "0 of 10",
                "10 lose",
                "c0 (-6.0)",
            ],
        ),
        (
            {"fedavg": np.linspace(-0.06, 0.06, 10)},
            [
                "cannot be told from noise",
                "fedavg",
                "+0.0 points",
                "5 of 10",
                "; 5 lose, most of all c0 (-6.0), c1 (-4.7)",
            ],
        ),
        # a gain of the mean that hides losers says who they are; the better mean without evidence does not win
        (
            {"steady": np.array([0.2] * 7 + [-0.05] * 3), "wild": np.array([4.0] + [-0.3] * 9)},
            ["Cooperation helps these clients: with steady", "7 of 10", "; 3 lose, most of all c7 (-5.0)"],
        ),
        ({"fedavg": np.zeros(10)}, ["makes no difference"]),
        ({}, ["No method of this comparison lets the clients cooperate"]),
    ],
)
def test_the_verdict_says_what_the_numbers_say(gains, parts):
    sentence = verdict(gains, NAMES, SCORES["accuracy"])
    for part in parts:
        assert part in sentence
    assert sentence.count(". ") == 0
    assert sentence.endswith(".")


def test_the_verdict_of_one_client_and_of_a_regression():
    assert "only one client" in verdict({"ditto": np.array([0.5])}, ["alone"], SCORES["accuracy"])
    assert "is +0.25 in RMSE" in verdict(
        {"ditto": np.full(10, 0.25) + np.linspace(-0.01, 0.01, 10)}, NAMES, SCORES["rmse"]
    )


# -- the leaderboard ---------------------------------------------------------------------------------------------------


def test_a_leaderboard_done_by_hand():
    comparison = together(
        pooled=[made_up("pooled", [1.0, 1.0, 1.0, 1.0])],
        local=[made_up("local", [0.5, 0.5, 0.5, 0.5])],
        fedavg=[made_up("fedavg", [0.4, 0.6, 0.6, 0.6], sent=50), made_up("fedavg", [0.6, 0.8, 1.0, 0.6], 1, sent=150)],
    )
    rows = comparison.leaderboard()
    assert [row["method"] for row in rows] == ["fedavg", "local", "pooled"]
    first = rows[0]
    np.testing.assert_allclose(comparison.scores("fedavg"), [0.5, 0.7, 0.8, 0.6])
    np.testing.assert_allclose(comparison.gains("fedavg"), [0, 0.2, 0.3, 0.1], atol=1e-12)
    assert first["mean"] == pytest.approx(0.65)
    assert first["std"] == pytest.approx(np.sqrt((0.15**2 + 0.05**2 + 0.15**2 + 0.05**2) / 4))
    assert (first["worst_label"], first["worst"]) == ("worst client", pytest.approx(0.5))
    assert (first["beat_alone"], first["clients"], first["seeds"]) == (3, 4, 2)
    assert first["bytes_per_client"] == 200  # (2 * 50 + 2 * 150) / 2 seeds
    assert (first["seconds"], first["compile"]) == (2.0, 1.0)
    assert first["mean_gain"] == pytest.approx(0.15)
    assert first["gain_error"] == pytest.approx(np.std([0, 0.2, 0.3, 0.1], ddof=1) / 2)
    assert rows[1]["beat_alone"] is None
    assert [row["pooled"] for row in rows] == [False, False, True]
    assert "pooled" not in comparison.verdict()
    json.dumps(comparison.to_dict(), allow_nan=False)


def test_the_worst_decile_counts_from_twenty_clients_on():
    scores = np.linspace(0, 0.95, 20)
    row = together(local=[made_up("local", scores)]).leaderboard()[0]
    assert (row["worst_label"], row["worst"]) == ("worst decile", pytest.approx(0.025))  # the mean of 0 and 0.05


def test_lower_is_better_for_a_regression():
    comparison = together(
        local=[made_up("local", [2.0, 2.0, 2.0], metric="rmse")],
        fedavg=[made_up("fedavg", [1.0, 1.5, 2.5], metric="rmse")],
    )
    rows = comparison.leaderboard()
    assert [row["method"] for row in rows] == ["fedavg", "local"]
    np.testing.assert_allclose(comparison.gains("fedavg"), [1.0, 0.5, -0.5])
    assert (rows[0]["beat_alone"], rows[0]["worst"]) == (2, 2.5)


def test_the_same_scores_in_another_order_of_seeds_are_a_tie():
    a, b, c = [0.1, 0.7], [0.2, 0.6], [0.3, 0.9]
    comparison = together(
        local=[made_up("local", s, i) for i, s in enumerate((a, b, c))],
        fedavg=[made_up("fedavg", s, i) for i, s in enumerate((c, b, a))],
    )
    assert comparison.leaderboard()[0]["beat_alone"] in (None, 0)
    assert comparison.gains("fedavg").tolist() == [0, 0]
    assert "makes no difference" in comparison.verdict()


def test_without_training_alone_there_is_no_verdict():
    comparison = together(baseline=None, fedavg=[made_up("fedavg", [0.5, 0.6])])
    assert comparison.gains("fedavg") is None
    assert "training alone (local) is not among the methods" in comparison.verdict()


def test_roles_decide_which_is_the_baseline_the_pooled_and_the_best_method():
    results = {
        "local": [made_up("local", [0.5, 0.5])],
        "local-exact": [made_up("local-exact", [0.9, 0.9])],
        "fedavg": [made_up("fedavg", [0.6, 0.7])],
        "pooled-exact": [made_up("pooled-exact", [1.0, 1.0])],
    }
    comparison = Comparison(results, {"names": ["c0", "c1"]}, baseline_of(results), "")
    assert comparison.baseline == "local-exact"  # the stronger of the two
    assert comparison.best() == "fedavg"  # though training alone has the higher score
    assert [row["method"] for row in comparison.leaderboard() if row["pooled"]] == ["pooled-exact"]
    assert "with the best method, fedavg" in comparison.verdict()
    only_alone = Comparison({"local": results["local"]}, {"names": ["c0", "c1"]}, "local", "")
    assert only_alone.best() == "local"


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
    jobs, _ = _jobs(planned.experiment, [choice_of(method) for method in planned.methods], 3, {})
    runs = [job.with_seed(seed).config for job in jobs.values() for seed in range(3)]
    assert len(jobs) == 7
    assert len({(config["method"]["name"], config["run"]["seed"]) for config in runs}) == 21
    assert counts["from_dict"] == counts["data"] == counts["codec"] == 1
    assert counts["model"] == counts["partition"] == 2  # once more for the defaults that the command may leave out
    assert counts["method"] == 1 + 2 * 7  # for the jobs, and for the command that repeats them


# -- real comparisons --------------------------------------------------------------------------------------------------


def run_tiny(out, events=None, **changes):
    planned = ComparisonConfig.from_dict(TINY | changes)
    tell = None if events is None else lambda *event: events.append(event[:3])
    return compare(planned.experiment, planned.methods, planned.seeds, out=out, device="cpu", progress=tell)


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
    more = []
    run_tiny(copy, more, compare={"methods": ["local", "ditto"], "seeds": 1})
    assert started(more) == [("ditto", 0)]


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


def test_an_incomplete_comparison_says_how_to_continue(done, tmp_path):
    shutil.copytree(done[1], tmp_path / "copy")
    (tmp_path / "copy" / "pooled" / "seed-1" / "summary.json").unlink()
    with pytest.raises(CoterieError, match=r"is not complete; continue it with `coterie resume .*copy`"):
        Comparison.read([tmp_path / "copy"])


def test_data_from_python_are_compared_in_memory_and_in_a_folder(tmp_path):
    federation = ct.load("planted-groups", clients=4, groups=2, train_size=8, test_size=8)
    methods = ["local", ct.methods.Ditto(tie=0.5, lr=0.2)]
    inside = ct.compare(federation, methods, model="linear", rounds=2, device="cpu")
    assert inside.results["ditto"][0].config["method"]["tie"] == 0.5
    assert inside.results["ditto"][0].model("client-1")(federation.test.x[1]).shape == (8, 4)
    outside = ct.compare(federation, methods[:1], model="linear", rounds=2, device="cpu", out=tmp_path / "out")
    np.testing.assert_array_equal(inside.scores("local"), outside.scores("local"))
    other = ct.load("planted-groups", clients=4, groups=2, train_size=8, test_size=8, seed=1)
    with pytest.raises(CoterieError, match=r"data.digest"):
        ct.compare(other, methods[:1], model="linear", rounds=2, device="cpu", out=tmp_path / "out")


def test_a_regression_in_double_precision_is_compared():
    tables = {
        "data": {"name": "hierarchical-linear", "clusters": 2, "clients_per_cluster": 2, "dimension": 3},
        "model": {"name": "linear"},
        "run": {"rounds": 2, "precision": "float64"},
        "compare": {"methods": ["local", "fedavg"]},
    }
    planned = ComparisonConfig.from_dict(tables)
    comparison = compare(planned.experiment, planned.methods, device="cpu")
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
    flags = dict(zip(words[2:6:2], words[3:6:2], strict=True))
    asked = {"compare": {"methods": flags["--methods"].split(","), "seeds": int(flags["--seeds"])}}
    again = ComparisonConfig.from_dict(_changed({}, asked, words[7::2]))
    assert words[6::2] == ["--set"] * len(words[7::2])
    for first, second in zip(planned.methods, again.methods, strict=True):
        assert with_method(planned.experiment, choice_of(first)) == with_method(again.experiment, choice_of(second))
    assert again.seeds == seeds
