"""What a client's score is: how it is computed from its predictions, and how people read it.

A score is one entry of `SCORES`, and nothing else names it: evaluation, early stopping, the leaderboard, the verdict
and the report ask the `Score`. It is computed in one of two ways:

- `each(output [B, ...], target [B, ...]) -> [B]`: a value per sample. The client's score is the mean over its samples,
  passed through `finish`. Samples are evaluated in batches, so memory does not grow with the test set.
- `whole(output [n, ...], target [n, ...], mask [n]) -> []`: a function of all samples of the client at once. Where
  `mask` is false there is padding, of any value.

Only the functions that compute import JAX: reports are written without it.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.spec import nearest

if TYPE_CHECKING:
    import jax

    from coterie.data.clients import Kind

__all__ = ["SCORES", "Score", "score_named", "score_of"]


@dataclasses.dataclass(frozen=True)
class Score:
    """A score of a client's predictions.

    Attributes:
        name: how configs and files call it.
        label: how people read it.
        kinds: the kinds of task that have it.
        each: its value for every sample (see the module), or None.
        finish: what becomes of the mean of `each`.
        whole: its value for all samples at once, or None.
        higher_is_better: whether a larger score is a better one.
        percent: whether 0.977 is written as 97.7 %, and a gain in percentage points.
    """

    name: str
    label: str
    kinds: "tuple[Kind, ...]"
    each: "Callable[[jax.Array, jax.Array], jax.Array] | None" = None
    finish: "Callable[[jax.Array], jax.Array]" = lambda mean: mean
    whole: "Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None" = None
    higher_is_better: bool = True
    percent: bool = False

    @property
    def sign(self) -> int:
        """1 where a larger score is better, otherwise -1."""
        return 1 if self.higher_is_better else -1

    @property
    def unit(self) -> str:
        """The unit of a gain, as a sentence continues after the number."""
        return f"points of {self.label}" if self.percent else f"in {self.label}"

    def text(self, value: float) -> str:
        """Write a score."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"

    def gain(self, value: float) -> str:
        """Write a difference of two scores with its sign."""
        return f"{round(100 * value, 1) + 0.0:+.1f}" if self.percent else f"{value + 0.0:+.3g}"  # + 0.0: never -0


def accuracy(output: "jax.Array", target: "jax.Array") -> "jax.Array":
    """Return the share of each sample's targets (one, or one per character) that have the largest logit."""
    import jax.numpy as jnp

    return jnp.mean(jnp.argmax(output, -1) == target, axis=tuple(range(1, target.ndim)), dtype=output.dtype)


def squared_error(output: "jax.Array", target: "jax.Array") -> "jax.Array":
    """Return the mean squared error of each sample's outputs."""
    import jax.numpy as jnp

    return jnp.mean((output - target.reshape(output.shape)) ** 2, axis=tuple(range(1, output.ndim)))


def root(mean: "jax.Array") -> "jax.Array":
    """Return the square root."""
    import jax.numpy as jnp

    return jnp.sqrt(mean)


def auroc(output: "jax.Array", target: "jax.Array", mask: "jax.Array") -> "jax.Array":
    """Return the area under the ROC curve: of two classes, or the mean over classes, each against the rest.

    A class counts if some samples have it and some do not; 0.5, a guess, where there is no such class.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    # The log-odds of a class rank samples as its probability does, but do not saturate.
    before, after = (lax.cumlogsumexp(output, 1, reverse) for reverse in (False, True))
    nothing = jnp.full_like(output[:, :1], -jnp.inf)
    others = jnp.logaddexp(jnp.hstack([nothing, before[:, :-1]]), jnp.hstack([after[:, 1:], nothing]))
    odds = output - others

    def area(odds: jax.Array, positive: jax.Array) -> jax.Array:
        """Return the share of pairs of a positive and a negative sample in the right order; a tie counts half."""
        negative = mask & ~positive
        ranked, count = jnp.sort(jnp.where(negative, odds, jnp.inf)), negative.sum()
        below, up_to = (jnp.minimum(jnp.searchsorted(ranked, odds, side), count) for side in ("left", "right"))
        share = (below + up_to).astype(output.dtype) / (2 * jnp.maximum(count, 1))
        return jnp.where(positive, share, 0).sum() / jnp.maximum(positive.sum(), 1)

    positive = mask[:, None] & (target[:, None] == jnp.arange(output.shape[1]))
    areas = jax.vmap(area, in_axes=1)(odds, positive)
    counts = positive.any(0) & (mask[:, None] & ~positive).any(0)
    return jnp.where(counts.any(), jnp.where(counts, areas, 0).sum() / jnp.maximum(counts.sum(), 1), 0.5)


# The first score of a kind of task is its default.
SCORES = {
    score.name: score
    for score in (
        Score("accuracy", "accuracy", ("classification", "next-character"), each=accuracy, percent=True),
        Score("rmse", "RMSE", ("regression",), each=squared_error, finish=root, higher_is_better=False),
        Score("auroc", "AUROC", ("classification",), whole=auroc),
    )
}


def score_of(kind: str, name: str | None = None) -> Score:
    """Return the score of a kind of task: the named one, or the kind's default."""
    known = [score.name for score in SCORES.values() if kind in score.kinds]
    if name is not None and name not in known:
        raise CoterieError(f"metric of {kind} must be one of {', '.join(known)}, not {name!r}{nearest(name, known)}")
    return SCORES[name or known[0]]


def score_named(name: str) -> Score:
    """Return a score by the name a run's folder has written down."""
    if name not in SCORES:
        raise CoterieError(f"there is no metric {name!r}{nearest(name, SCORES)}; this run is of another version")
    return SCORES[name]
