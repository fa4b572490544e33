"""Columns far from zero lose no digits: a year, seconds since 1970, a target in the billions."""

import numpy as np
import pytest

from coterie.estimators import (
    HierarchicalLinearRegression,
    HierarchicalLogisticRegression,
    LocalLogisticRegression,
    LocalRegression,
    PooledLogisticRegression,
    PooledRegression,
)

FAR = [1e2, 3e3, 1e5, 1e9]  # means in deviations; the last has seven digits left


def rows(seed=0):
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(30), 20)
    x = random.integers(-384, 384, 600) / 128.0  # with few binary digits, so that adding 1e9 rounds nothing away
    effect = random.normal(size=30)[group]
    y = 1.0 + 1.5 * x + 0.6 * effect + random.normal(size=600)
    classes = (random.random(600) < 1 / (1 + np.exp(-1.5 * x - effect))).astype(int)
    return x[:, None], y, classes, group


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("settings", [{"random": "intercept"}, {}], ids=["intercept", "all"])
@pytest.mark.parametrize("far", FAR)
def test_the_linear_model(far, settings):
    x, y, _, group = rows()
    near, away = (HierarchicalLinearRegression(**settings).fit(x + c, y, groups=group) for c in (0.0, far))
    assert away.global_coef_[0] == pytest.approx(near.global_coef_[0], rel=1e-6)
    assert away.variance_components_["residual"] == pytest.approx(near.variance_components_["residual"], rel=1e-6)
    slope = list(near.variance_components_["group"])[-1]
    assert away.variance_components_["group"][slope] == pytest.approx(
        near.variance_components_["group"][slope], rel=1e-4, abs=1e-6
    )
    assert away.log_likelihood_ == pytest.approx(near.log_likelihood_, abs=1e-6)
    np.testing.assert_allclose(away.predict(x + far, groups=group), near.predict(x, groups=group), atol=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [1e6, 1e9])
def test_a_target_far_away(far):
    x, y, _, group = rows()
    near, away = (HierarchicalLinearRegression(random="intercept").fit(x, y + c, groups=group) for c in (0.0, far))
    assert away.variance_components_["group"] == pytest.approx(near.variance_components_["group"], rel=1e-6)
    assert away.global_intercept_ - far == pytest.approx(near.global_intercept_, abs=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", FAR)
def test_the_logistic_model_sees_no_separation(far):
    x, _, y, group = rows()
    near, away = (HierarchicalLogisticRegression(random="intercept").fit(x + c, y, groups=group) for c in (0.0, far))
    assert near.global_coef_[0] > 1.0
    assert away.global_coef_[0] == pytest.approx(near.global_coef_[0], rel=1e-6)
    assert away.variance_components_["group"] == pytest.approx(near.variance_components_["group"], rel=1e-4)


@pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning")
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize(
    "estimator", [LocalRegression, PooledRegression, LocalLogisticRegression, PooledLogisticRegression]
)
def test_baselines(estimator, far):
    x, y, classes, group = rows()
    target = classes if "Logistic" in estimator.__name__ else y
    near, away = (estimator().fit(x + c, target, groups=group) for c in (0.0, far))
    np.testing.assert_allclose(away.coef_, near.coef_, rtol=1e-5, atol=1e-6)


def test_a_diagonal_model_keeps_its_zero():
    """Without correlation the model depends on where zero is; far away its slopes hardly vary, as in lme4's ||."""
    x, y, _, group = rows()
    near, away = (
        HierarchicalLinearRegression(covariance="diagonal", residual_variance=1.0, group_variance=[0.4, 0.1]).fit(
            x + c, y, groups=group
        )
        for c in (0.0, 50.0)
    )
    X, Z = np.column_stack([np.ones(600), x + 50.0]), np.eye(30)[group]
    V = np.eye(600) + 0.4 * Z @ Z.T + 0.1 * (Z * X[:, [1]]) @ (Z * X[:, [1]]).T
    expected = np.linalg.solve(X.T @ np.linalg.solve(V, X), X.T @ np.linalg.solve(V, y))
    np.testing.assert_allclose([away.global_intercept_, *away.global_coef_], expected, rtol=1e-7)
    assert abs(away.global_coef_[0] - near.global_coef_[0]) > 1e-3


def test_a_column_that_is_constant_up_to_rounding_is_named():
    x, y, _, group = rows()
    with pytest.raises(ValueError, match="'x0' is constant up to rounding"):
        HierarchicalLinearRegression().fit(1e15 + x, y, groups=group)
