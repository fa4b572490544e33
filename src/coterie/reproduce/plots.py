"""The pages of `coterie reproduce`: plots and tables in the style of the report, one HTML file.

A plot is a dict of plain values: the `id` of its place, `traces` (as Plotly has them, but `color` is the number of one,
and the lines shown on hovering are in `lines`), the axes `x` and `y`, `height`, and `marks`, dotted lines. `plots.js`
draws it in the colours of the reader's theme.
"""

from collections.abc import Sequence
from typing import Any

from coterie.pages.html import Html, asset, document, h

__all__ = ["place", "plot_page"]

Plot = dict[str, Any]


def plot_page(title: str, head: str, sections: Sequence[tuple[str, str, Html]], plots: list[Plot], plotly: str) -> str:
    """Return the page.

    Args:
        title: the title of the window.
        head: the heading.
        sections: anchor, title and content of each section.
        plots: what is drawn at the places in them.
        plotly: the text of plotly.js.
    """
    scripts = [plotly, asset("figures.js"), asset("page.js"), asset("plots.js", "coterie.reproduce")]
    return document(title, h("header", h("h1", head)), sections, plots, scripts)


def place(plot: Plot) -> Html:
    """Return the place in which a plot is drawn."""
    return h("div", class_="plot", id=plot["id"])
