"""The exact solution of the hierarchical linear model, (5.2), for all groups at once and from their moments alone.

    y = X theta_i + noise,   theta_i = w_j + u_i,   w_j = beta + v_j,
    u_i ~ N(0, s2 diag(group)),   v_j ~ N(0, s2 diag(within))

for group i in district j, with noise of variance s2 and a flat prior on beta; `group` and `within` are ratios to s2,
zero where a coefficient does not vary. Upward, the random coefficients are absorbed one at a time, each with a Schur
complement: with V = I + r z z' the moments z_a' V^-1 z_b are m_ab - r m_ak m_kb / (1 + r m_kk), and det V = 1 + r m_kk.
That needs no inverse of a block, allows r = 0, and a random intercept costs one step. Groups are then summed into
districts, districts are absorbed in the same way and summed, and beta solves the remaining p x p system. Downward,
s_j = Z' V^-1 (y - X beta) gives v_j = within * s_j, and the same for u_i. The cost is linear in the number of groups,
and no Python loop runs over them.
"""

from dataclasses import dataclass

import numpy as np

from coterie.estimators.grouping import InvalidData

__all__ = ["Absorbed", "Solution", "Tree", "absorb", "finish", "solve"]

_BLOCK = 2048  # groups at a time: their moments stay in the processor's cache


@dataclass(frozen=True)
class Tree:
    """Groups in the order of their districts."""

    order: np.ndarray  # [groups] position of each group in the caller's order
    district: np.ndarray  # [groups] in this order, so never decreasing
    starts: np.ndarray  # [districts] where each begins

    @classmethod
    def of(cls, district: np.ndarray) -> "Tree":
        """Sort groups by the codes of their districts, each of which has at least one."""
        order = np.argsort(district, kind="stable")
        ordered = district[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        return cls(order, np.cumsum(np.r_[0, ordered[1:] != ordered[:-1]]), starts)

    def every(self, step: int) -> tuple[np.ndarray, "Tree"]:
        """Return every step-th group, as positions in this tree's order, and the tree of these."""
        kept = np.arange(0, len(self.order), step)
        return kept, Tree.of(self.district[kept])


@dataclass(frozen=True)
class Level:
    """One level after its own random coefficients were absorbed."""

    ratio: np.ndarray  # [random]
    schur: np.ndarray  # [random, p + 1, units]: the rows Z' V^-1 [X y] of each unit
    residual: np.ndarray  # [random, units]: s = Z' V^-1 (y - X mean of the level above)


@dataclass(frozen=True)
class Solution:
    """Coefficients in the tree's order, and the quantities that likelihood and covariances are computed from."""

    beta: np.ndarray  # [p]
    within: np.ndarray  # [p, districts]
    theta: np.ndarray  # [p, groups]
    covariance: np.ndarray  # [p, p] of beta, in units of s2
    squares: float  # y' P y: the residual sum of squares at the solution
    log_determinant: float  # log det V + log det X' V^-1 X
    random: np.ndarray
    groups: Level
    districts: Level
    tree: Tree

    def district_covariance(self) -> np.ndarray:
        """Return the covariance [p, p, districts] of every district's coefficients, in units of s2."""
        size = len(self.beta)
        same = np.broadcast_to(self.covariance[:, :, None], (size, size, self.within.shape[1]))
        return _below(same, self.districts, self.random)

    def group_covariance(self, groups: np.ndarray) -> np.ndarray:
        """Return the covariance [p, p, n] of the coefficients of some groups (positions in the tree's order)."""
        above = self.district_covariance()[:, :, self.tree.district[groups]]
        level = Level(self.groups.ratio, self.groups.schur[:, :, groups], self.groups.residual[:, groups])
        return _below(above, level, self.random)

    def slopes(self, variance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the derivative of the REML criterion for each ratio, of groups and districts, and its scale.

        The derivative for a ratio is the sum over units of (Z'PZ)_kk - s_k^2 / s2, P the projection that REML uses;
        the sum of the squares of (Z'PZ)_kk is half the information about that ratio, apart from what units share.
        """
        size = len(self.beta)
        trace, square = np.zeros(len(self.random)), np.zeros(len(self.random))
        above = self.district_covariance()
        for start in range(0, self.theta.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            # A single district has one covariance for all groups, which makes this a product of matrices.
            shared = above[:, :, 0] if above.shape[2] == 1 else above[:, :, self.tree.district[block]]
            _add_traces(self.groups.schur[:, :size, block], self.random, shared, trace, square)
        top_trace, top_square = np.zeros(len(self.random)), np.zeros(len(self.random))
        _add_traces(self.districts.schur[:, :size], self.random, self.covariance, top_trace, top_square)
        group = trace - np.sum(self.groups.residual**2, axis=1) / variance
        within = top_trace - np.sum(self.districts.residual**2, axis=1) / variance
        return group, within, square, top_square


@dataclass(frozen=True)
class Absorbed:
    """The moments after the groups' random coefficients were absorbed; they depend on the groups' ratios alone."""

    ratio: np.ndarray  # [random]
    schur: np.ndarray  # [random, p + 1, groups]
    totals: np.ndarray  # [p + 1, p + 1, districts]
    log_determinant: float
    random: np.ndarray
    tree: Tree


def solve(
    moments: np.ndarray,
    tree: Tree,
    random: np.ndarray,
    group: np.ndarray,
    within: np.ndarray,
    ridge: float = 0.0,
    beta: np.ndarray | None = None,
) -> Solution:
    """Solve for all coefficients; moments [p + 1, p + 1, groups] are in the tree's order, ratios [random]."""
    return finish(absorb(moments, tree, random, group), within, ridge, beta)


def absorb(moments: np.ndarray, tree: Tree, random: np.ndarray, group: np.ndarray) -> Absorbed:
    """Absorb the groups' random coefficients and sum the groups into districts."""
    size = len(moments)
    schur = np.empty((len(random), size, moments.shape[2]))
    totals = np.zeros((size, size, len(tree.starts)))
    log_determinant = 0.0
    for start in range(0, moments.shape[2], _BLOCK):
        block = slice(start, start + _BLOCK)
        part = moments[:, :, block].copy()
        log_determinant += _absorb(part, random, group)
        for k, column in enumerate(random):
            schur[k, :, block] = _row(part, column)
        _add_by_district(totals, part, tree.district[block])
    return Absorbed(group, schur, totals, log_determinant, random, tree)


def finish(absorbed: Absorbed, within: np.ndarray, ridge: float = 0.0, beta: np.ndarray | None = None) -> Solution:
    """Absorb the districts' random coefficients, solve for beta, and go down again.

    A ridge is the precision of a normal prior on beta instead of the flat one. A given beta is kept, and the
    determinant and the covariances are then those of the random coefficients given beta.
    """
    random, tree, totals = absorbed.random, absorbed.tree, absorbed.totals.copy()
    size, districts = len(totals) - 1, len(tree.starts)
    log_determinant = absorbed.log_determinant + _absorb(totals, random, within)
    total = totals.sum(axis=2)
    total = np.triu(total) + np.triu(total, 1).T
    if beta is None:
        beta, covariance, determinant = _top(total, ridge)
        log_determinant += determinant
    else:
        covariance = np.zeros((size, size))
    squares = float(total[size, size] - total[:size, size] @ beta)
    means = np.repeat(beta[:, None], districts, axis=1)
    rows = np.stack([_row(totals, k) for k in random]) if len(random) else totals[:0]
    top = _level(within, rows, means)
    means[random] += within[:, None] * top.residual
    theta = means[:, tree.district]
    bottom = _level(absorbed.ratio, absorbed.schur, theta)
    theta[random] += absorbed.ratio[:, None] * bottom.residual
    return Solution(beta, means, theta, covariance, squares, log_determinant, random, bottom, top, tree)


def _top(total: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return beta, its covariance and the log determinant of its information, from the moments of all together."""
    size = len(total) - 1
    try:
        factor = np.linalg.cholesky(total[:size, :size] + ridge * np.eye(size))
    except np.linalg.LinAlgError:
        raise InvalidData("X: the coefficients are not determined; remove features that depend on each other") from None
    inverse = np.linalg.inv(factor)
    covariance = inverse.T @ inverse
    return covariance @ total[:size, size], covariance, 2.0 * float(np.log(np.diag(factor)).sum())


def _absorb(moments: np.ndarray, random: np.ndarray, ratio: np.ndarray) -> float:
    """Absorb random coefficients with these ratios, in place; return the sum of the log determinants of V.

    Only the upper triangle, where b >= a, is kept up to date, which is half of the work; see `_row`.
    """
    log_determinant = 0.0
    for k, r in zip(random, ratio, strict=True):
        if r == 0.0:
            continue
        row = _row(moments, k)
        pivot = 1.0 + r * row[k]
        log_determinant += float(np.log(pivot).sum())
        scaled = row * (r / pivot)
        for a in range(len(row)):
            moments[a, a:] -= row[a] * scaled[a:]
        # m_ak - r m_ak m_kk / (1 + r m_kk), without the difference, which cancels where r m_kk is large.
        shrunk = row / pivot
        moments[:k, k], moments[k, k:] = shrunk[:k], shrunk[k:]
    return log_determinant


def _row(moments: np.ndarray, k: int) -> np.ndarray:
    """Return a copy of row k of symmetric matrices, from their upper triangles."""
    return np.concatenate([moments[:k, k], moments[k, k:]])


def _add_by_district(totals: np.ndarray, part: np.ndarray, district: np.ndarray) -> None:
    """Add the moments of some groups, in the order of their districts, to the districts' totals."""
    starts = np.flatnonzero(np.r_[True, district[1:] != district[:-1]])
    totals[:, :, district[starts]] += np.add.reduceat(part, starts, axis=2)


def _level(ratio: np.ndarray, schur: np.ndarray, mean: np.ndarray) -> Level:
    """Return the level with its residuals Z' V^-1 y - Z' V^-1 X mean."""
    residual = schur[:, -1].copy()
    for a in range(len(mean)):
        residual -= schur[:, a] * mean[a]
    return Level(ratio, schur, residual)


def _below(above: np.ndarray, level: Level, random: np.ndarray) -> np.ndarray:
    """Return the covariance of coefficients one level down: K above K' + D - D S D with K = I - D Z' V^-1 X."""
    size = above.shape[0]
    keep = np.zeros_like(above)
    keep[np.arange(size), np.arange(size)] = 1.0
    keep[random] -= level.ratio[:, None, None] * level.schur[:, :size]
    covariance = np.einsum("abn,bcn,dcn->adn", keep, above, keep, optimize=True)
    covariance[np.ix_(random, random)] -= level.ratio[:, None, None] * level.schur[:, random] * level.ratio[:, None]
    covariance[random, random] += level.ratio[:, None]
    return covariance


def _add_traces(
    schur: np.ndarray, random: np.ndarray, covariance: np.ndarray, trace: np.ndarray, square: np.ndarray
) -> None:
    """Add, for each random coefficient, the sum over units of (Z'PZ)_kk and of its square."""
    for k, column in enumerate(random):
        row = schur[k]
        spread = covariance @ row if covariance.ndim == 2 else np.einsum("abn,bn->an", covariance, row)
        diagonal = row[column] - np.einsum("an,an->n", row, spread)
        trace[k] += diagonal.sum()
        square[k] += (diagonal**2).sum()
