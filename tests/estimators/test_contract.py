"""The estimators with scikit-learn's tools and pandas: grouping, fallback for new groups, routing, clear errors."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie.estimators
from coterie.errors import CoterieError
from coterie.estimators import (
    HierarchicalLinearRegression,
    HierarchicalLinearRegressionCV,
    InvalidData,
    LocalRegression,
    PooledRegression,
    SingleClusterRegression,
    james_stein,
)

ALL = [
    HierarchicalLinearRegression,
    HierarchicalLinearRegressionCV,
    LocalRegression,
    PooledRegression,
    SingleClusterRegression,
]


def pupils(seed=0, schools=30, districts=5, each=12):
    random = np.random.default_rng(seed)
    school = np.repeat(np.arange(schools), each)
    frame = pd.DataFrame(
        {
            "school": [f"s{i:02}" for i in school],
            "age": random.normal(10, 2, len(school)),
            "district": [f"d{i % districts}" for i in school],
            "hours": random.exponential(size=len(school)),
        }
    )
    effect = random.normal(size=schools)[school] + random.normal(size=districts)[school % districts]
    y = 1.0 + 0.5 * frame["age"] - frame["hours"] + effect + random.normal(size=len(school))
    order = random.permutation(len(school))
    return frame.iloc[order].reset_index(drop=True), y.iloc[order].reset_index(drop=True)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_every_public_estimator_is_checked():
    """By scikit-learn's own list of checks, here or in test_classifiers.py; a new estimator joins one of the lists."""
    from estimators.test_classifiers import ALL as CLASSIFIERS

    public = {getattr(coterie.estimators, name) for name in coterie.estimators.__all__}
    found = {one for one in public if isinstance(one, type) and issubclass(one, BaseEstimator)}
    assert found == {*ALL, *CLASSIFIERS}
    assert len(found) >= 9


# The checks are scikit-learn's; only array API support is skipped, which needs a back end we do not install.
@parametrize_with_checks(
    [estimator() for estimator in ALL],
    expected_failed_checks=lambda _: {},
)
@pytest.mark.filterwarnings("ignore::coterie.estimators.UngroupedWarning")  # its checks know no groups
def test_the_contract_of_scikit_learn(estimator, check):
    if "array_api" not in str(check):
        check(estimator)


def test_importable_without_jax_pandas_and_plotly():
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "equinox", "optax", "pandas", "plotly", "networkx", "typer", "rich"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import numpy as np
from coterie.estimators import HierarchicalLinearRegression
model = HierarchicalLinearRegression().fit(np.eye(6)[:, :2], np.arange(6.0), groups=list("aabbcc"))
assert model.coef_.shape == (3, 2)
assert not {"jax", "pandas", "plotly"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there():
    import coterie.estimators as package

    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    assert package.__all__ == dir(package)
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        _ = package.Unknown


@pytest.mark.parametrize("estimator", ALL)
def test_a_named_column_gives_the_same_as_an_array(estimator):
    X, y = pupils()
    named = estimator(groups="school", within="district").fit(X, y)
    features = X[["age", "hours"]]
    arrays = estimator().fit(features, y, groups=X["school"], within=X["district"].to_numpy())
    lists = estimator().fit(features, y, groups=X["school"].tolist(), within=X["district"].astype("category"))
    for other in (arrays, lists):
        np.testing.assert_array_equal(other.coef_, named.coef_)
        assert other.groups_.tolist() == named.groups_.tolist() == sorted(set(X["school"]))
    np.testing.assert_array_equal(arrays.predict(features, groups=X["school"]), named.predict(X))
    np.testing.assert_array_equal(lists.predict(features, groups=X["school"]), named.predict(X))
    assert arrays.score(features, y, groups=X["school"]) == named.score(X, y)
    assert named.n_features_in_ == 2
    assert named.feature_names_in_.tolist() == ["age", "hours"]


def test_a_column_of_an_array_by_number():
    X, y = pupils()
    numbers = np.column_stack([X["age"], X["school"].str[1:].astype(int), X["hours"]])
    by_number = HierarchicalLinearRegression(groups=1).fit(numbers, y)
    by_name = HierarchicalLinearRegression(groups="school").fit(X[["age", "school", "hours"]], y)
    np.testing.assert_array_equal(by_number.predict(numbers), by_name.predict(X[["age", "school", "hours"]]))


def test_coefficients_as_a_frame():
    X, y = pupils()
    model = HierarchicalLinearRegression("school", "district").fit(X, y)
    frame = model.coef_frame()
    assert frame.index.name == "school"
    assert frame.columns.tolist() == ["district", "intercept", "age", "hours"]
    assert frame.loc["s07", "district"] == "d2"
    row = X.index[X["school"] == "s07"][0]
    by_hand = frame.loc["s07", "intercept"] + frame.loc["s07", ["age", "hours"]] @ X.loc[row, ["age", "hours"]]
    assert model.predict(X)[row] == pytest.approx(by_hand)


def test_new_groups_fall_back_to_their_district_and_then_to_all():
    X, y = pupils()
    model = HierarchicalLinearRegression("school", "district").fit(X, y)
    new = X.iloc[:3].assign(school=["s00", "new", "new"], district=["d0", "d3", "nowhere"])
    features = new[["age", "hours"]].to_numpy()
    expected = [
        model.intercept_[0] + features[0] @ model.coef_[0],
        model.within_intercept_[3] + features[1] @ model.within_coef_[3],
        model.global_intercept_ + features[2] @ model.global_coef_,
    ]
    np.testing.assert_allclose(model.predict(new), expected, rtol=1e-12)
    one_level = HierarchicalLinearRegression("school").fit(X.drop(columns="district"), y)
    answer = one_level.predict(new.drop(columns="district"))
    assert answer[1] == pytest.approx(one_level.global_intercept_ + features[1] @ one_level.global_coef_)


def test_an_unknown_group_without_its_district_gets_the_global_model():
    X, y = pupils()
    features = X[["age", "hours"]]
    model = HierarchicalLinearRegression().fit(features, y, groups=X["school"], within=X["district"])
    known = model.predict(features, groups=X["school"])  # a known group's district is known
    np.testing.assert_array_equal(known, model.predict(features, groups=X["school"], within=X["district"]))
    new = model.predict(features, groups=["new"] * len(X))
    np.testing.assert_allclose(new, model.global_intercept_ + features @ model.global_coef_)


def test_pipeline_grid_search_and_cross_validation_with_column_names():
    X, y = pupils()
    scale = ColumnTransformer(
        [("scale", StandardScaler(), ["age", "hours"])], remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    pipeline = make_pipeline(scale, HierarchicalLinearRegression("school", "district", random="intercept"))
    folds = KFold(4, shuffle=True, random_state=0)
    predicted = cross_val_predict(pipeline, X, y, cv=folds)
    pooled = cross_val_predict(make_pipeline(scale, PooledRegression("school", "district")), X, y, cv=folds)
    assert np.mean((predicted - y) ** 2) < 0.8 * np.mean((pooled - y) ** 2)
    # The unit of a fixed coefficient does not matter: no scaling, same answers.
    plain = cross_val_predict(pipeline[-1], X, y, cv=folds)
    np.testing.assert_allclose(plain, predicted, atol=1e-6)
    search = GridSearchCV(pipeline, {"hierarchicallinearregression__random": ["all", "intercept"]}, cv=folds)
    search.fit(X, y)
    assert search.best_params_ == {"hierarchicallinearregression__random": "intercept"}
    assert search.best_score_ == pytest.approx(cross_val_score(pipeline, X, y, cv=folds).mean())


def test_routing_of_arrays(routing):
    X, y = pupils()
    features, groups = X[["age", "hours"]], X["school"]
    folds = KFold(4, shuffle=True, random_state=0)
    routed = cross_validate(HierarchicalLinearRegression(), features, y, cv=folds, params={"groups": groups})
    named = cross_val_score(HierarchicalLinearRegression("school"), X.drop(columns="district"), y, cv=folds)
    np.testing.assert_allclose(routed["test_score"], named, rtol=1e-10)
    model = HierarchicalLinearRegression().set_fit_request(within=False)
    assert not model.get_metadata_routing().fit.requests["within"]
    pipeline = make_pipeline(StandardScaler(), HierarchicalLinearRegression(random="intercept"))
    search = GridSearchCV(pipeline, {"hierarchicallinearregression__fit_intercept": [True]}, cv=GroupKFold(3))
    best = search.fit(features, y, groups=groups).best_estimator_  # a search has no predict with metadata
    expected = HierarchicalLinearRegression(random="intercept").fit(features, y, groups=groups)
    predicted = best.predict(features, groups=groups)
    np.testing.assert_allclose(predicted, expected.predict(features, groups=groups), atol=1e-6)


def test_the_hierarchy_corrects_another_model_by_an_offset():
    X, y = pupils(each=20)
    y = y + 2 * np.sin(X["age"])  # no linear model sees this
    boosted = GradientBoostingRegressor(n_estimators=50, random_state=0)
    offset = cross_val_predict(boosted, X[["age", "hours"]], y)
    both = X.assign(boosted=offset)
    model = HierarchicalLinearRegression("school", "district", random="intercept", offset="boosted")
    folds = KFold(4, shuffle=True, random_state=0)
    errors = {
        "both": np.mean((cross_val_predict(model, both, y, cv=folds) - y) ** 2),
        "boosted": np.mean((offset - y) ** 2),
        "linear": np.mean((cross_val_predict(model.set_params(offset=None), X, y, cv=folds) - y) ** 2),
    }
    assert errors["both"] < min(errors["boosted"], errors["linear"])


def test_copies_and_pickles_predict_the_same():
    X, y = pupils()
    model = HierarchicalLinearRegression("school", "district").fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
    assert sklearn.clone(model).get_params() == model.get_params()


def test_summary():
    X, y = pupils()
    model = HierarchicalLinearRegression("school", "district", random="intercept").fit(X, y)
    summary = model.summary(level=0.9)
    table, v = summary.coefficients, model.variance_components_
    assert table.index.tolist() == ["intercept", "age", "hours"]
    assert (table["df"] > 4).all()  # five districts determine the intercept
    reach = stats.t.ppf(0.95, table["df"]) * table["standard error"]
    np.testing.assert_allclose(table["upper"] - table["estimate"], reach, rtol=1e-6)
    np.testing.assert_allclose(table["estimate"] - table["lower"], reach, rtol=1e-6)
    between = v["group"]["intercept"] + v["within"]["intercept"]
    assert summary.intraclass_correlation["school"] == pytest.approx(between / (between + v["residual"]))
    assert summary.levels.loc["school"].tolist() == [30, 12, 12, 12]
    for word in (
        "rows: 360",
        "school",
        "hours",
        "residual",
        "Intraclass correlation",
        "log-likelihood",
        "AIC",
        "converged",
    ):
        assert word in str(summary)
        assert word in summary._repr_html_()
    assert not {"group", "within", "districts"} & set(str(summary).split())
    assert "Intraclass" not in str(
        HierarchicalLinearRegression("school", "district", random=["age"]).fit(X, y).summary()
    )


def test_the_plot_of_shrinkage_starts_at_a_groups_own_estimate():
    X, y = pupils()
    X, y = pd.concat([X, X.iloc[:1].assign(school="alone")]), pd.concat([y, y.iloc[:1]])
    model = HierarchicalLinearRegression("school", random=["age", "intercept"]).fit(X.drop(columns="district"), y)
    figure = model.plot_shrinkage("age")
    points = figure.data[0]
    rows = X["school"] == "s00"
    rest = y[rows] - X.loc[rows, "hours"] * model.global_coef_[1]
    design = np.column_stack([np.ones(rows.sum()), X.loc[rows, "age"]])
    first = points.text.index("s00")
    assert "alone" not in points.text  # the group of one row cannot tell
    assert points.x[first] == pytest.approx(np.linalg.lstsq(design, rest)[0][1], rel=1e-8)
    assert points.y[first] == model.coef_[model.groups_.tolist().index("s00"), 0]
    assert np.std(points.y) < np.std(points.x)
    assert "1 with too few rows" in figure.layout.title.text
    with pytest.raises(InvalidData, match="'hours' does not vary"):
        model.plot_shrinkage("hours")


def broken(change):
    X, y = pupils()
    return change(X.copy(), y.copy())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda X, y: (X.assign(district=["a", "b"] * (len(X) // 2)), y), "within: group 's.*' lies in two districts"),
        (lambda X, y: (X.assign(district=[None, *X["district"][1:]]), y), "within: row 0 has no label"),
        (lambda X, y: (X.assign(district=["", *X["district"][1:]]), y), "within: row 0 has an empty label"),
        (lambda X, y: (X.assign(school=[*X["school"][:-1], np.nan]), y), "groups: row 359 has no label"),
        (lambda X, y: (X.assign(hours=3.0), y), "X: feature 'hours' is constant"),
        (lambda X, y: (X.assign(twice=2 * X["age"]), y), "X: age, twice depend on each other"),
        (lambda X, y: (X.assign(age=np.nan), y), "X: feature 'age' is NaN in row 0"),
        (
            lambda X, y: (X.assign(age=X["age"].where(X.index != 7, -np.inf)), y),
            "X: feature 'age' is infinity in row 7",
        ),
        (lambda X, y: (X.assign(town="Ulm"), y), "X: column 'town' is not numeric"),
        (lambda X, y: (X, y.where(y.index > 0)), "NaN"),
        (lambda X, y: (X.drop(columns="school"), y), "groups: X has no column 'school'"),
        (lambda X, y: (X.drop(columns="district"), y), "within: X has no column 'district'"),
        (lambda X, y: (X.iloc[:2].assign(school=["a", "b"]), y.iloc[:2]), "too few rows"),
    ],
)
def test_input_that_cannot_be_used_is_named(change, sentence):
    X, y = broken(change)
    with pytest.raises(ValueError, match=sentence):
        HierarchicalLinearRegression("school", "district").fit(X, y)


def test_tables_say_that_they_need_pandas(monkeypatch):
    X, y = pupils()
    model = HierarchicalLinearRegression("school", "district").fit(X, y)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for table in (model.summary, model.coef_frame):
        with pytest.raises(CoterieError, match="needs pandas"):
            table()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"random": "height"}, "random: no coefficient 'height'"),
        ({"random": 3}, 'random: must be "all" or names'),
        ({"residual_variance": "x"}, "residual_variance: must be positive"),
        ({"group_variance": "x"}, "group_variance: give a number"),
        ({"random": "intercept", "fit_intercept": False}, "random: no coefficient 'intercept'"),
        ({"covariance": "half"}, 'covariance: must be "full" or "diagonal" or "isotropic"'),
        ({"residual_variance": 0}, "residual_variance: must be positive"),
        ({"group_variance": -1}, "group_variance: variances must be 0 or more"),
        ({"group_variance": [1, 2]}, "group_variance: give one number, or one for each of intercept, age, hours"),
        ({"within_variance": {"age": 1}}, "within_variance: give a variance for each of intercept, age, hours"),
        ({"covariance": "isotropic", "group_variance": [1, 2, 3]}, "group_variance: covariance="),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings, sentence):
    X, y = pupils()
    with pytest.raises(CoterieError, match=sentence):
        HierarchicalLinearRegression("school", "district", **settings).fit(X, y)


def test_impossible_calls_are_refused():
    X, y = pupils()
    features = X[["age", "hours"]]
    model = HierarchicalLinearRegression().fit(features, y, groups=X["school"], within=X["district"])
    with pytest.raises(InvalidData, match="fitted with 30 groups; pass groups="):
        model.predict(features)
    with pytest.raises(InvalidData, match="labels were text at fit and are numbers now"):
        model.predict(features, groups=np.arange(len(X)))
    with pytest.raises(InvalidData, match="was in another district at fit"):
        model.predict(features, groups=X["school"], within=np.roll(X["district"], 1))
    with pytest.raises(TypeError, match="unexpected keyword argument 'clients'"):
        model.predict(features, clients=X["school"])
    with pytest.raises(InvalidData, match="3 labels for 360 rows"):
        model.predict(features, groups=list("abc"))
    with pytest.raises(InvalidData, match="offset: row 0 is not finite"):
        model.predict(features, groups=X["school"], offset=np.full(len(X), np.nan))
    with pytest.raises(InvalidData, match="districts need groups"):
        HierarchicalLinearRegression().fit(features, y, within=X["district"])
    with pytest.raises(InvalidData, match="every group has a single row"):
        HierarchicalLinearRegression().fit(features, y, groups=np.arange(len(X)))
    with pytest.raises(InvalidData, match="level: must lie between 0 and 1"):
        model.summary(level=95)
    with pytest.raises(InvalidData, match="penalty: must be positive"):
        SingleClusterRegression("school", penalty=0).fit(X.drop(columns="district"), y)
    with pytest.raises(InvalidData, match="gammas: give positive numbers"):
        HierarchicalLinearRegressionCV("school", "district", gammas=[0]).fit(X, y)
    with pytest.raises(InvalidData, match="James-Stein needs 3 coordinates"):
        james_stein(np.ones((4, 2)))


def test_groups_with_fewer_rows_than_features_and_with_one():
    X, y = pupils()
    kept = (X["school"] > "s10") | ~X["school"].duplicated()  # ten schools keep a single row
    model = HierarchicalLinearRegression("school", "district").fit(X[kept], y[kept])
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.predict(X, return_std=True)).all()
