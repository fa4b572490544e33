"""The top of the report: the answer in one sentence, three tiles (gain, with whom, price), and facts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.pages.answer import Tile, gain_tile, partner_tile, price_tile
from coterie.pages.html import Html, h
from coterie.pages.words import count_text, together

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["opening", "role_tag", "title"]


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
