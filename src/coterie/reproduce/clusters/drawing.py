"""The picture of `coterie reproduce clusters`: how errors are distributed over groups, and Table 1 over m."""

from typing import Any

import numpy as np

__all__ = ["draw"]

COLOURS = {
    "ours": "#0072b2",
    "ours, estimated": "#56b4e9",
    "no districts": "#56b4e9",
    "single cluster": "#cc79a7",
    "single model": "#e69f00",
    "locally trained": "#d55e00",
}
DOTTED = ("ours, estimated", "no districts")  # close to ours, often equal
POINTS = 400  # per curve, for any number of groups
SHOWN = 0.99  # share of the groups of every method but the local one that the axis must include


def draw(table1: list[dict[str, Any]], studies: dict[str, dict[str, Any]]) -> str:
    """Return a self-contained HTML page.

    Args:
        table1: the summary of Table 1 (empty: not drawn).
        studies: by name, "title", "error" (the axis), "log" (whether it is logarithmic), "group" (what a group is
            called) and "errors": by method, the errors of all groups.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = (["Table 1: mean error over clients"] if table1 else []) + [about["title"] for about in studies.values()]
    columns = min(2, len(titles))
    rows = -(-len(titles) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=titles, vertical_spacing=0.2 / rows)
    places = [{"row": 1 + k // columns, "col": 1 + k % columns} for k in range(len(titles))]
    named: set[str] = set()

    def line(method: str, x: Any, y: Any, **more: Any) -> Any:
        shown = method not in named
        named.add(method)
        style = {"color": COLOURS.get(method, "#666666"), "dash": "dot" if method in DOTTED else "solid"}
        return go.Scatter(x=x, y=y, name=method, legendgroup=method, showlegend=shown, line=style, **more)

    if table1:
        place = places.pop(0)
        for method in dict.fromkeys(row["method"] for row in table1):
            points = [(row["m"], row["mean"]) for row in table1 if row["method"] == method]
            x, y = zip(*points, strict=True)
            figure.add_trace(line(method, x, y, mode="lines+markers"), **place)
        printed = [(row["m"], row["paper_mean"]) for row in table1 if row["paper_mean"] is not None]
        if printed:
            marker = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": "black"}}
            at, mean = zip(*printed, strict=True)
            figure.add_trace(
                go.Scatter(x=at, y=mean, mode="markers", marker=marker, name="the paper's figures"), **place
            )
        sizes = sorted({row["m"] for row in table1})
        figure.update_xaxes(type="log", tickvals=sizes, title_text="samples of a client, m", **place)
        figure.update_yaxes(title_text="|estimate - truth|", rangemode="tozero", **place)
    for place, about in zip(places, studies.values(), strict=True):
        reach = 0.0
        for method, errors in about["errors"].items():
            share = np.linspace(0, 1, min(POINTS, len(errors)))
            figure.add_trace(line(method, np.quantile(errors, share), share, mode="lines"), **place)
            reach = reach if method == "locally trained" else max(reach, float(np.quantile(errors, SHOWN)))
        figure.update_xaxes(title_text=about["error"], range=[0, 1.1 * reach], **place)
        if about["log"]:
            floor = min(float(np.quantile(errors, 0.01)) for errors in about["errors"].values())
            span = np.log10([max(floor, 1e-4), 2 * reach]).tolist()
            figure.update_xaxes(type="log", dtick=1, exponentformat="power", range=span, **place)
        figure.update_yaxes(title_text=f"share of {about['group']}s with at most this", range=[0, 1.02], **place)
    figure.update_layout(
        template="plotly_white",
        height=170 + 400 * rows,
        margin={"t": 130, "b": 50},
        title={"text": "Known clusters: how large is the error, and for how many?", "yref": "container", "y": 0.98},
        legend={"orientation": "h", "yref": "container", "y": 1 - 60 / (170 + 400 * rows), "yanchor": "top"},
    )
    return figure.to_html(include_plotlyjs=True, full_html=True)
