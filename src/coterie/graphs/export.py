"""A graph as GraphML, whatever its nodes are called."""

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["graphml"]

# What XML cannot have, not even as a reference: control characters, halves of character pairs, and two non-characters.
UNFIT = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def graphml(graph: Any) -> bytes:
    """Return a NetworkX graph as a GraphML file; letters that XML cannot have are written as \\x1b or \\ud800."""
    import networkx

    fit = _fit(list(graph.nodes))
    graph = networkx.relabel_nodes(graph, fit) if fit else graph
    return "\n".join(networkx.generate_graphml(graph)).encode()


def _fit(names: Iterable[Any]) -> dict[Any, str]:
    """Return a name that XML can have for each that it cannot, and that nobody else has."""
    texts = {name: str(name) for name in names}
    taken, fit = set(texts.values()), {}
    for name, text in texts.items():
        if UNFIT.search(text):
            better = UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
            while better in taken:
                better += "_"
            taken.add(better)
            fit[name] = better
    return fit
