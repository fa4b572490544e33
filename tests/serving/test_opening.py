"""Models from the folder alone: no data file, also for runs with data from Python."""

import json
import shutil

import equinox as eqx
import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.folder import RunFolder
from coterie.experiment.intervals import half_width, half_width_of, interval_record
from coterie.experiment.prediction import Answers
from coterie.storage.toml import dump_toml
from support.serving_cases import (
    changed_record,
    classes_federation,
    numbers_federation,
    saved_run,
    softmax,
)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Five clients, three classes, fedavg."""
    federation = classes_federation()
    return saved_run(tmp_path_factory.mktemp("classes") / "run", federation), federation


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Four clients, one number, ditto."""
    federation = numbers_federation()
    return saved_run(tmp_path_factory.mktemp("numbers") / "run", federation, "linear", "ditto"), federation


def test_a_run_opens_without_its_data(classes, tmp_path, monkeypatch):
    result, federation = classes
    shutil.copytree(result.folder, tmp_path / "copy")
    monkeypatch.setattr(Experiment, "load", lambda *_: pytest.fail("the data were loaded"))
    run = ct.open(tmp_path / "copy")
    assert run.clients == federation.names
    x = federation.test.x[2]
    table = run.model("client-2").predict(x)
    logits = result.model("client-2")(x)
    assert list(table.columns) == ["client", "prediction", "probability 0", "probability 1", "probability 2", "note"]
    np.testing.assert_allclose(table.filter(like="probability").to_numpy(), softmax(logits), atol=1e-6)
    assert table["prediction"].tolist() == [str(k) for k in logits.argmax(1)]
    assert set(table["client"]) == {"client-2"}
    assert set(table["note"]) == {""}
    again = ct.Result.read(tmp_path / "copy").model("client-2")
    np.testing.assert_array_equal(again(x), logits)


def test_class_names_are_kept(classes, tmp_path):
    result, federation = classes
    shutil.copytree(result.folder, tmp_path / "copy")
    changed_record(tmp_path / "copy" / "clients.json", class_names=["no", "maybe", "yes"])
    table = ct.open(tmp_path / "copy").model("client-1").predict(federation.test.x[1])
    assert set(table["prediction"]) <= {"no", "maybe", "yes"}
    assert "probability maybe" in table.columns


def test_wrong_rows_are_refused(classes):
    run = ct.open(classes[0].folder)
    with pytest.raises(CoterieError, match=r"shape \(6,\), and the rows have shape \(5,\)"):
        run.model("client-1").predict(np.zeros((2, 5), np.float32))
    with pytest.raises(CoterieError, match="row 2 has a value that is not a finite number"):
        run.model("client-1").predict(np.array([[0.0] * 6, [np.nan] * 6]))
    with pytest.raises(CoterieError, match="did you mean client-1"):
        run.model("clint-1")
    with pytest.raises(CoterieError, match=r"use .model\(client\)"):
        run.predict(np.zeros((2, 6), np.float32))


def test_rows_go_to_their_client_and_keep_their_order(classes):
    result, federation = classes
    run = ct.open(result.folder)
    x = np.concatenate([federation.test.x[k, :3] for k in (3, 0)])
    order = [4, 0, 3, 1, 5, 2]
    frame = pd.DataFrame(x[order], index=list("abcdef"))
    owners = np.repeat(["client-3", "client-0"], 3)[order]

    class WithSite(Answers):
        def _numbers(self, frame):
            return frame.drop(columns="site").to_numpy(np.float32)

    run.answers = WithSite(run.answers.about, client="site")
    table = run.predict(frame.assign(site=owners))
    assert table.index.tolist() == list("abcdef")
    assert table["client"].tolist() == owners.tolist()
    by_hand = [softmax(result.model(owner)(row[None]))[0] for owner, row in zip(owners, x[order], strict=True)]
    np.testing.assert_allclose(table.filter(like="probability").to_numpy(), by_hand, atol=1e-6)


def test_a_module_of_ones_own_must_be_passed(tmp_path, device):
    class Mine(eqx.Module):
        line: eqx.nn.Linear

        def __call__(self, x):
            return self.line(x)

    make = lambda key: Mine(eqx.nn.Linear(6, 3, key=key))  # noqa: E731
    federation = classes_federation()
    result = saved_run(tmp_path / "own", federation, make)
    with pytest.raises(CoterieError, match=r"one of your own.*pass it, coterie.open\(.*model=\.\.\.\)"):
        ct.open(tmp_path / "own").model("client-0")
    x = federation.test.x[0]
    opened = ct.open(tmp_path / "own", model=make).model("client-0")
    np.testing.assert_array_equal(opened(x), result.model("client-0")(x))


def test_numbers_are_in_their_unit_with_intervals(numbers):
    result, federation = numbers
    table = ct.open(result.folder).model("client-0").predict(federation.test.x[0])
    outputs = result.model("client-0")(federation.test.x[0])[:, 0]
    np.testing.assert_allclose(table["prediction"], outputs * 7.0 + 100.0, rtol=1e-6)
    count = federation.validation.count[0]
    residuals = np.abs(
        result.model("client-0")(federation.validation.x[0, :count])[:, 0] - federation.validation.y[0, :count]
    )
    place = int(np.ceil((count + 1) * 0.9))  # the finite-sample quantile
    half = 7.0 * np.sort(residuals)[place - 1]
    np.testing.assert_allclose(table["high"] - table["prediction"], half, rtol=1e-5)
    np.testing.assert_allclose(table["prediction"] - table["low"], half, rtol=1e-5)
    wider = ct.open(result.folder).model("client-0").predict(federation.test.x[0], level=0.95)
    assert (wider["high"] - wider["low"] >= table["high"] - table["low"]).all()


def test_in_memory_and_from_the_folder_are_the_same(numbers):
    result, federation = numbers
    rows = federation.test.x[1]
    pd.testing.assert_frame_equal(result.model(1).predict(rows), ct.open(result.folder).model("client-1").predict(rows))


def test_intervals_cover_what_they_promise():
    # 2,000 new rows after 30 residuals each: coverage of split conformal is Beta((n + 1)(1 - a), ...), mean >= level.
    random = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        half = half_width(np.abs(random.standard_normal((30, 1))), 0.9)
        covered.append((np.abs(random.standard_normal(200)) <= half[0]).mean())
    assert 0.9 <= np.mean(covered) <= 0.92  # ceil(31 * 0.9) / 31 = 28 / 31 = 0.903


def test_few_rows_take_the_pooled_interval():
    random = np.random.default_rng(1)
    few, many = (np.abs(random.standard_normal((n, 1))) for n in (5, 40))
    record = interval_record(["few", "many"], [few, 3 * many])
    pooled = np.sort(np.concatenate([few, 3 * many])[:, 0])[int(np.ceil(46 * 0.9)) - 1]
    assert half_width_of(record, "few", 0.9) == ([pooled], False)
    assert half_width_of(record, "many", 0.9) == ([np.sort(3 * many[:, 0])[36]], True)
    assert half_width_of(record, "unknown", 0.9)[1] is False
    assert half_width_of(record, "many", 0.99)[0] == [None]  # 45 rows cannot say what 99 % of rows do
    with pytest.raises(CoterieError, match="level must be one of"):
        half_width_of(record, "many", 0.7)


def test_a_comparison_opens_at_its_best_method(tmp_path):
    federation, both = classes_federation(), tmp_path / "both"
    for label, score in (("local", 0.6), ("fedavg", 0.7), ("ditto", 0.5), ("pooled", 0.9)):
        saved_run(both / label / "seed-0", federation, "linear", label, score=score)
    tables = {
        "data": {"name": "csv"},
        "run": {"seed": 0},
        "compare": {"methods": ["local", "fedavg", "ditto", "pooled"], "seeds": 1},
    }
    (both / "comparison.toml").write_text(dump_toml(tables))
    assert ct.open(both).config["method"]["name"] == "fedavg"  # pooled needs everybody's data
    assert ct.open(both, "pooled").config["method"]["name"] == "pooled"
    with pytest.raises(CoterieError, match="no method 'fedvag'; did you mean fedavg"):
        ct.open(both, "fedvag")
    RunFolder(both / "ditto" / "seed-0").save_scores({"counts": np.ones(5, int), "test.accuracy": np.full(5, 0.8)})
    assert ct.open(both).config["method"]["name"] == "ditto"  # every score of the kept models, where the run has them
    (both / "fedavg" / "seed-0" / "summary.json").unlink()
    (both / "ditto" / "seed-0" / "summary.json").unlink()
    assert ct.open(both).config["method"]["name"] == "local"
    with pytest.raises(CoterieError, match="is not complete; continue it with"):
        ct.open(both, "fedavg")


def test_old_folders_say_what_they_lack(classes, tmp_path):
    shutil.copytree(classes[0].folder, tmp_path / "old")
    file = tmp_path / "old" / "clients.json"
    about = {key: value for key, value in json.loads(file.read_text()).items() if key != "sample_shape"}
    file.write_text(json.dumps(about))
    with pytest.raises(CoterieError, match=r"written by coterie 0\.1"):
        ct.open(tmp_path / "old").model("client-0")


def test_a_run_keeps_what_serving_needs(tmp_path, device):
    """One real run, end to end: the intervals and the shared model are written."""
    federation = numbers_federation()
    result = ct.run(federation, model="linear", method="ditto", rounds=2, out=tmp_path / "run", device=device)
    record = json.loads((tmp_path / "run" / "intervals.json").read_text())
    count = federation.validation.count[2]
    outputs = result.model(2)(federation.validation.x[2, :count])[:, 0]
    residuals = 7 * np.abs(outputs - federation.validation.y[2, :count])
    half = np.sort(residuals)[int(np.ceil((count + 1) * 0.8)) - 1]
    np.testing.assert_allclose(record["clients"]["client-2"]["half_widths"][1], [half], rtol=1e-5)
    shared = ct.open(tmp_path / "run").new_client()
    personal = [result.model(k).variables.params.weight for k in range(4)]
    assert all(not np.array_equal(shared.variables.params.weight, weight) for weight in personal)
    pd.testing.assert_frame_equal(
        result.model(0).predict(federation.test.x[0]),
        ct.open(tmp_path / "run").model("client-0").predict(federation.test.x[0]),
    )
