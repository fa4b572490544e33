"""`coterie disclose` as one HTML file: what leaves each site, to be read, printed and filed."""

from collections.abc import Sequence

from coterie.pages.html import Html, Row, document, h, join, table
from coterie.sites.disclose import Block, Section

__all__ = ["disclosure_page"]


def disclosure_page(heading: str, sections: Sequence[Section]) -> str:
    """Return the whole file."""
    written = [(f"part-{i}", each.title, join(map(_block, each.blocks))) for i, each in enumerate(sections)]
    return document(f"coterie: {heading}", h("header", h("h1", heading)), written, {}, [])


def _block(block: Block) -> Html:
    lines = [h("p", line) for line in block.lines]
    points = h("ul", [h("li", point) for point in block.points]) if block.points else None
    heads = [f"text:{head}" for head in block.heads]
    return join(lines, points, table(heads, [Row(row) for row in block.rows]) if block.heads else None)
