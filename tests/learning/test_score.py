"""Scores against scikit-learn and by hand; how they are chosen and written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    log_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

import coterie as ct
from coterie.data.clients import Split
from coterie.errors import CoterieError
from coterie.learning.evaluate import BATCH, client_metrics
from coterie.learning.measures import auroc
from coterie.learning.score import SCORES, score_of, scores_of, verdict_score, verdict_words
from coterie.learning.task import Task, Variables
from coterie.testing.small import small_federation
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


def one_against_the_rest(y, probabilities):
    """Macro average precision; scikit-learn has it for indicators only. Of two classes, the second one's."""
    classes = [1] if probabilities.shape[1] == 2 else np.unique(y)
    return np.mean([average_precision_score(y == c, probabilities[:, c]) for c in classes])


ORACLES = {
    "accuracy": lambda y, p, classes: np.mean(p.argmax(1) == y),
    "balanced-accuracy": lambda y, p, classes: balanced_accuracy_score(y, p.argmax(1)),
    "auroc": lambda y, p, classes: np.mean([roc_auc_score(y == c, p[:, c]) for c in np.unique(y)]),
    "auprc": lambda y, p, classes: one_against_the_rest(y, p),
    "log-loss": lambda y, p, classes: log_loss(y, p, labels=classes),
    "brier": lambda y, p, classes: brier_score_loss(y, p, labels=classes),
}


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([2, 3, 6]), st.booleans())
def test_classification_scores_as_in_scikit_learn(seed, count, classes, ties):
    """Any number of samples from 1 on, ties, classes that no sample has."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, classes))
    if ties:
        logits = logits[random.integers(0, min(count, 4), count)]
    y = random.integers(0, classes, count)
    probabilities = softmax(logits)
    assert set(ORACLES) == {score.name for score in scores_of("classification")}
    for name, oracle in ORACLES.items():
        value = SCORES[name].measure(logits, y)
        if SCORES[name].whole is not None and len(set(y)) == 1:
            assert np.isnan(value), name  # one class: the score has no meaning
        else:
            assert value == pytest.approx(oracle(y, probabilities, np.arange(classes)), rel=1e-9), name


@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_scores_as_in_scikit_learn(outputs):
    random = np.random.default_rng(outputs)
    y, output = random.normal(size=(17, outputs)), random.normal(size=(17, outputs))
    target = y[:, 0] if outputs == 1 else y  # one number per sample may be stored without a second axis
    assert SCORES["mae"].measure(output, target) == pytest.approx(mean_absolute_error(y, output))
    assert SCORES["r2"].measure(output, target) == pytest.approx(r2_score(y, output))
    if outputs == 1:
        assert SCORES["rmse"].measure(output, target) == pytest.approx(root_mean_squared_error(y, output))
    assert np.isnan(SCORES["r2"].measure(output[:1], target[:1]))  # a single sample has no variance
    assert np.isnan(SCORES["r2"].measure(output, np.ones_like(target)))
    assert [score.measure(output[:0], target[:0]) for score in scores_of("regression")] == [
        pytest.approx(np.nan, nan_ok=True)
    ] * 3


def test_scores_of_text_are_means_over_its_characters():
    logits = np.log(np.array([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], [[0.2, 0.2, 0.6], [0.2, 0.2, 0.6]]]))
    y = np.array([[0, 1], [2, 0]])
    np.testing.assert_allclose(SCORES["accuracy"].each(logits, y), [0.5, 0.5])
    np.testing.assert_allclose(SCORES["log-loss"].each(logits, y), -np.log([0.5 * 0.1, 0.6 * 0.2]) / 2)


@pytest.mark.parametrize("name", [score.name for score in SCORES.values()])
def test_programs_compute_what_the_host_does_without_padding(x64, name):
    score, random = SCORES[name], np.random.default_rng(3)
    kind = score.kinds[0]
    output = random.normal(size=(12, 3))
    y = random.normal(size=(12, 3)) if kind == "regression" else random.integers(0, 3, 12)
    if score.each is not None:
        np.testing.assert_allclose(jax.jit(score.each)(output, y), score.each(output, y), rtol=1e-12)
        return
    real = np.arange(12) < 9
    padded = np.where(real[:, None], output, np.nan), np.where(real if y.ndim == 1 else real[:, None], y, 99)
    value = jax.jit(score.whole)(*map(jnp.asarray, padded), jnp.asarray(real))
    assert float(value) == pytest.approx(score.measure(output[:9], y[:9]), rel=1e-12)
    same = np.zeros_like(y)  # where it has no meaning training still needs a number
    assert np.isfinite(jax.jit(score.whole)(jnp.asarray(output), jnp.asarray(same), jnp.asarray(real)))
    assert np.isnan(score.measure(output, same))


def test_a_class_that_cannot_be_predicted_has_a_finite_log_loss():
    """Only the client's own labels compete in `own_score`; a test sample may have another label."""
    logits = np.array([[1.0, -np.inf], [1.0, -np.inf]])
    np.testing.assert_allclose(SCORES["log-loss"].each(logits, np.array([0, 1])), [0, 23 * np.log(2)])  # float32
    np.testing.assert_allclose(SCORES["brier"].each(logits, np.array([0, 1])), [0, 1])


def test_errors_are_in_the_unit_of_the_target():
    assert SCORES["rmse"].in_unit(2.0, 3.0) == pytest.approx(6)
    assert SCORES["mae"].in_unit(2.0, 3.0) == pytest.approx(6)
    assert SCORES["r2"].in_unit(0.5, 3.0) == SCORES["accuracy"].in_unit(0.5, 3.0) == 0.5


def test_the_verdict_is_on_a_score_that_suits_the_classes():
    balanced, rare = [[50, 50], [40, 60]], [[90, 10], [70, 30]]
    assert verdict_score("classification", balanced) == "accuracy"
    assert verdict_score("classification", rare) == "log-loss"
    assert verdict_score("classification", [[9, 1], [8, 2], [60, 50]]) == "log-loss"  # of most clients
    assert verdict_score("classification", [[20, 0, 0], [0, 20, 0], [0, 0, 20]]) == "accuracy"  # each has its own class
    assert verdict_score("classification", []) == "accuracy"  # not recorded
    assert verdict_score("regression", np.zeros((3, 0))) == "rmse"
    assert verdict_score("next-character") == "accuracy"
    words = verdict_words("classification", rare, ("survived", "died"))
    assert (
        "by log-loss (lower is better), not by accuracy: 80 % of the training rows are of one class, survived" in words
    )
    words = verdict_words("classification", [[9, 1], [8, 2], [60, 50]])
    assert "80 % of the median client's training rows are of one class, 0" in words
    assert verdict_words("classification", balanced) == "Methods are judged by accuracy."


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


@pytest.mark.soak
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
