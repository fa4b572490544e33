"""The solutions of nested and of crossed levels against the dense mixed model on the raw rows."""

import numpy as np
import pytest

from coterie.estimators.blocks import Nested
from coterie.estimators.crossed import Crossed
from coterie.estimators.moments import group_moments
from coterie.estimators.tree import Effect, Tree

ROWS = 200
FIRST = Effect(np.array([[1.0, 0.7], [0.0, 1.0], [0.0, 0.0]]), np.array([0, 1]))  # 1, and x0 around another zero
SECOND, THIRD = Effect.of_columns(3, np.array([0, 2])), Effect.of_columns(3, np.array([0]))
RATIOS = [np.array([[0.8, 0.3], [0.3, 0.5]]), np.array([[0.4, -0.1], [-0.1, 0.2]]), np.array([[0.3]])]
SINGULAR = [np.array([[0.4, 0.2], [0.2, 0.1]]), np.array([[0.0, 0.0], [0.0, 0.2]]), np.array([[0.0]])]


class Dense:
    """V in full; codes, effects and ratios are those of every level."""

    def __init__(self, X, y, codes, effects, ratios):
        self.X, self.y = np.column_stack([np.ones(len(X)), X]), y
        V = np.eye(len(y))
        for code, effect, ratio in zip(codes, effects, ratios, strict=True):
            Z = self.X @ effect.basis
            V += (code[:, None] == code) * (Z @ ratio @ Z.T)
        inverse = np.linalg.inv(V)
        information = self.X.T @ inverse @ self.X
        self.covariance = np.linalg.inv(information)
        self.beta = self.covariance @ self.X.T @ inverse @ y
        self.P = inverse - inverse @ self.X @ self.covariance @ self.X.T @ inverse
        self.determinant = np.linalg.slogdet(V)[1] + np.linalg.slogdet(information)[1]

    def check(self, solution, codes, effects):
        np.testing.assert_allclose(solution.beta, self.beta, atol=1e-10)
        np.testing.assert_allclose(solution.covariance, self.covariance, atol=1e-10)
        assert solution.log_determinant == pytest.approx(self.determinant, abs=1e-9)
        assert solution.squares == pytest.approx(self.y @ self.P @ self.y, rel=1e-10)
        for level, (code, effect) in enumerate(zip(codes, effects, strict=True)):
            Z, residual = self.X @ effect.basis, self.P @ self.y
            information = solution.information(level)
            for unit in range(code.max() + 1):
                here = code == unit
                expected = Z[here].T @ self.P[np.ix_(here, here)] @ Z[here]
                np.testing.assert_allclose(information[:, :, unit], expected, atol=1e-9)
                np.testing.assert_allclose(
                    solution.levels[level].residual[:, unit], Z[here].T @ residual[here], atol=1e-9
                )


def rows():
    random = np.random.default_rng(0)
    return random, random.normal(size=(ROWS, 2)), random.normal(size=ROWS)


@pytest.mark.parametrize("ratios", [RATIOS, SINGULAR], ids=["full", "singular"])
def test_levels_that_cross(ratios):
    random, X, y = rows()
    one, other = random.integers(0, 12, ROWS), random.integers(0, 5, ROWS)
    cells, cell = np.unique(np.stack([one, other]), axis=1, return_inverse=True)
    structure = Crossed((cells[0], cells[1]), (FIRST, SECOND))
    solution = structure.solve(group_moments(X, y, cell.reshape(-1), cells.shape[1], True), ratios[:2])
    dense = Dense(X, y, (one, other), (FIRST, SECOND), ratios[:2])
    dense.check(solution, (one, other), (FIRST, SECOND))
    if ratios is SINGULAR:
        return
    # Henderson's equations: the covariance of every cell's coefficients.
    Z = [dense.X @ FIRST.basis * (one == u)[:, None] for u in range(12)]
    Z += [dense.X @ SECOND.basis * (other == u)[:, None] for u in range(5)]
    whole = np.column_stack([dense.X, *Z])
    penalty = np.zeros((37, 37))
    penalty[3:27, 3:27] = np.kron(np.eye(12), np.linalg.inv(ratios[0]))
    penalty[27:, 27:] = np.kron(np.eye(5), np.linalg.inv(ratios[1]))
    inverse, covariances = np.linalg.inv(whole.T @ whole + penalty), solution.unit_covariance()
    for i, (a, b) in enumerate(cells.T):
        way = np.zeros((3, 37))
        way[:, :3], way[:, 3 + 2 * a : 5 + 2 * a], way[:, 27 + 2 * b : 29 + 2 * b] = (
            np.eye(3),
            FIRST.basis,
            SECOND.basis,
        )
        np.testing.assert_allclose(covariances[:, :, i], way @ inverse @ way.T, atol=1e-10)


@pytest.mark.parametrize("ratios", [RATIOS, SINGULAR], ids=["full", "singular"])
def test_three_nested_levels_by_blocks_and_as_crossed_ones(ratios):
    random, X, y = rows()
    group = np.concatenate([np.arange(30), random.integers(0, 30, ROWS - 30)])
    district, region = np.arange(30) % 9, np.arange(9) % 3
    effects, codes = (FIRST, SECOND, THIRD), (group, district[group], region[district[group]])
    moments = group_moments(X, y, group, 30, True)
    crossed = Crossed((np.arange(30), district, region[district]), effects).solve(moments, ratios)
    Dense(X, y, codes, effects, ratios).check(crossed, codes, effects)
    tree = Tree.of(district, region[district])
    nested = Nested(tree, effects).solve(moments[:, :, tree.order], ratios)
    assert nested.log_determinant == pytest.approx(crossed.log_determinant, abs=1e-9)
    np.testing.assert_allclose(nested.theta, crossed.theta[:, tree.order], atol=1e-10)
    np.testing.assert_allclose(nested.unit_covariance(), crossed.unit_covariance()[:, :, tree.order], atol=1e-10)
    for one, other in zip(nested.slopes(1.3)[0], crossed.slopes(1.3)[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    for level, codes_of in enumerate(tree.codes):
        np.testing.assert_allclose(
            nested.levels[level].residual, crossed.levels[level].residual[:, codes_of], atol=1e-9
        )


def test_beta_under_a_constraint():
    _, X, y = rows()
    group = np.arange(ROWS) % 10
    moments, structure = group_moments(X, y, group, 10, True), Nested(Tree.flat(10), (THIRD,))
    free, contrast = structure.solve(moments, [np.eye(1)]), np.array([1.0, 2.0, 0.0])
    held = structure.solve(moments, [np.eye(1)], fixed=(contrast, 0.7))
    assert contrast @ held.beta == pytest.approx(0.7)
    miss = contrast @ free.beta - 0.7
    assert held.squares - free.squares == pytest.approx(miss**2 / (contrast @ free.covariance @ contrast))
