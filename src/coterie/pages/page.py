"""The report as one HTML file: its sections, in order. Text of users (names, configs, commands) is escaped there."""

from typing import TYPE_CHECKING

from coterie.pages import path, sections
from coterie.pages.content import content
from coterie.pages.html import asset, document

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["SECTIONS", "render"]

SECTIONS = (
    ("leaderboard", "Leaderboard", sections.leaderboard),
    ("rounds", "Over rounds", sections.rounds),
    ("clients", "Who gains, who loses", sections.each_client),
    ("worst", "The worst served", sections.worst),
    ("path", "Clusters along the path", path.section),
    ("weights", "Who listens to whom", sections.weights),
    ("bytes", "What it costs", sections.cost),
    ("partition", "Who has which data", sections.partition),
    ("repeat", "Repeat it", sections.repeat),
)


def render(comparison: "Comparison", plotly: str) -> str:
    """Return the whole file; `plotly` is the text of plotly.js."""
    data = content(comparison)
    written = [(anchor, title, write(comparison, data)) for anchor, title, write in SECTIONS]
    scripts = [plotly, asset("figures.js") + asset("path.js"), asset("report.js")]
    return document(sections.title(comparison), sections.opening(comparison, data), written, data, scripts)
