"""The units of a fit: columns around their means and in their standard deviations, and the way back.

With an intercept, a feature's mean only moves the intercept. The fit works around the means, so that a year, a date or
any other column far from zero costs no digits; coefficients, covariances and random effects come back in the columns'
own
units. Random effects keep their meaning: where the model depends on where zero is (a diagonal covariance does), the
combinations of columns that vary are those of the columns as they were given.
"""

from dataclasses import dataclass

import numpy as np

from coterie.estimators.tree import Effect

__all__ = ["ClassUnits", "Units"]


@dataclass(frozen=True)
class Units:
    """Centre and scale of the design's columns [p], an intercept being 0 and 1; and the response's centre."""

    centre: np.ndarray
    scale: np.ndarray
    response: float
    intercept: bool

    @property
    def back(self) -> np.ndarray:
        """The matrix [p, p] from working coefficients to the columns' own (but for the response's centre)."""
        matrix = np.diag(1.0 / self.scale)
        if self.intercept:
            matrix[0, 1:] = -self.centre[1:] / self.scale[1:]
        return matrix

    def totals(self, theta: np.ndarray) -> np.ndarray:
        """Return working coefficients [p, n] in the columns' own units [n, p]."""
        answer = (self.back @ theta).T
        if self.intercept:
            answer[:, 0] += self.response
        return answer

    def design(self, features: np.ndarray) -> np.ndarray:
        """Return the design [n, p] in working units."""
        first = int(self.intercept)
        working = (features - self.centre[first:]) / self.scale[first:]
        return np.column_stack([np.ones(len(working)), working]) if self.intercept else working

    def magnitudes(self, columns: np.ndarray) -> np.ndarray:
        """Return the root mean squares of columns as they were given: the units of their random coefficients."""
        return np.sqrt(self.scale[columns] ** 2 + self.centre[columns] ** 2)

    def effect(self, columns: np.ndarray, given_zero: bool) -> Effect:
        """Return the combinations that vary: the columns as given, or, where zero does not matter, the working ones."""
        size = len(self.scale)
        if not given_zero or not self.intercept:
            return Effect.of_columns(size, columns)
        magnitude = self.magnitudes(columns)
        basis = np.zeros((size, len(columns)))
        basis[columns, np.arange(len(columns))] = self.scale[columns] / magnitude
        basis[0] += np.where(columns == 0, 0.0, self.centre[columns] / magnitude)
        return Effect(basis, columns, magnitude)

    def way(self, effect: Effect) -> np.ndarray:
        """Return the matrix [k, k] from an effect's values to deviations of its coefficients in their own units."""
        return np.diag(1.0 / effect.unit) if effect.unit is not None else (self.back @ effect.basis)[effect.own]


@dataclass(frozen=True)
class ClassUnits:
    """The same for the log-odds of several classes, whose coefficients are stacked."""

    one: Units
    odds: int

    @property
    def scale(self) -> np.ndarray:
        """The scale of every coefficient's column."""
        return np.tile(self.one.scale, self.odds)

    @property
    def back(self) -> np.ndarray:
        """The matrix from working coefficients to the columns' own."""
        return np.kron(np.eye(self.odds), self.one.back)

    def totals(self, theta: np.ndarray) -> np.ndarray:
        """Return working coefficients [P, n] in the columns' own units [n, P]."""
        return (self.back @ theta).T

    def repeated(self, effect: Effect) -> Effect:
        """Return the effect that acts on the log-odds of each class alike."""
        size = len(self.one.scale)
        own = np.concatenate([effect.own + c * size for c in range(self.odds)])
        unit = None if effect.unit is None else np.tile(effect.unit, self.odds)
        return Effect(np.kron(np.eye(self.odds), effect.basis), own, unit)

    def way(self, effect: Effect) -> np.ndarray:
        """Return the matrix [k, k] from an effect's values to deviations of its coefficients in their own units."""
        return np.diag(1.0 / effect.unit) if effect.unit is not None else (self.back @ effect.basis)[effect.own]
