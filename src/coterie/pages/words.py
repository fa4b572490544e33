"""Numbers as a person reads them, in the report's tables."""

import math
from collections.abc import Sequence

__all__ = ["METRIC_NAMES", "bytes_text", "clip", "count_text", "gain_text", "label_text", "score_text", "seconds_text"]

METRIC_NAMES = {"accuracy": "accuracy", "rmse": "RMSE"}
NAME_LENGTH = 80
MISSING = "–"


def score_text(value: float | None, metric: str) -> str:
    """Write a score: accuracy in percent, anything else with four digits."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def gain_text(value: float | None, metric: str) -> str:
    """Write a difference of two scores with its sign: accuracy in points (hundredths)."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{100 * value:+.1f}" if metric == "accuracy" else f"{value:+.3g}"
    if float(text) == 0:
        text = text[1:]
    return text.replace("-", "−")


def bytes_text(value: float | None) -> str:
    """Write a number of bytes with a decimal unit."""
    if value is None or not math.isfinite(value):
        return MISSING
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def seconds_text(value: float | None) -> str:
    """Write a duration: seconds up to two minutes, then minutes, then hours."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def count_text(value: int) -> str:
    """Write a whole number with separators."""
    return f"{value:,}"


def label_text(counts: Sequence[int], most: int = 6) -> str:
    """Write which labels a client has and how many samples of each, the most frequent first."""
    held = sorted(((n, -label) for label, n in enumerate(counts) if n > 0), reverse=True)
    text = ", ".join(f"{-label} ({n})" for n, label in held[:most])
    return text + (f" and {len(held) - most} more" if len(held) > most else "")


def clip(name: str) -> str:
    """Shorten a name that would burst a table."""
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
