"""The groups' side of logistic regression: loss, gradient and information of the rows, one message per group.

Only this file, `multinomial.py` and what they share, `grouped_rows.py`, read rows. Given its coefficients theta_i, a
group answers with its loss sum log(1 + exp(-+eta)), its gradient X'(y - mu) and its information X'WX,
W = diag(mu (1 - mu)): p(p+1)/2 + p + 1 numbers. Newton's method and the Laplace approximation need nothing else; all
messages are counted for the ledger.
"""

import numpy as np
from scipy.special import expit

from coterie.estimators.grouped_rows import BLOCK, Answer, GroupedRows
from coterie.estimators.moments import group_moments

__all__ = ["Bernoulli"]

_TINY = 1e-30  # the smallest weight: 0 / 0 where a row's probability is 0 or 1 to the last bit


class Bernoulli(GroupedRows):
    """The rows, with targets 0 and 1; theta is always [p, groups]."""

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
        super().__init__(features, target, group, groups, intercept, offset, weights)
        # The first message, for the features' units, their independence and the start: X'X, and the offset's sum. The
        # answer is the centre and the unit of every feature.
        self._count(up=self.size * (self.size + 1) // 2 + int(offset is not None), down=2 * features.shape[1])

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
        return self._weighted(np.logaddexp(0.0, np.where(self.target == 1.0, -eta, eta)))

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
            weights=self._weighted(weight),
        )
        return Answer(theta, np.bincount(self.group, weights=loss, minlength=self.groups), moments)

    def start(self) -> np.ndarray:
        """Return initial coefficients [p]: zero, except for an intercept that cancels the offset's mean."""
        beta = np.zeros(self.size)
        if self.intercept and self.offset is not None:
            beta[0] = -self.offset.mean()
        return beta

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
        slope = self._weighted(expit(eta) * expit(-eta) * -np.tanh(eta / 2.0))
        for start in range(0, len(eta), BLOCK):
            block = slice(start, start + BLOCK)
            z = self._design(block)
            slope[block] *= np.einsum("an,abn,bn->n", z, covariance[:, :, self.group[block]], z, optimize=True)
        return self._totals(slope)

    def separated(self, theta: np.ndarray, intercepts: bool) -> np.ndarray:
        """Return which groups [groups] these coefficients separate: every row on its own class's side.

        Without a penalty such a group's coefficients would grow without bound. If intercepts vary, a group of a single
        class is separated, whatever its coefficients.
        """
        self._count(up=1, down=self.size)
        margin = np.where(self.target == 1.0, 1.0, -1.0) * self._without_offset(theta)
        rows = np.bincount(self.group, minlength=self.groups)
        right = np.bincount(self.group[margin > 0.0], minlength=self.groups)
        separated = right == rows
        if intercepts:
            ones = np.bincount(self.group, weights=self.target, minlength=self.groups)
            separated |= (ones == 0) | (ones == rows)
        return separated & (rows > 0)
