"""Variances, coefficients and predicted effects against lme4 and statsmodels, whose numbers are in tests/reference."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.estimators import HierarchicalLinearRegression

DATA = os.environ.get("COTERIE_DATA")
pytestmark = [pytest.mark.data, pytest.mark.skipif(not DATA, reason="COTERIE_DATA is not set")]

REFERENCE = Path(__file__).parents[1] / "reference"
LME4 = json.loads((REFERENCE / "lme4.json").read_text())["fits"]
STATSMODELS = json.loads((REFERENCE / "statsmodels_mixedlm.json").read_text())["fits"]
SETS = {
    "sleepstudy": ("lme4_sleepstudy", "Reaction", ["Days"], "Subject", None),
    "mathachieve": ("nlme_MathAchieve", "MathAch", ["SES", "MEANSES"], "School", None),
    "chem97": ("mlmRev_Chem97", "score", ["gcsecnt"], "school", "lea"),
}


@pytest.fixture(scope="module", params=sorted(LME4))
def fitted(request):
    """A fit of ours, lme4's numbers for it, and their names."""
    data, kind = request.param.split("_")
    file, target, features, group, district = SETS[data]
    frame = pd.read_csv(Path(DATA) / "tabular" / f"{file}.csv.xz")
    assert len(frame) == LME4[request.param]["rows"]
    columns = [*features, group] + ([district] if district else [])
    model = HierarchicalLinearRegression(
        groups=group,
        within=district,
        random="intercept" if kind == "intercept" else ["intercept", features[0]],
        covariance="diagonal",
    ).fit(frame[columns], frame[target])
    return request.param, model, group, district


def plain(name):
    return name.replace("(Intercept)", "intercept").replace("Intercept", "intercept")


def test_variances(fitted):
    name, model, group, district = fitted
    for row in LME4[name]["components"]:
        level = row["level"].split(".")[0]  # `||` makes a term of its own of each coefficient: School.1
        key = {group: "group", district: "within"}.get(level)
        ours = model.variance_components_["residual"]
        if key is not None:
            ours = model.variance_components_[key][plain(row["name"])]
        assert ours == pytest.approx(row["variance"], rel=1e-3)


def test_likelihood(fitted):
    name, model, *_ = fitted
    assert -2 * model.log_likelihood_ == pytest.approx(LME4[name]["criterion"], abs=1e-4)


def test_global_coefficients_and_their_standard_errors(fitted):
    name, model, *_ = fitted
    table = model.summary().coefficients
    for key, value in LME4[name]["fixed"].items():
        assert table.loc[plain(key), "estimate"] == pytest.approx(value, rel=1e-4)
        assert table.loc[plain(key), "standard error"] == pytest.approx(LME4[name]["standard_error"][key], rel=1e-3)


def test_predicted_effects(fitted):
    name, model, group, district = fitted
    frame = model.coef_frame()
    overall = pd.Series([model.global_intercept_, *model.global_coef_], index=model._coefficient_names())
    means = pd.DataFrame(np.tile(overall, (len(frame), 1)), index=frame.index, columns=overall.index)
    if district:
        districts = np.column_stack([model.within_intercept_, model.within_coef_])
        districts = pd.DataFrame(districts, index=model.within_, columns=overall.index)
        means[:] = districts.loc[frame[district]].to_numpy()
        compare(districts - overall, LME4[name]["effects"][district])
    compare(frame[list(overall.index)] - means, LME4[name]["effects"][group])


def compare(ours, theirs):
    ours.index = ours.index.astype(str)
    for coefficient, values in theirs["value"].items():
        estimates = ours.loc[theirs["label"], plain(coefficient)]
        # Relative to the spread of the effects: single ones may be as good as zero.
        np.testing.assert_allclose(estimates, values, rtol=1e-3, atol=1e-3 * np.std(values))


def test_statsmodels(fitted):
    name, model, *_ = fitted
    theirs = STATSMODELS.get(name)
    assert theirs is not None or name == "chem97_slope"  # the one that MixedLM was not asked for
    if theirs is not None:
        assert model.log_likelihood_ == pytest.approx(theirs["log_likelihood"], abs=1e-3)
        assert model.variance_components_["residual"] == pytest.approx(theirs["variances"]["residual"], rel=1e-3)
        for level in theirs["variances"].keys() - {"residual"}:
            assert model.variance_components_[level] == pytest.approx(theirs["variances"][level], rel=1e-3)
