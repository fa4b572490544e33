"""A run on a table: scores in the target's unit, shared statistics in the ledger, the inputs in the folder."""

import json

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.experiment.folder import RunFolder

N = 120
RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "site": np.repeat(["a", "b", "c"], [57, 60, 3]),  # three rows: none is left for validation
        "dose": RANDOM.normal(5, 2, N),
        "colour": RANDOM.choice(["red", "blue"], N),
    }
).assign(cost=lambda f: 1e8 + 300 * f["dose"] + RANDOM.normal(0, 40, N))


@pytest.fixture(scope="module")
def federation():
    return ct.load(FRAME, target="cost", client="site")


@pytest.fixture(scope="module")
def result(federation, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return ct.run(federation, "linear", "fedavg", rounds=3, evaluate_every=3, out=out)


def test_the_score_is_in_the_targets_unit(federation, result):
    """The RMSE of predictions that are turned back into costs by hand; no divergence at the defaults."""
    for k, name in enumerate(federation.names):
        n = federation.test.count[k]
        predicted = result.model(name)(federation.test.x[k, :n])[:, 0].astype(float)
        error = (predicted - federation.test.y[k, :n]) * federation.target_std
        assert result.final["test_score"][k] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-4)
    assert federation.validation.count.tolist() == [6, 6, 0]
    assert federation.target_std > 100
    assert result.final["test_score"].max() < 700  # the targets' own deviation is about 600
    assert result.final["test_loss"].max() < 2  # the loss stays that of standardised targets


def test_without_a_unit_nothing_changes(federation):
    assert federation.arrays().unit.tolist() == [federation.target_std] * 3
    assert ct.load("digits", "iid", clients=2).arrays().unit is None


def test_shared_statistics_are_in_the_ledger(federation, result):
    first = result.ledger.edges().query("round == 0")
    for name in federation.names:
        up = first.query("sender == @name and receiver == 'hub'")["bytes"].sum()
        down = first.query("receiver == @name and sender == 'hub'")["bytes"].sum()
        sent_by_method = first.query("receiver == @name")["bytes"].sum() - federation.preparation.sent_bytes[name][1]
        assert up == federation.preparation.sent_bytes[name][0]
        assert down - sent_by_method == federation.preparation.sent_bytes[name][1]


def test_the_folder_keeps_the_preparation_and_the_unit(federation, result):
    folder = RunFolder(result.folder)
    assert folder.preparation() == federation.preparation
    about = folder.clients()
    assert (about["target_mean"], about["target_std"]) == (federation.target_mean, federation.target_std)
    assert (about["sample_shape"], about["dtype"]) == ([3], "float32")
    assert about["class_names"] == []
    assert json.loads((result.folder / "preparation.json").read_text())["target"]["name"] == "cost"


def test_arrays_have_no_preparation(tmp_path):
    arrays = ct.federation([(np.zeros((9, 2)), ["no", "yes", "no"] * 3)] * 2)
    folder = RunFolder(tmp_path)
    folder.create({}, arrays)
    assert folder.preparation() is None
    assert folder.clients()["class_names"] == ["no", "yes"]


def test_another_unit_is_other_data(federation):
    from coterie.experiment.fingerprint import fingerprint

    again = ct.load(FRAME, target="cost", client="site")
    assert fingerprint(again) == fingerprint(federation)
    doubled = ct.load(FRAME.assign(cost=2 * FRAME["cost"]), target="cost", client="site")
    assert np.allclose(doubled.train.y, federation.train.y)
    assert fingerprint(doubled) != fingerprint(federation)
