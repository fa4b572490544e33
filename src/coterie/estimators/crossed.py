"""The exact solution where levels cross (pupils in schools and in neighbourhoods), or lie in each other in any way.

The units are the cells: combinations of a unit of every level that have rows. As in `blocks.py` all is computed from
the
cells' moments, sums that a site can send. With Z = [Z_1 Z_2 ...] and the largest level first:

- level 1 is eliminated unit by unit, which is a block-diagonal system;
- the effects of all other levels, Q numbers together, are eliminated as one dense Q x Q system;
- beta solves the remaining p x p system.

Covariances are L L' with L of each level, and I + L' M L is factorised, so that a covariance may be singular or zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cholesky
from scipy.linalg.lapack import dpotri

from coterie.estimators.blocks import as_matrix, solve_top
from coterie.estimators.crossed_solution import CrossedLevel, CrossedSolution
from coterie.estimators.grouping import InvalidData
from coterie.estimators.tree import Effect

__all__ = ["Crossed"]

_MOST = 6000  # effects of all levels but the largest: a dense matrix of this size takes 288 MB


@dataclass(frozen=True)
class Crossed:
    """Levels that may cross: the unit of every cell at each of them, and the coefficients that vary there."""

    codes: tuple[np.ndarray, ...]  # [cells] for every level
    effects: tuple[Effect, ...]
    _last: list[Any] = field(default_factory=list, compare=False, repr=False)  # moments, and their products

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is only kept for the next evaluation."""
        return self.__dict__ | {"_last": []}

    def _products(self, moments: np.ndarray) -> "_Products":
        """Return products of these moments; a search asks for the same ones again and again."""
        if not self._last or self._last[0] is not moments:
            self._last[:] = [moments, _Products(self, moments)]
        return self._last[1]

    @property
    def units(self) -> int:
        """How many cells there are."""
        return len(self.codes[0])

    @property
    def sizes(self) -> list[int]:
        """How many units each level has."""
        return [int(codes.max()) + 1 for codes in self.codes]

    @property
    def unit_codes(self) -> tuple[np.ndarray, ...]:
        """The caller's code of each unit of every level."""
        return tuple(np.arange(size) for size in self.sizes)

    @property
    def first(self) -> int:
        """The level that is eliminated first: the one with most effects."""
        return int(np.argmax([size * len(effect.own) for size, effect in zip(self.sizes, self.effects, strict=True)]))

    def part(self, step: int) -> tuple[np.ndarray, "Crossed"]:
        """Return all cells: part of them would cut the levels apart."""
        return np.arange(self.units), self

    def theta(self, beta: np.ndarray, effects: Sequence[np.ndarray]) -> np.ndarray:
        """Return the coefficients [p, cells] that beta and the effects [k, units] of every level make."""
        theta = np.repeat(beta[:, None], self.units, axis=1)
        for codes, effect, values in zip(self.codes, self.effects, effects, strict=True):
            theta += (effect.basis @ values)[:, codes]
        return theta

    def check(self) -> None:
        """Refuse levels whose dense system would not fit into memory."""
        rest = sum(size * len(effect.own) for size, effect in zip(self.sizes, self.effects, strict=True)) - max(
            size * len(effect.own) for size, effect in zip(self.sizes, self.effects, strict=True)
        )
        if rest > _MOST:
            raise InvalidData(
                f"crossed: all levels but the largest have {rest:,} effects together, more than {_MOST:,}; "
                "let fewer coefficients vary there"
            )

    def solve(
        self,
        moments: np.ndarray,
        ratios: Sequence[np.ndarray],
        ridge: float = 0.0,
        beta: np.ndarray | None = None,
        marginal: bool = False,
        fixed: tuple[np.ndarray, float] | None = None,
    ) -> CrossedSolution:
        """Solve for all coefficients from the cells' moments [p + 1, p + 1, cells]; arguments as in `Nested.finish`."""
        matrices = [as_matrix(ratio) for ratio in ratios]
        products = self._products(moments)
        size, first = len(moments) - 1, self.first
        # The largest level: (I + M D)^-1 of every unit, [n, k, k].
        own, ratio = products.own, matrices[first]
        inverse = np.linalg.inv(np.eye(len(ratio)) + own @ ratio)
        log_determinant = -float(np.linalg.slogdet(inverse)[1].sum())
        weight = _block_diagonal(ratio @ inverse)
        touched = _block_diagonal(inverse)
        table = products.table - np.asarray((products.across.T @ (weight @ products.across)).todense())
        others = table.shape[0] - size - 1
        rest, xy = table[:others, :others], table[others:, others:]
        cross = table[:others, others:]  # Z_o' V^-1 [X y], V of the largest level alone
        lower = products.factor([matrix for level, matrix in enumerate(matrices) if level != first])
        spread, determinant = _posterior(rest, lower)
        log_determinant += determinant
        total = xy - cross.T @ spread @ cross
        beta, covariance, squares, determinant = solve_top((total + total.T) / 2.0, ridge, beta, fixed)
        quiet = marginal or not covariance.any()
        values = spread @ (cross[:, size] - cross[:, :size] @ beta)
        scores = cross[:, size] - cross[:, :size] @ beta - rest @ values
        behind = products.across @ np.r_[values, beta, 0.0]
        largest = touched @ (np.asarray(products.across[:, [-1]].todense())[:, 0] - behind)
        residuals = products.split(scores)
        residuals.insert(first, largest.reshape(-1, len(ratio)).T)
        levels = tuple(
            CrossedLevel(effect, matrix, residual)
            for effect, matrix, residual in zip(self.effects, matrices, residuals, strict=True)
        )
        return CrossedSolution(
            beta,
            self.theta(beta, [level.values for level in levels]),
            covariance,
            np.zeros_like(covariance) if quiet else covariance,
            squares,
            log_determinant + (0.0 if quiet else determinant),
            levels,
            self.codes,
            first,
            inverse @ own,
            touched @ products.across[:, :-1],
            spread,
            rest,
            cross[:, :size],
        )


class _Products:
    """Z'Z, Z'X, Z'y and X'X from the moments of the cells, with the largest level apart."""

    def __init__(self, structure: Crossed, moments: np.ndarray) -> None:
        self.structure, first = structure, structure.first
        cells, size = moments.shape[2], len(moments) - 1
        others = [level for level in range(len(structure.codes)) if level != first]
        self.widths = [(structure.sizes[level], len(structure.effects[level].own)) for level in others]
        effect, codes = structure.effects[first], structure.codes[first]
        k = len(effect.own)
        by_cell = np.einsum("ak,abn->kbn", effect.basis, moments[:size], optimize=True)
        own = np.einsum("kan,aj->nkj", by_cell[:, :size], effect.basis, optimize=True)
        self.own = np.zeros((structure.sizes[first], k, k))
        np.add.at(self.own, codes, own)
        # Columns: the effects of the other levels, X, and y. `choose` takes a cell's [p + 1] combination to them.
        width = sum(n * m for n, m in self.widths)
        choose = sparse.csr_matrix((cells * (size + 1), width + size + 1))
        start = 0
        rows_of = np.arange(cells) * (size + 1)
        entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for level, (n, m) in zip(others, self.widths, strict=True):
            basis = structure.effects[level].basis
            for a, b in zip(*np.nonzero(basis), strict=True):
                columns = start + structure.codes[level] * m + b
                entries.append((rows_of + a, columns, np.full(cells, basis[a, b])))
            start += n * m
        for a in range(size + 1):
            entries.append((rows_of + a, np.full(cells, start + a), np.ones(cells)))
        rows, columns, data = (np.concatenate(part) for part in zip(*entries, strict=True))
        choose = sparse.csr_matrix((data, (rows, columns)), shape=choose.shape)
        cell_blocks = _block_diagonal(np.moveaxis(moments, 2, 0))
        self.table = np.asarray((choose.T @ (cell_blocks @ choose)).todense())
        sum_cells = sparse.csr_matrix(
            (np.ones(cells), (codes, np.arange(cells))), shape=(structure.sizes[first], cells)
        )
        left = _block_diagonal(np.moveaxis(by_cell, 2, 0)) @ choose  # [cells * k, columns]
        self.across = (sparse.kron(sum_cells, sparse.eye(k)) @ left).tocsr()

    def factor(self, matrices: list[np.ndarray]) -> sparse.csr_matrix:
        """Return L [Q, Q], sparse, whose product with its transpose is the covariance of the other levels' effects."""
        parts = []
        for matrix, (n, _) in zip(matrices, self.widths, strict=True):
            values, vectors = np.linalg.eigh(matrix)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            parts.append(sparse.kron(sparse.eye(n), root))
        return sparse.csr_matrix(sparse.block_diag(parts)) if parts else sparse.csr_matrix((0, 0))

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the numbers [Q] as [k, units] for each of the other levels."""
        parts, start = [], 0
        for n, m in self.widths:
            parts.append(values[start : start + n * m].reshape(n, m).T)
            start += n * m
        return parts


def _posterior(rest: np.ndarray, lower: sparse.csr_matrix) -> tuple[np.ndarray, float]:
    """Return L (I + L' rest L)^-1 L' and the log determinant of the inverted matrix."""
    if not len(rest):
        return rest, 0.0
    half = lower.T @ rest
    factor = cholesky(np.eye(len(rest)) + lower.T @ half.T, lower=True, overwrite_a=True, check_finite=False)
    inverse, _ = dpotri(factor, lower=True)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    return lower @ (lower @ inverse).T, 2.0 * float(np.log(np.diag(factor)).sum())


def _block_diagonal(blocks: np.ndarray) -> sparse.csr_matrix:
    """Return the sparse matrix with these blocks [n, a, b] on its diagonal."""
    n, a, b = blocks.shape
    indices = np.repeat(np.arange(n)[:, None, None] * b + np.arange(b), a, axis=1).reshape(-1)
    return sparse.csr_matrix((blocks.reshape(-1), indices, np.arange(0, n * a * b + 1, b)), shape=(n * a, n * b))
