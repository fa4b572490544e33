"""Loggers get every evaluation as a plain dict; a run from Python opens its models again without its data."""

import json

import numpy as np
import pytest

import coterie as ct
from coterie.experiment.evaluations import evaluation
from coterie.experiment.result import Result
from coterie.methods import FedAvg
from coterie.testing.small import small_federation


def test_an_evaluation_is_plain_values():
    metrics = {"test_score": np.array([0.5, 1.0], np.float32), "validation_score": np.array([np.nan, 0.25])}
    told = evaluation("ditto", np.int64(3), 5, 10, metrics)
    assert told == {
        "method": "ditto",
        "seed": 3,
        "round": 5,
        "rounds": 10,
        "test_score": 0.75,
        "validation_score": 0.25,
        "clients": {"test_score": [0.5, 1.0], "validation_score": [pytest.approx(np.nan, nan_ok=True), 0.25]},
    }
    assert type(told["seed"]) is int
    json.dumps(told)


def test_every_evaluation_of_runs_and_comparisons_is_told(device, tmp_path):
    federation, told = small_federation(4), []
    result = ct.run(
        federation, "linear", FedAvg(), rounds=3, evaluate_every=2, device=device, on_evaluation=told.append,
        out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert [(one["method"], one["seed"], one["round"], one["rounds"]) for one in told] == [
        ("fedavg", 0, 2, 3),
        ("fedavg", 0, 3, 3),
    ]
    assert told[-1]["clients"]["test_score"] == pytest.approx(result.final["test_score"].tolist())
    assert told[-1]["test_score"] == pytest.approx(result.final["test_score"].mean())
    # The same folder is read back: the data are not there, and the model answers as before.
    again = Result.read(tmp_path / "run")
    x = federation.test.x[1]
    np.testing.assert_array_equal(again.model("client-1")(x), result.model("client-1")(x))
    told.clear()
    ct.compare(
        federation, ["local"], seeds=2, rounds=2, model="linear", tune=False, device=device,
        on_evaluation=told.append, progress=False,
    )  # fmt: skip
    assert {(one["method"], one["seed"]) for one in told} == {("local", 0), ("local", 1)}
