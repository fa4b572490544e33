"""Accuracy against bytes: which score is reached with how many bytes, and which family is best at equal bytes.

A family is a codec or a method in several settings. At a budget it is represented by the setting and the round with the
highest validation score among those that cost no more; their test score is reported. So no family is judged by a
setting that suits another budget, and nothing is chosen on test samples. Scores are means over clients, and choices are
made over all draws together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.codecs.frame import HEADER
from coterie.experiment.result import Result

__all__ = [
    "WITHIN",
    "Curve",
    "Point",
    "best_within",
    "cheapest",
    "curves",
    "equal_bytes",
    "frontier",
    "reaching",
    "rows",
]

WITHIN = 0.005  # of the uncompressed score: as good as it


class Curve(NamedTuple):
    """One setting over the rounds; `[S, T]` by draw and evaluation."""

    family: str
    label: str
    rounds: np.ndarray  # [T]
    up: np.ndarray  # [S, T] bytes a client has sent to the hub so far
    bare: np.ndarray  # [S, T] the same without the fixed headers of the messages
    total: np.ndarray  # [S, T] bytes a client has sent and received, hub or neighbours
    validation: np.ndarray  # [S, T]
    test: np.ndarray  # [S, T]
    worst: np.ndarray  # [S, T] the test score of the worst decile of clients


class Point(NamedTuple):
    """A setting, stopped at an evaluation."""

    curve: Curve
    at: int

    def about(self) -> dict[str, Any]:
        """Return its figures as plain values, means over draws."""
        curve, at = self
        spread = float(curve.test[:, at].std(ddof=1)) if len(curve.test) > 1 else 0.0
        means = {
            name: float(getattr(curve, name)[:, at].mean())
            for name in ("up", "bare", "total", "validation", "test", "worst")
        }
        return {"family": curve.family, "label": curve.label, "round": int(curve.rounds[at]), **means, "spread": spread}


def curves(draws: Sequence[Mapping[str, list[Result]]], families: Mapping[str, str]) -> list[Curve]:
    """Return the curve of every label from comparisons, one per draw; `families` gives the family of each label."""
    made = []
    for label, family in families.items():
        runs = [results[label][0] for results in draws]
        columns = [_columns(run) for run in runs]
        rounds = np.array([row["round"] for row in runs[0].rows])
        made.append(Curve(family, label, rounds, *(np.stack(column) for column in zip(*columns, strict=True))))
    return made


def _columns(run: Result) -> tuple[np.ndarray, ...]:
    """Return the columns of a curve for one run, `[T]` each."""
    from coterie.experiment.result import worst

    up, bare, total = _sent(run)
    at = np.array([row["round"] for row in run.rows])
    scores = [np.asarray([row[name] for row in run.rows]) for name in ("validation_score", "test_score")]
    low = np.array([worst(row, run.score) for row in scores[1]])
    validated = np.any([np.asarray(row["validation_loss"]) > 0 for row in run.rows], axis=0)  # without samples it is 0
    return up[at], bare[at], total[at], scores[0][:, validated].mean(1), scores[1].mean(1), low


def _sent(run: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bytes of a client until the end of each round, from round 0: up, up without headers, in total."""
    clients, last = len(run.names), run.rows[-1]["round"]
    up, messages, total = (np.zeros(last + 1) for _ in range(3))
    for block in run.ledger.blocks:
        for name, values in block.items():
            if not name.endswith(("_bytes", "_messages")):
                continue
            by_round = values.astype(np.float64).reshape(len(values), -1).sum(1) / clients
            if name.endswith("_bytes"):  # an edge's byte is sent by one client and received by another
                total[block["rounds"]] += by_round * (2 if name.startswith(("heard", "told")) else 1)
            if name == "up_bytes":
                up[block["rounds"]] += by_round
            if name == "up_messages":
                messages[block["rounds"]] += by_round
    return up.cumsum(), (up - HEADER * messages).cumsum(), total.cumsum()


def best_within(family: Sequence[Curve], budget: float = np.inf, bytes_of: str = "up") -> Point | None:
    """Return the setting and round with the best validation score that costs at most a budget, if there is one."""
    points = [
        (float(curve.validation[:, at].mean()), -float(cost), Point(curve, at))
        for curve in family
        for at, cost in enumerate(getattr(curve, bytes_of).mean(0))
        if cost <= budget
    ]
    return max(points, key=lambda point: point[:2])[2] if points else None


def reaching(family: Sequence[Curve], score: float, bytes_of: str = "up") -> Point | None:
    """Return the cheapest setting and round with at least a validation score, if there is one."""
    points = [
        (float(cost), Point(curve, at))
        for curve in family
        for at, cost in enumerate(getattr(curve, bytes_of).mean(0))
        if curve.validation[:, at].mean() >= score
    ]
    return min(points, key=lambda point: point[0])[1] if points else None


def cheapest(family: Sequence[Curve], score: float, bytes_of: str = "up") -> Point | None:
    """Return the setting that costs least after all rounds and has at least a validation score then."""
    ends = [Point(curve, -1) for curve in family if curve.validation[:, -1].mean() >= score]
    return min(ends, key=lambda end: float(getattr(end.curve, bytes_of)[:, -1].mean())) if ends else None


def frontier(family: Sequence[Curve], bytes_of: str = "up", points: int = 40) -> list[dict[str, Any]]:
    """Return the family's best point at geometrically growing budgets, each with the lowest budget it is best at."""
    costs = np.concatenate([getattr(curve, bytes_of).mean(0) for curve in family])
    budgets = np.geomspace(max(1.0, costs.min()), costs.max() * (1 + 1e-9), points)
    best: list[dict[str, Any]] = []
    for budget in budgets:
        point = best_within(family, budget, bytes_of)
        if point is not None and (not best or point.about() != {k: best[-1][k] for k in point.about()}):
            best.append(point.about() | {"budget": float(budget)})
    return best


def equal_bytes(
    by_family: Mapping[str, Sequence[Curve]], shares: Sequence[float], bytes_of: str = "up"
) -> list[dict[str, Any]]:
    """Compare families at shares of the total bytes of uncompressed training: one row per share, with the winner."""
    whole = max(float(getattr(curve, bytes_of)[:, -1].mean()) for curve in by_family["none"])
    rows = []
    for share in shares:
        chosen = {family: best_within(each, share * whole, bytes_of) for family, each in by_family.items()}
        about = {family: point.about() for family, point in chosen.items() if point is not None}
        winner = max(about, key=lambda family: about[family]["validation"]) if about else None
        rows.append({"share": share, "budget": share * whole, "families": about, "winner": winner})
    return rows


def rows(settings: Sequence[Curve], about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per draw, setting and evaluation, for pandas."""
    names = ("up", "bare", "total", "validation", "test", "worst")
    return [
        {**about, "family": curve.family, "label": curve.label, "draw": draw, "round": int(number)}
        | {name: float(getattr(curve, name)[draw, at]) for name in names}
        for curve in settings
        for draw in range(len(curve.test))
        for at, number in enumerate(curve.rounds)
    ]
