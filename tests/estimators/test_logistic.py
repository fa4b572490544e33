"""The hierarchical logistic model against independent answers: by hand, by SciPy on the dense objective."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from coterie.errors import CoterieWarning
from coterie.estimators import (
    HierarchicalLogisticRegression,
    HierarchicalLogisticRegressionCV,
    InvalidData,
    LocalLogisticRegression,
    PooledLogisticRegression,
    SeparationWarning,
)
from coterie.estimators.bernoulli import Bernoulli
from coterie.estimators.blocks import Nested
from coterie.estimators.laplace import Criterion, Problem, laplace
from coterie.estimators.levels import Shape
from coterie.estimators.newton import WEAK, Penalty, find_bounded_mode, find_mode
from coterie.estimators.search import search
from coterie.estimators.tree import Effect, Tree

NAMES = ["intercept", "x0", "x1"]
pytestmark = pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning")


def shops(seed=0, groups=12, districts=3, largest=12):
    """Rows of unequal groups in no order; some have fewer rows than coefficients, or one class only."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), random.integers(1, largest, groups))
    random.shuffle(group)
    district = np.concatenate([np.arange(districts), random.integers(0, districts, groups - districts)])[group]
    X = random.normal(size=(len(group), 2)) * [1.0, 2.0] + [0.5, -1.0]
    odds = 0.3 + X @ [1.0, -0.4] + random.normal(size=groups)[group] + 0.7 * random.normal(size=districts)[district]
    y = (random.random(len(group)) < expit(odds)).astype(int)
    y[:2] = 0, 1
    return X, y, group, district


class Dense:
    """The penalised objective of all coefficients, beta, v and u, as one dense problem."""

    def __init__(self, X, y, group, district, random, between_groups, between_districts, offset=0.0):
        X = np.column_stack([np.ones(len(X)), X])
        self.groups, self.districts, self.random = group.max() + 1, district.max() + 1, random
        units = [(np.eye(self.groups)[group], between_groups), (np.eye(self.districts)[district], between_districts)]
        columns = [(unit * X[:, [k]], v[a]) for unit, v in units for a, k in enumerate(random)]
        self.Z = np.column_stack([X] + [column for column, _ in columns])
        variance = np.concatenate([np.full(column.shape[1], v) for column, v in columns])
        self.precision = np.r_[np.zeros(3), 1.0 / variance]
        self.y, self.offset, self.log_variance = y, offset, np.log(variance).sum()

    def value(self, b):
        eta = self.Z @ b + self.offset
        return np.logaddexp(0, eta).sum() - self.y @ eta + 0.5 * self.precision @ b**2

    def gradient(self, b):
        return self.Z.T @ (expit(self.Z @ b + self.offset) - self.y) + self.precision * b

    def hessian(self, b):
        mu = expit(self.Z @ b + self.offset)
        return (self.Z.T * (mu * (1 - mu))) @ self.Z + np.diag(self.precision)

    def solve(self):
        start = np.zeros(self.Z.shape[1])
        result = minimize(self.value, start, jac=self.gradient, hess=self.hessian, method="trust-exact", tol=1e-11)
        return result.x - np.linalg.solve(self.hessian(result.x), self.gradient(result.x))  # to the last digits

    def tables(self, b):
        """Return beta, the districts' and the groups' deviations."""
        u, v = np.zeros((self.groups, 3)), np.zeros((self.districts, 3))
        split = 3 + len(self.random) * self.groups
        u[:, self.random] = b[3:split].reshape(len(self.random), -1).T
        v[:, self.random] = b[split:].reshape(len(self.random), -1).T
        return b[:3], v, u

    def restricted(self):
        """Laplace's approximation of the log of the integral over all coefficients."""
        b = self.solve()
        return (
            -self.value(b)
            - 0.5 * np.linalg.slogdet(self.hessian(b))[1]
            - 0.5 * self.log_variance
            + 1.5 * np.log(2 * np.pi)
        )

    def marginal(self, beta):
        """The same over the deviations alone, at a given beta."""
        inner = Dense.__new__(Dense)
        inner.Z, inner.y, inner.offset = self.Z[:, 3:], self.y, self.Z[:, :3] @ beta + self.offset
        inner.precision = self.precision[3:]
        b = inner.solve()
        return -inner.value(b) - 0.5 * np.linalg.slogdet(inner.hessian(b))[1] - 0.5 * self.log_variance


def coefficients(model):
    districts = np.column_stack([model.within_intercept_, model.within_coef_])
    return (
        np.column_stack([model.intercept_, model.coef_]),
        districts,
        np.r_[model.global_intercept_, model.global_coef_],
    )


def problem(X, y, groups, districts, random, group=None, within=None, scale=None, **more):
    tree = Tree.of(np.array([districts[groups == i][0] for i in range(groups.max() + 1)]))
    position = np.empty(len(tree.order), int)
    position[tree.order] = np.arange(len(tree.order))
    effect = Effect.of_columns(X.shape[1] + 1, random)
    shape = Shape.diagonal(len(random)) if scale is None else Shape.isotropic(scale)
    data = Bernoulli(X, y.astype(float), position[groups], len(position), True)
    given = tuple(None if level is None else np.diag(level) for level in (group, within))
    return Problem(data, Nested(tree, (effect, effect)), (shape, shape), given, **more)


def test_two_rows_by_hand():
    """By symmetry beta = 0, and u = log 3 solves u / variance = 1 - 3/4 if the variance is 4 log 3."""
    model = HierarchicalLogisticRegression(fit_intercept=False, group_variance=4 * np.log(3))
    model.fit([[1.0], [1.0]], ["no", "yes"], groups=["a", "b"])
    np.testing.assert_allclose(model.coef_.ravel(), [-np.log(3), np.log(3)], rtol=1e-12)
    np.testing.assert_allclose(model.global_coef_, 0.0, atol=1e-14)
    np.testing.assert_allclose(model.predict_proba([[1.0]], groups=["b"]), [[0.25, 0.75]], rtol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba([[1.0]], groups=["b"]), np.log([[0.25, 0.75]]), rtol=1e-12)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.predict([[1.0], [1.0]], groups=["a", "b"]).tolist() == ["no", "yes"]
    assert model.decision_function([[2.0]], groups=["b"]) == pytest.approx(2 * np.log(3))


@pytest.mark.parametrize(
    ("random", "group", "within"),
    [
        ("all", 0.8, 0.3),
        ("all", [0.8, 2.0, 0.1], [0.3, 0.7, 0.05]),
        ("intercept", 0.8, 0.3),
        ("intercept", 400.0, 50.0),
        (["intercept", "x1"], {"x1": 0.2, "intercept": 1.5}, 0.4),
    ],
)
def test_the_answer_is_scipys_on_the_dense_objective(random, group, within):
    X, y, groups, districts = shops()
    offset = np.sin(np.arange(len(y)))
    model = HierarchicalLogisticRegression(random=random, group_variance=group, within_variance=within)
    model.fit(X, y, groups=groups, within=districts, offset=offset)
    columns = np.array([NAMES.index(n) for n in (NAMES if random == "all" else np.atleast_1d(random))])

    def spread(v):
        return np.broadcast_to([v[NAMES[k]] for k in columns] if isinstance(v, dict) else v, len(columns))

    dense = Dense(X, y, groups, districts, columns, spread(group), spread(within), offset)
    b = dense.solve()
    assert np.abs(dense.gradient(b)).max() < 1e-9
    beta, v, u = dense.tables(b)
    fitted, fitted_districts, fitted_beta = coefficients(model)
    np.testing.assert_allclose(fitted_beta, beta, rtol=0, atol=1e-8)
    np.testing.assert_allclose(fitted_districts, beta + v, rtol=0, atol=1e-8)
    np.testing.assert_allclose(fitted, beta + v[model.group_within_] + u, rtol=0, atol=1e-8)
    errors = np.sqrt(np.diag(np.linalg.inv(dense.hessian(b)))[:3])
    np.testing.assert_allclose(model.summary().coefficients["standard error"], errors, rtol=1e-7)


@given(st.integers(0, 2**31), st.floats(0.01, 100), st.floats(0.01, 100))
@settings(max_examples=25, deadline=None)
def test_the_gradient_is_zero_in_every_group_district_and_for_all(seed, gamma, penalty):
    X, y, groups, districts = shops(seed)
    model = HierarchicalLogisticRegression(
        covariance="isotropic", group_variance=1 / gamma, within_variance=1 / penalty
    ).fit(X, y, groups=groups, within=districts)
    theta, w, overall = coefficients(model)
    of_group, design = model.group_within_, np.column_stack([np.ones(len(X)), X])
    # Where the features separate all rows, the weak prior, in units of the root mean square, bounds beta.
    weak = WEAK * np.mean(design**2, axis=0) * overall if np.abs(overall).max() > 6 else np.zeros(3)
    for i, row in enumerate(theta):
        A, b = design[groups == i], y[groups == i]
        np.testing.assert_allclose(A.T @ (expit(A @ row) - b) + gamma * (row - w[of_group[i]]), 0, atol=1e-6)
    for j, row in enumerate(w):
        pull = gamma * (row - theta[of_group == j]).sum(axis=0) + penalty * (row - overall)
        np.testing.assert_allclose(pull, 0, atol=1e-6)
    pull = penalty * (overall - w).sum(axis=0)
    assert np.allclose(pull, 0, atol=1e-6) or np.allclose(pull + weak, 0, atol=1e-6)


@pytest.mark.parametrize("marginal", [False, True])
@pytest.mark.parametrize("scale", [None, np.array([1.0, 0.4])])
def test_the_gradient_of_the_likelihood_is_that_of_its_differences(marginal, scale):
    X, y, groups, districts = shops(1, groups=20, districts=4)
    criterion = Criterion(problem(X, y, groups, districts, np.array([0, 2]), group=None, within=None,
                                  scale=scale, marginal=marginal))  # fmt: skip
    levels = 4 if scale is None else 2
    mode, _ = find_bounded_mode(criterion.problem.data, criterion.penalty(np.full(levels, 0.5)))
    criterion.begin(mode)
    point = np.r_[[0.9, 0.4, 0.7, 0.2][:levels], [0.3, -0.2, 0.1] if marginal else []]
    gradient = criterion(point)[1]
    for k, step in enumerate(1e-4 * np.eye(len(point))):
        difference = (criterion(point + step)[0] - criterion(point - step)[0]) / 2e-4
        assert gradient[k] == pytest.approx(difference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("likelihood", ["restricted", "marginal"])
def test_variances_maximise_laplaces_approximation_on_the_dense_problem(likelihood):
    X, y, groups, districts = shops(4, groups=25, districts=5)
    columns = np.array([0])
    model = HierarchicalLogisticRegression(random="intercept", likelihood=likelihood, within_variance=0.4)
    model.fit(X, y, groups=groups, within=districts)

    def criterion(x):
        dense = Dense(X, y, groups, districts, columns, [np.exp(x[0])], [0.4])
        return -(dense.restricted() if likelihood == "restricted" else dense.marginal(x[1:]))

    beta = np.r_[model.global_intercept_, model.global_coef_] if likelihood == "marginal" else []
    estimates = np.r_[np.log(model.variance_components_["group"]["intercept"]), beta]
    assert model.log_likelihood_ == pytest.approx(-criterion(estimates), abs=1e-7)
    best = minimize(criterion, estimates + 0.2, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8})
    np.testing.assert_allclose(estimates, best.x, atol=2e-3)


def test_laplace_is_near_the_integral_where_groups_are_large():
    """Two random intercepts integrated by quadrature, for groups of 2,000 rows."""
    random = np.random.default_rng(0)
    groups = np.repeat([0, 1], 2000)
    x = random.normal(size=(4000, 1))
    y = (random.random(4000) < expit(0.5 * x[:, 0] + np.array([0.8, -0.8])[groups])).astype(float)
    structure = Nested(Tree.flat(2), (Effect.of_columns(2, np.array([0])),))
    fit = laplace(Problem(Bernoulli(x, y, groups, 2, True), structure, (Shape.full(1),), (None,), True))
    beta, variance = fit.mode.solution.beta, fit.penalty.covariances[0][0, 0]
    u = np.linspace(-8, 8, 4001) * np.sqrt(variance)
    total = 0.0
    for i in (0, 1):
        eta = beta[0] + beta[1] * x[groups == i] + u
        log = (y[groups == i, None] * eta - np.logaddexp(0, eta)).sum(axis=0) + norm.logpdf(u, scale=np.sqrt(variance))
        total += np.log(np.trapezoid(np.exp(log - log.max()), u)) + log.max()
    assert fit.log_likelihood == pytest.approx(total, abs=5e-4)


def test_a_variance_of_zero_is_estimated_and_gives_the_pooled_model():
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(400, 1)), np.arange(400) % 20
    y = np.arange(400) // 20 % 2  # every group has as many of both classes: less than chance would have it
    model = HierarchicalLogisticRegression(random="intercept").fit(X, y, groups=groups)
    pooled = PooledLogisticRegression().fit(X, y, groups=groups)
    assert model.variance_components_["group"]["intercept"] == 0.0
    np.testing.assert_allclose(model.coef_, pooled.coef_, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, pooled.intercept_, atol=1e-10)


@pytest.mark.parametrize("random", ["all", "intercept"])
def test_rescaling_a_column_rescales_its_coefficient_and_changes_no_probability(random):
    X, y, groups, districts = shops(5, groups=40, districts=8)
    fits = [
        HierarchicalLogisticRegression(random=random, covariance="diagonal", likelihood="restricted").fit(
            X * [unit, 1.0], y, groups=groups, within=districts
        )
        for unit in (1.0, 1000.0)
    ]
    np.testing.assert_allclose(fits[1].coef_[:, 0] * 1000, fits[0].coef_[:, 0], rtol=1e-5, atol=1e-6)
    before, after = (m.predict_proba(X * [u, 1], groups=groups) for m, u in zip(fits, (1.0, 1000.0), strict=True))
    np.testing.assert_allclose(after, before, atol=1e-7)
    assert fits[0].log_likelihood_ - np.log(1000) == pytest.approx(fits[1].log_likelihood_, abs=1e-7)


def test_a_search_that_begins_with_few_groups_ends_where_the_whole_one_does(monkeypatch):
    X, y, groups, districts = shops(1, groups=200, districts=10)
    whole = HierarchicalLogisticRegression(random="intercept").fit(X, y, groups=groups, within=districts)
    monkeypatch.setattr("coterie.estimators.laplace._FEW", 50)
    staged = HierarchicalLogisticRegression(random="intercept").fit(X, y, groups=groups, within=districts)
    assert staged.log_likelihood_ == pytest.approx(whole.log_likelihood_, abs=1e-8)
    np.testing.assert_allclose(staged.intercept_, whole.intercept_, atol=1e-4)


def test_a_search_leaves_a_start_of_zero_that_is_no_minimum():
    """(t^2 - 1)^2 is flat at zero, and a search with fewer groups may have ended there."""

    class Well:
        deviations, information = np.ones(1, dtype=bool), np.full(1, 8.0)

        def canonical(self, parameters):
            return np.abs(parameters)

        def __call__(self, parameters):
            t = parameters[0]
            return (t**2 - 1) ** 2, np.array([4 * t * (t**2 - 1)])

    assert search(Well(), np.zeros(1)) == pytest.approx(1.0, abs=1e-5)


def test_the_intercept_cancels_a_constant_offset():
    X, y, groups, districts = shops()
    plain, shifted = (
        HierarchicalLogisticRegression(group_variance=0.5, within_variance=0.2).fit(
            X, y, groups=groups, within=districts, offset=offset
        )
        for offset in (None, np.full(len(y), 1000.0))
    )
    np.testing.assert_allclose(shifted.intercept_, plain.intercept_ - 1000.0, atol=1e-7)
    np.testing.assert_allclose(shifted.coef_, plain.coef_, atol=1e-8)


def test_a_step_never_ascends_whatever_the_start():
    """Offsets that saturate most rows, so that Newton's own step would overshoot: the answer is still SciPy's."""
    X, y, groups, districts = shops(3)
    offset = 30.0 * np.random.default_rng(0).normal(size=len(y))
    given = {"group_variance": 2.0, "within_variance": 1.0}
    model = HierarchicalLogisticRegression(**given).fit(X, y, groups=groups, within=districts, offset=offset)
    beta, v, u = (dense := Dense(X, y, groups, districts, np.arange(3), [2.0] * 3, [1.0] * 3, offset)).tables(
        dense.solve()
    )
    np.testing.assert_allclose(coefficients(model)[0], beta + v[model.group_within_] + u, atol=1e-7)
    data = Bernoulli(X, y.astype(float), groups, 12, True)
    structure = Nested(Tree.flat(12), (Effect.of_columns(3, np.arange(3)),))
    penalty = Penalty(structure, (2.0 * np.eye(3),))
    near = find_mode(data, penalty)
    far = find_mode(data, penalty, data.at(np.full((3, 12), 40.0)))  # says little: all its weights are nearly zero
    assert far.converged
    np.testing.assert_allclose(far.solution.theta, near.solution.theta, atol=1e-9)


# -- separation ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_separated_groups_have_a_finite_answer_and_a_warning_that_counts_them():
    X, y, groups, _ = shops(2, groups=10, largest=20)
    y[groups == 3] = 1  # one class
    y[groups == 4] = X[groups == 4, 0] > 0.5  # a line between the classes
    with pytest.warns(SeparationWarning, match="groups are perfectly separated or of one class") as caught:
        model = HierarchicalLogisticRegression(group_variance=25.0).fit(X, y, groups=groups)
    assert len(caught) == 1
    assert {3, 4} <= set(model.separated_.tolist())
    assert f"{len(model.separated_)} of 10 groups" in str(caught[0].message)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.intercept_).all()
    assert isinstance(caught[0].message, CoterieWarning)
    for i in range(10):  # no group with overlapping classes is called separated: SciPy's linear programme
        assert (i in model.separated_) <= _separable(X[groups == i], y[groups == i])


def _separable(X, y):
    from scipy.optimize import linprog

    signed = np.where(y == 1, 1.0, -1.0)[:, None] * np.column_stack([np.ones(len(X)), X])
    return linprog(np.zeros(3), A_ub=-signed, b_ub=-np.ones(len(X)), bounds=[(None, None)] * 3).status == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("quasi", [False, True])
@pytest.mark.parametrize("likelihood", ["restricted", "marginal"])
def test_features_that_separate_all_rows_have_a_finite_answer_and_a_warning(quasi, likelihood):
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(200, 2)), np.arange(200) % 10
    y = (X[:, 0] > 0).astype(int)
    if quasi:  # only the rows with the flag are all of one class
        y = random.integers(0, 2, 200)
        X[:, 1], y[:3] = np.arange(200) < 3, 1
    model = HierarchicalLogisticRegression(random="intercept", likelihood=likelihood)
    with pytest.warns(SeparationWarning, match="X: the features separate the classes"):
        model.fit(X, y, groups=groups)
    assert np.isfinite(model.coef_).all()
    assert 2.0 < np.abs(model.global_coef_).max() < 100.0
    with pytest.warns(SeparationWarning, match="X: the features separate"):
        pooled = PooledLogisticRegression().fit(X, y)
    # With the weak prior the answer is that of a ridge on standardised columns.
    design = np.column_stack([np.ones(200), (X - X.mean(axis=0)) / X.std(axis=0)])
    ridge = LogisticRegression(C=1 / WEAK, fit_intercept=False, tol=1e-10, solver="newton-cholesky").fit(design, y)
    np.testing.assert_allclose(pooled.decision_function(X), design @ ridge.coef_[0], rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_groups_of_one_class_each_leave_the_variance_unbounded():
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(100, 1)), np.repeat(np.arange(20), 5)
    model = HierarchicalLogisticRegression(random="intercept", likelihood="restricted")
    with pytest.warns(SeparationWarning, match="20 of 20 .* the rows do not bound a variance: give group_variance"):
        model.fit(X, groups % 2, groups=groups)
    assert np.isfinite(model.intercept_).all()
    assert (model.predict(X, groups=groups) == groups % 2).all()
    assert model.separated_.tolist() == list(range(20))


@pytest.mark.filterwarnings("error")
def test_no_warning_where_nothing_is_separated():
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(600, 2)), np.arange(600) % 6
    y = random.random(600) < expit(X[:, 0])
    model = HierarchicalLogisticRegression().fit(X, y, groups=groups)
    assert len(model.separated_) == 0
    LocalLogisticRegression().fit(X, y, groups=groups)
    PooledLogisticRegression().fit(X, y, groups=groups)


# -- baselines, cross-validation, messages, plot ---------------------------------------------------


@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_a_local_model_is_scikit_learns_ridge_on_its_rows(penalty):
    X, y, groups, districts = shops(6, groups=8, largest=20)
    model = LocalLogisticRegression(penalty=penalty).fit(X, y, groups=groups, within=districts)
    # The ridge is on features around their means and in units of their deviations.
    design = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    sklearn = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=500, solver="newton-cholesky")
    compared = 0
    for i in range(8):
        rows = groups == i
        odds = model.decision_function(X[rows], groups=groups[rows])
        if len(set(y[rows])) == 2:
            expected = design[rows] @ sklearn.fit(design[rows], y[rows]).coef_[0]
            np.testing.assert_allclose(odds, expected, rtol=1e-5, atol=1e-6)
            compared += 1
        else:  # scikit-learn wants both classes: the gradient must vanish
            theta = np.linalg.lstsq(design, model.decision_function(X, groups=np.full(len(X), i)))[0]
            gradient = design[rows].T @ (expit(odds) - y[rows]) + penalty * theta
            np.testing.assert_allclose(gradient, 0, atol=1e-7)
    assert compared >= 4
    new = model.decision_function(X[:2], groups=[100, 100], within=[1, 99])
    assert new[0] == pytest.approx(
        design[0] @ sklearn.fit(design[districts == 1], y[districts == 1]).coef_[0], rel=1e-5
    )
    assert new[1] == pytest.approx(design[1] @ sklearn.fit(design, y).coef_[0], rel=1e-5)


def test_a_pooled_model_is_scikit_learns_without_penalty():
    X, y, groups, districts = shops(6, groups=20, largest=20)
    model = PooledLogisticRegression().fit(X, y, groups=groups, within=districts)
    expected = LogisticRegression(C=np.inf, tol=1e-10, solver="newton-cholesky").fit(X, y)
    np.testing.assert_allclose(model.global_coef_, expected.coef_[0], rtol=1e-6)
    np.testing.assert_allclose(model.coef_, np.tile(model.global_coef_, (20, 1)))
    assert model.global_intercept_ == pytest.approx(expected.intercept_[0], rel=1e-6)


def test_cross_validation_tries_every_pair_on_held_out_rows():
    X, y, groups, districts = shops(2, groups=20, districts=4, largest=15)
    model = HierarchicalLogisticRegressionCV(gammas=[0.1, 1, 10], lambdas=[0.5, 5], cv=KFold(3), covariance="isotropic")
    model.fit(X, y, groups=groups, within=districts)
    losses = {}
    for gamma in (0.1, 1, 10):
        for penalty in (0.5, 5):
            total = 0.0
            for train, test in KFold(3).split(X):
                fold = HierarchicalLogisticRegression(group_variance=1 / gamma, within_variance=1 / penalty)
                fold.fit(X[train], y[train], groups=groups[train], within=districts[train])
                log = fold.predict_log_proba(X[test], groups=groups[test], within=districts[test])
                total -= log[np.arange(len(test)), y[test]].sum()
            losses[gamma, penalty] = total / len(y)
    np.testing.assert_allclose(model.cv_results_["log_loss"], list(losses.values()), rtol=1e-9)
    best = min(losses, key=losses.get)
    assert (model.gamma_, model.lambda_) == best
    refitted = HierarchicalLogisticRegression(group_variance=1 / best[0], within_variance=1 / best[1])
    np.testing.assert_allclose(model.coef_, refitted.fit(X, y, groups=groups, within=districts).coef_, atol=1e-9)
    assert model.variance_components_["group"]["x0"] == pytest.approx(1 / best[0])


def test_the_ledger_counts_a_message_of_every_group_for_every_step():
    X, y, groups, districts = shops()
    given = {"group_variance": 0.5, "within_variance": 0.2}
    plain, federated = (
        HierarchicalLogisticRegression(federated=f, **given).fit(X, y, groups=groups, within=districts)
        for f in (False, True)
    )
    np.testing.assert_array_equal(plain.coef_, federated.coef_)
    assert plain.ledger_ is None
    ledger = federated.ledger_
    steps = ledger["rounds"] - 2  # the first message is X'X; the last says whether the group is separated
    assert 3 <= steps <= 12
    assert ledger["bytes_up_per_group"] == 8 * (6 + steps * (6 + 3 + 1) + 1)
    # Downward the first answer is the centre and the unit of both features.
    assert ledger["bytes_down_per_group"] == 8 * (4 + 3 * (steps + 1))
    assert ledger["bytes_up"] == 12 * ledger["bytes_up_per_group"]
    # The messages kept are information and gradient at the answer, in the features' units.
    design = np.column_stack([np.ones(len(X)), X])
    table = coefficients(federated)[0]
    for i in range(12):
        A, mu = design[groups == i], expit(design[groups == i] @ table[i])
        information = (A.T * (mu * (1 - mu))) @ A
        expected = np.r_[information[np.triu_indices(3)], A.T @ (y[groups == i] - mu)]
        np.testing.assert_allclose(federated.statistics_[i], expected, rtol=1e-6, atol=1e-7)


def test_the_shrinkage_plot_goes_from_a_groups_own_estimate_to_the_shrunk_one():
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(900, 1)), np.arange(900) % 6
    y = (random.random(900) < expit(X[:, 0] + np.linspace(-1, 1, 6)[groups])).astype(int)
    y[groups == 5] = 1
    model = HierarchicalLogisticRegression(random="all", group_variance=1e4).fit(X, y, groups=groups)
    points = model.plot_shrinkage("x0").data[0]
    assert points.text == tuple("01234")  # the group of one class has no estimate of its own
    for i in range(5):
        alone = LogisticRegression(C=np.inf, tol=1e-10).fit(X[groups == i], y[groups == i])
        assert points.x[i] == pytest.approx(alone.coef_[0, 0], rel=1e-4)
        assert points.y[i] == model.coef_[i, 0]


# -- labels, new groups, summary, errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [1.0, 2.0], [-1, 1], ["b", "a"]])
def test_labels_of_any_type(labels):
    X, y, groups, _ = shops()
    model = HierarchicalLogisticRegression(group_variance=1.0).fit(X, np.array(labels)[y], groups=groups)
    series = HierarchicalLogisticRegression(group_variance=1.0).fit(X, pd.Series(np.array(labels)[y]), groups=groups)
    assert model.classes_.tolist() == sorted(labels)
    predicted = model.predict(X, groups=groups)
    assert set(predicted.tolist()) <= set(labels)
    assert predicted.tolist() == series.predict(X, groups=groups).tolist()
    assert model.score(X, np.array(labels)[y], groups=groups) == np.mean(predicted == np.array(labels)[y])


def test_a_new_group_gets_its_districts_model_and_then_the_global_one():
    X, y, groups, districts = shops()
    model = HierarchicalLogisticRegression(group_variance=1.0, within_variance=0.5)
    model.fit(X, y, groups=groups, within=districts)
    design = np.column_stack([np.ones(len(X)), X])
    table, of_district, overall = coefficients(model)
    np.testing.assert_allclose(model.decision_function(X, groups=groups), (design * table[groups]).sum(axis=1))
    new = model.decision_function(X, groups=groups + 100, within=districts)
    np.testing.assert_allclose(new, (design * of_district[districts]).sum(axis=1))
    np.testing.assert_allclose(model.decision_function(X, groups=groups + 100), design @ overall)
    with pytest.raises(InvalidData, match="groups: the model was fitted with 12 groups"):
        model.predict(X)


def test_groups_with_fewer_rows_than_features():
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(60, 4)), np.arange(60) // 3
    y = random.random(60) < expit(X[:, 0])
    model = HierarchicalLogisticRegression().fit(X, y, groups=groups)
    assert model.coef_.shape == (20, 4)
    assert np.isfinite(model.coef_).all()


def test_the_summary_has_the_correlation_of_log_odds():
    X, y, groups, districts = shops()
    model = HierarchicalLogisticRegression(random="intercept", group_variance=1.2, within_variance=0.5)
    summary = model.fit(X, y, groups=groups, within=districts).summary()
    total = 1.2 + 0.5 + np.pi**2 / 3
    assert summary.intraclass_correlation == pytest.approx({"group": 1.7 / total, "outer group": 0.5 / total})
    assert summary.levels["units"].tolist() == [12, 3]
    assert "residual" not in str(summary)
    estimated = HierarchicalLogisticRegression(random="intercept").fit(X, y, groups=groups)
    assert "marginal log-likelihood (Laplace)" in str(estimated.summary())
    assert model.coef_frame().shape == (12, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": lambda y: np.zeros(len(y))}, "y: all rows have the same class, 0.0; two classes"),
        ({"y": lambda y: y + 0.5 * np.random.default_rng(0).random(len(y))}, "Unknown label type"),
        ({"y": lambda y: np.where(y == 1, "a", None)}, "y: labels of different types"),
        ({"y": lambda y: np.where(y == 1, np.nan, 0.0)}, "contains NaN"),
        ({"X": lambda X: np.where(X[0, 0] == X, np.nan, X)}, "X: feature 'x0' is NaN in row 0"),
        ({"X": lambda X: np.column_stack([X, X[:, 0] + X[:, 1]])}, "X: x0, x1, x2 depend on each other"),
        ({"within": lambda d: np.arange(len(d))}, "within: group .* lies in two districts"),
        ({"likelihood": "ml"}, 'likelihood: must be "restricted" or "marginal"'),
        ({"covariance": "half"}, "covariance: must be"),
        ({"random": ["age"]}, "random: no coefficient 'age'"),
        ({"group_variance": -1.0}, "group_variance: variances must be 0 or more"),
    ],
)
def test_bad_input_is_named(change, message):
    X, y, groups, districts = shops()
    rows = {"X": X, "y": y, "within": districts}
    rows |= {key: change.pop(key)(rows[key]) for key in list(change) if key in rows}
    with pytest.raises(ValueError, match=message):
        HierarchicalLogisticRegression(**change).fit(groups=groups, **rows)


def test_cross_validation_names_what_it_cannot_use():
    X, y, groups, _ = shops()
    with pytest.raises(InvalidData, match="cv: must lie between 2 and the rows of the rarer class"):
        HierarchicalLogisticRegressionCV(cv=1000).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match=r"Only binary classification is supported.*3 classes"):
        HierarchicalLogisticRegressionCV().fit(X, np.arange(len(y)) % 3, groups=groups)
    with pytest.raises(InvalidData, match="penalty: must be 0 or more"):
        LocalLogisticRegression(penalty=-1.0).fit(X, y, groups=groups)
