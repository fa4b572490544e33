"""The report as one HTML file: its sections, in order. Text from data is escaped by `coterie.pages.html`."""

from typing import TYPE_CHECKING

from coterie.pages import forest, intake, network, opening, partners, path, presence, repeat, sections, tables
from coterie.pages.content import content, drawn
from coterie.pages.html import asset, document

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["SECTIONS", "render"]

SECTIONS = (
    ("gains", "Gains", forest.section),
    ("partners", "With whom", partners.section),
    ("intake", "What went in", intake.section),
    ("leaderboard", "Leaderboard", tables.leaderboard),
    ("scores", "All scores", tables.scores),
    ("tuning", "Tuning", tables.tuning),
    ("rounds", "Over rounds", sections.rounds),
    ("clients", "Who gains, who loses", sections.each_client),
    ("worst", "The worst served", sections.worst),
    ("path", "Clusters along the path", path.section),
    ("bytes", "What it costs", sections.cost),
    ("presence", "Who took part", presence.section),
    ("network", "On the network", network.section),
    ("partition", "Who has which data", sections.partition),
    ("repeat", "Repeat it", repeat.repeat),
)
FIGURES = ("figures.js", "maps.js", "path.js", "page.js")


def render(comparison: "Comparison", plotly: str) -> str:
    """Return the whole file; `plotly` is the text of plotly.js."""
    data = content(comparison)
    written = [(anchor, title, write(comparison, data)) for anchor, title, write in SECTIONS]
    scripts = [plotly, "".join(map(asset, FIGURES)), asset("report.js")]
    title = f"coterie: {opening.title(comparison)}"
    styles = [forest.style(comparison, data)]
    return document(title, opening.opening(comparison, data), written, drawn(data), scripts, styles)
