"""The page of `coterie reproduce clusters`: how errors are distributed over groups, and Table 1 over m."""

import math
from typing import Any

import numpy as np

from coterie.pages import plotly_javascript
from coterie.pages.html import join
from coterie.reproduce.plots import place, plot_page

__all__ = ["draw"]

# Numbers of colours, as `coterie.reproduce.plots` has them.
COLOURS = {
    "ours": 1,
    "ours, exact": 3,
    "ours, estimated": 6,
    "ours, cross-validated": 3,
    "no districts": 6,
    "single cluster": 4,
    "single cluster, estimated": 7,
    "single model": 5,
    "locally trained": 2,
}
# Close to others, often equal.
DOTTED = ("ours, exact", "ours, estimated", "ours, cross-validated", "no districts", "single cluster, estimated")
POINTS = 400  # per curve, for any number of groups
SHOWN = 0.99  # share of the groups of every method but the local one that the axis must include


def draw(table1: list[dict[str, Any]], studies: dict[str, dict[str, Any]]) -> str:
    """Return the page, one HTML file.

    Args:
        table1: the summary of Table 1 (empty: not drawn).
        studies: by name, "title", "error" (the axis), "log" (whether it is logarithmic), "group" (what a group is
            called) and "errors": by method, the errors of all groups.
    """
    titles = {name: about["title"] for name, about in studies.items()}
    plots = [_study(name, about) for name, about in studies.items()]
    if table1:
        titles = {"table1": "Table 1: mean error over clients", **titles}
        plots.insert(0, _table1(table1))
    sections = [
        (f"about-{name}", title, join(place(plot))) for (name, title), plot in zip(titles.items(), plots, strict=True)
    ]
    head = "Known clusters: how large is the error, and for how many?"
    return plot_page("Known clusters: the experiments", head, sections, plots, plotly_javascript())


def _line(method: str, x: Any, y: Any, mode: str) -> dict[str, Any]:
    style = {"color": COLOURS.get(method, 8), "dash": "dot" if method in DOTTED else "solid"}
    return {"x": list(map(float, x)), "y": list(map(float, y)), "name": method, "mode": mode, **style}


def _table1(rows: list[dict[str, Any]]) -> dict[str, Any]:
    traces = []
    for method in dict.fromkeys(row["method"] for row in rows):
        x, y = zip(*((row["m"], row["mean"]) for row in rows if row["method"] == method), strict=True)
        traces.append(_line(method, x, y, "lines+markers"))
    printed = [(row["m"], row["paper_mean"]) for row in rows if row["paper_mean"] is not None]
    if printed:
        at, mean = zip(*printed, strict=True)
        crosses = {"x": at, "y": mean, "name": "the paper's figures", "mode": "markers"}
        traces.append({**crosses, "color": 0, "symbol": "x-open", "size": 9})
    sizes = sorted({row["m"] for row in rows})
    x_axis = {"type": "log", "tickvals": sizes, "title": "samples of a client, m"}
    return {"id": "table1", "traces": traces, "x": x_axis, "y": {"title": "|estimate - truth|", "rangemode": "tozero"}}


def _study(name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Draw for every error the share of groups that have at most this one."""
    traces, reach = [], 0.0
    for method, errors in about["errors"].items():
        share = np.linspace(0, 1, min(POINTS, len(errors)))
        traces.append(_line(method, np.quantile(errors, share), share, "lines"))
        reach = reach if method == "locally trained" else max(reach, float(np.quantile(errors, SHOWN)))
    x_axis: dict[str, Any] = {"title": about["error"], "range": [0, 1.1 * reach]}
    if about["log"]:
        floor = min(float(np.quantile(errors, 0.01)) for errors in about["errors"].values())
        span = [math.log10(max(floor, 1e-4)), math.log10(2 * reach)]
        x_axis |= {"type": "log", "dtick": 1, "exponentformat": "power", "range": span}
    y_axis = {"title": f"share of {about['group']}s with at most this", "range": [0, 1.02]}
    return {"id": name, "traces": traces, "x": x_axis, "y": y_axis}
