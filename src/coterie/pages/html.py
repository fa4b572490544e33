"""One HTML file that opens without network: head, styles, sections, the numbers as JSON, plotly.js and the scripts.

A content security policy forbids the page to load anything. Callers escape the text they pass.
"""

import importlib.metadata
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

__all__ = ["asset", "document", "embedded_json"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, opening: str, sections: Sequence[tuple[str, str, str]], data: Any, scripts: list[str]) -> str:
    """Return the whole file.

    Args:
        title: the title of the window.
        opening: the header, as HTML.
        sections: anchor, title and HTML of each section; one without HTML is left out.
        data: plain values for the scripts.
        scripts: texts of JavaScript, in order.
    """
    version = importlib.metadata.version("coterie")
    shown = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in shown)
    body = "".join(f'<section id="{anchor}"><h2>{title}</h2>{text}</section>' for anchor, title, text in shown)
    code = "\n".join(f"<script>{_inline(script)}</script>" for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{asset("report.css")}</style>
</head>
<body>
<nav aria-label="Sections"><strong>coterie</strong><div class="links">{links}</div>
<button type="button" id="theme" aria-label="Change between light and dark">Dark</button></nav>
<main>
{opening}
{body}
</main>
<footer>Written by coterie {version}. This file holds all it shows and loads nothing.</footer>
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


def _inline(script: str) -> str:
    """Keep a script from ending its own element."""
    return script.replace("</script", "<\\/script")
