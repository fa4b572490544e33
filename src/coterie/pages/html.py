"""HTML is made here and nowhere else: text from data is escaped by `h`, and a page is one file without network.

`h` makes an element. A child that is `Html` (what `h`, `table` and `figure` return) stays as it is; every other child,
and every attribute, is text and is escaped. So a name can only become markup if someone writes `Html(name)`, which no
other module does (a test looks for it). `coterie.pages.policy` is the second wall.
"""

import html
import importlib.metadata
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from coterie.pages.policy import placeholders, policy

__all__ = ["Cell", "Html", "Row", "asset", "document", "embedded_json", "figure", "h", "join", "table"]

VOID = ("input", "br")
# Control characters, halves of character pairs (from file names that are not UTF-8) and what Unicode has no letter for.
UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
SHORT = 15  # rows of a table that is not divided between two pages of paper


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


class Cell(NamedTuple):
    """A cell of a table: what it shows, the number it is sorted by, and its classes."""

    shown: Any
    value: float | int | None = None
    kind: str = ""


class Row(NamedTuple):
    """A row of a table: its cells, the first of which is its name; `wide` stands in place of all the others."""

    cells: Sequence[Any]
    kind: str = ""
    wide: Any = None


def h(tag: str, *children: Any, **attributes: Any) -> Html:
    """Return an element.

    Args:
        tag: its name.
        *children: text, numbers, `Html`, or lists of these; None is left out.
        **attributes: `class_` and `data_method` are written class and data-method. None and False are left out.
    """
    given = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    written = "".join(
        f" {name}" if value is True else f' {name}="{_escaped(value)}"'
        for name, value in given
        if value is not None and value is not False
    )
    return Html(f"<{tag}{written}>" + ("" if tag in VOID else f"{join(*children)}</{tag}>"))


def join(*children: Any) -> Html:
    """Return pieces one after the other: `Html` as it is, everything else escaped."""
    pieces: list[str] = []
    for child in children:
        if isinstance(child, Html):
            pieces.append(child)
        elif isinstance(child, Iterable) and not isinstance(child, str):
            pieces.append(join(*child))
        elif child is not None:
            pieces.append(_escaped(child))
    return Html("".join(pieces))


def _escaped(value: Any) -> str:
    """Return text as HTML shows it; a letter that HTML cannot have is shown as the sign for an unknown one."""
    return html.escape(UNFIT.sub("\ufffd", str(value)))


def table(heads: Sequence[str], rows: Iterable[Row], name: str | None = None, sortable: bool = False) -> Html:
    """Return a table; on a phone every row becomes a card, in which each cell has its column's head above it.

    Args:
        heads: the words above the columns; the first column names the rows. "text:" before a head marks a column of
            words, which is aligned to the left and may be broken.
        rows: what it shows.
        name: its id.
        sortable: whether a click on a head sorts by `Cell.value`.
    """
    words = [head.removeprefix("text:") for head in heads]
    kinds = ["text" if head.startswith("text:") else "" for head in heads]
    head = [
        h("th", h("button", word, type="button") if sortable else word, scope="col", class_=align or None)
        for word, align in zip(words, ["text", *kinds[1:]], strict=True)
    ]
    body = [_row(row, words, kinds) for row in rows]
    kind = "scroll short" if len(body) <= SHORT else "scroll"
    inside = h("table", h("thead", h("tr", head)), h("tbody", body), id=name, class_="cards")
    return h("div", inside, class_=kind, tabindex="0")


def _row(row: Row, words: Sequence[str], kinds: Sequence[str]) -> Html:
    first, *others = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row.cells]
    name = h("th", first.shown, scope="row", class_=first.kind or None, data_value=first.value)
    if row.wide is not None:
        return h("tr", name, h("td", row.wide, colspan=len(words) - 1, class_="text wide"), class_=row.kind or None)
    cells = [
        h(
            "td",
            cell.shown,
            class_=f"{kind} {cell.kind}".strip() or None,
            data_value="" if cell.value is None else cell.value,
            data_label=word,
        )
        for cell, word, kind in zip(others, words[1:], kinds[1:], strict=True)
    ]
    return h("tr", name, cells, class_=row.kind or None)


def figure(name: str, label: str, caption: str = "") -> Html:
    """Return the place in which a script draws a plot."""
    words = h("figcaption", caption[:1].upper() + caption[1:]) if caption else None
    return h("figure", words, h("div", id=name, class_="plot", role="img", aria_label=label))


def document(
    title: str,
    opening: Html,
    sections: Sequence[tuple[str, str, Html]],
    data: Any,
    scripts: Sequence[str],
    styles: Sequence[str] = (),
    connects: bool = False,
    closing: str = "This file holds all it shows and loads nothing.",
) -> str:
    """Return the whole file.

    Args:
        title: the title of the window, as text.
        opening: the header.
        sections: anchor, title (text) and content of each section; one without content is left out.
        data: plain values for the scripts.
        scripts: texts of JavaScript, in order.
        styles: texts of CSS, after that of every page; numbers may come from data, but no words.
        connects: whether the page may talk to the server it came from.
        closing: the last words, as text.
    """
    version = importlib.metadata.version("coterie")
    shown = [section for section in sections if section[2]]
    links = join(h("a", words, href=f"#{anchor}") for anchor, words, _ in shown)
    body = join(h("section", h("h2", words), content, id=anchor) for anchor, words, content in shown)
    scripts = [script.replace("</script", "<\\/script") for script in scripts]  # or it would end its own element
    styles = [asset("report.css"), *filter(None, styles)]
    looks = "\n".join(f"<style>{style}</style>" for style in styles)
    looks += "".join(h("style", id=name) for name in placeholders(scripts))
    code = "\n".join(f"<script>{script}</script>" for script in scripts)
    change = h("button", "Dark", type="button", id="theme", aria_label="Change between light and dark")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy(scripts, styles, connects)}">
<meta name="color-scheme" content="light dark">
{h("title", title)}
{looks}
</head>
<body>
<nav aria-label="Sections"><strong>coterie</strong><div class="links">{links}</div>
{change if scripts else ""}</nav>
<main>
{join(opening)}
{body}
</main>
{h("footer", f"Written by coterie {version}. {closing}")}
<script type="application/json" id="data">{embedded_json(data)}</script>
{code}
</body>
</html>
"""


def asset(name: str, package: str = "coterie.pages") -> str:
    """Return the text of a style sheet or a script that comes with the package."""
    return (files(package) / name).read_text(encoding="utf-8")


def embedded_json(data: Any) -> str:
    """Return JSON that cannot end the script element it stands in, whatever the strings in it say."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
