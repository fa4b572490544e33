"""The forest plot of the report: every method's gain with its interval, and a line where nothing is gained.

Where things lie is in a style sheet of its own, made of numbers only: the page's policy allows no style attributes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.pages.answer import Gain
from coterie.pages.html import Html, h, join
from coterie.pages.opening import role_tag
from coterie.pages.words import clip, gain_text, together

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["section", "style"]

REACH = 3.0  # a guess or the pooled model is drawn at the edge if it is farther away than this many spans of the rest


class Axis(NamedTuple):
    """What is drawn, from above, and the range of gains that the plot shows."""

    gains: dict[str, Gain]
    candidates: int
    low: float
    high: float

    def place(self, value: float) -> float:
        """Return where a gain lies from left to right, in per cent of the width."""
        return 100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def section(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the section with every method's gain and interval; empty where no gains are known."""
    if not data["gains"]:
        return join()
    axis = _axis(comparison, data)
    scale = 100 if comparison.score.percent else 1
    ticks = [h("b", f"{scale * tick:+.3g}".replace("-", "−") if tick else "0") for tick in _ticks(axis.low, axis.high)]
    scale_row = h(
        "li",
        h("span", class_="name"),
        h("span", ticks, class_="lane"),
        h("span", "points" if comparison.score.percent else comparison.score.label, class_="value"),
        class_="axis",
    )
    corrected = f", corrected for choosing among {axis.candidates} methods" if axis.candidates > 1 else ""
    words = (
        f"The mean gain over training alone, with its 95 % interval{corrected}. Right of the line clients do better "
        "than alone; an interval that crosses it says that this may be chance."
    )
    notes = h("ul", [h("li", together(note)) for note in comparison.judgement().notes], class_="note")
    rows = [_lane(comparison, method, gain, axis) for method, gain in axis.gains.items()]
    return join(h("p", together(words)), h("ul", rows, scale_row, class_="forest"), notes)


def style(comparison: "Comparison", data: Mapping[str, Any]) -> str:
    """Return where everything in the plot lies, as CSS; empty where there is no plot."""
    if not data["gains"]:
        return ""
    axis = _axis(comparison, data)
    rules = [f".forest{{--zero:{axis.place(0):.2f}%}}"]
    for row, gain in enumerate(axis.gains.values(), 1):
        low, high = (axis.place(end) for end in ((gain.low, gain.high) if gain.known else (gain.mean, gain.mean)))
        inside = f".forest li:nth-child({row})"
        rules.append(f"{inside} .bar{{left:{low:.2f}%;width:{max(high - low, 0):.2f}%}}")
        rules.append(f"{inside} .point{{left:{axis.place(gain.mean):.2f}%}}")
    for at, tick in enumerate(_ticks(axis.low, axis.high), 1):
        rules.append(f".forest .axis b:nth-child({at}){{left:{axis.place(tick):.2f}%}}")
    return "\n".join(rules)


def _axis(comparison: "Comparison", data: Mapping[str, Any]) -> Axis:
    gains: Mapping[str, Gain] = data["gains"]
    order = [row["method"] for row in data["methods"] if row["method"] in gains]
    candidates = [method for method in order if comparison.role(method) == "cooperates"]
    low, high = _range(gains, candidates or order, order)
    return Axis({method: gains[method] for method in order}, len(candidates), low, high)


def _lane(comparison: "Comparison", method: str, gain: Gain, axis: Axis) -> Html:
    """Return one row of the plot."""
    side = "" if axis.low <= gain.mean <= axis.high else " below" if gain.mean < axis.low else " above"
    point = h("i", class_=f"point {comparison.role(method)}{side}")
    low_text, high_text = (gain_text(value, comparison.score) for value in (gain.low, gain.high))
    between = h("small", f"{low_text} to {high_text}") if gain.known else h("small", "no interval")
    value = h("span", h("strong", gain_text(gain.mean, comparison.score)), " ", between, class_="value")
    name = h("span", clip(method), " ", role_tag(comparison, method), class_="name")
    return h("li", name, h("span", h("i", class_="bar"), point, class_="lane"), value, class_=gain.tone or "open")


def _range(gains: Mapping[str, Gain], candidates: Sequence[str], order: Sequence[str]) -> tuple[float, float]:
    """Return what the axis shows: zero, all candidates, and of the others what is not far away."""
    ends = [0.0, *_ends([gains[method] for method in candidates])]
    span = max(max(ends) - min(ends), 1e-9)
    near = (min(ends) - REACH * span, max(ends) + REACH * span)
    ends += [end for end in _ends([gains[method] for method in order]) if near[0] <= end <= near[1]]
    pad = 0.04 * max(max(ends) - min(ends), 1e-9)
    return min(ends) - pad, max(ends) + pad


def _ends(gains: Sequence[Gain]) -> list[float]:
    return [end for gain in gains for end in gain if math.isfinite(end)]


def _ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers within the range, zero among them."""
    rough = (high - low) / 7
    power = 10 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
