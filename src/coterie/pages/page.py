"""The HTML file: head, styles, sections in order, the numbers as JSON, plotly.js and the script that draws.

Whatever comes from a user (names of clients, configs, commands) is escaped, and a content security policy forbids the
page to load anything from anywhere.
"""

import importlib.metadata
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from coterie.pages import path, sections
from coterie.pages.content import content

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["embedded_json", "render"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
SECTIONS = (
    ("leaderboard", "Leaderboard", sections.leaderboard),
    ("rounds", "Over rounds", sections.rounds),
    ("clients", "Who gains, who loses", sections.each_client),
    ("worst", "The worst served", sections.worst),
    ("path", "Clusters along the path", path.section),
    ("weights", "Who listens to whom", sections.weights),
    ("bytes", "What it costs", sections.cost),
    ("partition", "Who holds what", sections.partition),
    ("repeat", "Repeat it", sections.repeat),
)


def render(comparison: "Comparison", plotly: str) -> str:
    """Return the whole file; `plotly` is the text of plotly.js."""
    data = content(comparison)
    version = importlib.metadata.version("coterie")
    written = [(anchor, title, write(comparison, data)) for anchor, title, write in SECTIONS]
    shown = [part for part in written if part[2]]  # a section that has nothing to show is left out
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in shown)
    body = "".join(f'<section id="{anchor}"><h2>{title}</h2>{text}</section>' for anchor, title, text in shown)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{sections.title(comparison)}</title>
<style>{_asset("report.css")}</style>
</head>
<body>
<nav aria-label="Sections"><strong>coterie</strong><div class="links">{links}</div>
<button type="button" id="theme" aria-label="Change between light and dark">Dark</button></nav>
<main>
{sections.opening(comparison, data)}
{body}
</main>
<footer>Written by coterie {version}. This file holds all it shows and loads nothing.</footer>
<script type="application/json" id="data">{embedded_json(data)}</script>
<script>{_inline(plotly)}</script>
<script>{_inline(_asset("figures.js") + _asset("path.js"))}</script>
<script>{_inline(_asset("report.js"))}</script>
</body>
</html>
"""


def embedded_json(data: Any) -> str:
    """Return JSON that cannot end the script element it stands in, whatever the strings in it say."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("coterie.pages") / name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """Keep a script from ending its own element."""
    return script.replace("</script", "<\\/script")
