"""The hierarchical linear model against independent answers: by hand, densely on the raw rows, by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.estimators import (
    HierarchicalLinearRegression,
    HierarchicalLinearRegressionCV,
    LocalRegression,
    PooledRegression,
    SingleClusterRegression,
    james_stein,
)
from coterie.estimators.blocks import Nested
from coterie.estimators.moments import group_moments, pack, unpack
from coterie.estimators.tree import Effect, Tree

NAMES = ["intercept", "x0", "x1"]


def schools(seed=0, groups=12, districts=3, largest=9):
    """Rows of unequal groups, some with fewer rows than coefficients, in no order."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), random.integers(1, largest, groups))
    random.shuffle(group)
    district = np.concatenate([np.arange(districts), random.integers(0, districts, groups - districts)])[group]
    X = random.normal(size=(len(group), 2)) * [1.0, 3.0] + [0.5, -1.0]
    y = 2.0 + X @ [1.0, -0.5] + random.normal(size=groups)[group] + X[:, 0] * random.normal(size=groups)[group]
    return X, y + random.normal(size=districts)[district] + random.normal(size=len(group)), group, district


class Dense:
    """The mixed model on the raw rows: V is formed in full."""

    def __init__(self, X, group, district, random, residual, between_groups, between_districts):
        self.X = np.column_stack([np.ones(len(X)), X])
        groups, districts = group.max() + 1, district.max() + 1
        blocks = [(np.eye(groups)[group], between_groups), (np.eye(districts)[district], between_districts)]
        columns = [(unit * self.X[:, [k]], v[j]) for unit, v in blocks for j, k in enumerate(random)]
        self.Z = np.column_stack([column for column, _ in columns])
        self.D = np.concatenate([np.full(column.shape[1], variance) for column, variance in columns])
        self.residual = residual
        self.V = (self.Z * self.D) @ self.Z.T + residual * np.eye(len(X))
        self.random, self.groups, self.districts = random, groups, districts

    def fit(self, y):
        inverse = np.linalg.inv(self.V)
        beta = np.linalg.solve(self.X.T @ inverse @ self.X, self.X.T @ inverse @ y)
        effects = self.D * (self.Z.T @ inverse @ (y - self.X @ beta))
        split = len(self.random) * self.groups
        u, v = np.zeros((self.groups, 3)), np.zeros((self.districts, 3))
        u[:, self.random] = effects[:split].reshape(len(self.random), -1).T
        v[:, self.random] = effects[split:].reshape(len(self.random), -1).T
        return beta, v, u

    def criterion(self, y):
        """Minus twice the restricted log-likelihood."""
        inverse = np.linalg.inv(self.V)
        information = self.X.T @ inverse @ self.X
        projection = inverse - inverse @ self.X @ np.linalg.solve(information, self.X.T @ inverse)
        determinants = np.linalg.slogdet(self.V)[1] + np.linalg.slogdet(information)[1]
        return determinants + y @ projection @ y + (len(y) - 3) * np.log(2 * np.pi)


def coefficients(model):
    table = np.column_stack([model.intercept_, model.coef_])
    districts = np.column_stack([model.within_intercept_, model.within_coef_])
    return table, districts, np.r_[model.global_intercept_, model.global_coef_]


def test_the_vectors_of_four_groups_in_two_clusters():
    model = HierarchicalLinearRegression(
        fit_intercept=False, residual_variance=1, group_variance=1, within_variance=1, covariance="isotropic"
    )
    model.fit(np.ones((4, 1)), [1, 2, 5, 8], groups=list("abcd"), within=[1, 1, 2, 2])
    np.testing.assert_allclose(model.coef_.ravel(), [1.875, 2.375, 5.125, 6.625], rtol=1e-14)
    np.testing.assert_allclose(model.within_coef_.ravel(), [2.75, 5.25], rtol=1e-14)
    np.testing.assert_allclose(model.global_coef_, [4.0], rtol=1e-14)


@pytest.mark.parametrize(
    ("random", "group", "within"),
    [
        ("all", 0.8, 0.3),
        ("all", [0.8, 2.0, 0.1], [0.3, 0.0, 0.05]),
        ("intercept", 0.8, 0.3),
        (["intercept", "x1"], {"x1": 0.2, "intercept": 1.5}, 0.4),
    ],
)
def test_the_solution_is_generalised_least_squares_on_the_raw_rows(random, group, within):
    X, y, groups, districts = schools()
    model = HierarchicalLinearRegression(
        random=random, residual_variance=1.7, group_variance=group, within_variance=within
    ).fit(X, y, groups=groups, within=districts)
    columns = np.array([NAMES.index(n) for n in (NAMES if random == "all" else np.atleast_1d(random))])

    def spread(v):
        values = [v[NAMES[k]] for k in columns] if isinstance(v, dict) else v
        return np.broadcast_to(values, len(columns))

    beta, v, u = Dense(X, groups, districts, columns, 1.7, spread(group), spread(within)).fit(y)
    fitted, fitted_districts, fitted_beta = coefficients(model)
    of_group = np.array([districts[groups == i][0] for i in range(groups.max() + 1)])
    np.testing.assert_allclose(fitted_beta, beta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(fitted_districts, beta + v, rtol=0, atol=1e-10)
    np.testing.assert_allclose(fitted, beta + v[of_group] + u, rtol=0, atol=1e-10)


@given(st.integers(0, 2**31), st.floats(0.01, 100), st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_the_solution_is_the_minimum_of_the_objective(seed, gamma, penalty):
    """The gradient of (5.2) at the solution is zero in every group, district and for all."""
    X, y, groups, districts = schools(seed)
    model = HierarchicalLinearRegression(
        covariance="isotropic", residual_variance=1.0, group_variance=1 / gamma, within_variance=1 / penalty
    ).fit(X, y, groups=groups, within=districts)
    theta, w, overall = coefficients(model)
    of_group, design = model.group_within_, np.column_stack([np.ones(len(X)), X])
    for i, row in enumerate(theta):
        A, b = design[groups == i], y[groups == i]
        np.testing.assert_allclose(A.T @ (A @ row - b) + gamma * (row - w[of_group[i]]), 0, atol=1e-7)
    for j, row in enumerate(w):
        pull = gamma * (row - theta[of_group == j]).sum(axis=0) + penalty * (row - overall)
        np.testing.assert_allclose(pull, 0, atol=1e-7)
    np.testing.assert_allclose((w - overall).sum(axis=0), 0, atol=1e-7)


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter():
    X, y, groups, districts = schools()
    model = HierarchicalLinearRegression().fit(X, y, groups=groups, within=districts)
    order = np.random.default_rng(1).permutation(len(y))
    names = np.array([f"school {(7 * i) % 12}" for i in range(12)])
    other = HierarchicalLinearRegression().fit(
        X[order], y[order], groups=names[groups[order]], within=-districts[order]
    )
    again = other.predict(X, groups=names[groups], within=-districts)
    np.testing.assert_allclose(again, model.predict(X, groups=groups, within=districts), atol=1e-7)


@pytest.mark.parametrize("covariance", ["diagonal", "isotropic"])
def test_reml_is_the_maximum_of_the_dense_likelihood(covariance):
    X, y, groups, districts = schools(3, groups=25, districts=6)
    model = HierarchicalLinearRegression(random=["intercept", "x0"], covariance=covariance)
    model.fit(X, y, groups=groups, within=districts)
    components = model.variance_components_
    free = 2 if covariance == "diagonal" else 1

    def criterion(logs):
        v = np.exp(logs)
        levels = [np.broadcast_to(v[1 + a * free : 1 + (a + 1) * free], 2) for a in (0, 1)]
        return Dense(X, groups, districts, np.array([0, 1]), v[0], *levels).criterion(y)

    estimates = [components["residual"], *list(components["group"].values())[:free]]
    estimates = np.log(np.maximum([*estimates, *list(components["within"].values())[:free]], 1e-9))
    assert -2 * model.log_likelihood_ == pytest.approx(criterion(estimates), abs=1e-5)
    bounds = [(-12.0, 5.0)] * (1 + 2 * free)
    best = minimize(criterion, np.zeros(1 + 2 * free), method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-13})
    assert criterion(estimates) <= best.fun + 1e-5
    np.testing.assert_allclose(np.exp(estimates), np.exp(best.x), rtol=1e-3, atol=1e-4)


def test_reml_with_one_variance_given_searches_for_the_others():
    X, y, groups, districts = schools(3, groups=25, districts=6)
    model = HierarchicalLinearRegression(random="intercept", group_variance=0.4).fit(
        X, y, groups=groups, within=districts
    )

    def criterion(logs):
        v = np.exp(logs)
        return Dense(X, groups, districts, np.array([0]), v[0], [0.4], [v[1]]).criterion(y)

    best = minimize(criterion, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6})
    components = model.variance_components_
    assert components["group"]["intercept"] == pytest.approx(0.4)
    np.testing.assert_allclose([components["residual"], components["within"]["intercept"]], np.exp(best.x), rtol=1e-3)


def test_a_variance_of_zero_is_estimated():
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(200, 1)), np.arange(200) % 20
    noise = random.normal(size=(10, 20))
    noise -= noise.mean(axis=0)  # the groups' means agree better than chance would have it
    model = HierarchicalLinearRegression(random="intercept").fit(X, X[:, 0] + noise.ravel(), groups=groups)
    assert model.variance_components_["group"]["intercept"] == pytest.approx(0.0, abs=1e-8)
    np.testing.assert_allclose(model.intercept_, model.global_intercept_, atol=1e-6)


def test_no_change_of_a_variance_is_better_where_most_of_them_are_zero():
    """Twelve variances, two of which are not zero: a search that stops at a bound of zero ends far from the best."""
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(400), 12)
    X = random.normal(size=(len(groups), 5)) * [1, 1, 10, 0.1, 1]
    y = (
        random.normal(size=len(groups))
        + X[:, 0] * 0.3 * random.normal(size=400)[groups]
        + 0.3 * random.normal(size=20)[groups // 20]
    )
    data = {"X": X, "y": y, "groups": groups, "within": groups // 20}
    model = HierarchicalLinearRegression().fit(**data)
    estimates = {level: model.variance_components_[level] for level in ("group", "within")}
    assert 0.05 < estimates["group"]["x0"] < 0.15
    for level, components in estimates.items():
        for name, variance in components.items():
            scale = np.mean(X[:, int(name[1:])] ** 2) if name != "intercept" else 1.0
            for other in (0.0, variance * 1.05, variance + 1e-3 / scale):
                changed = {**estimates, level: {**components, name: other}}
                nearby = HierarchicalLinearRegression(
                    group_variance=changed["group"], within_variance=changed["within"]
                ).fit(**data)
                assert nearby.log_likelihood_ <= model.log_likelihood_ + 1e-6


@pytest.mark.parametrize("random", ["all", "intercept"])
def test_rescaling_a_column_rescales_its_coefficient_and_changes_no_prediction(random):
    X, y, groups, districts = schools(5, groups=40, districts=8)
    fitted = [
        HierarchicalLinearRegression(random=random).fit(X * [unit, 1.0], y, groups=groups, within=districts)
        for unit in (1.0, 1000.0)
    ]
    np.testing.assert_allclose(fitted[1].coef_[:, 0] * 1000, fitted[0].coef_[:, 0], rtol=1e-6, atol=1e-7)
    before, after = (m.predict(X * [u, 1.0], groups=groups) for m, u in zip(fitted, (1.0, 1000.0), strict=True))
    np.testing.assert_allclose(after, before, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("given", [{}, {"residual_variance": 1.0, "group_variance": 0.5, "within_variance": 0.2}])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_federated_fit_is_the_same_to_the_bit_and_its_size_is_in_the_ledger(given, fit_intercept):
    X, y, groups, districts = schools()
    fits = [
        HierarchicalLinearRegression(federated=federated, fit_intercept=fit_intercept, **given).fit(
            X, y, groups=groups, within=districts
        )
        for federated in (False, True)
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    np.testing.assert_array_equal(fits[0].intercept_, fits[1].intercept_)
    assert fits[0].variance_components_ == fits[1].variance_components_
    size = 3 if fit_intercept else 2
    numbers = size * (size + 1) // 2 + size + (0 if given else 1 if fit_intercept else 2)
    assert fits[0].ledger_ is None
    assert fits[1].ledger_["bytes_up_per_group"] == 8 * numbers
    assert fits[1].ledger_["bytes_up"] == fits[1].statistics_.nbytes == 8 * numbers * 12


def test_a_message_has_all_moments():
    X, y, groups, _ = schools()
    counts = np.bincount(groups).astype(float)
    for intercept in (True, False):
        moments = group_moments(X, y, groups, 12, intercept)
        back, rows = unpack(pack(moments, counts, True, intercept), len(moments) - 1, True, intercept)
        np.testing.assert_array_equal(back, moments)
        np.testing.assert_array_equal(rows, counts)


def test_moments_are_sums_of_products_also_of_absent_groups_and_with_weights():
    random = np.random.default_rng(0)
    X, y, w = random.normal(size=(50_000, 2)), random.normal(size=50_000), random.random(50_000)
    groups = random.integers(0, 9, 50_000)
    groups[groups == 4] = 5
    moments = group_moments(X, y, groups, 10, True, w)
    z = np.column_stack([np.ones(len(X)), X, y])
    for i in range(10):
        rows = groups == i
        np.testing.assert_allclose(moments[:, :, i], (z[rows].T * w[rows]) @ z[rows], rtol=1e-10, atol=1e-9)


def test_the_standard_deviation_of_a_prediction_is_that_of_hendersons_equations():
    X, y, groups, districts = schools()
    group_variance, within_variance, residual = [0.8, 2.0, 0.1], [0.3, 0.2, 0.05], 1.7
    model = HierarchicalLinearRegression(
        residual_variance=residual, group_variance=group_variance, within_variance=within_variance
    ).fit(X, y, groups=groups, within=districts)
    dense = Dense(X, groups, districts, np.arange(3), residual, group_variance, within_variance)
    both = np.column_stack([dense.X, dense.Z])
    inverse = np.linalg.inv(both.T @ both / residual + np.diag(np.r_[np.zeros(3), 1 / dense.D]))
    expected = np.sqrt(np.einsum("na,ab,nb->n", both, inverse, both) + residual)
    _, std = model.predict(X, groups=groups, within=districts, return_std=True)
    np.testing.assert_allclose(std, expected, rtol=1e-10)
    new = both.copy()
    new[:, 3 : 3 + 36] = 0.0  # no group's own effects
    expected = np.einsum("na,ab,nb->n", new, inverse, new) + dense.X**2 @ group_variance + residual
    _, std = model.predict(X, groups=groups + 1000, within=districts, return_std=True)
    np.testing.assert_allclose(std**2, expected, rtol=1e-10)
    expected = np.einsum("na,ab,nb->n", dense.X, inverse[:3, :3], dense.X) + residual
    expected += dense.X**2 @ np.add(group_variance, within_variance)
    _, std = model.predict(X, groups=groups + 1000, within=districts + 1000, return_std=True)
    np.testing.assert_allclose(std**2, expected, rtol=1e-10)
    errors = model.summary().coefficients["standard error"]
    np.testing.assert_allclose(errors, np.sqrt(np.diag(inverse)[:3]), rtol=1e-10)


def test_an_offset_is_added_to_the_prediction():
    X, y, groups, districts = schools()
    known = np.sin(np.arange(len(y)))
    with_offset = HierarchicalLinearRegression().fit(X, y + known, groups=groups, within=districts, offset=known)
    without = HierarchicalLinearRegression().fit(X, y, groups=groups, within=districts)
    np.testing.assert_allclose(with_offset.coef_, without.coef_, atol=1e-6)
    predicted = with_offset.predict(X, groups=groups, offset=known)
    np.testing.assert_allclose(predicted, without.predict(X, groups=groups) + known, atol=1e-6)


def test_single_cluster_is_the_formula_of_the_paper():
    X, y, groups, _ = schools()
    model = SingleClusterRegression(penalty=0.7).fit(X, y, groups=groups)
    design = np.column_stack([np.ones(len(X)), X])
    A = [design[groups == i].T @ design[groups == i] + 0.7 * np.eye(3) for i in range(12)]
    h = [design[groups == i].T @ y[groups == i] for i in range(12)]
    inverses = np.linalg.inv(A)
    right = np.mean([B @ b for B, b in zip(inverses, h, strict=True)], axis=0)
    centre = np.linalg.solve(np.eye(3) - 0.7 * inverses.mean(axis=0), right)
    np.testing.assert_allclose(np.r_[model.global_intercept_, model.global_coef_], centre, atol=1e-10)
    expected = [B @ (b + 0.7 * centre) for B, b in zip(inverses, h, strict=True)]
    np.testing.assert_allclose(np.column_stack([model.intercept_, model.coef_]), expected, atol=1e-10)


def test_local_and_pooled_are_least_squares():
    X, y, groups, districts = schools()
    design = np.column_stack([np.ones(len(X)), X])
    local = LocalRegression().fit(X, y, groups=groups, within=districts)
    expected = [np.linalg.pinv(design[groups == i]) @ y[groups == i] for i in range(12)]
    np.testing.assert_allclose(np.column_stack([local.intercept_, local.coef_]), expected, atol=1e-7)
    in_first = districts == 0
    expected = np.linalg.lstsq(design[in_first], y[in_first])[0]
    np.testing.assert_allclose(np.r_[local.within_intercept_[0], local.within_coef_[0]], expected, atol=1e-9)
    pooled = PooledRegression().fit(X, y, groups=groups)
    np.testing.assert_allclose(pooled.predict(X, groups=groups), design @ np.linalg.lstsq(design, y)[0], atol=1e-9)


def test_local_and_pooled_with_a_year_and_an_income():
    X, y, groups, _ = schools()
    X = X * [3.0, 1e6] + [2000.0, 1e7]
    design = np.column_stack([np.ones(len(X)), X])
    local, pooled = (model.fit(X, y, groups=groups) for model in (LocalRegression(), PooledRegression()))
    np.testing.assert_allclose(pooled.predict(X, groups=groups), design @ np.linalg.lstsq(design, y)[0], atol=1e-6)
    for i in range(12):  # also those with fewer rows than coefficients, whose fit is exact
        rows = groups == i
        unit = np.abs(design[rows]).max(axis=0)
        fitted = design[rows] / unit @ np.linalg.lstsq(design[rows] / unit, y[rows])[0]
        np.testing.assert_allclose(local.predict(X[rows], groups=groups[rows]), fitted, atol=1e-5)


@pytest.mark.parametrize("ratio", [1e8, 1e14])
def test_groups_that_hardly_share_anything_are_least_squares(ratio):
    """As a variance grows every group is on its own; no digits may be lost to a difference of large numbers."""
    random = np.random.default_rng(3)
    X, groups = random.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    y = 5 + X @ [1.0, 2.0] + random.normal(size=60)
    model = HierarchicalLinearRegression(residual_variance=1, group_variance=ratio).fit(X, y, groups=groups)
    design = np.column_stack([np.ones(60), X])
    expected = [np.linalg.lstsq(design[groups == i], y[groups == i])[0] for i in range(6)]
    np.testing.assert_allclose(np.column_stack([model.intercept_, model.coef_]), expected, rtol=1e-6)


def table_one(seed, samples):
    """One run of the simulation: 20 x 20 clients, 20 features, all variances 1; mean error of each estimator."""
    random = np.random.default_rng(seed)
    size, each = 20, 20
    w = random.normal(size=(each, size))
    truth = np.repeat(w, each, axis=0) + random.normal(size=(each * each, size))
    groups = np.repeat(np.arange(each * each), samples)
    X = random.normal(size=(len(groups), size))
    y = np.einsum("nd,nd->n", X, truth[groups]) + random.normal(size=len(groups))
    ours = HierarchicalLinearRegression(
        fit_intercept=False, covariance="isotropic", residual_variance=1, group_variance=1, within_variance=1
    )
    models = [ours, LocalRegression(fit_intercept=False), PooledRegression(fit_intercept=False)]
    models.append(SingleClusterRegression(penalty=0.5, fit_intercept=False))
    fitted = [model.fit(X, y, groups=groups, within=groups // each) for model in models]
    return [np.linalg.norm(model.coef_ - truth, axis=1).mean() for model in fitted]


def test_table_one():
    ours, local, pooled, single = np.mean([table_one(seed, 10) for seed in range(5)], axis=0)
    assert ours == pytest.approx(3.393, abs=0.05)
    assert local == pytest.approx(4.487, abs=0.12)
    assert pooled == pytest.approx(6.17, abs=0.15)
    assert single == pytest.approx(4.44, abs=0.12)
    assert ours < single < local < pooled


def test_james_stein_has_the_corrected_weights():
    y = np.arange(12.0).reshape(3, 4)
    others = (y.sum(axis=0) - y) / 2
    np.testing.assert_allclose(james_stein(y, shrink=False), 4 / 6 * y + 2 / 6 * others)
    shrunk = 1 - 2 * 1.0 / (others**2).sum(axis=1, keepdims=True)  # d - 2 = 2, s2 = 2 / (n - 1) = 1
    np.testing.assert_allclose(james_stein(y), 4 / 6 * y + 2 / 6 * np.maximum(shrunk, 0) * others)


@pytest.mark.parametrize(("groups", "blue"), [(2, 7.5), (5, 6.0)])
def test_james_stein_beats_the_best_linear_unbiased_estimate(groups, blue):
    """Ten coordinates, the centre at 0: the squared error of BLUE is 10 (n + 1) / 2n, within 1 %."""
    random = np.random.default_rng(groups)
    errors = {True: [], False: []}
    for _ in range(12_000):
        truth = random.normal(size=(groups, 10))
        y = truth + random.normal(size=(groups, 10))
        for shrink in errors:
            errors[shrink].append(((james_stein(y, shrink=shrink) - truth) ** 2).sum() / groups)
    assert np.mean(errors[False]) == pytest.approx(blue, rel=0.01)
    # Without the positive part: d (a^2 + b^2) + 2 b^2 s2 = 6.50 and 5.36; with it, the error is smaller still.
    assert np.mean(errors[True]) < {2: 6.5, 5: 5.36}[groups]


def test_cross_validation_tries_every_pair_on_held_out_rows():
    from sklearn.model_selection import KFold

    X, y, groups, districts = schools(2, groups=20, districts=4, largest=15)
    model = HierarchicalLinearRegressionCV(
        gammas=[0.1, 1, 10], lambdas=[0.5, 5], cv=KFold(3), covariance="isotropic"
    ).fit(X, y, groups=groups, within=districts)
    errors = {}
    for gamma in (0.1, 1, 10):
        for penalty in (0.5, 5):
            squares = 0.0
            for train, test in KFold(3).split(X):
                fold = HierarchicalLinearRegression(
                    residual_variance=1.0, group_variance=1 / gamma, within_variance=1 / penalty
                ).fit(X[train], y[train], groups=groups[train], within=districts[train])
                predicted = fold.predict(X[test], groups=groups[test], within=districts[test])
                squares += ((y[test] - predicted) ** 2).sum()
            errors[gamma, penalty] = squares / len(y)
    np.testing.assert_allclose(model.cv_results_["mean_squared_error"], list(errors.values()), rtol=1e-9)
    best = min(errors, key=errors.get)
    assert (model.gamma_, model.lambda_) == best
    refitted = HierarchicalLinearRegression(
        residual_variance=1.0, group_variance=1 / best[0], within_variance=1 / best[1]
    ).fit(X, y, groups=groups, within=districts)
    np.testing.assert_allclose(model.coef_, refitted.coef_, atol=1e-10)


def test_cross_validation_over_groups_holds_whole_groups_out():
    from sklearn.model_selection import GroupKFold

    X, y, groups, districts = schools(2, groups=20, districts=4, largest=15)
    model = HierarchicalLinearRegressionCV(gammas=[1, 10], lambdas=[1, 10], cv=GroupKFold(5)).fit(
        X, y, groups=groups, within=districts
    )
    assert model.gamma_ in (1, 10)
    folds = model._folds(model._read_fit(X, y, groups, districts, None))
    assert all(not set(groups[fold]) & set(np.delete(groups, fold)) for fold in folds)


def test_a_search_that_begins_with_few_groups_ends_where_the_whole_one_does(monkeypatch):
    X, y, groups, districts = schools(1, groups=300, districts=20)
    whole = HierarchicalLinearRegression(random="intercept").fit(X, y, groups=groups, within=districts)
    monkeypatch.setattr("coterie.estimators.reml._FEW", 50)
    staged = HierarchicalLinearRegression(random="intercept").fit(X, y, groups=groups, within=districts)
    # It stops within a thousandth of a standard error, which 300 groups determine to about 4 %.
    assert staged.variance_components_["residual"] == pytest.approx(whole.variance_components_["residual"], rel=1e-4)
    assert staged.variance_components_["group"] == pytest.approx(whole.variance_components_["group"], rel=3e-4)
    assert staged.log_likelihood_ == pytest.approx(whole.log_likelihood_, abs=1e-5)
    np.testing.assert_allclose(staged.intercept_, whole.intercept_, rtol=1e-3)


def test_many_groups_take_several_blocks(monkeypatch):
    """The same solution however the groups are cut into blocks; districts cross the borders of blocks."""
    X, y, groups, districts = schools(1, groups=50, districts=4)
    moments = group_moments(X, y, groups, 50, True)
    tree = Tree.of(np.array([districts[groups == i][0] for i in range(50)]))
    effect, ratio = Effect.of_columns(3, np.arange(3)), np.diag([0.5, 0.2, 0.1])
    structure = Nested(tree, (effect, effect))
    whole = structure.solve(moments[:, :, tree.order], [ratio, ratio])
    monkeypatch.setattr("coterie.estimators.blocks.BLOCK", 7)
    monkeypatch.setattr("coterie.estimators.solution.BLOCK", 7)
    cut = structure.solve(moments[:, :, tree.order], [ratio, ratio])
    np.testing.assert_allclose(cut.theta, whole.theta, rtol=1e-10)
    np.testing.assert_allclose(cut.slopes(1.0)[0][0], whole.slopes(1.0)[0][0], rtol=1e-10)
    assert cut.log_determinant == pytest.approx(whole.log_determinant, rel=1e-12)
