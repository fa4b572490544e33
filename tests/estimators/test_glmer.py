"""The marginal likelihood of the hierarchical logistic model against glmer, whose numbers are in tests/reference."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.estimators import HierarchicalLogisticRegression

DATA = os.environ.get("COTERIE_DATA")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA, reason="COTERIE_DATA is not set"),
    pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning"),  # three districts have one class only
]

GLMER = json.loads((Path(__file__).parents[1] / "reference" / "glmer.json").read_text())["fits"]


def women():
    frame = pd.read_csv(Path(DATA) / "tabular" / "mlmRev_Contraception.csv.xz")
    columns = {
        "age": frame["age"],
        "square": frame["age"] ** 2 / 100,
        "urban": (frame["urban"] == "Y") * 1.0,
        "children": (frame["livch"] != "0") * 1.0,
        "district": frame["district"],
    }
    return pd.DataFrame(columns), frame["use"]


def plain(name):
    return name.replace("(Intercept)", "intercept")


@pytest.fixture(scope="module", params=sorted(GLMER))
def fitted(request):
    X, y = women()
    random = "intercept" if request.param == "intercept" else ["intercept", "urban"]
    model = HierarchicalLogisticRegression("district", random=random, covariance="diagonal").fit(X, y)
    assert len(X) == GLMER[request.param]["rows"]
    return GLMER[request.param], model


def test_likelihood_and_variances(fitted):
    glmer, model = fitted
    assert model.log_likelihood_ == pytest.approx(glmer["log_likelihood"], abs=1e-5)
    for row in glmer["components"]:
        ours = model.variance_components_["group"][plain(row["name"])]
        assert ours == pytest.approx(row["variance"], rel=1e-4)


def test_global_coefficients_and_their_standard_errors(fitted):
    glmer, model = fitted
    table = model.summary().coefficients
    for name, value in glmer["fixed"].items():
        assert table.loc[plain(name), "estimate"] == pytest.approx(value, rel=1e-4)
        assert table.loc[plain(name), "standard error"] == pytest.approx(glmer["standard_error"][name], rel=1e-4)


def test_predicted_effects(fitted):
    glmer, model = fitted
    effects = model.coef_frame() - np.r_[model.global_intercept_, model.global_coef_]
    table = glmer["effects"]["district"]
    for name, values in table["value"].items():
        ours = effects.loc[[int(label) for label in table["label"]], plain(name)]
        np.testing.assert_allclose(ours, values, atol=1e-4)


def test_the_restricted_likelihood_has_the_larger_variance():
    """As REML does: beta's five degrees of freedom are not mistaken for agreement between the 60 districts."""
    X, y = women()
    model = HierarchicalLogisticRegression("district", random="intercept", likelihood="restricted").fit(X, y)
    marginal = GLMER["intercept"]["components"][0]["variance"]
    assert marginal < model.variance_components_["group"]["intercept"] < 1.1 * marginal
