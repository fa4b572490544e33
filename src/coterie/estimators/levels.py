"""Maps the parameters of a search to the variances of both levels, and derivatives back.

A parameter is a standard deviation (relative to the noise, where there is one): one for each coefficient that varies,
or one per level, times given scales. A level whose variances are given has none. REML and Laplace share this.
"""

from typing import Any

import numpy as np

__all__ = ["Levels"]


class Levels:
    """The variances of groups and of districts as functions of standard deviations.

    Args:
        random: how many coefficients vary.
        scale: one scale per coefficient, for a single parameter per level; None: one parameter per coefficient.
        group, within: given variances [random], or None where they are estimated.
    """

    def __init__(self, random: int, scale: Any, group: Any, within: Any) -> None:
        shape = np.eye(random) if scale is None else np.asarray(scale)[:, None] ** 2
        self._random = random
        self._given = [None if level is None else np.asarray(level) for level in (group, within)]
        # Each level: the matrix from parameters (squared) to variances, or None where there are no parameters.
        self._shapes = [shape if given is None and random else None for given in self._given]
        self.deviations = sum(shape.shape[1] for shape in self._shapes if shape is not None)

    def variances(self, parameters: np.ndarray, unit: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return the variances of both levels; given ones are divided by `unit`."""
        variances, used = [], 0
        for shape, given in zip(self._shapes, self._given, strict=True):
            if shape is None:
                variances.append(np.zeros(self._random) if given is None else given / unit)
            else:
                variances.append(shape @ parameters[used : used + shape.shape[1]] ** 2)
                used += shape.shape[1]
        return variances[0], variances[1]

    def derivatives(
        self, parameters: np.ndarray, slopes: tuple[np.ndarray, np.ndarray], squares: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Turn derivatives by variances (first, and approximate second) into those by the parameters.

        Returns:
            Gradient, information and the slopes by the squares of parameters, `[deviations]` each.
        """
        gradient, information, by_square = (np.zeros(self.deviations) for _ in range(3))
        used = 0
        for shape, slope, square in zip(self._shapes, slopes, squares, strict=True):
            if shape is not None:
                part = slice(used, used + shape.shape[1])
                by_square[part] = shape.T @ slope
                gradient[part] = 2.0 * parameters[part] * by_square[part]
                # The second derivative by a standard deviation t, from those by the variance t^2: 2 f' + 4 t^2 f''. At
                # the bound of zero only the first term is left.
                curvature = 2.0 * parameters[part] ** 2 * (shape.T**2 @ square)
                information[part] = curvature + 2.0 * np.maximum(by_square[part], 0.0)
                used += shape.shape[1]
        return gradient, information, by_square
