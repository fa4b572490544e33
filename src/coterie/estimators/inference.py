"""Standard errors from the curvature of the likelihood: which directions it is taken in, and what follows.

The likelihood's gradient is exact, so its curvature is taken from differences of gradients. The directions are the free
elements of the levels' covariances (a variance, or a covariance of two coefficients); a variance that was estimated as
zero lies on the boundary, where no curvature tells its error, and is left out.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Shape

__all__ = ["Direction", "Inference", "differences", "directions", "inverse", "level_errors", "satterthwaite"]

_STEP = 1e-4  # of an element, relative to its size
_ZERO = 1e-10  # variances below this share of the largest at their level are zero


@dataclass(frozen=True)
class Direction:
    """An element of a level's covariance: how the covariance [k, k] moves with it, and its size."""

    level: int
    matrix: np.ndarray
    size: float


@dataclass(frozen=True)
class Inference:
    """What is known about the precision of estimates, in the columns' own units."""

    covariance: np.ndarray  # [p, p] of the global coefficients
    freedom: np.ndarray  # [p] degrees of freedom of their t-tests; infinite: normal
    errors: tuple[np.ndarray, ...]  # [k, k] of every level's covariance; NaN: not estimated, or on the boundary
    residual: float  # of the residual variance


def directions(
    shapes: Sequence[Shape], given: Sequence[np.ndarray | None], matrices: Sequence[np.ndarray]
) -> list[Direction]:
    """Return the directions of all free elements whose variances are not zero."""
    found = []
    for level, (shape, fixed, matrix) in enumerate(zip(shapes, given, matrices, strict=True)):
        if fixed is not None or not shape.size:
            continue
        diagonal = np.diag(matrix)
        if shape.scale is not None:
            step = np.diag(shape.scale**2)
            size = float(diagonal.max() / (shape.scale**2).max())
            if size > 0.0:
                found.append(Direction(level, step, size))
            continue
        alive = diagonal > _ZERO * max(1.0, float(diagonal.max()))
        for block in shape.blocks:
            for a, i in enumerate(block):
                for j in block[: a + 1]:
                    if alive[i] and alive[j]:
                        step = np.zeros_like(matrix)
                        step[i, j] = step[j, i] = 1.0
                        found.append(Direction(level, step, float(np.sqrt(diagonal[i] * diagonal[j]))))
    return found


def differences(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, Any]], sizes: Sequence[float]
) -> tuple[np.ndarray, list[Any]]:
    """Return the Hessian of a criterion, and the derivative of whatever else `evaluate` returns, by differences.

    `evaluate(t)` returns the gradient at the point moved by t, and an array. On the boundary (a correlation of 1) a
    step may lead to where there is no solution; its direction gets no curvature, so that `inverse` leaves it out.
    """
    count = len(sizes)
    hessian, beyond = np.zeros((count, count)), []
    others: list[Any] = [None] * count
    for k, size in enumerate(sizes):
        step = np.zeros(count)
        step[k] = _STEP * size
        with contextlib.suppress(InvalidData, np.linalg.LinAlgError), np.errstate(invalid="ignore"):
            (up, high), (down, low) = evaluate(step), evaluate(-step)
            hessian[k], others[k] = (up - down) / (2.0 * step[k]), (high - low) / (2.0 * step[k])
        if others[k] is None or not (np.isfinite(hessian[k]).all() and np.isfinite(others[k]).all()):
            beyond.append(k)
            others[k] = None
    if beyond:
        hessian[beyond] = hessian[:, beyond] = 0.0
        still = np.zeros_like(evaluate(np.zeros(count))[1])
        others = [still if other is None else other for other in others]
    return (hessian + hessian.T) / 2.0, others


def inverse(hessian: np.ndarray, sizes: Sequence[float]) -> np.ndarray:
    """Return the covariance of parameters from the Hessian of minus twice the log-likelihood.

    Directions without curvature, as on the boundary of correlations of 1, are left out.
    """
    if not len(hessian):
        return hessian
    scale = np.asarray(sizes)
    values, vectors = np.linalg.eigh(hessian * np.outer(scale, scale) / 2.0)
    kept = values > 1e-8 * max(values.max(), 0.0)
    inverted = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return inverted * np.outer(scale, scale)


def level_errors(
    ways: Sequence[np.ndarray], found: Sequence[Direction], covariance: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the standard errors [k, k] of every level's covariance; `ways` [k, k] lead to the columns' own units."""
    errors = []
    for level, way in enumerate(ways):
        here = [m for m, direction in enumerate(found) if direction.level == level]
        answer = np.full((len(way), len(way)), np.nan)
        if here:
            moves = np.stack([way @ found[m].matrix @ way.T for m in here])
            variance = np.einsum("mij,mn,nij->ij", moves, covariance[np.ix_(here, here)], moves)
            answer = np.where(variance > 0.0, np.sqrt(np.maximum(variance, 0.0)), np.nan)
        errors.append(answer)
    return tuple(errors)


def satterthwaite(variance: np.ndarray, slope: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the degrees of freedom of t-tests [p]: 2 v^2 / var(v) for estimates of variance v.

    Args:
        variance: v [p].
        slope: how v moves with each of the estimated variances [directions, p].
        spread: the covariance [directions, directions] of these.
    """
    moves = np.einsum("mp,mn,np->p", slope, spread, slope)
    return np.where(moves > 0.0, 2.0 * variance**2 / np.maximum(moves, np.finfo(float).tiny), np.inf)
