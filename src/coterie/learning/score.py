"""What a client's score is: how it is computed from its predictions, and how people read it.

A score is one entry of `SCORES`, and nothing else names it: evaluation, early stopping, the leaderboard, the verdict
and the report ask the `Score`. It is computed in one of two ways, by functions of `learning/measures.py` that take
arrays of JAX as well as of NumPy:

- `each(output [B, ...], target [B, ...]) -> [B]`: a value per sample. The client's score is the mean over its samples,
  passed through `finish`. Samples are evaluated in batches, so memory does not grow with the test set.
- `whole(output [n, ...], target [n, ...], mask [n]) -> []`: a function of all samples of the client at once. Where
  `mask` is false there is padding, of any value.

Where all targets of a client are equal (one class, one sample) a score of the second kind has no meaning. In training,
where it decides when to stop, it is then that of a guess (0.5 for AUROC and AUPRC, 0 for R2; balanced accuracy is the
accuracy of the one class). Of the finished models it is NaN, and means over clients leave the client out.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.learning import measures
from coterie.spec import nearest

if TYPE_CHECKING:
    import jax

    from coterie.data.clients import Kind

__all__ = ["SCORES", "Score", "score_named", "score_of", "scores_of", "verdict_score", "verdict_words"]

DOMINANT = 2 / 3  # from this share of one class on, accuracy says little


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
        power: of the target's unit in the values of `each`: 1 for an absolute error, 2 for a squared one, else 0.
    """

    name: str
    label: str
    kinds: "tuple[Kind, ...]"
    each: "Callable[[jax.Array, jax.Array], jax.Array] | None" = None
    finish: "Callable[[jax.Array], jax.Array]" = lambda mean: mean
    whole: "Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None" = None
    higher_is_better: bool = True
    percent: bool = False
    power: int = 0

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

    def in_unit(self, value: Any, std: float) -> Any:
        """Return a score of targets that are stored as (target - mean) / std in the target's own unit."""
        factor: Any = np.float64(std) ** self.power
        return value if factor == 1 else value * float(self.finish(factor))

    def measure(self, output: Any, target: Any) -> float:
        """Return the score of a client's samples, NumPy arrays without padding; NaN where it has no meaning."""
        if not len(target):
            return float("nan")
        if self.each is not None:
            return self.mean(self.each(output, target))
        assert self.whole is not None
        values: Any = np.asarray(target).reshape(len(target), -1)
        if (values == values[0]).all():
            return float("nan")
        return float(self.whole(output, target, np.ones(len(target), bool)))  # type: ignore[arg-type]

    def mean(self, values: Any) -> float:
        """Return the score from its values per sample; NaN without any."""
        mean: Any = np.mean(values, dtype=np.float64) if len(values) else np.float64("nan")
        return float(self.finish(mean))


# The first score of a kind of task is its default.
SCORES = {
    score.name: score
    for score in (
        Score("accuracy", "accuracy", ("classification", "next-character"), each=measures.accuracy, percent=True),
        Score(
            "rmse",
            "RMSE",
            ("regression",),
            each=measures.squared_error,
            finish=measures.root,
            higher_is_better=False,
            power=2,
        ),
        Score("auroc", "AUROC", ("classification",), whole=measures.auroc),
        Score(
            "balanced-accuracy",
            "balanced accuracy",
            ("classification",),
            whole=measures.balanced_accuracy,
            percent=True,
        ),
        Score("auprc", "AUPRC", ("classification",), whole=measures.auprc),
        Score(
            "log-loss",
            "log-loss",
            ("classification", "next-character"),
            each=measures.log_loss,
            higher_is_better=False,
        ),
        Score("brier", "Brier score", ("classification",), each=measures.brier, higher_is_better=False),
        Score("mae", "MAE", ("regression",), each=measures.absolute_error, higher_is_better=False, power=1),
        Score("r2", "R2", ("regression",), whole=measures.r2),
    )
}


def scores_of(kind: str) -> list[Score]:
    """Return the scores of a kind of task, its default first."""
    return [score for score in SCORES.values() if kind in score.kinds]


def score_of(kind: str, name: str | None = None) -> Score:
    """Return the score of a kind of task: the named one, or the kind's default."""
    known = [score.name for score in scores_of(kind)]
    if name is not None and name not in known:
        raise CoterieError(f"metric of {kind} must be one of {', '.join(known)}, not {name!r}{nearest(name, known)}")
    return SCORES[name or known[0]]


def score_named(name: str) -> Score:
    """Return a score by the name a run's folder has written down."""
    if name not in SCORES:
        raise CoterieError(f"there is no metric {name!r}{nearest(name, SCORES)}; this run is of another version")
    return SCORES[name]


# -- the score of a verdict -------------------------------------------------------------------------------------------


def verdict_score(kind: str, label_counts: Any = ()) -> str:
    """Return the name of the score on which methods are judged, where the user has not chosen one.

    Accuracy is what everybody reads, and it is the score as long as the classes are fairly balanced. Where one class
    has more than two thirds of the training rows, or of those of the median client, always naming it is hard to beat
    in accuracy: models that tell patients at risk from others and models that say "no" to everybody then have nearly
    the same. Log-loss is the score there, because it rewards every step of a probability in the right direction. It is
    preferred to AUROC for three reasons: it is proper (a client's own frequencies cannot be beaten without looking at
    the inputs), it is a mean over samples (so its noise is known from the samples), and it exists for every client,
    also for one whose five test rows are all of one class. What counts is one class that dominates everywhere, not that
    clients have different classes: with a class of its own for each client accuracy still separates methods.

    Numbers are judged by the RMSE, text by the accuracy over characters.

    Args:
        kind: "classification", "regression" or "next-character".
        label_counts: training samples of each client and class `[K, classes]`; empty where they are not known.
    """
    dominated = kind == "classification" and max(_dominant(label_counts)[1:]) > DOMINANT
    return "log-loss" if dominated else score_of(kind).name


def verdict_words(kind: str, label_counts: Any = (), class_names: Sequence[str] = ()) -> str:
    """Say in one sentence which score `verdict_score` chooses, and why."""
    score = SCORES[verdict_score(kind, label_counts)]
    if score.name != "log-loss":
        return f"Methods are judged by {score.label}."
    place, overall, median = _dominant(label_counts)
    name = class_names[place] if place < len(class_names) else str(place)
    whose = "the training rows" if overall > DOMINANT else "the median client's training rows"
    share = overall if overall > DOMINANT else median
    return (
        f"Methods are judged by log-loss (lower is better), not by accuracy: {100 * share:.0f} % of {whose} "
        f"are of one class, {name}, and always naming it would look good."
    )


def _dominant(label_counts: Any) -> tuple[int, float, float]:
    """Return the commonest class, its share of all training rows, and its share of those of the median client."""
    counts = np.asarray(label_counts, np.float64)
    if counts.ndim != 2 or not counts.sum():
        return 0, 0.0, 0.0
    place = int(counts.sum(0).argmax())
    own = counts[:, place] / np.maximum(counts.sum(1), 1)
    return place, float(counts[:, place].sum() / counts.sum()), float(np.median(own))
