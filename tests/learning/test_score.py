"""AUROC against scikit-learn and by hand; how scores are chosen and written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import coterie as ct
from coterie.data.clients import Split
from coterie.errors import CoterieError
from coterie.learning.evaluate import BATCH, client_metrics
from coterie.learning.score import SCORES, auroc, score_of
from coterie.learning.task import Task, Variables
from coterie.testing.contract import small_federation
from support.cases import Weights


def softmax(logits):
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def area(logits, y, mask=None):
    mask = jnp.ones(len(y), bool) if mask is None else jnp.asarray(mask)
    return float(jax.jit(auroc)(jnp.asarray(logits), jnp.asarray(y), mask))


def test_a_case_done_by_hand(x64):
    """Positives 2, 1 against negatives 1, 0: three pairs in the right order, one tie: 3.5 of 4."""
    logits = np.array([[0.0, 2.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    assert area(logits, np.array([1, 1, 0, 0])) == 3.5 / 4
    assert area(logits, np.array([0, 0, 1, 1])) == 0.5 / 4  # the same with the classes exchanged


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 40), st.booleans())
def test_two_classes_as_in_scikit_learn_with_ties_and_padding(seed, count, ties):
    random = np.random.default_rng(seed)
    logits = random.integers(-2, 3, (40, 2)) if ties else random.normal(size=(40, 2)) * 100
    y, mask = random.integers(0, 2, 40), np.arange(40) < count
    if len(set(y[mask])) < 2:
        assert area(logits.astype(float), y, mask) == 0.5
        return
    expected = roc_auc_score(y[mask], (logits[:, 1] - logits[:, 0])[mask])
    with np.errstate(invalid="ignore"):
        poisoned = np.where(mask[:, None], logits, np.nan)
    assert area(poisoned, np.where(mask, y, 99), mask) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("ties", [False, True])
def test_several_classes_are_a_mean_of_one_against_the_rest(x64, ties):
    random = np.random.default_rng(1)
    logits, y = random.normal(size=(200, 5)), random.integers(0, 5, 200)
    if ties:
        logits, y = np.repeat(logits[:100], 2, axis=0), random.integers(0, 5, 200)
    expected = roc_auc_score(y, softmax(logits), multi_class="ovr")
    assert area(logits, y) == pytest.approx(expected, rel=1e-12)
    few = y < 3  # classes that no sample has do not count
    columns = [roc_auc_score(y[few] == c, softmax(logits[few])[:, c]) for c in range(3)]
    assert area(logits[few], y[few]) == pytest.approx(np.mean(columns), rel=1e-12)


def test_a_client_is_evaluated_on_all_its_samples_at_once(x64):
    """More samples than a batch, padding with NaN, and a head of the client's own labels only."""
    random = np.random.default_rng(2)
    count, weights = BATCH + 9, random.normal(size=(3, 4))
    x, y = random.normal(size=(count + 5, 4)), random.integers(0, 3, count + 5)
    x[count:], y[count:] = np.nan, 99
    task = Task(Weights(jnp.zeros((3, 4))), "classification", dtype=jnp.float64, metric="auroc")
    split = Split(jnp.asarray(x), jnp.asarray(y), jnp.int32(count))
    own = jnp.array([True, True, False])
    metrics = client_metrics(task, Variables(Weights(jnp.asarray(weights))), split, own)
    logits = x[:count] @ weights.T
    assert metrics.score == pytest.approx(roc_auc_score(y[:count], softmax(logits), multi_class="ovr"), rel=1e-12)
    odds = logits[:, 1] - logits[:, 0]
    two = [roc_auc_score(y[:count] == 0, -odds), roc_auc_score(y[:count] == 1, odds)]  # class 2 is never predicted
    assert metrics.own_score == pytest.approx(np.mean([*two, 0.5]), rel=1e-12)
    assert metrics.loss == pytest.approx(
        np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(count), y[:count]]), rel=1e-12
    )
    nothing = client_metrics(task, Variables(Weights(jnp.asarray(weights))), split._replace(count=jnp.int32(0)), own)
    assert [float(value) for value in nothing] == [0, 0, 0]


def test_a_run_is_scored_by_the_chosen_metric(tmp_path):
    federation = small_federation(3)
    result = ct.run(federation, "linear", "local", rounds=2, metric="auroc", out=tmp_path / "run")
    assert (result.metric, ct.Result.read(tmp_path / "run").metric) == ("auroc", "auroc")
    count = federation.test.count[0]
    x, y = federation.test.x[0][:count], federation.test.y[0][:count]
    probability = softmax(result.model(0)(x).astype(float))
    areas = [roc_auc_score(y == c, probability[:, c]) for c in np.unique(y)]
    assert result.final["test_score"][0] == pytest.approx(np.mean(areas), abs=1e-6)
    assert "metric" not in ct.run(federation, "linear", "local", rounds=1).config["run"]  # as in earlier folders


def test_a_kind_of_task_has_its_scores():
    assert [score_of(kind).name for kind in ("classification", "regression", "next-character")] == [
        "accuracy",
        "rmse",
        "accuracy",
    ]
    with pytest.raises(CoterieError, match="metric of regression must be one of rmse, mae, r2, not 'auroc'"):
        score_of("regression", "auroc")
    with pytest.raises(CoterieError, match="did you mean auroc"):
        score_of("classification", "auroz")


def test_every_score_says_how_it_is_computed():
    for score in SCORES.values():
        assert (score.each is None) != (score.whole is None)
        assert score.kinds


def test_how_a_gain_is_written():
    assert [SCORES["accuracy"].gain(value) for value in (0.0123, -0.04, -0.0001)] == ["+1.2", "-4.0", "+0.0"]
    assert [SCORES["rmse"].gain(value) for value in (0.12345, -2.0, -0.0)] == ["+0.123", "-2", "+0"]
    assert (SCORES["accuracy"].unit, SCORES["auroc"].unit) == ("points of accuracy", "in AUROC")
