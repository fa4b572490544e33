"""The solution of a model whose levels cross, and the covariances that follow from it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from coterie.estimators.tree import Effect

__all__ = ["CrossedLevel", "CrossedSolution"]


@dataclass(frozen=True)
class CrossedLevel:
    """The effects of a level."""

    effect: Effect
    ratio: np.ndarray  # [k, k]
    residual: np.ndarray  # [k, units]: s = Z' V^-1 (y - X beta)

    @property
    def values(self) -> np.ndarray:
        """The effects of every unit [k, units]."""
        return self.ratio @ self.residual


@dataclass(frozen=True)
class CrossedSolution:
    """Coefficients of the cells, and what likelihood and covariances are computed from; as `Solution` of nested levels.

    The level called first was eliminated first; the effects of all other levels are the "others", Q together.
    """

    beta: np.ndarray  # [p]
    theta: np.ndarray  # [p, cells]
    covariance: np.ndarray  # [p, p] of beta, in units of s2; zero where beta was given
    above: np.ndarray  # [p, p] the same, but zero under the marginal likelihood
    squares: float
    log_determinant: float
    levels: tuple[CrossedLevel, ...]
    codes: tuple[np.ndarray, ...]  # [cells] of every level
    first: int
    own: np.ndarray  # [n, k, k] Z' V^-1 Z of the first level's units, V of that level alone
    across: sparse.csr_matrix  # [n k, Q + p] Z' V^-1 [Z_o X], likewise
    spread: np.ndarray  # [Q, Q] covariance of the others given beta
    rest: np.ndarray  # [Q, Q] Z_o' V^-1 Z_o, V of the first level
    cross: np.ndarray  # [Q, p] Z_o' V^-1 X

    @cached_property
    def joint(self) -> np.ndarray:
        """The covariance [Q + p, Q + p] of the others' effects and beta, in units of s2."""
        moved = self.spread @ self.cross
        with_beta = moved @ self.above
        return np.block([[self.spread + with_beta @ moved.T, -with_beta], [-with_beta.T, self.above]])

    def information(self, level: int) -> np.ndarray:
        """Return Z'PZ [k, k, units] of every unit of a level, P being the projection that the likelihood uses."""
        k = len(self.levels[level].ratio)
        if level == self.first:
            moved = self.across @ self.joint  # [n k, Q + p]
            units = len(self.own)
            answer = np.moveaxis(self.own, 0, 2).copy()
            for a in range(k):
                for b in range(k):
                    answer[a, b] -= np.asarray(self.across[b::k].multiply(moved[a::k]).sum(axis=1)).reshape(units)
            return answer
        start, units = self._start(level), self.levels[level].residual.shape[1]
        moved, fixed = self._others
        answer = np.empty((k, k, units))
        for a in range(k):
            for b in range(k):
                one, other = (slice(start + c, start + units * k, k) for c in (a, b))
                inner = np.einsum("uj,uj->u", moved[one], self.rest[other])
                inner += np.einsum("ua,ab,ub->u", fixed[one], self.above, fixed[other])
                answer[a, b] = np.diagonal(self.rest[one, other]) - inner
        return answer

    @cached_property
    def _others(self) -> tuple[np.ndarray, np.ndarray]:
        """Z_o' V^-1 Z_o times the others' covariance [Q, Q], and Z_o' V^-1 X [Q, p] with all levels in V."""
        moved = self.rest @ self.spread
        return moved, self.cross - moved @ self.cross

    def slopes(self, variance: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the derivative [k, k] of the criterion for each level's ratio, and products of informations."""
        firsts, seconds = [], []
        for level, there in enumerate(self.levels):
            part = self.information(level)
            diagonal = np.einsum("kkn->kn", part)
            firsts.append(part.sum(axis=2) - there.residual @ there.residual.T / variance)
            seconds.append(diagonal @ diagonal.T)
        return firsts, seconds

    def unit_covariance(self) -> np.ndarray:
        """Return the covariance [p, p, cells] of the cells' coefficients, in units of s2."""
        return self.cell_covariance(self.codes)

    def cell_covariance(self, codes: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the covariance [p, p, n] of coefficients with these units [n] at each level; -1: no such effect."""
        size, count, joint = len(self.beta), len(codes[0]), self.joint
        there, at = self.levels[self.first], codes[self.first]
        k, known = len(there.ratio), at >= 0
        shrink = there.effect.basis @ there.ratio  # [p, k]
        maps = []  # for each coefficient [n, Q + p]: how it follows from the others' effects and beta
        for a in range(size):
            rows, columns, data = [np.arange(count)], [np.full(count, len(self.spread) + a)], [np.ones(count)]
            for level, other in enumerate(self.levels):
                if level == self.first:
                    continue
                m = len(other.ratio)
                for b in map(int, np.flatnonzero(other.effect.basis[a])):
                    seen = np.flatnonzero(codes[level] >= 0)
                    rows.append(seen)
                    columns.append(self._start(level) + codes[level][seen] * m + b)
                    data.append(np.full(len(seen), other.effect.basis[a, b]))
            shape = (count, len(joint))
            chosen = sparse.csr_matrix(
                (np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))), shape=shape
            )
            for b in map(int, np.flatnonzero(shrink[a])):
                weights = sparse.diags(np.where(known, shrink[a, b], 0.0))
                chosen = chosen - weights @ self.across[np.where(known, at, 0) * k + b]
            maps.append(chosen.tocsr())
        answer = np.empty((size, size, count))
        for a in range(size):
            moved = maps[a] @ joint
            for b in range(a, size):
                answer[a, b] = answer[b, a] = np.asarray(maps[b].multiply(moved).sum(axis=1)).reshape(count)
        own = np.moveaxis(self.own[np.where(known, at, 0)], 0, 2)
        left = (shrink @ there.effect.basis.T)[:, :, None] - np.einsum("ak,kjn,bj->abn", shrink, own, shrink)
        return answer + np.where(known, left, 0.0)

    def _start(self, level: int) -> int:
        """Return where a level's effects begin among the others'."""
        return sum(
            there.residual.size for other, there in enumerate(self.levels) if other != self.first and other < level
        )
