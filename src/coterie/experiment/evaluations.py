"""Every evaluation as a plain dict, for loggers: TensorBoard, Weights & Biases, MLflow or a file of your own."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["OnEvaluation", "evaluation", "telling"]

OnEvaluation = Callable[[dict[str, Any]], None]
"""Called with what `evaluation` returns, after every evaluation."""


def evaluation(label: str, seed: int, number: int, rounds: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return one evaluation of a run as plain values.

    Args:
        label, seed: of the run.
        number, rounds: the round, and how many there will be.
        metrics: by name, one number per client `[K]`.

    Returns:
        `method`, `seed`, `round`, `rounds`; for each metric its mean over the clients that have it (`test_score`,
        `test_loss`, `train_loss`, ...); and in `clients`, by the same names, the list of all clients' values.
    """
    per_client = {name: np.asarray(values, float) for name, values in metrics.items() if np.ndim(values) == 1}
    known = {name: values[np.isfinite(values)] for name, values in per_client.items()}
    return {
        "method": label,
        "seed": int(seed),
        "round": int(number),
        "rounds": int(rounds),
        **{name: float(values.mean()) for name, values in known.items() if len(values)},
        "clients": {name: values.tolist() for name, values in per_client.items()},
    }


def telling(on_evaluation: OnEvaluation | None, progress: Callable[..., None] | None) -> Callable[..., None] | None:
    """Return a progress function of a comparison that calls `on_evaluation` after each evaluation, besides another."""
    if on_evaluation is None:
        return progress

    def tell(label: str, seed: int, stage: str, number: int, rounds: int, metrics: Mapping[str, Any]) -> None:
        if progress is not None:
            progress(label, seed, stage, number, rounds, metrics)
        if stage == "round" and metrics:
            on_evaluation(evaluation(label, seed, number, rounds, metrics))

    return tell
