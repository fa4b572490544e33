"""The mean gain of clients like these, and how far it may be off: clients, groups of clients, seeds, splits, test rows.

The gain of client k in run t is modelled as

    gain[t, k] = mean + client[k] + run[t] + noise[t, k]

with random clients (those of a known group are correlated), a run effect that all clients of a run share (its seed and
split), and noise whose variance falls with the client's test rows. `docs/concepts/evaluation.md` argues every choice
below and has the simulated error rates. All functions take leading axes, so that the simulation runs this very code on
thousands of comparisons at once. Shapes: R runs, T repetitions (runs of different splits, or of one), K clients.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit  # normal and Student quantiles; scipy.stats takes half a second to import

__all__ = ["Estimate", "Noise", "client_errors", "estimate", "half_width", "half_width_here", "noise_of", "repetitions"]

SEED_SHARE = 0.3  # assumed size of the run effect, as a share of the spread of the clients' gains
SEED_RUNS = 3.0  # how many runs the assumption counts for where the run effect is measured too
OWN_ROWS = 10.0  # rows of the other clients that a client's own variance borrows
OWN_RUNS = 4.0  # the same in runs


class Noise(NamedTuple):
    """What is known of the error of the test sets: the variance of the gain on one row, and the rows of each client."""

    row: Any  # [...] variance on one row, the same for all clients; NaN where nothing is known
    rows: np.ndarray  # [K] test rows, mean over runs
    kept: np.ndarray  # [K] which part of the variance is left after averaging over splits that share rows
    splits: int  # number of different splits
    freedom: float  # degrees of freedom of `row`

    @property
    def variance(self) -> np.ndarray:
        """The error variance of the averaged gain of each client, `[..., K]`."""
        return np.asarray(self.row)[..., None] * self.kept / self.rows


class Estimate(NamedTuple):
    """A mean gain and the variances of its parts, all `[...]` but `weights [..., K]` and `run_freedom`."""

    mean: Any
    clients: Any  # error variance from clients, groups and test rows, as the gains of these clients scatter
    sampling: Any  # error variance from test rows alone, as the rows scatter
    runs: Any  # error variance from seeds and splits
    measured: Any  # the part of `runs` that was measured: 0 with one run
    between: Any  # variance of the true gains between clients
    weights: np.ndarray
    client_freedom: Any
    run_freedom: float


def repetitions(gains: np.ndarray, splits: np.ndarray | None) -> np.ndarray:
    """Return gains `[..., T, K]` of repetitions: runs on the same split are averaged, unless all share one split."""
    if splits is None or len(set(splits)) in (1, len(splits)):
        return gains
    chosen = [np.flatnonzero(np.asarray(splits) == split) for split in dict.fromkeys(splits)]
    return np.stack([gains[..., runs, :].mean(-2) for runs in chosen], axis=-2)


def noise_of(spread: Any, rows: np.ndarray, bounded: bool, splits: np.ndarray | None, overlap: Any = 0.0) -> Noise:
    """Pool what the test rows say about the variance of the gain on one row.

    Clients share one variance: that of three rows is often 0, and a variance of its own would give such a client all
    the weight. Repeated random splits of the same rows are not independent: the error falls as 1/S + test / train
    (Nadeau and Bengio 2003), not as 1/S.

    Args:
        spread: the variance of the paired differences of single rows within each client `[..., R, K]`, or None.
        rows: test rows `[R, K]`.
        bounded: a difference lies between -1 and 1; then one row of each is added, so that no variance is 0.
        splits: the split of each run `[R]`; None: all runs have the same.
        overlap: test rows / training rows of each client (or one number for all).
    """
    rows = np.asarray(rows, float)
    count = 1 if splits is None else len(set(splits))
    kept = np.minimum(1.0, 1 / count + np.asarray(overlap, float)) if count > 1 else np.ones(())
    each = np.broadcast_to(kept, rows.shape[-1:])
    if spread is None:
        return Noise(np.nan, rows.mean(0), each, count, 0.0)
    added = 2.0 if bounded else 0.0
    freedom = float((rows - 1).sum()) + added
    row = ((rows * spread).sum((-2, -1)) + added) / freedom if freedom > 0 else np.full(np.shape(spread)[:-2], np.nan)
    return Noise(row, rows.mean(0), each, count, freedom)


def estimate(gains: np.ndarray, noise: Noise, groups: np.ndarray | None = None) -> Estimate:
    """Estimate the mean gain over clients like these.

    Clients are weighed by 1 / (variance between clients + error of their test rows); the variance comes from the method
    of moments in two steps (DerSimonian and Kacker 2007), and for the weights it is never taken below the error of the
    median client, so that no single large client decides. The error over clients is the larger of Hartung and Knapp's
    and that of the jackknife over groups (or clients).

    Args:
        gains: `[..., T, K]`, of repetitions.
        noise: the error of the test sets.
        groups: the group of each client `[K]`, numbered from 0 on; None where none are known.
    """
    mean_gains = gains.mean(-2)
    between, weights = _weights(mean_gains, noise)
    share = weights / weights.sum(-1, keepdims=True)
    mean = (share * mean_gains).sum(-1)
    away = mean_gains - mean[..., None]
    count = gains.shape[-1]
    hartung_knapp = (share * away**2).sum(-1) / (count - 1)
    jackknife, units = _jackknife(share, away, groups)
    variance = np.nan_to_num(noise.variance)
    sampling = (share**2 * variance).sum(-1)
    clients = np.maximum(hartung_knapp, jackknife)
    kept = float(noise.kept.mean()) if noise.splits > 1 else 1 / gains.shape[-2]
    usual = between + np.median(variance, -1)
    spread = np.maximum((share * away**2).sum(-1) * count / (count - 1), usual)
    runs, measured, freedom = _run_effect(gains, share, spread, kept)
    return Estimate(mean, clients, sampling, runs, measured, between, share, units - 1, freedom)


def half_width(estimate: Estimate, risk: float) -> np.ndarray:
    """Return half the width of the interval that misses the true mean gain with this risk.

    Few clients may agree by chance: what their scatter says, with Student's quantile, counts unless the test rows alone
    say more. Runs have their own degrees of freedom; the two half-widths are added as squares.
    """
    clients, runs = (stdtrit(df, 1 - risk / 2) for df in (estimate.client_freedom, estimate.run_freedom))
    rows = ndtri(1 - risk / 2)
    widest = np.maximum(clients**2 * estimate.clients, rows**2 * estimate.sampling)
    return np.sqrt(widest + runs**2 * estimate.runs)


def half_width_here(estimate: Estimate, noise: Noise, risk: float) -> np.ndarray:
    """Return half the width of the interval for these very clients, not for others like them: test rows and runs only.

    Where nothing is known of the test rows' errors, that for clients like these.
    """
    if noise.freedom < 1:
        return half_width(estimate, risk)
    return stdtrit(noise.freedom, 1 - risk / 2) * np.sqrt(estimate.sampling + estimate.measured)


def client_errors(gains: np.ndarray, spread: np.ndarray | None, rows: np.ndarray, noise: Noise) -> np.ndarray:
    """Return the standard error of each client's own gain `[..., K]`: from its test rows and, if several, its runs.

    Variances of few rows or runs borrow from those of all clients, as if a few more rows or runs had been seen.

    Args:
        gains: `[..., T, K]`, of repetitions.
        spread, rows: as for `noise_of`.
        noise: the error of the test sets.
    """
    sampling = np.full((*gains.shape[:-2], gains.shape[-1]), np.nan)
    if spread is not None:
        own, seen = (rows * spread).sum(-2), (rows - 1).sum(-2)
        sampling = (OWN_ROWS * np.asarray(noise.row)[..., None] + own) / (OWN_ROWS + seen) / noise.rows
    count = gains.shape[-2]
    if count == 1:
        return np.sqrt(sampling)
    between_runs = gains.var(-2, ddof=1)
    usual = between_runs.mean(-1, keepdims=True)
    between_runs = (OWN_RUNS * usual + (count - 1) * between_runs) / (OWN_RUNS + count - 1)
    if noise.splits == 1:  # runs differ in training only
        return np.sqrt(np.nan_to_num(sampling) + between_runs / count)
    return np.sqrt(np.fmax(sampling, between_runs) * noise.kept)


def _weights(gains: np.ndarray, noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance between clients `[...]` and each client's weight `[..., K]`."""
    variance = np.broadcast_to(noise.variance, gains.shape)
    if np.isnan(variance).any():  # nothing is known of the rows' errors: as large for the median client as the spread
        return gains.var(-1, ddof=1), np.broadcast_to(noise.rows / (noise.rows + np.median(noise.rows)), gains.shape)
    least = np.median(variance, -1)
    between = np.zeros(gains.shape[:-1])
    for step in range(3):
        full = np.maximum(between, least)[..., None] + variance
        weights = np.where(full > 0, 1 / np.where(full > 0, full, 1), 1.0)
        if step < 2:
            total = weights.sum(-1)
            mean = (weights * gains).sum(-1) / total
            scatter = (weights * (gains - mean[..., None]) ** 2).sum(-1)
            expected = (weights * variance).sum(-1) - (weights**2 * variance).sum(-1) / total
            between = np.maximum(0.0, (scatter - expected) / (total - (weights**2).sum(-1) / total))
    return between, weights


def _jackknife(share: np.ndarray, away: np.ndarray, groups: np.ndarray | None) -> tuple[np.ndarray, Any]:
    """Return the variance of the weighted mean, leaving out one group (or client) after the other, and their number.

    The number is that of equally weighted ones: a group with half of the clients leaves few others to compare it with.
    """
    if groups is not None:
        member = np.asarray(groups)[:, None] == np.arange(int(np.max(groups)) + 1)
        moved, share = (share * away) @ member, share @ member
    else:
        moved = share * away
    units = share.shape[-1]
    return (units - 1) / units * ((moved / (1 - share)) ** 2).sum(-1), 1 / (share**2).sum(-1)


def _run_effect(
    gains: np.ndarray, share: np.ndarray, spread: np.ndarray, kept: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the variance that seeds and splits give to the mean gain, what of it is measured, and its freedom.

    One run cannot show what another seed would have moved for all clients together: it is assumed to be a share of the
    spread of the clients' gains. Several runs measure it; the assumption counts as one more run, so that two runs that
    agree by chance do not make the answer certain.
    """
    count, clients = gains.shape[-2:]
    assumed = SEED_SHARE**2 * spread
    if count == 1:
        return assumed, np.zeros_like(assumed), clients - 1.0
    means = (share[..., None, :] * gains).sum(-1)
    noise = (share**2 * (gains - means[..., None]).var(-2, ddof=1)).sum(-1)  # it is in the error over clients already
    measured = np.maximum(0.0, means.var(-1, ddof=1) - noise)
    both = (SEED_RUNS * assumed + (count - 1) * measured) / (SEED_RUNS + count - 1)
    return np.maximum(measured, both) / count + (kept - 1 / count) * measured, measured * kept, SEED_RUNS + count - 1
