"""What scores compute: functions of outputs and targets, the same for JAX inside a program and for NumPy on the host.

Two kinds of function (see `learning/score.py`): of a batch, a value for every sample `[B]`; and of all samples of a
client at once, where `mask` is false for padding of any value. All are finite, also where a score has no meaning: the
score of all samples is then that of a guess, because training must go on. `Score.measure` says NaN there.

NumPy arrays are computed with NumPy: JAX is not imported for them.
"""

from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "absolute_error",
    "accuracy",
    "auprc",
    "auroc",
    "balanced_accuracy",
    "brier",
    "log_loss",
    "r2",
    "root",
    "squared_error",
]

RULED_OUT = float(-np.log(np.finfo(np.float32).eps))  # log-loss of a class that cannot be predicted (logit -inf): 15.9


def namespace(x: Any) -> ModuleType:
    """Return the module whose functions take this array: NumPy, or JAX's."""
    if isinstance(x, np.ndarray | np.generic):
        return np
    import jax.numpy as jnp

    return jnp


# -- a value for every sample -----------------------------------------------------------------------------------------


def accuracy(output: Any, target: Any) -> Any:
    """Return the share of each sample's targets (one, or one per character) that have the largest logit."""
    xp = namespace(output)
    return xp.mean(xp.argmax(output, -1) == target, axis=tuple(range(1, target.ndim)), dtype=output.dtype)


def log_loss(output: Any, target: Any) -> Any:
    """Return minus the log of the probability (softmax) of each sample's target; for text the mean over characters."""
    xp = namespace(output)
    shifted = output - output.max(-1, keepdims=True)
    own = xp.take_along_axis(shifted, target[..., None], -1)[..., 0]
    loss = xp.where(xp.isinf(own), RULED_OUT, xp.log(xp.exp(shifted).sum(-1)) - own)
    return loss.reshape(loss.shape[0], -1).mean(1)


def brier(output: Any, target: Any) -> Any:
    """Return the squared distance of each sample's probabilities from the truth; of two classes, that of the second."""
    xp = namespace(output)
    odds = xp.exp(output - output.max(-1, keepdims=True))
    error = odds / odds.sum(-1, keepdims=True) - (target[..., None] == xp.arange(output.shape[-1]))
    return (error**2).sum(-1) / (2 if output.shape[-1] == 2 else 1)


def squared_error(output: Any, target: Any) -> Any:
    """Return the mean squared error of each sample's outputs."""
    xp = namespace(output)
    return xp.mean((output - target.reshape(output.shape)) ** 2, axis=tuple(range(1, output.ndim)))


def absolute_error(output: Any, target: Any) -> Any:
    """Return the mean absolute error of each sample's outputs."""
    xp = namespace(output)
    return xp.mean(xp.abs(output - target.reshape(output.shape)), axis=tuple(range(1, output.ndim)))


def root(mean: Any) -> Any:
    """Return the square root."""
    return namespace(mean).sqrt(mean)


# -- all samples of a client at once ----------------------------------------------------------------------------------


def balanced_accuracy(output: Any, target: Any, mask: Any) -> Any:
    """Return the mean over the classes that occur of the share of their samples that have the largest logit."""
    xp = namespace(output)
    there = _in_class(output, target, mask)
    right = (there & (xp.argmax(output, -1) == target)[:, None]).sum(0)
    recall = right.astype(output.dtype) / xp.maximum(there.sum(0), 1)
    return recall.sum() / xp.maximum(there.any(0).sum(), 1)


def auroc(output: Any, target: Any, mask: Any) -> Any:
    """Return the area under the ROC curve: of two classes, or the mean over classes, each against the rest.

    A class counts if some samples have it and some do not; 0.5, a guess, where there is no such class.
    """
    xp = namespace(output)

    def area(odds: Any, positive: Any) -> Any:
        """Return the share of pairs of a positive and a negative sample in the right order; a tie counts half."""
        negative = mask & ~positive
        ranked, count = xp.sort(xp.where(negative, odds, xp.inf)), negative.sum()
        below, up_to = (xp.minimum(xp.searchsorted(ranked, odds, side), count) for side in ("left", "right"))
        share = (below + up_to).astype(output.dtype) / (2 * xp.maximum(count, 1))
        return xp.where(positive, share, 0).sum() / xp.maximum(positive.sum(), 1)

    positive = _in_class(output, target, mask)
    areas = _over_classes(area, _log_odds(output), positive)
    return _mean_where(_counts(positive, mask), areas)


def auprc(output: Any, target: Any, mask: Any) -> Any:
    """Return the average precision: of the second of two classes, or the mean over classes, each against the rest.

    A class counts if some samples have it and some do not; 0.5 where there is no such class.
    """
    xp = namespace(output)

    def precision(odds: Any, positive: Any) -> Any:
        """Return the mean over positive samples of the share of positives among those ranked as high or higher."""

        def as_high(chosen: Any) -> Any:
            ranked, count = xp.sort(xp.where(chosen, odds, xp.inf)), chosen.sum()
            return count - xp.minimum(xp.searchsorted(ranked, odds, "left"), count)

        share = as_high(positive).astype(output.dtype) / xp.maximum(as_high(mask), 1)
        return xp.where(positive, share, 0).sum() / xp.maximum(positive.sum(), 1)

    positive = _in_class(output, target, mask)
    values, counts = _over_classes(precision, _log_odds(output), positive), _counts(positive, mask)
    second = slice(1, 2) if output.shape[1] == 2 else slice(None)
    return _mean_where(counts[second], values[second])


def r2(output: Any, target: Any, mask: Any) -> Any:
    """Return the share of the targets' variance that is predicted, a mean over outputs.

    An output counts if its targets differ; 0, as for the mean, where none does.
    """
    xp = namespace(output)
    real = mask.reshape(-1, *[1] * (output.ndim - 1))
    target = xp.where(real, target.reshape(output.shape), 0).astype(output.dtype)
    centred = xp.where(real, target - target.sum(0) / xp.maximum(mask.sum(), 1), 0)
    error, spread = (xp.where(real, output - target, 0) ** 2).sum(0), (centred**2).sum(0)
    shares = xp.where(spread > 0, 1 - error / xp.where(spread > 0, spread, 1), 0)
    return shares.sum() / xp.maximum((spread > 0).sum(), 1)


def _in_class(output: Any, target: Any, mask: Any) -> Any:
    """Return which sample has which class, `[n, classes]`; padding has none."""
    return mask[:, None] & (target[:, None] == namespace(output).arange(output.shape[1]))


def _counts(positive: Any, mask: Any) -> Any:
    """Return the classes `[classes]` that some samples have and some do not."""
    return positive.any(0) & (mask[:, None] & ~positive).any(0)


def _mean_where(counts: Any, values: Any) -> Any:
    """Return the mean of the values that count, or 0.5."""
    xp = namespace(values)
    return xp.where(counts.any(), xp.where(counts, values, 0).sum() / xp.maximum(counts.sum(), 1), 0.5)


def _log_odds(output: Any) -> Any:
    """Return the log-odds of each class: they rank samples as its probability does, but do not saturate."""
    xp = namespace(output)
    if xp is np:
        before: Any = np.logaddexp.accumulate(output, axis=1)
        after: Any = np.logaddexp.accumulate(output[:, ::-1], axis=1)[:, ::-1]
    else:
        from jax import lax

        before, after = (lax.cumlogsumexp(output, 1, reverse) for reverse in (False, True))
    nothing = xp.full_like(output[:, :1], -xp.inf)
    others = xp.logaddexp(xp.hstack([nothing, before[:, :-1]]), xp.hstack([after[:, 1:], nothing]))
    return output - others


def _over_classes(function: Any, odds: Any, positive: Any) -> Any:
    """Return `function(odds [n], positive [n])` of every class."""
    if namespace(odds) is np:
        return np.array([function(*pair) for pair in zip(odds.T, positive.T, strict=True)], odds.dtype)
    import jax

    return jax.vmap(function, in_axes=1)(odds, positive)
