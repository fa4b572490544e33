"""The groups' side of logistic regression of several classes: the same messages as `bernoulli.py`, for all log-odds.

The log-odds of each class against the first are x' theta_c, and theta stacks the K - 1 vectors of p coefficients. A
group's message is its loss, its gradient and its information, P(P+1)/2 + P + 1 numbers for P = p (K - 1).
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import logsumexp

from coterie.estimators.grouped_rows import BLOCK, Answer, GroupedRows
from coterie.estimators.moments import group_moments

__all__ = ["Multinomial"]


class Multinomial(GroupedRows):
    """The rows, with classes 0..K-1 as targets; theta is [P, groups]."""

    def __init__(
        self,
        features: np.ndarray,
        target: np.ndarray,
        group: np.ndarray,
        groups: int,
        intercept: bool,
        classes: int,
        offset: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(features, target.astype(np.intp), group, groups, intercept, offset, weights)
        self.odds = classes - 1
        self.size = self.width * self.odds
        self._count(up=self.width * (self.width + 1) // 2, down=2 * features.shape[1])

    def predictor(self, theta: np.ndarray) -> np.ndarray:
        """Return the log-odds [n, K - 1] of every row."""
        first, eta = int(self.intercept), np.zeros((len(self.group), self.odds))
        for c in range(self.odds):
            own = theta[c * self.width : (c + 1) * self.width]
            if first:
                eta[:, c] = own[0, self.group]
            for k in range(self.features.shape[1]):
                eta[:, c] += self.features[:, k] * own[first + k, self.group]
        return eta if self.offset is None else eta + self.offset[:, None]

    def loss(self, theta: np.ndarray) -> float:
        """Return the loss of all rows."""
        return float(self._losses(self._log_shares(theta)).sum())

    def at(self, theta: np.ndarray) -> Answer:
        """Return the groups' messages at theta."""
        self._count(up=self.size * (self.size + 1) // 2 + self.size + 1, down=self.size)
        logs = self._log_shares(theta)
        share = np.exp(logs)[:, 1:]
        moments = np.zeros((self.size + 1, self.size + 1, self.groups))
        for c, block in self._blocks():
            right = (self.target == c + 1).astype(np.float64) - share[:, c]
            for d, other in self._blocks():
                if d < c:
                    continue
                weight = share[:, c] * ((c == d) - share[:, d])
                part = self._sums(weight, right if c == d else None)
                moments[block, other] = part[:-1, :-1]
                moments[other, block] = np.swapaxes(part[:-1, :-1], 0, 1)
                if c == d:
                    moments[block, -1] = moments[-1, block] = part[:-1, -1]
        loss = np.bincount(self.group, weights=self._losses(logs), minlength=self.groups)
        return Answer(theta, loss, moments)

    def bound(self) -> np.ndarray:
        """Return an upper bound of every group's information: a step with it always descends (Böhning 1992)."""
        products = self._sums(np.ones(len(self.group)), None)[:-1, :-1]
        bound = np.zeros((self.size, self.size, self.groups))
        for c, block in self._blocks():
            for d, other in self._blocks():
                bound[block, other] = 0.5 * ((c == d) - 1.0 / (self.odds + 1)) * products
        return bound

    def skew(self, theta: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return how log det of the information changes with theta [P, groups], given covariances [P, P, groups]."""
        self._count(up=self.size, down=self.size * (self.size + 1) // 2)
        share = np.exp(self._log_shares(theta))[:, 1:]
        slope = np.zeros((len(share), self.odds))
        for start in range(0, len(share), BLOCK):
            rows = slice(start, start + BLOCK)
            z, m, here = self._design(rows), share[rows], covariance[:, :, self.group[rows]]
            for a, block in self._blocks():
                for b, other in self._blocks():
                    spread = np.einsum("an,abn,bn->n", z, here[block, other], z, optimize=True)
                    for c in range(self.odds):
                        change = -m[:, a] * m[:, b] * ((a == c) + (b == c) - 2.0 * m[:, c])
                        if a == b:
                            change = change + m[:, a] * ((a == c) - m[:, c])
                        slope[rows, c] += change * spread
        if self.weights is not None:
            slope *= self.weights[:, None]
        change = np.empty((self.size, self.groups))
        for c, block in self._blocks():
            change[block] = self._totals(slope[:, c])
        return change

    def separated(self, theta: np.ndarray, intercepts: bool) -> np.ndarray:
        """Return which groups [groups] these coefficients separate, or have one class only if intercepts vary."""
        self._count(up=1, down=self.size)
        eta = np.column_stack([np.zeros(len(self.group)), self._without_offset(theta)])
        own = eta[np.arange(len(eta)), self.target]
        eta[np.arange(len(eta)), self.target] = -np.inf
        rows = np.bincount(self.group, minlength=self.groups)
        separated = np.bincount(self.group[own > eta.max(axis=1)], minlength=self.groups) == rows
        if intercepts:
            for c in range(self.odds + 1):
                separated |= np.bincount(self.group[self.target == c], minlength=self.groups) == rows
        return separated & (rows > 0)

    def _blocks(self) -> Iterator[tuple[int, slice]]:
        return ((c, slice(c * self.width, (c + 1) * self.width)) for c in range(self.odds))

    def _log_shares(self, theta: np.ndarray) -> np.ndarray:
        eta = np.column_stack([np.zeros(len(self.group)), self.predictor(theta)])
        return eta - logsumexp(eta, axis=1)[:, None]

    def _losses(self, logs: np.ndarray) -> np.ndarray:
        return self._weighted(-logs[np.arange(len(logs)), self.target])

    def _sums(self, weight: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Return X'WX of every group, and X' residual in the last column."""
        zero, scaled = np.zeros(len(weight)), self._weighted(weight)
        moments = group_moments(self.features, zero, self.group, self.groups, self.intercept, scaled)
        if residual is not None:
            moments[:-1, -1] = self._totals(self._weighted(residual))
        return moments
