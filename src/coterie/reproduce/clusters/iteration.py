"""The iteration behind "ours" in Table 1 of Lyu, Hanzely, Kolar (2022, section 6.1), a simplified Algorithm 1.

It minimises (2.1), which for the hierarchical model is

    sum_i 1/2 |X_i theta_i - y_i|^2 + gamma / 2 |theta_i - w_j|^2,   w_j = (1 - alpha_j) mean_j + alpha_j mean,

with mean_j over the clients of cluster j, alpha_j = lambda / (lambda + gamma n_j), and the mean over clusters weighted
by alpha_j n_j. Every iteration tosses one coin for all clients. With probability 1 - p each takes a gradient step of
its own loss, of length step / (1 - p); else each moves towards w_j by the share gamma step / p.
"""

import numpy as np

__all__ = ["simplified_l2gd"]


def simplified_l2gd(
    x: np.ndarray,
    y: np.ndarray,
    cluster: np.ndarray,
    rng: np.random.Generator,
    gamma: float = 1.0,
    lam: float = 1.0,
    p: float = 0.1,
    step: float = 1e-4,
    iterations: int = 50_000,
) -> np.ndarray:
    """Run the iteration from zero and return the coefficients of all clients, `[clients, d]`.

    Args:
        x: inputs `[clients, m, d]`.
        y: targets `[clients, m]`.
        cluster: number of each client's cluster, from 0, `[clients]`.
        rng: tosses the coins.
        gamma: penalty between a client and its cluster.
        lam: penalty between a cluster and all.
        p: probability of a move to the means.
        step: the step size.
        iterations: coins.
    """
    means = _Means(cluster, gamma, lam)
    # Consecutive gradient steps have a closed form in the eigenvectors of X'X, so that the work is that of the moves.
    values, vectors = np.linalg.eigh(np.einsum("kmd,kme->kde", x, x))
    values = np.maximum(values, 0.0)
    target = np.einsum("kde,kd->ke", vectors, np.einsum("kmd,km->kd", x, y))
    rate, share = step / (1 - p), gamma * step / p
    shrink = np.log1p(-rate * values)
    z = np.zeros_like(target)  # the coefficients in these eigenvectors
    for steps, moves in _phases(rng.random(iterations) < p):
        left = np.exp(steps * shrink)
        gained = np.divide(1 - left, values, out=np.full_like(values, steps * rate), where=values > 1e-9)
        z = left * z + gained * target
        if moves:
            centre = means.of(_turned(vectors, z))
            z += share * (_turned(np.swapaxes(vectors, 1, 2), centre) - z)
    return _turned(vectors, z)


class _Means:
    """The centre w_j of every client's cluster, given the coefficients of all."""

    def __init__(self, cluster: np.ndarray, gamma: float, lam: float) -> None:
        self.cluster, self.size = cluster, np.bincount(cluster)
        self.order = np.argsort(cluster, kind="stable")
        self.starts = np.cumsum(self.size) - self.size
        self.alpha = (lam / (lam + gamma * self.size))[:, None]
        self.weight = self.alpha[:, 0] * self.size / np.sum(self.alpha[:, 0] * self.size)

    def of(self, theta: np.ndarray) -> np.ndarray:
        own = np.add.reduceat(theta[self.order], self.starts) / self.size[:, None]
        return ((1 - self.alpha) * own + self.alpha * (self.weight @ own))[self.cluster]


def _phases(coins: np.ndarray) -> list[tuple[int, bool]]:
    """Divide the coins into phases: so many gradient steps, and whether a move follows."""
    at = np.flatnonzero(coins)
    steps = np.diff(at, prepend=-1) - 1
    last = len(coins) - 1 - (at[-1] if len(at) else -1)
    return [(int(count), True) for count in steps] + ([(int(last), False)] if last else [])


def _turned(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return np.matmul(matrices, vectors[:, :, None])[:, :, 0]
