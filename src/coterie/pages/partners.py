"""With whom: the table of who learns from whom, and the cooperation weights as pictures."""

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.learning.score import Score
from coterie.pages.answer import NOTHING
from coterie.pages.html import Cell, Html, Row, figure, h, join, table
from coterie.pages.sections import choice
from coterie.pages.tables import gain_cell
from coterie.pages.words import bytes_text, clip, count_text, gain_text

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["section"]

ROWS = 25  # clients listed at once; the others are behind a click
PARTNERS = 4  # named for each client


def section(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return who learns from whom; empty if no method has a cooperation graph."""
    return join(_listed(comparison, data["partners"]), _maps(data), _quality(data))


def _listed(comparison: "Comparison", learned: Mapping[str, Any] | None) -> Html | None:
    """Return the table: client, learns from, weight, gain, bytes."""
    if learned is None or learned["table"] is None:
        return None
    ties, found = learned["table"], learned["found"]
    groups = () if found is None else found.groups
    member = {name: number for number, group in enumerate(groups, 1) for name in group}
    grouped = len(groups) > 1
    score = comparison.score
    unit = ", points" if score.percent else f", {score.label}"
    with_gain = any(not math.isnan(tie.gain) for tie in ties)
    known = {c.client: c for c in comparison.client_gains(learned["method"])} if with_gain else {}
    heads = ["text:client", *(["group"] if grouped else []), "text:learns from", "weight"]
    heads += [*([f"gain{unit}"] if with_gain else []), "bytes"]
    sites = [(site, list(part)) for site, part in itertools.groupby(ties, lambda tie: tie.site)]
    taken = dict(zip(comparison.clients["names"], learned["taken"], strict=True))
    sent = dict(zip(comparison.clients["names"], learned["bytes"], strict=True))
    if grouped:
        sites.sort(key=lambda item: member.get(item[0], 0))
    rows = []
    for site, part in sites:
        named = [tie for tie in part if tie.weight > 0]
        partners = ", ".join(f"{clip(str(tie.learns_from))} ({100 * tie.weight:.0f} %)" for tie in named[:PARTNERS])
        more = f" and {len(named) - PARTNERS} more" if len(named) > PARTNERS else ""
        cells: list[Any] = [Cell(clip(str(site)), kind="name"), *([member.get(site, "–")] if grouped else [])]
        nobody = "nobody" if taken[site] < NOTHING else "many, less than 1 % from each"
        cells += [partners + more or nobody, f"{100 * taken[site]:.0f} %"]
        if with_gain:
            own = known.get(site)
            cells.append(gain_cell(part[0].gain, score, _between(own, score)))
        rows.append(Row([*cells, bytes_text(float(sent[site]))]))
    said = "" if found is None else f"{found.sentence} "
    words = (
        f"As {learned['method']} learned it. {said}The weight is what a client takes from others in all; the rest is "
        "its own."
    )
    rest = None
    if len(rows) > ROWS:
        rest = h("details", h("summary", f"the other {count_text(len(rows) - ROWS)}"), table(heads, rows[ROWS:]))
    return join(h("p", words), table(heads, rows[:ROWS], "partners-table"), rest)


def _between(own: Any, score: Score) -> str:
    """Return the interval of a client's gain."""
    return "" if own is None or own.low is None else f"({gain_text(own.low, score)} to {gain_text(own.high, score)})"


def _maps(data: Mapping[str, Any]) -> Html | None:
    """Return the place of the heat maps of cooperation weights."""
    if not data["weights"]:
        return None
    slider = h(
        "label",
        "round ",
        h("input", type="range", id="round", min=0, value=0, step=1),
        h("output", id="round-value"),
        class_="slide",
        id="round-label",
    )
    words = (
        "A row shows how much a client listens to each of the others. The weight of its own model is not coloured; it "
        "is given in the text below."
    )
    return join(
        h("h3", "Who listens to whom"),
        h("p", words),
        choice("choose-weights", "Method", slider),
        h("p", class_="reading", id="weights-reading", aria_live="polite"),
        figure("weights-plot", "Cooperation weights"),
        h("p", class_="note", id="weights-note"),
    )


def _quality(data: Mapping[str, Any]) -> Html | None:
    """Return the part about the quality of learned graphs, where the clients' groups are known."""
    if not data["quality"]:
        return None
    words = (
        "Compared with the known groups: the area under the ROC curve of the edges, solid (1 is perfect, 0.5 a guess), "
        "and the adjusted Rand index of the groups that the weights form, dotted (1 is perfect, 0 a guess). Dropped "
        "edges count as not found."
    )
    plot = figure("quality-plot", "Quality of the learned graph over rounds")
    return join(h("h3", "Do the right clients find each other?"), h("p", words), plot)
