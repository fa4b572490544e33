"""Numbers as text, for the tables of reports."""

import math
from collections.abc import Sequence

from coterie.learning.score import Score

__all__ = [
    "bytes_text",
    "clip",
    "count_text",
    "gain_text",
    "label_text",
    "listed",
    "score_text",
    "seconds_text",
    "times_text",
    "together",
]

NAME_LENGTH = 80
MISSING = "–"


def score_text(value: float | None, score: Score) -> str:
    """Write a score."""
    return MISSING if value is None or not math.isfinite(value) else score.text(value)


def gain_text(value: float | None, score: Score) -> str:
    """Write a difference of two scores with its sign; zero has none."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = score.gain(value)
    return text[1:] if float(text) == 0 else text.replace("-", "−")


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


def times_text(value: float) -> str:
    """Write how many times as much something is."""
    return f"{value:.0f} ×" if value >= 9.95 else f"{value:.1f} ×" if value >= 0.095 else f"{value:.2g} ×"


def together(text: str) -> str:
    """Keep a number and what follows it in one line: 95 %, 3 ×."""
    return text.replace(" %", "\u00a0%").replace(" ×", "\u00a0×")


def listed(names: Sequence[str]) -> str:
    """Write names as a sentence has them: a, b and c."""
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def label_text(counts: Sequence[int], names: Sequence[str] = (), most: int = 6) -> str:
    """Write which labels a client has and how many samples of each, the most frequent first."""
    present = sorted(((n, -label) for label, n in enumerate(counts) if n > 0), reverse=True)
    text = ", ".join(f"{clip(str(names[-label])) if names else -label} ({n})" for n, label in present[:most])
    return text + (f" and {len(present) - most} more" if len(present) > most else "")


def clip(name: str) -> str:
    """Shorten a name that is too long for a table."""
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
