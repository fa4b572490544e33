"""Correlated, crossed and deeper effects, weights, errors and tests against lme4 (tests/reference)."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.estimators import HierarchicalLinearRegression, HierarchicalLogisticRegression, InvalidData

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "simulated.json").read_text())
FITS = REFERENCE["fits"]
# R's formula, in our words: sex is a word, which R makes a factor of.
FORMULAS = {
    "correlated": "score ~ age + C(sex) + (1 + age | school)",
    "likelihood": "score ~ age + C(sex) + (1 + age | school)",
    "crossed": "score ~ age + (1 + age | school) + (1 | town)",
    "three": "score ~ age + (1 | region/district/school)",
    "weights": "score ~ age + (1 | school)",
    "logistic": "passed ~ age + C(sex) + (1 + age | school)",
    "logistic_crossed": "passed ~ age + (1 | school) + (1 | town)",
    "logistic_weights": "passed ~ age + (1 | school)",
}
pytestmark = pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning")


def rows():
    return pd.DataFrame(REFERENCE["rows"])


@pytest.fixture(scope="module", params=sorted(FORMULAS))
def fitted(request):
    name = request.param
    kind = HierarchicalLogisticRegression if name.startswith("logistic") else HierarchicalLinearRegression
    settings = {"weights": "w"} if name.endswith("weights") else {}
    settings |= {"likelihood": "marginal"} if name == "likelihood" else {}
    return FITS[name], kind.from_formula(FORMULAS[name], **settings).fit(rows())


def test_likelihood(fitted):
    theirs, model = fitted
    assert model.log_likelihood_ == pytest.approx(theirs["log_likelihood"], abs=1e-5)  # ours is higher, by 6e-6 at most
    assert model.log_likelihood_ > theirs["log_likelihood"] - 1e-7
    assert model.aic_ == pytest.approx(theirs["AIC"], abs=2e-5)
    assert model.bic_ == pytest.approx(theirs["BIC"], abs=2e-5)
    assert model.converged_


def test_coefficients_and_standard_errors(fitted):
    theirs, model = fitted
    np.testing.assert_allclose(model._coefficients(), theirs["fixed"], rtol=1e-4, atol=1e-5)
    # glmer's Hessian is a difference of likelihoods, and not as precise as its estimates.
    tolerance = 1e-3 if isinstance(model, HierarchicalLogisticRegression) else 1e-5
    np.testing.assert_allclose(model.bse_, theirs["standard_error"], rtol=tolerance)


def test_covariances(fitted):
    theirs, model = fitted
    for name, matrix in theirs["levels"].items():
        ours = model.covariances_[name.split(":")[0]]  # theirs is school:(district:region)
        np.testing.assert_allclose(ours, np.atleast_2d(matrix), rtol=1e-3, atol=1e-4)
    if theirs.get("residual"):
        assert model.variance_components_["residual"] == pytest.approx(theirs["residual"], rel=1e-5)


def test_predicted_effects_and_predictions(fitted):
    theirs, model = fitted
    for name, table in theirs["effects"].items():
        ours = model.random_effects_[name.split(":")[0]]
        labels = [label.split(":")[0] for label in table["label"]]
        for column, values in zip(ours.columns[::2], table["value"], strict=True):
            np.testing.assert_allclose(ours.loc[labels, column], values, atol=1e-3)
    logistic = isinstance(model, HierarchicalLogisticRegression)
    predicted = (model.decision_function if logistic else model.predict)(rows())[:5]
    np.testing.assert_allclose(predicted, theirs["fitted"], atol=2e-3)


def test_profile_intervals_and_the_likelihood_ratio_are_lme4s():
    large = HierarchicalLinearRegression.from_formula("score ~ age + (1 + age | school)").fit(rows())
    np.testing.assert_allclose(large.conf_int(method="profile"), REFERENCE["profile"], rtol=1e-4)
    wald = large.conf_int()
    assert (wald["lower"] < wald["upper"]).all()
    # Without age among the coefficients it cannot vary here, so the smaller model is smaller than R's.
    small = HierarchicalLinearRegression.from_formula("score ~ 1 + (1 | school)").fit(rows())
    table = small.compare(large)
    assert table.index.tolist() == ["this", "other"]
    assert table.attrs["likelihood"] == "marginal"
    assert table["df"].iloc[1] == 3
    ratio = 2 * (table["log-likelihood"].iloc[1] - table["log-likelihood"].iloc[0])
    assert table["chi-square"].iloc[1] == pytest.approx(ratio)
    assert ratio > REFERENCE["test"]["chisq"]  # R's smaller model lies between
    assert 0 <= table["p"].iloc[1] < REFERENCE["test"]["p"] + 1e-12
    marginal = HierarchicalLinearRegression.from_formula("score ~ age + (1 + age | school)", likelihood="marginal")
    assert table["log-likelihood"].iloc[1] == pytest.approx(marginal.fit(rows()).log_likelihood_, abs=1e-7)


def test_models_that_cannot_be_compared():
    large = HierarchicalLinearRegression.from_formula("score ~ age + (1 | school)").fit(rows())
    with pytest.raises(InvalidData, match="different rows"):
        large.compare(HierarchicalLinearRegression.from_formula("score ~ 1 + (1 | school)").fit(rows()[:200]))
    with pytest.raises(InvalidData, match="same number of parameters"):
        large.compare(large)
    other = HierarchicalLinearRegression.from_formula("score ~ age + (1 + age | school) + (1 | town)").fit(rows())
    small = HierarchicalLinearRegression.from_formula("score ~ C(sex) + (1 | school)").fit(rows())
    with pytest.raises(InvalidData, match="only the smaller one has C"):
        small.compare(other)
    with pytest.raises(InvalidData, match="same kind"):
        large.compare(3)


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_the_federated_way_is_sums_of_cells(kind):
    """Crossed levels need one message of each cell (school and town), and give the same numbers."""
    frame, estimator = rows(), HierarchicalLinearRegression if kind == "linear" else HierarchicalLogisticRegression
    settings = {"groups": "school", "crossed": "town", "random": "intercept"}
    columns = ["age", "school", "town"]
    target = frame["score" if kind == "linear" else "passed"]
    plain, federated = (estimator(**settings, federated=f).fit(frame[columns], target) for f in (False, True))
    np.testing.assert_array_equal(plain.coef_, federated.coef_)
    cells = len(frame[["school", "town"]].drop_duplicates())
    assert len(federated.statistics_) == cells
    assert federated.ledger_["bytes_up"] == cells * federated.ledger_["bytes_up_per_group"]
    theirs = FITS["logistic_crossed"] if kind == "logistic" else None
    if theirs:
        assert federated.log_likelihood_ == pytest.approx(theirs["log_likelihood"], abs=1e-5)
    else:
        assert federated.ledger_["rounds"] == 1


def test_the_standard_deviation_of_a_prediction_where_levels_cross():
    frame = rows()
    model = HierarchicalLinearRegression("school", crossed="town", random="intercept").fit(
        frame[["age", "school", "town"]], frame["score"]
    )
    new = (
        frame[["age", "school", "town"]]
        .head(4)
        .assign(school=["s01", "new", "s01", "new"], town=["t01", "t01", "x", "x"])
    )
    _, deviation = model.predict(new, return_std=True)
    v = {name: matrix[0, 0] for name, matrix in model.covariances_.items()}
    residual = model.variance_components_["residual"]
    assert deviation[0] < deviation[1] < deviation[3]
    assert deviation[0] > np.sqrt(residual)
    assert deviation[3] > np.sqrt(residual + v["school"] + v["town"])
    # Henderson's equations, densely: beta, schools, towns.
    X = np.column_stack([np.ones(len(frame)), frame["age"]])
    Z = [pd.get_dummies(frame[name]).to_numpy(float) for name in ("school", "town")]
    whole = np.column_stack([X, *Z])
    prior = np.r_[0, 0, np.full(24, residual / v["school"]), np.full(12, residual / v["town"])]
    covariance = residual * np.linalg.inv(whole.T @ whole + np.diag(prior))
    x = np.zeros(whole.shape[1])
    x[:2], x[2], x[2 + 24] = [1.0, new["age"].iloc[0]], 1.0, 1.0
    assert deviation[0] ** 2 == pytest.approx(residual + x @ covariance @ x, rel=1e-8)
