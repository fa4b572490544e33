"""The classifiers as scikit-learn's tools use them: its contract, pipelines, searches, metadata routing."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.special import expit
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from coterie.estimators import (
    HierarchicalLogisticRegression,
    HierarchicalLogisticRegressionCV,
    InvalidData,
    LocalLogisticRegression,
    PooledLogisticRegression,
)

ALL = [
    HierarchicalLogisticRegression,
    HierarchicalLogisticRegressionCV,
    LocalLogisticRegression,
    PooledLogisticRegression,
]
pytestmark = pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning")


def donors(seed=0, branches=20, regions=4, each=15):
    random = np.random.default_rng(seed)
    branch = np.repeat(np.arange(branches), each)
    frame = pd.DataFrame(
        {
            "branch": [f"b{i:02}" for i in branch],
            "age": random.normal(50, 10, len(branch)),
            "region": [f"r{i % regions}" for i in branch],
            "gifts": random.exponential(size=len(branch)),
        }
    )
    odds = 0.05 * (frame["age"] - 50) + frame["gifts"] - 1 + random.normal(size=branches)[branch]
    y = pd.Series(np.where(random.random(len(branch)) < expit(odds), "gave", "kept"))
    order = random.permutation(len(branch))
    return frame.iloc[order].reset_index(drop=True), y.iloc[order].reset_index(drop=True)


def quick(estimator):
    """Few penalties and folds: the contract runs dozens of fits, and few are enough for it."""
    return estimator(gammas=(1.0, 10.0), cv=2) if estimator is HierarchicalLogisticRegressionCV else estimator()


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# The checks are scikit-learn's; only array API support is skipped, which needs a back end we do not install.
@parametrize_with_checks([quick(estimator) for estimator in ALL], expected_failed_checks=lambda _: {})
@pytest.mark.filterwarnings("ignore::coterie.estimators.UngroupedWarning")  # its checks know no groups
def test_the_contract_of_scikit_learn(estimator, check):
    if "array_api" not in str(check):
        check(estimator)


@pytest.mark.parametrize("estimator", ALL)
def test_a_named_column_gives_the_same_as_an_array(estimator):
    X, y = donors()
    named = quick(estimator).set_params(groups="branch", within="region").fit(X, y)
    features = X[["age", "gifts"]]
    arrays = quick(estimator).fit(features, y, groups=X["branch"], within=X["region"].to_numpy())
    lists = quick(estimator).fit(features, y, groups=X["branch"].tolist(), within=X["region"])
    for other in (arrays, lists):
        np.testing.assert_array_equal(other.coef_, named.coef_)
    np.testing.assert_array_equal(arrays.predict_proba(features, groups=X["branch"]), named.predict_proba(X))
    assert arrays.score(features, y, groups=X["branch"]) == named.score(X, y)
    assert named.feature_names_in_.tolist() == ["age", "gifts"]
    again = pickle.loads(pickle.dumps(named))
    np.testing.assert_array_equal(again.predict(X), named.predict(X))


def test_column_names_in_a_pipeline_a_search_and_out_of_fold():
    X, y = donors()
    scale = ColumnTransformer(
        [("scale", StandardScaler(), ["age", "gifts"])], remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    model = make_pipeline(scale, HierarchicalLogisticRegression("branch", "region", random="intercept"))
    search = GridSearchCV(
        model,
        {"hierarchicallogisticregression__group_variance": [0.01, 1.0, None]},
        cv=KFold(3),
        scoring="neg_log_loss",
    ).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.predict(X).shape == y.shape
    held_out = cross_val_predict(model, X, y, cv=KFold(3), method="predict_proba")
    train, test = next(KFold(3).split(X))
    expected = model.fit(X.iloc[train], y.iloc[train]).predict_proba(X.iloc[test])
    np.testing.assert_allclose(held_out[test], expected, atol=1e-12)


@pytest.mark.usefixtures("routing")
def test_arrays_are_routed():
    X, y = donors()
    features = X[["age", "gifts"]]
    model = HierarchicalLogisticRegression(group_variance=1.0)
    # By the model's own `score`: scikit-learn's scorers pass no arrays to a prediction (columns by name need none).
    scores = cross_val_score(model, features, y, cv=KFold(3), params={"groups": X["branch"]})
    by_name = HierarchicalLogisticRegression("branch", group_variance=1.0)
    np.testing.assert_array_equal(scores, cross_val_score(by_name, X[["age", "gifts", "branch"]], y, cv=KFold(3)))
    pipeline = make_pipeline(StandardScaler(), model).fit(features, y, groups=X["branch"])
    probabilities = pipeline.predict_proba(features, groups=X["branch"])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_a_model_of_several_groups_needs_them_to_predict():
    X, y = donors()
    model = PooledLogisticRegression().fit(X[["age", "gifts"]], y, groups=X["branch"])
    with pytest.raises(InvalidData, match="groups: the model was fitted with 20 groups"):
        model.predict_proba(X[["age", "gifts"]])


def test_the_log_odds_of_another_model_as_an_offset():
    """With the true log-odds as an offset nothing is left to correct, given as a column or as an array."""
    X, y = donors()
    truth = 0.05 * (X["age"] - 50) + X["gifts"] - 1
    by_name = HierarchicalLogisticRegression("branch", "region", offset="truth", random="intercept", group_variance=1.0)
    by_name.set_params(within_variance=0.1).fit(X.assign(truth=truth), y == "gave")
    by_array = HierarchicalLogisticRegression("branch", "region", random="intercept", group_variance=1.0)
    by_array.set_params(within_variance=0.1).fit(X, y == "gave", offset=truth)
    np.testing.assert_array_equal(by_array.intercept_, by_name.intercept_)
    np.testing.assert_array_equal(by_array.predict(X, offset=truth), by_name.predict(X.assign(truth=truth)))
    errors = by_name.summary().coefficients["standard error"]
    assert (np.abs(np.r_[by_name.global_coef_]) < 3 * errors[1:]).all()
