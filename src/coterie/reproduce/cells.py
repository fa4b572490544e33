"""How a paper's table writes figures: the cells of a row, and the two columns of ours."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["BLOCKS", "SPREADS", "cell", "cost_cell", "gain_cell"]

BLOCKS = {"printed": "ours, as printed", "tuned": "ours, tuned"}  # the columns of ours, and their headings
SPREADS = ("clients", "seeds")  # written after ±, other statistics after /
DIVERGED = "diverged"


def cell(figures: Mapping[str, Any], columns: Sequence[str], decimals: int = 2) -> str:
    """Write the statistics of a row as the paper does; our spread over seeds follows in brackets.

    >>> cell({"mean": 91.234, "clients": 5.0, "seeds": 0.127}, ("mean", "clients"))
    '91.23 ± 5.00 [0.13]'
    >>> cell({"mean": 39.66, "p10": 36.5, "seeds": None}, ("mean", "p10"), 1)
    '39.7 / 36.5'
    """
    if "failed" in figures:
        return DIVERGED if DIVERGED in figures["failed"] else "no result"
    text = ""
    for name in columns:
        mark = "" if not text else " ± " if name in SPREADS else " / "
        text += f"{mark}{figures[name]:.{decimals}f}"
    seeds = figures.get("seeds")
    return text if seeds is None or "seeds" in columns else f"{text} [{seeds:.{decimals}f}]"


def gain_cell(figures: Mapping[str, Any], decimals: int = 2) -> str:
    """Write the gain over training alone with its standard error."""
    if figures.get("gain") is None:
        return ""
    error = "" if figures["gain_error"] is None else f" ± {figures['gain_error']:.{decimals}f}"
    return f"{round(figures['gain'], decimals) + 0.0:+.{decimals}f}{error}"  # + 0.0: there is no minus zero


def cost_cell(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Write what a client sent and received in a run, in MB; both columns where they are not the same.

    >>> cost_cell({"printed": {"bytes_per_client": 12_946e6}, "tuned": {"bytes_per_client": 6_473e6}})
    '12,946 / 6,473'
    >>> cost_cell({"printed": {"bytes_per_client": 46_560.0}, "tuned": {"bytes_per_client": 46_560.0}})
    '0.047'
    """
    sent = [figures.get(block, {}).get("bytes_per_client") for block in BLOCKS]
    amounts = [each / 1e6 for each in sent if each is not None]
    texts = [f"{each:,.0f}" if each >= 100 else f"{each:.3g}" for each in amounts]
    return " / ".join(dict.fromkeys(texts))
