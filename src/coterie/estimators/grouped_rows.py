"""The rows of groups behind a logistic model: sorted by group, and every message about them counted.

What a group answers depends on the model (`bernoulli.py`, `multinomial.py`); whose rows they are, and how their
messages are counted, does not.
"""

import abc
import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

__all__ = ["BLOCK", "Answer", "GroupedRows", "Traffic"]

BLOCK = 16384  # rows at a time where each needs a matrix of its own


@dataclass(frozen=True)
class Answer:
    """The groups' messages at the coefficients theta [p, groups]."""

    theta: np.ndarray
    loss: np.ndarray  # [groups]
    moments: np.ndarray  # [p + 1, p + 1, groups]: X'WX, and X'(y - mu) as the response's column

    @property
    def gradient(self) -> np.ndarray:
        """Return X'(y - mu) [p, groups]: the gradient of the log-likelihood."""
        return self.moments[:-1, -1]

    def quadratic(self, bound: np.ndarray | None = None) -> np.ndarray:
        """Return the moments of the linear model whose solution is a Newton step.

        With a bound [p, p, groups] on the information, the step minimises a majoriser instead.
        """
        moments = self.moments.copy()
        if bound is not None:
            moments[:-1, :-1] = bound
        response = self.gradient + np.einsum("abi,bi->ai", moments[:-1, :-1], self.theta)
        moments[:-1, -1] = moments[-1, :-1] = response
        return moments


@dataclass
class Traffic:
    """How many numbers were sent: by and to one group that took part in every round, and by and to all groups."""

    rounds: int = 0
    up_per_group: int = 0
    down_per_group: int = 0
    up: int = 0
    down: int = 0

    def add(self, up: int, down: int, groups: int) -> None:
        """Count one round with so many groups."""
        self.rounds += 1
        self.up_per_group += up
        self.down_per_group += down
        self.up += up * groups
        self.down += down * groups

    def ledger(self) -> dict[str, int]:
        """Return rounds and bytes."""
        size = np.dtype(np.float64).itemsize
        numbers = {"up_per_group": self.up_per_group, "down_per_group": self.down_per_group}
        numbers |= {"up": self.up, "down": self.down}
        return {"rounds": self.rounds} | {f"bytes_{name}": size * count for name, count in numbers.items()}


class GroupedRows(abc.ABC):
    """The rows, sorted by group; theta is always [size, groups], the intercept first if there is one.

    Attributes:
        width: coefficients of one linear predictor.
        size: coefficients of a group.
    """

    def __init__(
        self,
        features: np.ndarray,
        target: np.ndarray,
        group: np.ndarray,
        groups: int,
        intercept: bool,
        offset: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        self.features, self.target, self.group = features, target, group
        self.offset, self.weights = offset, weights
        self.groups, self.intercept = groups, intercept
        self.width = self.size = features.shape[1] + int(intercept)
        self.traffic = Traffic()
        self._take(np.arange(len(group)), group)

    def _take(self, rows: np.ndarray, group: np.ndarray) -> None:
        """Keep some rows, which now belong to these groups, and forget what was computed from all of them."""
        order = np.argsort(group, kind="stable")
        rows, self.group = rows[order], group[order]
        self.features, self.target = self.features[rows], self.target[rows]
        self.offset = None if self.offset is None else self.offset[rows]
        self.weights = None if self.weights is None else self.weights[rows]
        self._null_loss: float | None = None
        self._bound: np.ndarray | None = None

    def part(self, kept: np.ndarray) -> Self:
        """Return the rows of some groups, in this order of groups; its messages are counted with those of the whole."""
        position = np.full(self.groups, -1)
        position[kept] = np.arange(len(kept))
        part, rows = copy.copy(self), np.flatnonzero(position[self.group] >= 0)
        part.groups = len(kept)
        part._take(rows, position[self.group[rows]])
        return part

    @abc.abstractmethod
    def loss(self, theta: np.ndarray) -> float:
        """Return the loss of all rows."""

    def start(self) -> np.ndarray:
        """Return initial coefficients [size]: zero."""
        return np.zeros(self.size)

    def null_loss(self) -> float:
        """Return the loss of all rows at the start."""
        if self._null_loss is None:
            self._count(up=1, down=0)
            self._null_loss = self.loss(np.repeat(self.start()[:, None], self.groups, axis=1))
        return self._null_loss

    def _weighted(self, values: np.ndarray) -> np.ndarray:
        """Return values [n] of the rows times the rows' weights."""
        return values if self.weights is None else values * self.weights

    def _without_offset(self, theta: np.ndarray) -> np.ndarray:
        """Return the linear predictor of every row, offset left out."""
        bare = copy.copy(self)
        bare.offset = None
        return bare.predictor(theta)

    @abc.abstractmethod
    def predictor(self, theta: np.ndarray) -> np.ndarray:
        """Return the linear predictor of every row, offset included."""

    def _totals(self, values: np.ndarray) -> np.ndarray:
        """Return X' values of every group [width, groups]."""
        columns = [values] if self.intercept else []
        columns += [self.features[:, k] * values for k in range(self.features.shape[1])]
        return np.stack([np.bincount(self.group, weights=column, minlength=self.groups) for column in columns])

    def _design(self, rows: slice) -> np.ndarray:
        features = self.features[rows].T
        return np.concatenate([np.ones((1, features.shape[1])), features]) if self.intercept else features

    def _count(self, up: int, down: int) -> None:
        self.traffic.add(up, down, self.groups)
