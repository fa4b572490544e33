"""What the solution of a hierarchical linear model consists of, and the covariances that follow from it."""

from dataclasses import dataclass

import numpy as np

from coterie.estimators.tree import Effect, Tree

__all__ = ["BLOCK", "Level", "Solution"]

BLOCK = 2048  # groups at a time: their moments stay in the processor's cache


@dataclass(frozen=True)
class Level:
    """One level after its own random coefficients were absorbed."""

    effect: Effect
    ratio: np.ndarray  # [k, k]
    schur: np.ndarray  # [k, p + 1, units]: the rows Z' V^-1 [X y] of each unit
    residual: np.ndarray  # [k, units]: s = Z' V^-1 (y - X mean of the level above)

    @property
    def values(self) -> np.ndarray:
        """The effects of every unit [k, units]."""
        return self.ratio @ self.residual


@dataclass(frozen=True)
class Solution:
    """Coefficients in the tree's order, and the quantities that likelihood and covariances are computed from."""

    beta: np.ndarray  # [p]
    means: tuple[np.ndarray, ...]  # [p, units] of every level, the groups' first
    covariance: np.ndarray  # [p, p] of beta, in units of s2; zero where beta was given
    above: np.ndarray  # [p, p] the covariance that the effects inherit: zero under the marginal likelihood
    squares: float  # the residual sum of squares at the solution
    log_determinant: float  # log det V and, unless marginal, log det X' V^-1 X
    levels: tuple[Level, ...]
    tree: Tree

    @property
    def theta(self) -> np.ndarray:
        """The coefficients of every group [p, groups]."""
        return self.means[0]

    def level_covariance(self, level: int, units: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the covariance [p, p, n] of the coefficients of some units of a level, in units of s2."""
        there = self.levels[level]
        part = Level(there.effect, there.ratio, there.schur[:, :, units], there.residual[:, units])
        return _below(self._covariance_above(level, units), part)

    def unit_covariance(self) -> np.ndarray:
        """Return the covariance [p, p, groups] of the groups' coefficients, in units of s2."""
        return self.level_covariance(0)

    def information(self, level: int, units: slice = slice(None)) -> np.ndarray:
        """Return Z'PZ [k, k, units] of every unit of a level, P being the projection that the likelihood uses."""
        there, size = self.levels[level], len(self.beta)
        rows = there.schur[:, :size, units]
        shared = self._covariance_above(level, units)
        spread = (
            np.einsum("ab,kbn->kan", shared[:, :, 0], rows)
            if shared.shape[2] == 1
            else np.einsum("abn,kbn->kan", shared, rows, optimize=True)
        )
        own = np.einsum("kan,aj->kjn", rows, there.effect.basis, optimize=True)
        return own - np.einsum("kan,jan->kjn", spread, rows, optimize=True)

    def slopes(self, variance: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the derivative [k, k] of the criterion for each level's ratio, and products of informations.

        The derivative is the sum over units of Z'PZ - s s' / s2; the sums of products of the diagonals of Z'PZ scale
        the second one.
        """
        firsts, seconds = [], []
        for level, there in enumerate(self.levels):
            k = len(there.ratio)
            first, second = np.zeros((k, k)), np.zeros((k, k))
            for start in range(0, there.residual.shape[1], BLOCK):
                part = self.information(level, slice(start, start + BLOCK))
                diagonal = np.einsum("kkn->kn", part)
                first += part.sum(axis=2)
                second += diagonal @ diagonal.T
            firsts.append(first - there.residual @ there.residual.T / variance)
            seconds.append(second)
        return firsts, seconds

    def _covariance_above(self, level: int, units: np.ndarray | slice) -> np.ndarray:
        """Return the covariance [p, p, n] of what the units of a level deviate from; n = 1 where it is the same."""
        if level == len(self.levels) - 1:
            return self.above[:, :, None]
        parents, inverse = np.unique(self.tree.parents[level][units], return_inverse=True)
        return self.level_covariance(level + 1, parents)[:, :, inverse]


def _below(above: np.ndarray, level: Level) -> np.ndarray:
    """Return the covariance one level down: K above K' + B (D - D S D) B' with K = I - B D Z' V^-1 X."""
    size, basis, units = above.shape[0], level.effect.basis, level.schur.shape[2]
    shrink = basis @ level.ratio  # [p, k]
    keep = -np.einsum("ak,kbn->abn", shrink, level.schur[:, :size], optimize=True)
    keep[np.arange(size), np.arange(size)] += 1.0
    above = np.broadcast_to(above, (size, size, units))
    covariance = np.einsum("abn,bcn,dcn->adn", keep, above, keep, optimize=True)
    own = np.einsum("kan,aj->kjn", level.schur[:, :size], basis, optimize=True)
    covariance -= np.einsum("ak,kjn,bj->abn", shrink, own, shrink, optimize=True)
    return covariance + (shrink @ basis.T)[:, :, None]
