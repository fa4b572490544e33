"""Checks of parameters and features that the linear and the logistic hierarchical estimators share."""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.estimators.base import GroupedEstimator
from coterie.estimators.grouping import InvalidData

__all__ = ["Hierarchical", "Variance"]

_DEPENDENT = 1e-12  # smallest eigenvalue, of a correlation matrix, that still determines the coefficients

Variance = float | Sequence[float] | Mapping[str, float] | None


class Hierarchical(GroupedEstimator):
    """A model with random coefficients: `random`, `covariance`, `group_variance` and `within_variance`."""

    def _check_covariance(self) -> None:
        if self.covariance not in ("diagonal", "isotropic"):
            raise InvalidData(f'covariance: must be "diagonal" or "isotropic", not {self.covariance!r}')

    def _refuse_dependent(self, total: np.ndarray) -> None:
        """Raise an error that names features that depend on each other: beta is not determined then."""
        size = len(total) - 1
        length = np.sqrt(np.diag(total)[:size])
        values, vectors = np.linalg.eigh(total[:size, :size] / np.outer(length, length))
        if values[0] > _DEPENDENT * size:
            return
        names = np.array(self._coefficient_names(), dtype=object)[np.abs(vectors[:, 0]) > 0.1]
        raise InvalidData(
            f"X: {', '.join(names)} depend on each other, or there are too few rows for so many features; "
            "leave one out (or centre it, if its mean is far larger than its spread)"
        )

    def _given(self, parameter: str, random: np.ndarray, squared: np.ndarray, units: int) -> np.ndarray | None:
        """Return given variances [random] in the search's units, or None; a single unit has no variance to estimate."""
        value = getattr(self, parameter)
        if value is None:
            return np.zeros(len(random)) if units == 1 else None
        names = [self._coefficient_names()[k] for k in random]
        if isinstance(value, Mapping):
            if set(value) != set(names):
                raise InvalidData(f"{parameter}: give a variance for each of {', '.join(names)}, and for no other")
            value = [value[name] for name in names]
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidData(f"{parameter}: give a number, a list or a mapping, not {value!r}") from None
        if array.ndim > 1 or (array.ndim == 1 and len(array) != len(random)):
            raise InvalidData(f"{parameter}: give one number, or one for each of {', '.join(names)}")
        if array.ndim == 1 and self.covariance == "isotropic" and np.ptp(array) > 0:
            raise InvalidData(f'{parameter}: covariance="isotropic" has one variance per level; give one number')
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise InvalidData(f"{parameter}: variances must be 0 or more, not {value}")
        return np.broadcast_to(array, (len(random),)) * squared
