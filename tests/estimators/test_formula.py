"""Formulas, frames with words and missing values, and sentences about misspelt columns."""

import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import GroupKFold, cross_val_score

from coterie.estimators import (
    HierarchicalLinearRegression,
    HierarchicalLogisticRegression,
    InvalidData,
    UngroupedWarning,
)
from coterie.estimators.formula import has_intercept, parse


def frame(seed=0):
    random = np.random.default_rng(seed)
    district = np.repeat(np.arange(4), 60)
    rows = pd.DataFrame(
        {
            "district": [f"d{i}" for i in district],
            "school": np.tile(np.repeat(np.arange(6), 10), 4),  # numbers that start anew in each district
            "age": random.normal(10, 2, 240),
            "sex": random.choice(["f", "m"], 240),
        }
    )
    effect = random.normal(size=24)[district * 6 + rows["school"]]
    rows["score"] = 1 + 0.5 * rows["age"] + (rows["sex"] == "m") + effect + random.normal(size=240)
    rows["passed"] = np.where(rows["score"] > 6, "yes", "no")
    return rows


@pytest.mark.parametrize(
    ("text", "fixed", "terms"),
    [
        ("y ~ x + (1 | g)", "y ~ x", [(("1",), ("g",), True)]),
        ("y ~ (1 + x || g) + x", "y ~ x", [(("1", "x"), ("g",), False)]),
        ("y ~ x + (x | a/b)", "y ~ x", [(("1", "x"), ("a", "b"), True), (("1", "x"), ("a",), True)]),
        ("y ~ 1 + (1 | a) + (0 + x | b)", "y ~ 1", [(("1",), ("a",), True), (("x",), ("b",), True)]),
        ("log(y) ~ C(x) * z + (1 + C(x) | g:h)", "log(y) ~ C(x) * z", [(("1", "C(x)"), ("g", "h"), True)]),
        ("y ~ (1 | g)", "y ~ 1", [(("1",), ("g",), True)]),
    ],
)
def test_parts_of_a_formula(text, fixed, terms):
    found = parse(text)
    assert " ".join(found.fixed.split()) == fixed
    assert [(term.varying, term.columns, term.correlated) for term in found.terms] == terms


def test_an_intercept_may_be_left_out():
    assert has_intercept("y ~ x + (1 | g)")
    assert not has_intercept("y ~ 0 + x + (0 + x | g)")
    assert not has_intercept("y ~ x - 1 + (0 + x | g)")


def test_a_formula_is_the_model_of_its_columns():
    rows = frame()
    model = HierarchicalLinearRegression.from_formula("score ~ age + C(sex) + (1 + age | district/school)").fit(rows)
    plain = rows.assign(male=(rows["sex"] == "m") * 1.0, school=rows["district"] + rows["school"].astype(str))
    by_hand = HierarchicalLinearRegression("school", "district", random=["intercept", "age"]).fit(
        plain[["age", "male", "school", "district"]], plain["score"]
    )
    assert model.log_likelihood_ == pytest.approx(by_hand.log_likelihood_, abs=1e-7)
    np.testing.assert_allclose(model._coefficients(), by_hand._coefficients(), rtol=1e-6)
    assert list(model.covariances_) == ["district:school", "district"]
    np.testing.assert_allclose(model.predict(rows), by_hand.predict(plain.drop(columns=["sex", "score", "passed"])))
    new = rows.head(2).assign(district="d9").drop(columns=["score", "passed"])
    assert np.isfinite(model.predict(new)).all()
    assert sklearn.clone(model).get_params() == model.get_params()
    assert "C(sex)[T.m]" in str(model.summary())


def test_words_as_classes_and_two_levels_that_cross():
    rows = frame()
    model = HierarchicalLogisticRegression.from_formula("passed ~ age + (1 | district) + (1 | school)").fit(rows)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.covariances_) == {"district", "school"}
    assert model.predict(rows)[0] in ("no", "yes")


def test_missing_values_are_dropped_or_named():
    rows = frame()
    rows.loc[3, "sex"], rows.loc[5, "age"], rows.loc[8, "district"] = None, np.nan, None
    formula = "score ~ age + C(sex) + (1 | district/school)"
    model = HierarchicalLinearRegression.from_formula(formula, missing="drop").fit(rows)
    assert model.n_dropped_ == 3
    assert "237 (3 left out)" in str(model.summary())
    whole = HierarchicalLinearRegression.from_formula(formula).fit(rows.dropna())
    np.testing.assert_allclose(model._coefficients(), whole._coefficients())
    assert np.flatnonzero(np.isnan(model.predict(rows))).tolist() == [3, 5, 8]
    with pytest.raises(InvalidData, match="column 'sex' is empty in row 3, and 3 rows lack something"):
        HierarchicalLinearRegression.from_formula(formula).fit(rows)
    with pytest.raises(InvalidData, match='missing: must be "drop" or "raise"'):
        HierarchicalLinearRegression.from_formula(formula, missing="skip").fit(rows)


def test_missing_values_without_a_formula():
    rows = frame()[["age", "district"]]
    rows.loc[5, "age"] = np.nan
    y = frame()["score"].where(lambda values: values.index != 7)
    model = HierarchicalLinearRegression("district", missing="drop", random="intercept").fit(rows, y)
    kept = np.setdiff1d(np.arange(240), [5, 7])
    again = HierarchicalLinearRegression("district", random="intercept").fit(rows.iloc[kept], y.iloc[kept])
    np.testing.assert_array_equal(model.coef_, again.coef_)
    assert model.n_dropped_ == 2
    predicted, deviation = model.predict(rows, return_std=True)
    assert np.flatnonzero(np.isnan(predicted)).tolist() == [5]
    assert len(deviation) == 240
    classes = HierarchicalLogisticRegression("district", missing="drop", random="intercept").fit(
        rows, frame()["passed"]
    )
    assert np.isnan(classes.predict_proba(rows)[5]).all()
    with pytest.raises(InvalidData, match="row 5 has a missing value"):
        classes.predict(rows)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("score ~ agee + (1 | district)", "no column 'agee'; did you mean age"),
        ("score ~ age + (1 | distric)", "no column 'distric'; did you mean district"),
        ("score ~ age + (1 + sex | district)", "'sex' varies between district but is not in the fixed part"),
        ("score ~ age", "has no random term"),
        ("score", "must be text such as"),
        ("score ~ age + (1 | )", "names no group"),
        ("score ~ age + (1 + age | district) + (0 + age | district)", "two terms of district"),
        ("score ~ age + (1 | district", "not every bracket"),
        ("score ~ 0 + age + (1 | district)", "the intercept varies between district, but the fixed part leaves it out"),
        ("passed ~ age + (1 | district)", "'(yes|no)' is not a number; for classes use HierarchicalLogisticRegression"),
    ],
)
def test_what_is_wrong_with_a_formula_is_said(formula, sentence):
    with pytest.raises(InvalidData, match=sentence):
        HierarchicalLinearRegression.from_formula(formula).fit(frame())


def test_words_that_the_fit_has_not_seen():
    """Neither is taken for the first word of the column."""
    rows = frame()
    model = HierarchicalLinearRegression.from_formula("score ~ sex + (1 | district)").fit(rows)
    with pytest.raises(InvalidData, match=r"column 'sex' has 'x', which no row of the fit had \(f, m\)"):
        model.predict(rows.assign(sex="x"))
    model = HierarchicalLinearRegression.from_formula("score ~ C(school) + (1 | district)").fit(rows)
    with pytest.raises(InvalidData, match="no row of the fit had 77"):
        model.predict(rows.assign(school=77))
    with pytest.raises(InvalidData, match="no rows to fit"):
        model.fit(rows.head(0))


def test_fits_with_other_weights_are_not_compared():
    rows = frame().assign(w=np.arange(240) % 3 + 1.0, one=1.0)
    text = "score ~ age + (1 | district)"
    small = HierarchicalLinearRegression.from_formula("score ~ 1 + (1 | district)").fit(rows)
    with pytest.raises(InvalidData, match="different weights"):
        small.compare(HierarchicalLinearRegression.from_formula(text, weights="w").fit(rows))
    assert small.compare(HierarchicalLinearRegression.from_formula(text, weights="one").fit(rows))["df"].iloc[1] == 1


def test_calls_that_contradict_the_formula(monkeypatch):
    rows, model = frame(), HierarchicalLinearRegression.from_formula("score ~ age + (1 | district)")
    with pytest.raises(InvalidData, match="groups and y come from the formula"):
        model.fit(rows, rows["score"])
    with pytest.raises(InvalidData, match="so leave out groups="):
        HierarchicalLinearRegression("school", formula="score ~ age + (1 | district)").fit(rows)
    with pytest.raises(InvalidData, match="needs a DataFrame"):
        model.fit(rows.to_numpy())
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(InvalidData, match=r"install coterie\[formula\]"):
        model.fit(rows)


def test_misspelt_and_unknown_columns():
    rows = frame()[["age", "district"]]
    with pytest.raises(InvalidData, match="X has no column 'distrct'; did you mean district"):
        HierarchicalLinearRegression("distrct").fit(rows, frame()["score"])
    model = HierarchicalLinearRegression("district").fit(rows, frame()["score"])
    with pytest.raises(InvalidData, match="column 'sex' was not there at fit; leave it out"):
        model.predict(frame()[["age", "sex", "district"]])
    with pytest.raises(InvalidData, match="column 'agee' was not there at fit; did you mean age"):
        model.predict(rows.rename(columns={"age": "agee"}))
    with pytest.raises(InvalidData, match="random: no coefficient 'agge'; did you mean age"):
        HierarchicalLinearRegression("district", random="agge").fit(rows, frame()["score"])
    with pytest.raises(InvalidData, match="set_output"):
        HierarchicalLinearRegression("district").fit(rows[["age"]].to_numpy(), frame()["score"])


def test_a_fit_without_groups_warns():
    """cross_val_score(..., groups=) gives the groups to the splitter alone."""
    rows = frame()
    with pytest.warns(UngroupedWarning, match="fitted without groups"):
        cross_val_score(
            HierarchicalLinearRegression(), rows[["age"]], rows["score"], groups=rows["district"], cv=GroupKFold(2)
        )
