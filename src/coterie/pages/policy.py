"""What a page may do: run and be styled by exactly what we wrote into it, and load nothing.

A content security policy names every script and style by its hash, so that markup that reached the page in a name would
neither run nor look like ours. Plotly fills an empty style element rule by rule, which the hash of nothing allows; the
style attributes it writes become properties in `page.js`, which need no permission.
"""

import base64
import hashlib
import re
from collections.abc import Iterable

__all__ = ["placeholders", "policy"]

OWN_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')  # before it adds the style sheet of its maps


def policy(scripts: Iterable[str], styles: Iterable[str], connects: bool = False) -> str:
    """Return the policy of a page.

    Args:
        scripts: the text of each script element.
        styles: the text of each style element.
        connects: whether the page may talk to the server it came from.
    """
    rules = {
        "default-src": "'none'",
        "script-src": _hashes(scripts) or "'none'",
        "style-src": _hashes([*styles, ""]),
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if connects:
        rules["connect-src"] = "'self'"
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def placeholders(scripts: Iterable[str]) -> list[str]:
    """Return the ids of the style sheets that a script adds unless they are there: those of Plotly's maps."""
    return list(dict.fromkeys(name for script in scripts for name in OWN_STYLE.findall(script)))


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
