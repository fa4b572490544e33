"""Tuning: every method has the same budget, only validation samples decide, and nothing is done twice."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import coterie as ct
from coterie.comparison import candidates, tuning
from coterie.comparison.candidates import Candidate, StackedTraining, Trials, budget
from coterie.comparison.compare import compare
from coterie.comparison.comparison import Comparison
from coterie.comparison.config import ComparisonConfig, choice_of
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.tuning import tuned_values
from coterie.errors import CoterieError, CoterieWarning, Diverged
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job, make_task
from coterie.experiment.result import Result
from coterie.experiment.training import Training
from coterie.learning.evaluate import validation_loss
from coterie.methods.ditto import Ditto
from coterie.methods.l2gd import L2GD
from coterie.methods.network_lasso import NetworkLasso
from coterie.methods.pooled import Pooled


def pairs(seed=0, size=40):
    """Four sites with three classes of points in the plane."""
    random = np.random.default_rng(seed)
    centres = np.array([[0, 2], [2, -1], [-2, -1]])
    y = random.integers(0, 3, (4, size))
    x = centres[y] + random.normal(size=(4, size, 2))
    return {f"site-{i}": (x[i].astype(np.float32), y[i]) for i in range(4)}


# -- what is tuned, and how the choice is made -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        (Ditto(), set(), {"lr": (0.01, 0.03, 0.1, 0.3, 1.0), "tie": (0.01, 0.1, 1.0)}),
        (Ditto(), {"lr"}, {"tie": (0.01, 0.1, 1.0)}),
        (Ditto(), {"lr", "tie"}, {}),
        (Pooled(), set(), {"lr": (0.01, 0.03, 0.1, 0.3, 1.0)}),
        (L2GD(), set(), {"tie": (0.1, 1.0, 10.0)}),  # its own step size follows from theory
        (NetworkLasso(path_factor=0.5), set(), {}),  # the path tries its own values
        (ct.methods.LocalExact(), set(), {}),  # solved, not iterated
    ],
)
def test_what_was_given_is_not_tuned(method, given, expected):
    assert tuned_values(method, choice_of("ditto")._replace(given=frozenset(given))) == expected
    assert tuned_values(method, choice_of("ditto"), frozenset(given)) == expected


def test_a_configured_method_fixes_what_differs_from_its_defaults():
    assert choice_of(Ditto(tie=0.5)).given == {"tie"}
    assert choice_of(("ditto", {"lr": 0.05})).given == {"lr"}  # written down, so it is meant


def test_candidates_get_a_part_of_the_rounds_but_enough_of_them():
    assert budget(200, 10) == (40, 80)
    assert budget(20, 1) == (10, 20)
    assert budget(50, 3) == (12, 21)  # whole blocks between two evaluations
    assert budget(5, 1) == (5, 5)


def test_the_validation_loss_weighs_clients_by_what_they_know():
    row = {"validation_loss": np.array([2.0, 1.0, 99.0])}
    # 10 samples weigh 1/2, 30 weigh 3/4, none weighs nothing: (2/2 + 3/4) / (1/2 + 3/4)
    assert validation_loss(row, np.array([10, 30, 0])) == pytest.approx(1.4)


@pytest.fixture
def searched(monkeypatch):
    """Return a function that searches with a made-up validation loss instead of training."""

    def search(values, loss, short=10, long=20):
        trained = []

        class FakeTrials:
            def __init__(self, job, engine, notify, by_score):
                self.short, self.long = short, long

            def run(self, method, rounds):
                candidate = Candidate(method)
                value = loss(method.lr, method.tie, rounds)
                candidate.judge(rounds, np.isfinite(value), value)
                trained.append((method.lr, method.tie, rounds))
                return candidate

            def halving(self, methods):
                first = [self.run(method, self.short) for method in methods]
                best = sorted(first, key=lambda each: each.loss)[: candidates.FINALISTS]
                return [self.run(c.method, self.long) if c in best else c for c in first]

            def all_of(self, methods):
                return [self.run(method, self.long) for method in methods]

        monkeypatch.setattr(candidates, "Trials", FakeTrials)
        records, chosen = tuning._search(SimpleNamespace(method=Ditto()), values, None, lambda done, count: None)
        return records, chosen, trained

    return search


VALUES = {"lr": (0.01, 0.1, 1.0), "tie": (0.01, 0.1, 1.0)}


def test_the_own_setting_is_tried_at_the_best_learning_rate(searched):
    records, chosen, trained = searched(VALUES, lambda lr, tie, n: abs(np.log10(lr)) + abs(tie - 1))
    assert chosen == {"lr": 1.0, "tie": 1.0}
    assert trained[-2:] == [(1.0, 0.01, 20), (1.0, 1.0, 20)]  # its default, 0.1, was the finalist
    assert len(records) == 5
    assert {record["rounds"] for record in records} == {10, 20}


def test_finalists_are_compared_with_finalists(searched):
    # The large rate is ahead after 10 rounds and behind after 20; a short training must not beat a longer one.
    table = {(0.01, 10): 3, (0.1, 10): 2, (1.0, 10): 1, (0.1, 20): 1.5, (1.0, 20): 1.7}
    assert searched({"lr": VALUES["lr"]}, lambda lr, tie, n: table[lr, n])[1] == {"lr": 0.1}


def test_a_candidate_that_diverges_loses_and_if_all_do_it_is_said(searched):
    records, chosen, _ = searched({"lr": VALUES["lr"]}, lambda lr, tie, n: np.nan if lr > 0.05 else 5.0)
    assert chosen == {"lr": 0.01}
    assert [record["validation_loss"] for record in records] == [5.0, None, None]
    with pytest.raises(Diverged, match=r"diverged with every lr that was tried, 0.01, 0.1, 1; give a smaller one"):
        searched({"lr": VALUES["lr"]}, lambda lr, tie, n: np.inf)


def test_the_score_decides_and_the_loss_where_scores_are_equal():
    confident, modest, lost, diverged = (Candidate(Ditto()) for _ in range(4))
    confident.judge(10, True, 1.0, 0.9, last=True)
    modest.judge(10, True, 0.5, 0.8, last=True)
    lost.judge(5, True, 0.1, 0.95, last=True)
    lost.judge(10, True, 0.7, 0.8, last=True)  # what it had before does not count
    diverged.judge(10, False, 0.0, 1.0, last=True)
    assert sorted([diverged, lost, modest, confident], key=lambda each: each.rank) == [
        confident,
        modest,
        lost,
        diverged,
    ]
    stopped = Candidate(Ditto())
    stopped.judge(5, True, 0.1, 0.95)
    stopped.judge(10, True, 0.7, 0.99)
    assert (stopped.rank, stopped.best_round) == ((-0.95, 0.1), 5)  # early stopping keeps the lowest loss


def test_candidates_as_one_program_are_the_candidates_one_by_one(monkeypatch):
    federation = ct.federation(pairs(), validation=0.2)
    config = ComparisonConfig.from_dict({"model": {"name": "linear"}, "run": {"rounds": 4, "evaluate_every": 4}})
    job = Job.of(config.experiment, federation, make_task(config.experiment, federation))
    engine = Engine.of(job, choose_device("cpu"))
    methods = [Ditto(lr=0.1), Ditto(lr=0.3, tie=1.0)]
    stacked = StackedTraining(engine, methods, job.graph, job.weights, seed=3)
    state, _ = stacked.init()
    state, blocks = stacked.advance(state, 1, 4)
    rows = stacked.evaluate(state, 4)
    for i, method in enumerate(methods):
        alone = Training(engine, method, job.graph, job.weights, seed=3)
        state, own = alone.advance(alone.init()[0], 1, 4)
        np.testing.assert_allclose(blocks[i].loss, own.loss, rtol=1e-5, atol=1e-6)
        expected = alone.evaluate(state, 4)
        np.testing.assert_allclose(rows["validation_loss"][i], expected["validation_loss"], rtol=1e-5, atol=1e-6)
    alone = Trials(job, engine).halving(methods)
    monkeypatch.setattr(candidates, "WORTH_COMPILING", 0)
    monkeypatch.setattr(Trials, "together", lambda self, count: True)
    trials = Trials(job, engine)
    together = [*trials.halving(methods), *trials.all_of(methods[:1])]
    assert trials.width == 2
    losses = [candidate.loss for candidate in [*alone, alone[0]]]
    np.testing.assert_allclose([candidate.loss for candidate in together], losses, rtol=1e-5)


# -- a comparison of real runs -----------------------------------------------------------------------------------------

METHODS = [
    "local",
    ("ditto", {"lr": 0.2}),
    ("wild", {"name": "local", "lr": 3e38}),  # diverges
    "hierarchical",  # refuses three classes
]
OPTIONS = {"model": "linear", "rounds": 12, "device": "cpu", "splits": 2}


def run(out, events=None, methods=METHODS, federation=None, **changes):
    tell = None if events is None else lambda *event: events.append(event[:3])
    federation = ct.federation(pairs(), validation=0.2) if federation is None else federation
    return compare(federation, methods, out=out, progress=tell, **(OPTIONS | changes))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder, events = tmp_path_factory.mktemp("tuned") / "out", []
    return run(folder, events), folder, events


def trained(events):
    return {(label, seed) for label, seed, stage in events if stage in ("start", "tune")}


def test_the_chosen_settings_are_the_best_on_validation_data_and_those_of_the_runs(done):
    comparison, _, _ = done
    assert {label: list(records[0]["values"]) for label, records in comparison.tuning.items()} == {
        "local": ["lr"],
        "ditto": ["tie"],
    }
    for label, records in comparison.tuning.items():
        assert len(records) == 2  # one per split
        for record, result in zip(records, comparison.results[label], strict=True):
            longest = [c for c in record["candidates"] if c["rounds"] == 12 and c["validation_loss"] is not None]
            best = min(longest, key=lambda candidate: candidate["validation_loss"])
            assert record["chosen"].items() <= best["settings"].items()
            assert record["chosen"].items() <= result.config["method"].items()
    assert comparison.results["ditto"][0].config["method"]["lr"] == 0.2


def test_runs_keep_the_evaluation_with_the_lowest_validation_loss(done):
    for results in done[0].results.values():
        for result in results:
            counts = np.full(4, 8)  # a fifth of 40
            losses = [validation_loss({"validation_loss": np.array(r["validation_loss"])}, counts) for r in result.rows]
            assert result.best_round == result.rows[int(np.argmin(losses))]["round"]


def test_methods_that_diverge_or_refuse_are_rows_that_say_so(done):
    comparison, folder, _ = done
    assert list(comparison.results) == ["local", "ditto"]
    assert list(comparison.failures) == ["wild", "hierarchical"]
    assert "training diverged" in comparison.failures["wild"]
    assert "two classes" in comparison.failures["hierarchical"]
    read = Comparison.read([folder])
    assert (read.failures, read.tuning) == (comparison.failures, comparison.tuning)
    assert read.leaderboard() == comparison.leaderboard()


def test_every_run_has_its_split_and_its_seed(done):
    comparison, _, _ = done
    digests = [[r.config["data"]["digest"] for r in runs] for runs in comparison.results.values()]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2
    assert [r.config["run"]["seed"] for r in comparison.results["local"]] == [0, 1]


@pytest.mark.soak
def test_a_second_call_trains_only_what_is_missing(done, tmp_path):
    comparison, folder, _ = done
    events = []
    again = run(folder, events)
    assert trained(events) == set()
    assert again.failures == comparison.failures
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "ditto" / "tuning-1.json").unlink()  # killed while the second split was tuned
    shutil.rmtree(copy / "ditto" / "seed-1")
    events = []
    again = run(copy, events)
    assert trained(events) == {("ditto", 1)}
    assert again.tuning["ditto"][1]["chosen"] == comparison.tuning["ditto"][1]["chosen"]
    np.testing.assert_array_equal(again.scores("ditto"), comparison.scores("ditto"))


def test_other_methods_are_added_and_other_settings_refused(done, tmp_path):
    _, folder, _ = done
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    written = (copy / "comparison.toml").read_bytes()
    for changes, sentence in [
        ({"rounds": 13}, "run.rounds is 12 there and 13 here"),
        ({"tune": False}, "compare.tune is True there and False here"),
        ({"splits": 3}, "compare.splits is 2 there and 3 here"),
        ({"methods": [("ditto", {"lr": 0.3})]}, "method.lr is 0.2 there and 0.3 here"),
        ({"methods": ["ditto"]}, "method.lr is 0.2 there and None here"),
    ]:
        with pytest.raises(CoterieError, match=f"holds another .*: {sentence}"):
            run(copy, **changes)
    with ComparisonFolder(copy).lock(), pytest.raises(CoterieError, match="in use by another process"):
        run(copy, methods=["fedavg"])
    assert (copy / "comparison.toml").read_bytes() == written
    events = []
    more = run(copy, events, methods=[("wild", {"name": "local", "lr": 0.2})])  # its failure is tried again
    assert trained(events) == {("wild", 0), ("wild", 1)}
    assert list(more.results) == ["local", "ditto", "wild"]
    assert list(Comparison.read([copy]).results) == ["local", "ditto", "wild"]
    assert list(ComparisonFolder(copy).read()["compare"]["methods"]) == ["local", "ditto", "wild", "hierarchical"]


def test_a_tuning_of_another_run_is_refused(done, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(done[1], copy)
    path = copy / "local" / "tuning-0.json"
    record = json.loads(path.read_bytes())
    record["values"]["lr"] = [0.5]
    path.write_text(json.dumps(record))
    with pytest.raises(CoterieError, match=r"holds the tuning of another run: tuning.lr is \[0.5\] there"):
        run(copy)
    path.write_text("{")
    with pytest.raises(CoterieError, match=r"tuning-0.json cannot be read .* remove it to tune again"):
        run(copy)


def test_test_samples_have_no_say_in_the_choice(done):
    federation = ct.federation(pairs(), validation=0.2)
    wrong = federation.test._replace(y=(federation.test.y + 1) % 3)
    object.__setattr__(federation, "test", wrong)
    other = run(None, methods=["local"], federation=federation, splits=1)
    mine, theirs = done[0].tuning["local"][0], other.tuning["local"][0]
    assert mine["candidates"] == theirs["candidates"]
    assert mine["chosen"] == theirs["chosen"]
    assert not np.array_equal(other.scores("local"), done[0].results["local"][0].final["test_score"])


def test_if_no_method_has_a_result_the_first_reason_is_the_error(tmp_path):
    with pytest.raises(CoterieError, match="two classes"):
        run(tmp_path / "out", methods=["hierarchical", "local-exact"], splits=1)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CoterieError, match="there is no method called 'dito'"):
        run(None, methods=["local", "dito"])


def test_without_validation_samples_nothing_is_tuned(tmp_path):
    federation = ct.federation(pairs(), validation=0)
    with pytest.warns(CoterieWarning, match="nothing is tuned, since no client has validation samples"):
        comparison = compare(federation, ["local-exact", "local"], **(OPTIONS | {"rounds": 1, "splits": 1}))
    assert comparison.tuning == {}
    assert isinstance(comparison.results["local"][0], Result)
