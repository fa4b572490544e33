"""The exact solution of the hierarchical linear model, (5.2), for all groups at once and from their moments alone.

    y = X theta_i + noise,   theta_i = w_j + B u_i,   w_j = beta + B v_j,   u_i ~ N(0, s2 D),   v_j ~ N(0, s2 E)

for group i in district j (and that in a region, and so on), with noise of variance s2 and a flat prior on beta. D and E
are ratios to s2, [k, k] and possibly singular; the basis B says which combinations of columns vary. Upward, D = L d
L' is
absorbed one column z of X B L at a time, each with a Schur complement: with V = I + d z z' the moments a' V^-1 b are
m_ab - d m_az m_zb / (1 + d m_zz), and det V = 1 + d m_zz. That needs no inverse of a block, allows d = 0, and a random
intercept costs one step. Groups are then summed into districts, which are absorbed in the same way, and so on; beta
solves the remaining p x p system. Downward, s = Z' V^-1 (y - X mean above) gives the effects D s. The cost is linear in
the number of groups, and no Python loop runs over them. Effects that cross each other are solved in `crossed.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.estimators.grouping import InvalidData
from coterie.estimators.solution import BLOCK, Level, Solution
from coterie.estimators.tree import Effect, Tree

__all__ = ["Absorbed", "Nested", "as_matrix", "solve_top"]


@dataclass(frozen=True)
class Absorbed:
    """The moments after the groups' random coefficients were absorbed; they depend on the groups' ratios alone."""

    ratio: np.ndarray  # [k, k]
    schur: np.ndarray  # [k, p + 1, groups]
    totals: np.ndarray  # [p + 1, p + 1, units above]
    log_determinant: float


@dataclass(frozen=True)
class Nested:
    """Levels that lie within each other, the finest first, with the coefficients that vary at each."""

    tree: Tree
    effects: tuple[Effect, ...]

    @property
    def units(self) -> int:
        """How many groups there are."""
        return len(self.tree.order)

    @property
    def sizes(self) -> list[int]:
        """How many units each level has."""
        return self.tree.sizes

    @property
    def unit_codes(self) -> tuple[np.ndarray, ...]:
        """The caller's code of each unit of every level."""
        return self.tree.codes

    def part(self, step: int) -> tuple[np.ndarray, "Nested"]:
        """Return every step-th group, in the new structure's order."""
        kept, tree = self.tree.every(step)
        codes = (np.arange(len(kept)), *tree.codes[1:])
        return kept[tree.order], Nested(Tree(codes[0], tree.parents, codes), self.effects)

    def theta(self, beta: np.ndarray, effects: Sequence[np.ndarray]) -> np.ndarray:
        """Return the coefficients [p, groups] that beta and the effects [k, units] of every level make."""
        means = beta[:, None]
        for level in reversed(range(len(self.effects))):
            if level + 1 < len(self.effects):
                means = means[:, self.tree.parents[level]]
            means = means + self.effects[level].basis @ effects[level]
        return means

    def solve(
        self,
        moments: np.ndarray,
        ratios: Sequence[np.ndarray],
        ridge: float = 0.0,
        beta: np.ndarray | None = None,
        marginal: bool = False,
        fixed: tuple[np.ndarray, float] | None = None,
    ) -> Solution:
        """Solve for all coefficients; moments [p + 1, p + 1, groups] are in the tree's order; see `finish`."""
        return self.finish(self.absorb(moments, ratios[0]), ratios[1:], ridge, beta, marginal, fixed)

    def absorb(self, moments: np.ndarray, ratio: np.ndarray) -> Absorbed:
        """Absorb the groups' random coefficients and sum the groups into the units above."""
        size, effect = len(moments), self.effects[0]
        ratio = as_matrix(ratio)
        schur = np.empty((len(ratio), size, moments.shape[2]))
        parent = self.tree.parents[0] if self.tree.parents else np.zeros(moments.shape[2], np.intp)
        totals = np.zeros((size, size, int(parent[-1]) + 1))
        log_determinant = 0.0
        for start in range(0, moments.shape[2], BLOCK):
            block = slice(start, start + BLOCK)
            part = moments[:, :, block].copy()
            log_determinant += _absorb(part, effect, ratio)
            schur[:, :, block] = _rows(part, effect.basis)
            _add_by_parent(totals, part, parent[block])
        return Absorbed(ratio, schur, totals, log_determinant)

    def finish(
        self,
        absorbed: Absorbed,
        ratios: Sequence[np.ndarray],
        ridge: float = 0.0,
        beta: np.ndarray | None = None,
        marginal: bool = False,
        fixed: tuple[np.ndarray, float] | None = None,
    ) -> Solution:
        """Absorb the other levels, solve for beta, and go down again.

        A ridge is the precision of a normal prior on beta instead of the flat one. A given beta is kept, and the
        determinant and the covariances are then those of the random coefficients given beta. `marginal` leaves out the
        determinant of beta's information. `fixed`, a and b, solves under the constraint a' beta = b.
        """
        schurs, matrices = [absorbed.schur], [absorbed.ratio]
        totals, log_determinant = absorbed.totals.copy(), absorbed.log_determinant
        for level, effect in enumerate(self.effects[1:], start=1):
            matrices.append(as_matrix(ratios[level - 1]))
            log_determinant += _absorb(totals, effect, matrices[-1])
            schurs.append(_rows(totals, effect.basis))
            if level < len(self.effects) - 1:
                parent = self.tree.parents[level]
                above = np.zeros((*totals.shape[:2], int(parent[-1]) + 1))
                _add_by_parent(above, totals, parent)
                totals = above
        total = totals.sum(axis=2)
        beta, covariance, squares, determinant = solve_top(np.triu(total) + np.triu(total, 1).T, ridge, beta, fixed)
        quiet = marginal or not covariance.any()
        means, levels = self._down(beta, matrices, schurs)
        return Solution(
            beta,
            means,
            covariance,
            np.zeros_like(covariance) if quiet else covariance,
            squares,
            log_determinant + (0.0 if quiet else determinant),
            levels,
            self.tree,
        )

    def _down(
        self, beta: np.ndarray, ratios: list[np.ndarray], schurs: list[np.ndarray]
    ) -> tuple[tuple[np.ndarray, ...], tuple[Level, ...]]:
        """Return the coefficients of all units, and their levels with residuals, from the top to the groups."""
        means: list[np.ndarray] = []
        levels: list[Level] = []
        above = np.repeat(beta[:, None], schurs[-1].shape[2], axis=1)
        for level in reversed(range(len(schurs))):
            if means:
                above = means[0][:, self.tree.parents[level]]
            schur = schurs[level]
            residual = schur[:, -1].copy()
            for a in range(len(beta)):
                residual -= schur[:, a] * above[a]
            levels.insert(0, Level(self.effects[level], ratios[level], schur, residual))
            means.insert(0, above + self.effects[level].basis @ (ratios[level] @ residual))
        return tuple(means), tuple(levels)


def as_matrix(ratio: np.ndarray) -> np.ndarray:
    """Return a covariance; a vector is its diagonal."""
    return np.diag(ratio) if ratio.ndim == 1 else ratio


def solve_top(
    total: np.ndarray, ridge: float, beta: np.ndarray | None, fixed: tuple[np.ndarray, float] | None
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return beta, its covariance, the sum of squares and the log determinant of beta's information."""
    size = len(total) - 1
    products, response = total[:size, :size], total[:size, size]
    if beta is not None:
        squares = float(total[size, size] - 2.0 * response @ beta + beta @ products @ beta)
        return beta, np.zeros((size, size)), squares, 0.0
    try:
        factor = np.linalg.cholesky(products + ridge * np.eye(size))
    except np.linalg.LinAlgError:
        raise InvalidData("X: the coefficients are not determined; remove features that depend on each other") from None
    inverse = np.linalg.inv(factor)
    covariance = inverse.T @ inverse
    beta = covariance @ response
    squares = float(total[size, size] - response @ beta)
    if fixed is not None:
        contrast, value = fixed
        along = covariance @ contrast
        miss = (float(contrast @ beta) - value) / float(contrast @ along)
        beta = beta - along * miss
        squares += miss**2 * float(contrast @ along)
    return beta, covariance, squares, 2.0 * float(np.log(np.diag(factor)).sum())


def _absorb(moments: np.ndarray, effect: Effect, ratio: np.ndarray) -> float:
    """Absorb random coefficients with these ratios, in place; return the sum of the log determinants of V.

    Only the upper triangle, where b >= a, is kept up to date, which is half of the work; see `_row`.
    """
    log_determinant = 0.0
    lower, diagonal = _factor(ratio)
    columns = effect.basis @ lower
    for k, r in enumerate(diagonal):
        if r == 0.0:
            continue
        column, own = columns[:, k], effect.own[k]
        others = [j for j in np.flatnonzero(column) if j != own]
        row = column[own] * _row(moments, own)
        for j in others:
            row += column[j] * _row(moments, j)
        pivot = 1.0 + r * np.tensordot(column, row[:-1], axes=1)
        log_determinant += float(np.log(pivot).sum())
        scaled = row * (r / pivot)
        for a in range(len(row)):
            moments[a, a:] -= row[a] * scaled[a:]
        # z'V^-1[X y] is row / pivot; as a difference it would cancel where r is large. One row of the moments follows.
        shrunk = row / pivot
        for j in others:
            shrunk = shrunk - column[j] * _row(moments, j)
        shrunk /= column[own]
        moments[:own, own], moments[own, own:] = shrunk[:own], shrunk[own:]
    return log_determinant


def _factor(ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return L, with ones on its diagonal, and d with ratio = L diag(d) L'; a singular ratio has zeros in d."""
    size = len(ratio)
    lower, diagonal, rest = np.eye(size), np.zeros(size), np.array(ratio, dtype=np.float64)
    for k in range(size):
        diagonal[k] = rest[k, k]
        if rest[k, k] != 0.0 and k + 1 < size:
            lower[k + 1 :, k] = rest[k + 1 :, k] / rest[k, k]
            rest[k + 1 :, k + 1 :] -= np.outer(lower[k + 1 :, k], rest[k, k + 1 :])
    return lower, diagonal


def _row(moments: np.ndarray, k: Any) -> np.ndarray:
    """Return a copy of row k of symmetric matrices, from their upper triangles."""
    return np.concatenate([moments[:k, k], moments[k, k:]])


def _rows(moments: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return basis' times symmetric matrices [k, p + 1, units], from their upper triangles."""
    rows = np.zeros((basis.shape[1], *moments.shape[1:]))
    for j in np.flatnonzero(basis.any(axis=1)):
        whole = _row(moments, j)
        for k in np.flatnonzero(basis[j]):
            rows[k] += basis[j, k] * whole
    return rows


def _add_by_parent(totals: np.ndarray, part: np.ndarray, parent: np.ndarray) -> None:
    """Add the moments of some units, in the order of their parents, to the parents' totals."""
    starts = np.flatnonzero(np.r_[True, parent[1:] != parent[:-1]])
    totals[:, :, parent[starts]] += np.add.reduceat(part, starts, axis=2)
