"""Sweeps that train: runs together equal runs alone, what diverges stays a row, nothing is done twice."""

import json
import shutil

import jax
import numpy as np
import pandas as pd
import pytest

import coterie as ct
from comparison.test_tuning import pairs
from coterie.comparison import candidates
from coterie.comparison.sweeps import lockstep
from coterie.comparison.sweeps.plan import SweepConfig
from coterie.comparison.sweeps.result import Row
from coterie.comparison.sweeps.runner import Runner
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.experiment.device import choose_device

VALUES = {"method.lr": [0.05, 0.4, 1e30], "run.seed": [0, 1]}
OPTIONS = {"model": "linear", "method": "ditto", "rounds": 4, "evaluate_every": 2, "keep": "best", "device": "cpu"}


@pytest.fixture(scope="module")
def federation():
    return ct.federation(pairs(), validation=0.2)


@pytest.fixture(scope="module")
def together(federation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    return ct.sweep(federation, VALUES, out=folder, progress=False, **OPTIONS)


@pytest.fixture(scope="module")
def alone(federation):
    return ct.sweep(federation, VALUES, batch=1, progress=False, **OPTIONS)


def test_runs_together_are_the_runs_alone(together, alone):
    """Equal up to rounding: one program for all adds in another order."""
    one, other = together.to_frame(), alone.to_frame()
    exact = ["candidate", "method.lr", "seed", "rounds", "bytes_per_client", "diverged", "note", "best"]
    pd.testing.assert_frame_equal(one[exact], other[exact])
    for name in ("validation", "validation_loss", "test"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6)
    for key in ((1, 0), (2, 1)):
        ours, theirs = together.result(*key), alone.result(*key)
        np.testing.assert_array_equal(ours.ledger.totals()["sent"], theirs.ledger.totals()["sent"])
        assert ours.best_round == theirs.best_round
        for a, b in zip(*(jax.tree.leaves([r._variables(i) for i in range(4)]) for r in (ours, theirs)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_run_of_a_sweep_is_the_run_of_coterie_run(alone, federation):
    options = {name: value for name, value in OPTIONS.items() if name != "method"}
    run = ct.run(federation, method=ct.methods.Ditto(lr=0.4), seed=1, progress=False, **options)
    assert run.rows == alone.result(2, 1).rows  # to the last bit


def test_what_diverges_is_a_row_and_the_best_is_chosen_on_validation_samples(together):
    frame = together.to_frame()
    assert frame["diverged"].tolist() == [False] * 4 + [True] * 2
    assert all("diverged" in note for note in frame["note"][4:])
    means = frame[~frame["diverged"]].groupby("candidate")["validation"].mean()
    assert together.best_candidate == means.idxmax()
    assert together.best_settings == {"method.lr": [0.05, 0.4][means.idxmax() - 1]}
    assert together.best.config["method"]["lr"] == together.best_settings["method.lr"]
    assert together.best.config["run"]["seed"] == 0
    with pytest.raises(CoterieError, match="candidate 3 has no result: training diverged"):
        together.result(3)


def test_a_sweep_is_read_back_and_opened(together, federation):
    folder = together.folder
    again = ct.Sweep.read(folder)
    pd.testing.assert_frame_equal(again.to_frame(), together.to_frame())
    table = pd.read_csv(folder / "results.csv")
    np.testing.assert_allclose(table["validation"], together.to_frame()["validation"])
    x = np.asarray(federation.test.rows(0)[0])
    opened = ct.open(folder)
    np.testing.assert_array_equal(opened.model("site-0")(x), together.best.model("site-0")(x))
    assert ct.open(folder, "candidate-001", seed=1).config["run"]["seed"] == 1
    with pytest.raises(CoterieError, match="did you mean candidate-001"):
        ct.open(folder, "candidate-01")
    with pytest.raises(CoterieError, match="is the folder of a sweep"):
        ct.Comparison.read([folder])
    page = ct.report(folder, folder / "report.html").read_text()
    assert f"{together.best_candidate} (best)" in page
    drawn = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [line["share"] is None for line in drawn["lines"]] == [False, False, True]  # what diverged has no score
    assert [line["best"] for line in drawn["lines"]] == [True, False, False]


def test_only_what_is_missing_is_trained(together, federation, tmp_path, monkeypatch):
    folder = shutil.copytree(together.folder, tmp_path / "copy")
    trained = []

    def count(jobs, *arguments):
        trained.append([(job.method.lr, job.settings.seed) for job in jobs])
        return lockstep_train(jobs, *arguments)

    lockstep_train = lockstep.train_together
    monkeypatch.setattr(lockstep, "train_together", count)
    for gone in ("candidate-001/seed-1/summary.json", "candidate-002/seed-0/summary.json", "sweep.json"):
        (folder / gone).unlink()  # as if it had been killed before
    with pytest.raises(CoterieError, match="is not complete; continue it with"):
        ct.open(folder)
    again = ct.sweep(federation, VALUES, out=folder, progress=False, **OPTIONS)
    assert trained == [[(0.05, 1), (0.4, 0)]]
    columns = ["validation", "validation_loss", "test"]
    np.testing.assert_allclose(again.to_frame()[columns], together.to_frame()[columns], rtol=1e-6)
    ct.sweep(federation, VALUES, out=folder, progress=False, **OPTIONS)
    assert len(trained) == 1
    with pytest.raises(CoterieError, match=r"holds another sweep: sweep.method.lr is"):
        ct.sweep(federation, VALUES | {"method.lr": [0.1]}, out=folder, **OPTIONS)


def groups(swept, federation, **options):
    return list(Runner(swept, None, choose_device("cpu"), federation, **options).groups())


def test_groups_fit_into_memory_and_exact_runs_are_alone(federation, monkeypatch):
    options = {name: value for name, value in OPTIONS.items() if name != "device"}
    swept = SweepConfig.of(Experiment.from_objects(federation, **options), {"run.seed": list(range(10))})
    [group] = groups(swept, federation)
    assert (len(group.runs), group.width) == (10, lockstep.MOST_LANES)
    assert groups(swept, federation, batch=3)[0].width == 3
    needed = candidates.memory_budget(group.engine.device) // candidates.most_together(group.job, group.engine)
    monkeypatch.setattr(candidates, "memory_budget", lambda device: 4.5 * needed)
    assert groups(swept, federation)[0].width == 4
    exact = SweepConfig.of(Experiment.from_objects(federation, **options, mode="exact"), {"run.seed": [0, 1]})
    assert groups(exact, federation)[0].width == 1  # it promises the bits of clients that train one by one


def test_refused_candidates_are_rows_and_without_validation_nothing_is_best(federation):
    swept = SweepConfig.of(Experiment.from_objects(federation, model="linear"), {"method": ["local", "fedper"]})
    planned = Runner(swept, None, choose_device("cpu"), federation)
    assert [len(group.runs) for group in planned.groups()] == [1]
    [refused] = planned.known_rows()
    assert (refused.settings, refused.diverged) == ({"method.name": "fedper"}, False)
    assert "personal" in refused.note
    blind = ct.federation(pairs(), validation=0.0)
    with pytest.warns(CoterieWarning, match="nothing says which candidate is best"):
        list(Runner(swept, None, choose_device("cpu"), blind).groups())
    with pytest.raises(CoterieError, match=r"raise partition.validation"):
        _ = ct.Sweep([Row(1, 0, {}, test=0.5)], (), "accuracy", "").best
    with pytest.raises(CoterieError, match=r"no candidate has a result in all its runs: it diverged"):
        _ = ct.Sweep([Row(1, 0, {}, diverged=True, note="it diverged")], (), "accuracy", "").best


def test_many_runs_together_have_one_bar(federation):
    swept = SweepConfig.of(Experiment.from_objects(federation), {"run.seed": list(range(9))})
    events = []
    shown = Runner(swept, None, choose_device("cpu"), federation)
    shown.progress = lambda label, seed, stage, number, *rest: events.append((label, seed, stage, number))
    bars = shown._notify_together(swept.runs)
    for stage, number in (("start", 0), ("round", 5)):
        for bar in bars:
            bar(stage, number, 50, {})
    bars[3]("end", 5, 50, {})
    together = "9 runs together"
    assert events == [(together, 0, "start", 0), (together, 0, "round", 5), ("candidate-001", 3, "end", 5)]
