"""The groups' side of logistic regression: loss, gradient and information of the rows, one message per group.

Only this file reads rows. Given its coefficients theta_i, a group answers with its loss sum log(1 + exp(-+eta)), its
gradient X'(y - mu) and its information X'WX, W = diag(mu (1 - mu)): p(p+1)/2 + p + 1 numbers. Newton's method and the
Laplace approximation need nothing else; all messages are counted for the ledger.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from coterie.estimators.moments import group_moments

__all__ = ["Answer", "Bernoulli", "Traffic"]

_BLOCK = 16384  # rows at a time where each needs a matrix of its own
_TINY = 1e-30  # the smallest weight: 0 / 0 where a row's probability is 0 or 1 to the last bit


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


class Bernoulli:
    """The rows, sorted by group; theta is always [p, groups], the intercept first if there is one."""

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
        order = np.argsort(group, kind="stable")
        self.features, self.target, self.group = features[order], target[order], group[order]
        self.offset = None if offset is None else offset[order]
        self.weights = None if weights is None else weights[order]
        self.groups, self.intercept = groups, intercept
        self.size = features.shape[1] + int(intercept)
        self.traffic = Traffic()
        # The first message, for the features' units, their independence and the start: X'X, and the offset's sum. The
        # answer is the centre and the unit of every feature.
        self._count(up=self.size * (self.size + 1) // 2 + int(offset is not None), down=2 * features.shape[1])
        self._bound: np.ndarray | None = None
        self._null_loss: float | None = None

    def part(self, kept: np.ndarray) -> "Bernoulli":
        """Return the rows of some groups, in this order of groups; its messages are counted with those of the whole."""
        position = np.full(self.groups, -1)
        position[kept] = np.arange(len(kept))
        rows = position[self.group] >= 0
        offset, weights = (None if values is None else values[rows] for values in (self.offset, self.weights))
        group = position[self.group[rows]]
        part = Bernoulli(self.features[rows], self.target[rows], group, len(kept), self.intercept, offset, weights)
        part.traffic = self.traffic  # drops its own count of the first message, which was sent before
        return part

    def predictor(self, theta: np.ndarray) -> np.ndarray:
        """Return the linear predictor of every row, offset included."""
        first = int(self.intercept)
        eta = theta[0, self.group] if first else np.zeros(len(self.group))
        for k in range(self.features.shape[1]):
            eta += self.features[:, k] * theta[first + k, self.group]
        return eta if self.offset is None else eta + self.offset

    def loss(self, theta: np.ndarray) -> float:
        """Return the loss of all rows."""
        return float(self._losses(self.predictor(theta)).sum())

    def _losses(self, eta: np.ndarray) -> np.ndarray:
        losses = np.logaddexp(0.0, np.where(self.target == 1.0, -eta, eta))
        return losses if self.weights is None else losses * self.weights

    def at(self, theta: np.ndarray) -> Answer:
        """Return the groups' messages at theta."""
        self._count(up=self.size * (self.size + 1) // 2 + self.size + 1, down=self.size)
        eta = self.predictor(theta)
        loss = self._losses(eta)
        weight = np.maximum(expit(eta) * expit(-eta), _TINY)
        # 1 - mu where y = 1 as expit(-eta), which keeps its digits where mu is nearly 1.
        residual = np.where(self.target == 1.0, expit(-eta), -expit(eta))
        moments = group_moments(
            self.features,
            residual / weight,
            self.group,
            self.groups,
            self.intercept,
            weights=weight if self.weights is None else weight * self.weights,
        )
        return Answer(theta, np.bincount(self.group, weights=loss, minlength=self.groups), moments)

    def start(self) -> np.ndarray:
        """Return initial coefficients [p]: zero, except for an intercept that cancels the offset's mean."""
        beta = np.zeros(self.size)
        if self.intercept and self.offset is not None:
            beta[0] = -self.offset.mean()
        return beta

    def null_loss(self) -> float:
        """Return the loss of all rows at the start."""
        if self._null_loss is None:
            self._count(up=1, down=0)
            self._null_loss = self.loss(np.repeat(self.start()[:, None], self.groups, axis=1))
        return self._null_loss

    def bound(self) -> np.ndarray:
        """Return X'X / 4 of every group, an upper bound of its information: a step with it always descends."""
        if self._bound is None:
            zero = np.zeros(len(self.group))
            moments = group_moments(self.features, zero, self.group, self.groups, self.intercept, self.weights)
            self._bound = moments[:-1, :-1] / 4.0
        return self._bound

    def skew(self, theta: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return how log det of the information changes with theta [p, groups], given covariances [p, p, groups].

        That is the sum over rows of x w (1 - 2 mu) x' C x: the weight's slope times the variance of the predictor.
        """
        self._count(up=self.size, down=self.size * (self.size + 1) // 2)
        eta = self.predictor(theta)
        slope = expit(eta) * expit(-eta) * -np.tanh(eta / 2.0) * (1.0 if self.weights is None else self.weights)
        for start in range(0, len(eta), _BLOCK):
            block = slice(start, start + _BLOCK)
            z = self._design(block)
            slope[block] *= np.einsum("an,abn,bn->n", z, covariance[:, :, self.group[block]], z, optimize=True)
        first = int(self.intercept)
        change = np.empty((self.size, self.groups))
        if first:
            change[0] = np.bincount(self.group, weights=slope, minlength=self.groups)
        for k in range(self.features.shape[1]):
            change[first + k] = np.bincount(self.group, weights=slope * self.features[:, k], minlength=self.groups)
        return change

    def separated(self, theta: np.ndarray, intercepts: bool) -> np.ndarray:
        """Return which groups [groups] these coefficients separate: every row on its own class's side.

        Without a penalty such a group's coefficients would grow without bound. If intercepts vary, a group of a single
        class is separated, whatever its coefficients.
        """
        self._count(up=1, down=self.size)
        offset, self.offset = self.offset, None
        margin = np.where(self.target == 1.0, 1.0, -1.0) * self.predictor(theta)
        self.offset = offset
        rows = np.bincount(self.group, minlength=self.groups)
        right = np.bincount(self.group[margin > 0.0], minlength=self.groups)
        separated = right == rows
        if intercepts:
            ones = np.bincount(self.group, weights=self.target, minlength=self.groups)
            separated |= (ones == 0) | (ones == rows)
        return separated & (rows > 0)

    def _design(self, block: slice) -> np.ndarray:
        features = self.features[block].T
        return np.concatenate([np.ones((1, features.shape[1])), features]) if self.intercept else features

    def _count(self, up: int, down: int) -> None:
        self.traffic.add(up, down, self.groups)
