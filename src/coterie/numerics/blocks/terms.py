"""Shared parts of the two block models (`sbm`, `mmsbm`): evidence from losses, and the terms of their lower bound.

K clients, M blocks. Evidence ELL[i, j] is the log-likelihood, in nats, of client j's data under client i's model minus
that under a null model.
"""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from coterie.errors import CoterieError
from coterie.numerics.tree import divisor

__all__ = [
    "CLIP",
    "PRIOR",
    "Baseline",
    "affinity_density",
    "affinity_prior",
    "block_matrix",
    "centre",
    "digamma",
    "evidence",
    "expected_log",
    "link_entropy",
    "log_gamma",
    "log_odds",
    "mixture_terms",
    "observed",
    "pooled_affinity",
    "positive",
    "profiles",
]

Baseline = Literal["classes", "median", "own"]

PRIOR = (0.8, 0.2)  # probability of a link within a block, and between blocks
CLIP = 1e-4  # the least distance of B from 0 and 1
SHIFT = 8  # from which on five terms of Stirling's series are exact to 1e-12
DECISIVE = 20.0  # evidence is clipped to this (in nats), so that a diverged client does not dominate the others


def observed(ell: jax.Array, known: jax.Array) -> jax.Array:
    """Return which pairs are evidence `[K, K]`: known, finite, and not a client with itself."""
    return known & jnp.isfinite(ell) & ~jnp.eye(ell.shape[0], dtype=bool)


def centre(
    losses: jax.Array,
    known: jax.Array,
    rule: Baseline = "median",
    log_classes: jax.Array | None = None,
    margin: float | jax.Array = 0.0,
    own_loss: jax.Array | None = None,
) -> jax.Array:
    """Turn mean losses into evidence: ELL[i, j] = b_j - losses[i, j], with b_j the loss of a null model on j's data.

    Args:
        losses: `[K, K]`, the mean loss of i's model on j's data.
        known: `[K, K]`, true where `losses` was measured.
        rule: "classes": b_j = log(number of classes of j); "median": the median of column j over observed pairs (half
            of the evidence is then negative); "own": the loss of j's own model, plus `margin`.
        log_classes: `[K]`, for "classes". A client with one class gets b_j = 0, and all evidence is negative.
        margin: by how much the loss of a useful model may exceed that of the client's own, for "own".
        own_loss: `[K]`, for "own"; the diagonal of `losses` if None.

    Returns:
        `[K, K]`, -inf where there is no evidence: the pair is not known, or its loss or b_j is not finite. The block
        models leave such pairs out, and a softmax gives them weight 0.
    """
    if rule == "classes":
        if log_classes is None:
            raise CoterieError("log_classes is needed with rule = 'classes'; without classes use 'median'")
        baseline = log_classes
    elif rule == "median":
        baseline = jnp.nanmedian(jnp.where(observed(losses, known), losses, jnp.nan), axis=0)
    elif rule == "own":
        baseline = (jnp.diagonal(losses) if own_loss is None else own_loss) + margin
    else:
        raise CoterieError(f"rule must be one of classes, median, own, not {rule!r}")
    ell = (baseline - losses).astype(losses.dtype)
    return jnp.where(known & jnp.isfinite(ell), ell, -jnp.inf)


def evidence(ell: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ELL with 0 for pairs that are not evidence, and 1 for pairs that are, 0 elsewhere; `[K, K]` both."""
    pairs = observed(ell, known)
    return jnp.where(pairs, ell, 0), pairs.astype(ell.dtype)


def profiles(ell: jax.Array, known: jax.Array) -> jax.Array:
    """Describe each client by a row of (ELL + ELL^T) / 2 `[K, K]`, for k-means.

    A pair that was observed in one direction takes that value; an unobserved pair gets the mean of its column. The
    diagonal is the best of the column: with the mean there, a group of two would be split.
    """
    ell, seen = evidence(ell, known)
    ell = jnp.clip(ell, -DECISIVE, DECISIVE)
    count = seen + seen.T
    both = (ell + ell.T) / jnp.maximum(count, 1)
    mean = both.sum(0) / jnp.maximum((count > 0).sum(0), 1)
    best = jnp.where(count > 0, both, -DECISIVE).max(0)
    filled = jnp.where(count > 0, both, mean)
    return jnp.where(jnp.eye(ell.shape[0], dtype=bool), best, filled)


def log_odds(affinity: jax.Array) -> jax.Array:
    """Return log B - log(1 - B)."""
    return jnp.log(affinity) - jnp.log1p(-affinity)


def log_gamma(x: jax.Array) -> jax.Array:
    """Return log Gamma(x) of positive numbers, by Stirling's series at x + 8.

    JAX's own is for all numbers and takes XLA five long kernels; so does its digamma. These are one each: the barrier
    says that the result is needed as a whole, without which every division would be a kernel of its own.
    """
    far, low, high = x + SHIFT, x, x + SHIFT // 2
    for k in range(1, SHIFT // 2):  # two products, so that they do not overflow
        low, high = low * (x + k), high * (x + k + SHIFT // 2)
    square = 1 / (far * far)
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / far
    main = (far - 0.5) * jnp.log(far) - far + 0.5 * math.log(2 * math.pi)
    return lax.optimization_barrier(main + series - jnp.log(low) - jnp.log(high))


def digamma(x: jax.Array) -> jax.Array:
    """Return the derivative of `log_gamma`."""
    far = x + SHIFT
    square = 1 / (far * far)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    passed = sum(1 / (x + k) for k in range(SHIFT))
    return lax.optimization_barrier(jnp.log(far) - 0.5 / far - series - passed)


def expected_log(gamma: jax.Array) -> jax.Array:
    """Return E[log pi] under Dirichlet(gamma), over the last axis."""
    values = digamma(jnp.append(gamma, gamma.sum(-1, keepdims=True), -1))  # at once: it is a long kernel
    return values[..., :-1] - values[..., -1:]


def mixture_terms(gamma: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return E[log p(pi | alpha)] - E[log q(pi | gamma)] over all clients."""
    rows = jnp.append(gamma, alpha[None], 0)
    values = log_gamma(jnp.append(rows, rows.sum(-1, keepdims=True), -1))  # at once, as above
    normalisers = values[:, -1] - values[:, :-1].sum(-1)
    return ((alpha - gamma) * expected_log(gamma)).sum() + (normalisers[-1] - normalisers[:-1]).sum()


def link_entropy(weights: jax.Array, pairs: jax.Array, temperature: float | jax.Array) -> jax.Array:
    """Return the entropy of q(Y) over the observed pairs, times the temperature."""
    return positive(temperature, "temperature") * (pairs * (entr(weights) + entr(1 - weights))).sum()


def block_matrix(affinity: Any, blocks: int, dtype: Any) -> jax.Array:
    """Return B `[M, M]` from (within, between), or from a matrix."""
    if isinstance(affinity, tuple | list) and len(affinity) == 2 and not isinstance(affinity[0], tuple | list):
        for value in affinity:
            if isinstance(value, int | float) and not 0 < value < 1:
                raise CoterieError(f"affinity must be above 0 and below 1, not {value:g}")
        within, between = affinity
        return jnp.where(jnp.eye(blocks, dtype=bool), jnp.asarray(within, dtype), jnp.asarray(between, dtype))
    return jnp.broadcast_to(jnp.asarray(affinity, dtype), (blocks, blocks))


def pooled_affinity(
    old: jax.Array,
    linked: jax.Array,
    possible: jax.Array,
    pseudo_counts: float | jax.Array,
    prior: Any,
    clip: float,
) -> jax.Array:
    """Return (linked + c B0) / (possible + c), clipped; `old` where there are neither pairs nor pseudo-counts."""
    total = possible + pseudo_counts
    share = (linked + pseudo_counts * block_matrix(prior, old.shape[0], old.dtype)) / divisor(total)
    return jnp.clip(jnp.where(total > 0, share, old), clip, 1 - clip)


def affinity_prior(affinity: jax.Array, pseudo_counts: float | jax.Array, prior: Any) -> jax.Array:
    """Return the log density of B under Beta(1 + c B0, 1 + c (1 - B0)), the prior that c pseudo-counts mean."""
    linked = pseudo_counts * block_matrix(prior, affinity.shape[0], affinity.dtype)
    unlinked = pseudo_counts - linked
    constants = log_gamma(jnp.stack([1 + linked, 1 + unlinked, 2 + linked + unlinked]))  # of log Beta(a, b)
    return affinity_density(affinity, pseudo_counts, prior) + (constants[2] - constants[0] - constants[1]).sum()


def affinity_density(affinity: jax.Array, pseudo_counts: float | jax.Array, prior: Any) -> jax.Array:
    """Return the terms of `affinity_prior` that depend on B."""
    linked = pseudo_counts * block_matrix(prior, affinity.shape[0], affinity.dtype)
    return (linked * jnp.log(affinity) + (pseudo_counts - linked) * jnp.log1p(-affinity)).sum()


def positive(value: float | jax.Array, name: str) -> float | jax.Array:
    """Return `value`; refuse a Python number that is not above zero (a traced one cannot be checked)."""
    if isinstance(value, int | float) and not value > 0:
        raise CoterieError(f"{name} must be greater than 0, not {value:g}")
    return value
