"""All scores of the kept models: on the clients' own samples, in memory and in the folder."""

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, mean_absolute_error, r2_score

import coterie as ct
from coterie.data.clients import Federation, stack
from coterie.errors import CoterieError
from coterie.experiment.scores import Scores

COUNTS = (70, 1, 6)  # more than a batch; a single sample; all of one class


@pytest.fixture(scope="module")
def federation():
    random = np.random.default_rng(0)

    def part(counts):
        rows = [
            (random.normal(size=(n, 3)).astype(np.float32), random.integers(0, 2, n).astype(np.int32)) for n in counts
        ]
        return stack(rows)

    test = part(COUNTS)
    test.y[2, :6] = 1
    return Federation(("a", "b", "c"), part((20, 9, 8)), part((5, 0, 4)), test, "classification", 2)


@pytest.fixture(scope="module")
def result(federation, tmp_path_factory):
    return ct.run(federation, "linear", "local", rounds=2, out=tmp_path_factory.mktemp("scores") / "run")


def predicted(result, federation, client, part="test"):
    split = getattr(federation, part)
    count = split.count[client]
    logits = result.model(client)(split.x[client, :count]).astype(float)
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True), split.y[client, :count]


def test_every_score_on_test_and_validation_samples(result, federation):
    assert set(result.scores) == {"accuracy", "balanced-accuracy", "auroc", "auprc", "log-loss", "brier"}
    np.testing.assert_allclose(result.scores["accuracy"], result.final["test_score"], rtol=1e-6)
    for client in range(3):
        p, y = predicted(result, federation, client)
        assert result.scores["log-loss"][client] == pytest.approx(log_loss(y, p, labels=[0, 1]), rel=1e-5)
        assert result.scores["brier"][client] == pytest.approx(brier_score_loss(y, p[:, 1], labels=[0, 1]), rel=1e-5)
    p, y = predicted(result, federation, 0)
    assert result.scores["auprc"][0] == pytest.approx(average_precision_score(y, p[:, 1]), rel=1e-6)
    p, y = predicted(result, federation, 0, "validation")
    assert result.validation_scores["log-loss"][0] == pytest.approx(log_loss(y, p, labels=[0, 1]), rel=1e-5)


def test_what_has_no_meaning_is_nan(result):
    for name in ("auroc", "auprc", "balanced-accuracy"):
        assert np.isnan(result.scores[name]).tolist() == [False, True, True]
    assert all(np.isnan(values[1]) for values in result.validation_scores.values())  # client b has no such samples
    assert np.isfinite(result.metrics.select_dtypes("number").to_numpy()).all()  # what training sees is finite


def test_values_per_sample(result, federation):
    losses = result.each("log-loss")
    assert losses.shape == (3, 70)
    assert (np.isfinite(losses).sum(1) == COUNTS).all()
    p, y = predicted(result, federation, 0)
    np.testing.assert_allclose(losses[0], -np.log(p[np.arange(70), y]), rtol=1e-4)
    for name in ("accuracy", "log-loss", "brier"):
        np.testing.assert_allclose(np.nanmean(result.each(name), axis=1), result.scores[name], rtol=1e-5)
    with pytest.raises(
        CoterieError, match="'auroc' has no value per sample; those that have one: accuracy, log-loss, brier"
    ):
        result.each("auroc")


def test_they_are_read_from_the_folder_when_asked_for(result):
    read = ct.Result.read(result.folder)
    assert read.scored is None
    for name, values in result.scores.items():
        np.testing.assert_array_equal(read.scores[name], values)
        np.testing.assert_array_equal(read.validation_scores[name], result.validation_scores[name])
    np.testing.assert_array_equal(read.each("brier"), result.each("brier"))


def test_a_folder_of_version_0_1_has_only_its_metric(result):
    old = dataclasses.replace(ct.Result.read(result.folder), folder=None)
    np.testing.assert_array_equal(old.scores["accuracy"], result.final["test_score"])
    assert list(old.scores) == list(old.validation_scores) == ["accuracy"]
    with pytest.raises(CoterieError, match="has no scores per sample; run it again"):
        old.each("accuracy")


def test_errors_of_a_regression_are_in_the_unit_of_its_target(tmp_path):
    """Targets 100 + 50 z are stored as z."""
    random = np.random.default_rng(1)
    rows = [
        (random.normal(size=(12, 2)).astype(np.float32), random.normal(size=12).astype(np.float32)) for _ in range(2)
    ]
    split = stack(rows)
    unit = {"target_mean": 100.0, "target_std": 50.0}
    clients = Federation(("a", "b"), split, split, split, "regression", 1, **unit)
    result = ct.run(clients, "linear", "fedavg", rounds=1)
    for client in range(2):
        y = 100 + 50 * split.y[client]
        output = 100 + 50 * result.model(client)(split.x[client])[:, 0]
        assert result.scores["mae"][client] == pytest.approx(mean_absolute_error(y, output), rel=1e-5)
        assert result.scores["r2"][client] == pytest.approx(r2_score(y, output), rel=1e-4)
        rmse = np.sqrt(np.mean((y - output) ** 2))
        assert result.final["test_score"][client] == pytest.approx(rmse, rel=1e-5)
        assert result.scores["rmse"][client] == pytest.approx(rmse, rel=1e-5)
        np.testing.assert_allclose(result.each("rmse")[client], (y - output) ** 2, rtol=1e-3, atol=1e-2)
    loss = 0.5 * (result.scores["rmse"] / 50) ** 2  # the loss stays that of the stored targets
    np.testing.assert_allclose(result.final["test_loss"], loss, rtol=1e-5)


def test_the_file_holds_what_was_written():
    counts = np.array([2, 0, 1])
    scores = Scores({"mae": np.ones(3)}, {"mae": np.zeros(3)}, counts, {"mae": np.array([1.0, 2.0, 3.0])})
    again = Scores.of(scores.arrays())
    np.testing.assert_array_equal(again.each("mae"), [[1, 2], [np.nan] * 2, [3, np.nan]])
    assert again.test["mae"].tolist() == [1, 1, 1]


def test_a_result_is_short_on_the_screen_and_a_table_in_a_notebook(result):
    mean = f"{100 * result.final['test_score'].mean():.1f} %"
    line = f"<Result: local on data from Python, 3 clients, round 2, mean accuracy {mean}, folder {result.folder}>"
    assert repr(result) == line
    page = result._repr_html_()
    assert "local on data from Python, 3 clients" in page
    assert f"<td>{result.scores['log-loss'].mean():.4g}</td>" in page
    assert f"<td>{result.scores['auroc'][0]:.4g}</td>" in page  # the mean of the only client that has one
