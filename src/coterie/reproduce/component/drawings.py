"""The plots of `coterie reproduce component`, in the form of `coterie.reproduce.plots`."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.pages.words import bytes_text
from coterie.reproduce.component.elements import ORDERS

__all__ = ["elements", "example", "frontier", "orders", "path"]

COLOURS = {"none": 0, "float16": 8, "qsgd": 5, "top-k": 2, "draft": 4, "fused": 6, "fused-k": 3, "fused-k-ef": 1}
SYMBOLS = {"fused": "square", "fused-k": "diamond", "fused-k-ef": "circle", "top-k": "triangle-up"}
SYMBOLS |= {"draft": "star", "qsgd": "triangle-down", "none": "cross", "float16": "x"}


def frontier(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Draw the test accuracy that every family of codecs reaches with so many bytes."""
    traces = []
    for family, points in figures["frontier"].items():
        last = figures["frontier"]["none"][-1]["up"]
        x, y = [point["budget"] for point in points], [100 * point["test"] for point in points]
        lines = [
            [f"{p['label']}, round {p['round']}", f"{bytes_text(p['up'])}, {100 * p['test']:.2f} %"] for p in points
        ]
        if x[-1] < last:  # a family need not spend the whole budget
            x, y, lines = [*x, last], [*y, y[-1]], [*lines, lines[-1]]
        traces.append(
            {
                "x": x,
                "y": y,
                "lines": lines,
                "name": family,
                "mode": "lines+markers",
                "shape": "hv",
                "color": COLOURS[family],
                "symbol": SYMBOLS[family],
                "size": 5,
                "width": 2.75 if family.startswith("fused-") else 1.75,
                "dash": "dash" if family in ("none", "float16") else "solid",
            }
        )
    whole = figures["uncompressed"]
    low = sorted(100 * p["test"] for points in figures["frontier"].values() for p in points)
    floor = max(low[0], 100 * whole["test"] - 12)
    return {
        "id": place,
        "traces": traces,
        "x": {"type": "log", "title": "bytes a client has sent to the hub", "dtick": 1, "exponentformat": "SI"},
        "y": {"title": "test accuracy", "ticksuffix": " %", "range": [floor - 0.3, max(low) + 0.5]},
        "marks": [{"y": 100 * (whole["test"] - figures["within"])}, {"x": whole["up"] / 8}],
        "height": 480,
    }


def elements(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Draw how many distinct values are left as the price of a jump grows."""
    traces = []
    for colour, number in enumerate(sorted({row["round"] for row in figures["elements"]}), 1):
        rows = [row for row in figures["elements"] if (row["round"], row["order"]) == (number, ORDERS[0])]
        x, y = [row["gamma"] for row in rows], [row["distinct"] for row in rows]
        traces.append(_element_line(rows, x, y, f"round {number}", colour))
    title = f"distinct values of {figures['parameters']:,}"
    x_axis = {"type": "log", "title": "gamma, the price of a jump", "dtick": 1, "exponentformat": "none"}
    return {"id": place, "traces": traces, "x": x_axis, "y": {"type": "log", "title": title, "dtick": 1}, "height": 380}


def orders(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Draw the error against the bytes of a message of runs, in both orders of the elements."""
    traces = []
    for colour, number in enumerate(sorted({row["round"] for row in figures["elements"]}), 1):
        for order, dash in zip(ORDERS, ("solid", "dot"), strict=True):
            rows = [row for row in figures["elements"] if (row["round"], row["order"]) == (number, order)]
            x, y = [row["bytes"] for row in rows], [row["error"] for row in rows]
            traces.append(_element_line(rows, x, y, f"round {number}, {order}", colour) | {"dash": dash})
    x_axis = {"type": "log", "title": "bytes of an update sent as runs", "dtick": 1, "exponentformat": "SI"}
    return {"id": place, "traces": traces, "x": x_axis, "y": {"title": "error, share of its length"}, "height": 400}


def _element_line(rows: Sequence[Mapping[str, Any]], x: list, y: list, name: str, colour: int) -> dict[str, Any]:
    lines = [
        [
            f"{name}, gamma {row['gamma']:g}",
            f"{row['distinct']:.0f} distinct values in {row['runs']:.0f} runs",
            f"{row['bytes']:.0f} bytes, error {row['error']:.3f}",
        ]
        for row in rows
    ]
    return {"x": x, "y": y, "name": name, "color": colour, "lines": lines, "mode": "lines+markers"}


def example(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Draw an update before and after the fused operator."""
    example = figures["example"]
    index = list(range(len(example["update"])))
    traces: list[dict[str, Any]] = [
        {"x": index, "y": example["update"], "name": "an update", "mode": "markers", "color": 8, "size": 4}
    ]
    for colour, (gamma, values) in enumerate(example["fused"].items(), 1):
        about = {"name": f"fused, gamma {gamma}", "mode": "lines", "color": colour, "shape": "hvh", "width": 1.75}
        traces.append({"x": index, "y": values, **about})
    few = "" if len(index) == example["elements"] else f", the first {len(index)} of {example['elements']:,}"
    x = {"title": f"element of a client's gradient in round {example['round']}{few}", "showgrid": False}
    return {"id": place, "traces": traces, "x": x, "y": {"title": "", "nticks": 6}, "height": 360}


def path(figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], place: str) -> dict[str, Any]:
    """Draw how well the clusters along the path are the planted groups, and the test accuracy."""
    traces = []
    for colour, network in enumerate(figures["networks"], 1):
        same = [row for row in rows if row["neighbours"] == network["neighbours"]]
        lams = sorted({row["lam"] for row in same})
        for what, dash in (("ari", "solid"), ("test", "dot")):
            mean = [sum(r[what] for r in same if r["lam"] == lam) / figures["draws"] for lam in lams]
            name = f"k = {network['neighbours']}, " + ("adjusted Rand index" if what == "ari" else "test accuracy")
            traces.append({"x": lams, "y": mean, "name": name, "mode": "lines+markers", "color": colour, "dash": dash})
    x = {"type": "log", "title": "lam", "dtick": 1, "exponentformat": "none"}
    y = {"title": "mean over draws", "range": [-0.03, 1.03]}
    return {"id": place, "traces": traces, "x": x, "y": y, "height": 420}
