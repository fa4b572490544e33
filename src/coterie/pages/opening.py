"""The top of the report: the answer in one sentence, three tiles (gain, with whom, price), and the forest plot."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.pages.answer import Gain, Tile, gain_tile, partner_tile, price_tile
from coterie.pages.html import Html, h, join
from coterie.pages.words import clip, count_text, gain_text, together

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["forest", "opening", "role_tag", "title"]

REACH = 3.0  # a guess or the pooled model is drawn at the edge if it is farther away than this many spans of the rest


def title(comparison: "Comparison") -> str:
    """Return the question of the page, as text."""
    clients = count_text(len(comparison.clients["names"]))
    if len(comparison.results) > 1:
        return f"Does cooperation help these {clients} clients?"
    return f"How {next(iter(comparison.results))} serves {clients} clients"


def opening(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the question, the answer in one sentence, three tiles, and facts about the comparison."""
    answer, colon, detail = together(comparison.verdict()).partition(": ")
    spoken = h("p", answer + colon, h("span", detail, class_="detail") if detail else None, class_="verdict")
    about = comparison.clients.get("about")
    return h(
        "header",
        h("h1", title(comparison)),
        spoken,
        _tiles(comparison, data),
        h("p", about, class_="about") if about else None,
        h("dl", [h("div", h("dt", name), h("dd", value)) for name, value in _facts(comparison)], class_="facts"),
    )


def _tiles(comparison: "Comparison", data: Mapping[str, Any]) -> Html | None:
    """Return the three tiles; a single run has nothing to compare with."""
    if len(comparison.results) < 2:
        return None
    tiles = [
        gain_tile(comparison),
        partner_tile(comparison, data["partners"]),
        price_tile(comparison),
    ]
    return h("div", [_tile(tile) for tile in tiles], class_="tiles")


def _tile(tile: Tile) -> Html:
    answer = h("p", together(tile.answer), class_=f"answer {tile.tone}".strip())
    return h("div", h("h2", tile.question), answer, h("p", together(tile.detail), class_="why"), class_="tile")


def _facts(comparison: "Comparison") -> list[tuple[str, str]]:
    clients = comparison.clients
    train = np.asarray(clients["sizes"]["train"])
    results = [result for runs in comparison.results.values() for result in runs]
    low, high = int(train.min()), int(train.max())
    facts = [
        ("clients", count_text(len(clients["names"]))),
        ("training samples each", count_text(low) if low == high else f"{count_text(low)} to {count_text(high)}"),
        ("test samples in total", count_text(int(np.sum(clients["sizes"]["test"])))),
        ("rounds", count_text(max(result.rows[-1]["round"] for result in results))),
        ("runs of each method", str(max(len(runs) for runs in comparison.results.values()))),
        ("device", ", ".join(sorted({result.device for result in results}))),
    ]
    if clients["kind"] == "classification":
        facts.insert(1, ("classes", count_text(clients["classes"])))
    return facts


def role_tag(comparison: "Comparison", method: str) -> Html | None:
    """Return the mark of a method that is not a candidate: training alone, a guess, one model on all data."""
    guess = "mean" if comparison.clients["kind"] == "regression" else "commonest class"
    words = {
        "alone": ("alone", "What every client can do without the others"),
        "guess": (guess, f"Always the {guess} of the client's own training data"),
        "pooled": ("one model on all data", "Trained on all data in one place, which these clients cannot do"),
    }
    kind = comparison.role(method)
    return h("span", words[kind][0], class_="tag", title=words[kind][1]) if kind in words else None


def forest(comparison: "Comparison", data: Mapping[str, Any]) -> Html | str:
    """Return the section with every method's gain and interval, and a line where nothing is gained."""
    gains: Mapping[str, Gain] = data["gains"]
    if not gains:
        return ""
    order = [row["method"] for row in data["methods"] if row["method"] in gains]
    candidates = [method for method in order if comparison.role(method) == "cooperates"]
    low, high = _range(gains, candidates or order, order)
    place = _scale(low, high)
    rows = [_lane(comparison, method, gains[method], low, high) for method in order]
    scale = 100 if comparison.score.percent else 1
    ticks = [
        h("b", f"{scale * tick:+.3g}".replace("-", "−") if tick else "0", style=f"left:{place(tick):.2f}%")
        for tick in _ticks(low, high)
    ]
    axis = h(
        "li",
        h("span", class_="name"),
        h("span", ticks, class_="lane"),
        h("span", "points" if comparison.score.percent else comparison.score.label, class_="value"),
        class_="axis",
    )
    corrected = f", corrected for choosing among {len(candidates)} methods" if len(candidates) > 1 else ""
    words = (
        f"The mean gain over training alone, with its 95 % interval{corrected}. Right of the line clients do better "
        "than alone; an interval that crosses it says that this may be chance."
    )
    notes = h("ul", [h("li", together(note)) for note in comparison.judgement().notes], class_="note")
    plot = h("ul", rows, axis, class_="forest", style=f"--zero:{place(0):.2f}%")
    return join(h("p", together(words)), plot, notes)


def _lane(comparison: "Comparison", method: str, gain: Gain, low: float, high: float) -> Html:
    """Return one row of the forest plot."""
    place = _scale(low, high)
    kind = comparison.role(method)
    left, right = (place(end) for end in (gain.low, gain.high)) if gain.known else (place(gain.mean),) * 2
    bar = h("i", class_="bar", style=f"left:{left:.2f}%;width:{max(right - left, 0):.2f}%")
    side = "" if low <= gain.mean <= high else " below" if gain.mean < low else " above"
    point = h("i", class_=f"point {kind}{side}", style=f"left:{place(gain.mean):.2f}%")
    low_text, high_text = (gain_text(value, comparison.score) for value in (gain.low, gain.high))
    between = h("small", f"{low_text} to {high_text}") if gain.known else h("small", "no interval")
    value = h("span", h("strong", gain_text(gain.mean, comparison.score)), " ", between, class_="value")
    name = h("span", clip(method), " ", role_tag(comparison, method), class_="name")
    return h("li", name, h("span", bar, point, class_="lane"), value, class_=gain.tone or "open")


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


def _scale(low: float, high: float) -> Any:
    return lambda value: 100 * min(max((value - low) / (high - low), 0.0), 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers within the range, zero among them."""
    rough = (high - low) / 7
    power = 10 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
