"""The figures of a result that its folder keeps in summary.json, and how those of earlier versions are read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.learning.score import Score

if TYPE_CHECKING:
    from coterie.experiment.result import Result

__all__ = ["role_of", "summary_of", "worst"]

# Roles by method, for folders that were written before summary.json had the role.
EARLIER_ROLES = {"local": "alone", "local-exact": "alone", "pooled": "pooled", "pooled-exact": "pooled"}


def summary_of(result: "Result") -> dict[str, Any]:
    """Return the figures of the leaderboard: mean, standard deviation, worst decile (or client), cost."""
    score = result.final["test_score"]
    return {
        "method": result.config["method"]["name"],
        "seed": result.config["run"]["seed"],
        "round": result.best_round,
        "role": result.role,
        "learns_weights": result.learns_weights,
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "mean": float(score.mean()),
        "std": float(score.std()),
        "worst": worst(score, result.score),
        "own_head": float(result.final["test_own_score"].mean()),
        "bytes_per_client": result.ledger.bytes_per_client(),
        "seconds": result.seconds,
        "device": result.device,
    }


def role_of(summary: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the role of a run's method; version 0.1 wrote another word for "pooled", or none."""
    role = summary.get("role") or EARLIER_ROLES.get(config["method"]["name"], "cooperates")
    return "pooled" if role == "ceiling" else role


def worst(scores: np.ndarray, score: Score) -> float:
    """Return the mean over the worst decile of clients, or with fewer than 20 clients the worst client's score."""
    ordered = np.sort(scores) if score.higher_is_better else np.sort(scores)[::-1]
    count = len(scores) // 10 if len(scores) >= 20 else 1
    return float(ordered[:count].mean())
