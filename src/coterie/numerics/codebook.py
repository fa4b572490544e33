"""A codebook of k values for a vector: k-means in one dimension, solved exactly.

Zhao et al. send k centres and an index for each element (section 2.3, step 3). In one dimension the best clusters are
intervals, and dynamic programming finds the optimal partition; Lloyd's iterations may end far from it. Runs of equal
elements count as one point with a weight: after the fused operator (`prox.fused`) there are few of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.host import compiled, in_program, over_rows

__all__ = ["codebook", "codebook_in_program"]


def codebook(values: Any, k: int, weights: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the k centres, and the centre of each value, that minimise the sum of squared changes.

    Exact up to rounding. It takes time proportional to k m log m and memory proportional to k m, where m is the number
    of distinct values. Needs Numba: `pip install 'coterie[numba]'`.

    Args:
        values: `[d]`, finite.
        k: how many centres, at least 1.
        weights: `[d]`, positive; the weight of each squared change, default 1.

    Returns:
        The centres in ascending order, in the type of `values` if that is float32 or float64 (with fewer than k
        distinct values, these values); and the index of each value's centre `[d]`.
    """
    kernel = _kernel()
    _check_count(k)
    values = np.asarray(values)
    real = values.dtype if values.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    values = np.ascontiguousarray(values, np.float64)
    weights = np.zeros(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    if values.ndim != 1:
        raise CoterieError(f"values has shape {values.shape}, but must be [d]")
    if not np.isfinite(values).all():
        raise CoterieError("values must be finite, but has elements that are NaN or infinite")
    if weights.size and weights.shape != values.shape:
        raise CoterieError(f"weights has shape {weights.shape}, but must have the shape of values, {values.shape}")
    if not np.all((weights > 0) & (weights < np.inf)):
        raise CoterieError("weights must be greater than 0, and finite")
    if values.size == 0:
        return np.zeros(0, real), np.zeros(0, np.int64)
    centres, labels = np.empty((1, min(k, values.size))), np.empty((1, values.size), np.int64)
    kernel.cluster(values[None], weights, centres, labels)
    return centres[0, : labels.max() + 1].astype(real), labels[0]


def codebook_in_program(q: jax.Array, k: int) -> jax.Array:
    """Return q with every value replaced by its centre, with k centres per row, inside a JAX program.

    One call to the host for all rows, as `prox.fused_in_program`; a row that is not finite becomes NaN.

    Args:
        q: `[N, d]`, or any leading axes.
        k: number of centres per row, at least 1.
    """
    kernel = _kernel()  # here, since the callback cannot raise
    _check_count(k)
    real = q.dtype if q.dtype in (jnp.float32, jnp.float64) else jnp.float32
    return in_program(lambda out, q: _replace(q, k, out, kernel), q.astype(real)).astype(q.dtype)


def _replace(q: np.ndarray, k: int, out: np.ndarray, kernel: Any) -> None:
    """Fill `out [..., d]` with the centres of `q [..., d]`; the rows are divided among the cores."""
    if q.size == 0:
        return
    size = q.shape[-1]
    source, target, no_weights = q.reshape(-1, size), out.reshape(-1, size), np.zeros(0)

    def one(rows: slice) -> None:
        values = np.ascontiguousarray(source[rows], np.float64)
        centres, labels = np.empty((len(values), min(k, size))), np.empty(values.shape, np.int64)
        kernel.cluster(values, no_weights, centres, labels)
        target[rows] = np.take_along_axis(centres, labels, axis=1)

    over_rows(lambda: one, len(source), size)


def _kernel() -> Any:
    return compiled("coterie.numerics.kernels.codebook", "the codebook")


def _check_count(k: int) -> None:
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise CoterieError(f"k must be a whole number of at least 1, not {k!r}")
