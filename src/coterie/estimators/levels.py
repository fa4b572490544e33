"""Maps the parameters of a search to the covariances of every level, and derivatives back.

A level's covariance consists of blocks. A block is L L' with L lower triangular (a single coefficient has its standard
deviation there), or one standard deviation times given scales. A level whose covariance is given has no parameters.
Parameters are relative to the noise, where there is one. REML and Laplace share this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Covariances", "Shape"]


@dataclass(frozen=True)
class Shape:
    """The covariance of a level's k coefficients: correlated within blocks of positions, or multiples of a scale."""

    size: int
    blocks: tuple[tuple[int, ...], ...]
    scale: np.ndarray | None = None  # [k]: one parameter, whose multiples by these are the standard deviations

    @classmethod
    def full(cls, size: int) -> "Shape":
        """All coefficients are correlated."""
        return cls(size, (tuple(range(size)),) if size else ())

    @classmethod
    def diagonal(cls, size: int) -> "Shape":
        """No coefficient is correlated with another."""
        return cls(size, tuple((k,) for k in range(size)))

    @classmethod
    def isotropic(cls, scale: np.ndarray) -> "Shape":
        """One parameter for all."""
        return cls(len(scale), (), np.asarray(scale, dtype=np.float64))

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        if self.scale is not None:
            return int(self.size > 0)
        return sum(len(block) * (len(block) + 1) // 2 for block in self.blocks)


class Covariances:
    """The covariances of all levels as functions of one vector of parameters; `given` ones [k, k] have none."""

    def __init__(self, shapes: Sequence[Shape], given: Sequence[np.ndarray | None]) -> None:
        self.shapes, self.given = tuple(shapes), tuple(given)
        self._starts: list[int] = []
        spread: list[bool] = []
        for shape, fixed in zip(self.shapes, self.given, strict=True):
            self._starts.append(len(spread))
            if fixed is not None:
                continue
            if shape.scale is not None:
                spread += [True] * shape.parameters
            for block in shape.blocks:
                rows, columns = np.tril_indices(len(block))
                spread += (rows == columns).tolist()
        self.deviations = np.array(spread, dtype=bool)  # which parameters stand on a diagonal
        self.size = len(spread)

    def matrices(self, parameters: np.ndarray, unit: float = 1.0) -> list[np.ndarray]:
        """Return the covariance [k, k] of every level; given ones are divided by `unit`."""
        matrices = []
        for level, (shape, fixed) in enumerate(zip(self.shapes, self.given, strict=True)):
            if fixed is not None:
                matrices.append(fixed / unit)
                continue
            matrix = np.zeros((shape.size, shape.size))
            if shape.scale is not None and shape.size:
                matrix = np.diag((shape.scale * parameters[self._starts[level]]) ** 2)
            for block, lower, _ in self._triangles(level, parameters):
                matrix[np.ix_(block, block)] = lower @ lower.T
            matrices.append(matrix)
        return matrices

    def derivatives(
        self, parameters: np.ndarray, slopes: Sequence[np.ndarray], squares: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Turn derivatives [k, k] by covariances (first, and approximate second) into those by the parameters.

        Returns:
            Gradient and information, `[size]` each.
        """
        gradient, information = np.zeros(self.size), np.zeros(self.size)
        for level, (shape, fixed) in enumerate(zip(self.shapes, self.given, strict=True)):
            if fixed is not None:
                continue
            slope, square = slopes[level], squares[level]
            if shape.scale is not None and shape.size:
                at, scale = self._starts[level], shape.scale**2
                first = float(scale @ np.diag(slope))
                gradient[at] = 2.0 * parameters[at] * first
                information[at] = 2.0 * parameters[at] ** 2 * (scale**2 @ np.diag(square)) + 2.0 * max(first, 0.0)
            for block, lower, part in self._triangles(level, parameters):
                rows, columns = np.tril_indices(len(block))
                within = np.ix_(block, block)
                gradient[part] = (2.0 * slope[within] @ lower)[rows, columns]
                # The second derivative by an element t of L, from those by the variance: 2 f' + a multiple of t^2 f''.
                curvature = 2.0 * (square[within] @ lower**2)[rows, columns]
                information[part] = curvature + 2.0 * np.maximum(np.diag(slope[within])[rows], 0.0)
        return gradient, information

    def canonical(self, parameters: np.ndarray, largest: float) -> np.ndarray:
        """Return the same covariances with no negative standard deviation, and none above the largest."""
        answer = parameters.copy()
        deviations = np.flatnonzero(self.deviations)
        for level, fixed in enumerate(self.given):
            if fixed is not None:
                continue
            for block, lower, part in self._triangles(level, parameters):
                signs = np.where(np.diag(lower) < 0.0, -1.0, 1.0)
                answer[part] = (lower * signs)[np.tril_indices(len(block))]
        answer[deviations] = np.minimum(np.abs(answer[deviations]), largest)
        return answer

    def _triangles(self, level: int, parameters: np.ndarray) -> list[tuple[list[int], np.ndarray, slice]]:
        """Return the blocks of a level: positions, L, and where its parameters are."""
        triangles, at = [], self._starts[level]
        if self.shapes[level].scale is not None:
            return []
        for block in self.shapes[level].blocks:
            count = len(block) * (len(block) + 1) // 2
            lower = np.zeros((len(block), len(block)))
            lower[np.tril_indices(len(block))] = parameters[at : at + count]
            triangles.append((list(block), lower, slice(at, at + count)))
            at += count
        return triangles
