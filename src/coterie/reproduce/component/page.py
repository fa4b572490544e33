"""The page of `coterie reproduce component`: figures and tables in the style of the report, one HTML file.

Here plots are plain values; `component.js` draws them in the colours of the reader's theme.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.pages.html import asset, document
from coterie.pages.words import bytes_text
from coterie.reproduce.component.elements import ORDERS

__all__ = ["page"]

COLOURS = {"none": 0, "float16": 8, "qsgd": 5, "top-k": 2, "fused": 6, "fused-k": 3, "fused-k-ef": 1}
SYMBOLS = {"fused": "square", "fused-k": "diamond", "fused-k-ef": "circle", "top-k": "triangle-up"}
SYMBOLS |= {"qsgd": "triangle-down", "none": "cross", "float16": "x"}


def page(codecs: Sequence[Mapping[str, Any]], groups: Any, personal: Sequence[Mapping[str, Any]], plotly: str) -> str:
    """Return the page.

    Args:
        codecs: figures of `run_codecs`, one for each data set.
        groups: figures of `run_groups` and its rows, or None.
        personal: figures of `run_personal`, one for each data set.
        plotly: the text of plotly.js.
    """
    plots: list[dict[str, Any]] = []
    sections = [_codec_section(figures, plots) for figures in codecs]
    sections += [] if groups is None else [_group_section(groups[0], groups[1], plots)]
    sections += [_personal_section(figures) for figures in personal]
    scripts = [plotly, asset("figures.js"), asset("component.js", "coterie.reproduce.component")]
    head = "A federated model with a personalised component (Zhao, Liu, Jiang, He): the experiments"
    opening = f"<header><h1>{head}</h1></header>"
    return document("Personalised component: the experiments", opening, sections, plots, scripts)


# -- codecs ------------------------------------------------------------------------------------------------------------


def _codec_section(figures: Mapping[str, Any], plots: list[dict[str, Any]]) -> tuple[str, str, str]:
    name = f"{figures['data']}-{figures['local']}"
    plots += [_frontier(figures, f"frontier-{name}"), _elements(figures, f"elements-{name}")]
    plots += [_orders(figures, f"orders-{name}"), _example(figures, f"example-{name}")]
    sent = "the gradient of all its samples" if figures["local"] == "gradient" else "the change of one epoch"
    whole = figures["uncompressed"]
    words = "fused-g-k-ef: price g of a jump, k centres, error feedback; qsgd-b: b bits; top-k-f: the share f is sent."
    frame = f"including {figures['header']} header bytes per message, which no codec can save"
    reach = [
        [family, _or_dash(at, "label"), _or_dash(at, "round"), _kilo(at, "up"), _fewer(at, "fewer_same"), _test(at)]
        for family, at in figures["reach"].items()
    ]
    ends = [
        [at["label"], _kilo(at, "up"), *(_fewer(at, key) for key in ("fewer", "fewer_bare")), _test(at), _points(at)]
        for at in figures["settings"]
    ]
    until = ["codec", "setting", "round", "kB per client", "times fewer, to there", "test accuracy"]
    after = ["setting", "kB per client", "times fewer", "without headers", "test accuracy", "points to uncompressed"]
    text = f"""<p>{_safe(figures["about"])}; a {figures["model"]} model of {figures["parameters"]:,} numbers,
{figures["rounds"]} rounds. In a round every client sends {sent}, through a codec. Mean of {figures["draws"]} draws.</p>
<div class="plot" id="frontier-{name}"></div>
<p class="note">For every family and budget: the setting and round that validation accuracy chooses, and their test
accuracy. Bytes are those one client sends to the hub ({frame}); the way back is not compressed. Dotted: 0.5 points
below uncompressed training, and an eighth of its bytes.</p>
<h3>To within 0.5 points of uncompressed training</h3>
{_table(until, reach, 2)}
<p class="note">Uncompressed training has {100 * whole["test"]:.2f} % after {whole["round"]} rounds and
{whole["up"] / 1e3:,.1f} kB. The first round with enough validation accuracy counts.</p>
<h3>The best codec at equal bytes</h3>
{_equal_table(figures)}
<h3>After all rounds</h3>
{_table(after, ends, 1)}
<p class="note">{words}</p>
<h3>What the fused operator does to an update</h3>
<div class="plot" id="elements-{name}"></div>
<p class="note">The price of a jump is in units of the update's mean absolute value.</p>
<div class="plot" id="example-{name}"></div>
<div class="plot" id="orders-{name}"></div>
<p class="note">The operator makes neighbours equal, so that it matters which elements are neighbours. In an order that
follows the mean of the round before (both ends know it) an update has longer runs, as long as rounds resemble each
other.</p>"""
    return f"codecs-{name}", f"Accuracy against uplink bytes: {figures['data']}", text


def _frontier(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
    traces = []
    for family, points in figures["frontier"].items():
        last = figures["frontier"]["none"][-1]["up"]
        x, y = [point["budget"] for point in points], [100 * point["test"] for point in points]
        text = [
            f"{_safe(p['label'])}, round {p['round']}<br>{bytes_text(p['up'])}, {100 * p['test']:.2f} %" for p in points
        ]
        if x[-1] < last:  # a family need not spend the whole budget
            x, y, text = [*x, last], [*y, y[-1]], [*text, text[-1]]
        traces.append(
            {
                "x": x,
                "y": y,
                "text": text,
                "hovertemplate": "%{text}<extra></extra>",
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


def _elements(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Draw how many distinct values are left as the price of a jump grows."""
    traces = []
    for colour, number in enumerate(sorted({row["round"] for row in figures["elements"]}), 1):
        rows = [row for row in figures["elements"] if (row["round"], row["order"]) == (number, ORDERS[0])]
        x, y = [row["gamma"] for row in rows], [row["distinct"] for row in rows]
        traces.append(_element_line(rows, x, y, f"round {number}", colour))
    title = f"distinct values of {figures['parameters']:,}"
    x_axis = {"type": "log", "title": "gamma, the price of a jump", "dtick": 1, "exponentformat": "none"}
    return {"id": place, "traces": traces, "x": x_axis, "y": {"type": "log", "title": title, "dtick": 1}, "height": 380}


def _orders(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
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
    text = [
        f"{name}, gamma {row['gamma']:g}<br>{row['distinct']:.0f} distinct values in {row['runs']:.0f} runs<br>"
        f"{row['bytes']:.0f} bytes, error {row['error']:.3f}"
        for row in rows
    ]
    shown = {"text": text, "hovertemplate": "%{text}<extra></extra>", "mode": "lines+markers"}
    return {"x": x, "y": y, "name": name, "color": colour, **shown}


def _example(figures: Mapping[str, Any], place: str) -> dict[str, Any]:
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


def _equal_table(figures: Mapping[str, Any]) -> str:
    families = list(figures["reach"])
    lines = []
    for row in figures["equal"]:
        cells = [f"1/{1 / row['share']:.0f}" if row["share"] < 1 else "all", bytes_text(row["budget"])]
        for family in families:
            at = row["families"].get(family)
            text = "–" if at is None else f"{100 * at['test']:.2f}"
            cells.append(f"<strong>{text}</strong>" if family == row["winner"] else text)
        lines.append(cells)
    note = "Test accuracy in per cent; bold: the best by validation accuracy. A dash: one message costs more."
    return _table(["share", "per client", *families], lines, 1, raw=True) + f'<p class="note">{note}</p>'


# -- groups ------------------------------------------------------------------------------------------------------------


def _group_section(
    figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], plots: list[dict[str, Any]]
) -> tuple[str, str, str]:
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
    plots.append({"id": "path", "traces": traces, "x": x, "y": y, "height": 420})
    lines = [
        [
            f"k = {n['neighbours']}",
            f"{n['found']} of {figures['draws']}",
            "–" if n["always"] is None else f"{n['always'][0]:.3g} to {n['always'][1]:.3g}",
            f"{sum(n['best_ari']) / len(n['best_ari']):.3f}",
            f"{100 * n['chosen_test']:.1f} %",
        ]
        for n in figures["networks"]
    ]
    heads = ["network", "found exactly", "lam where all draws are", "best index, mean", "accuracy at the chosen lam"]
    text = f"""<p>40 clients in four groups of ten that name the same classes differently, 20 samples each.
The network lasso from "all equal" to "all apart"; clients are in a cluster if their models are exactly equal.</p>
<div class="plot" id="path"></div>{_table(heads, lines, 1)}
<p class="note">k is the number of neighbours of a client in the similarity network; a group has nine others, so 12
include clients of other groups, and 39 are everyone. lam is chosen on validation accuracy, for each draw.</p>"""
    return "groups", "Planted groups along the path", text


# -- personal models ---------------------------------------------------------------------------------------------------


def _personal_section(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    lines = []
    for row in figures["methods"]:
        error = "" if row["gain_error"] is None else f" ± {100 * row['gain_error']:.1f}"
        gain = "–" if row["gain"] is None else f"{100 * row['gain']:+.1f}{error}"
        score = f"{100 * row['test']:.1f} ± {100 * row['spread']:.1f}"
        setting = row["label"].removeprefix(f"{row['method']}-")
        worst = f"{100 * row['worst']:.1f}"
        lines.append([row["method"], setting, str(row["round"]), score, worst, gain, bytes_text(row["total"])])
    heads = ["method", "chosen setting", "round", "test accuracy", "worst", "over alone", "bytes per client"]
    name = figures["data"]
    text = f"""<p>{figures["clients"]} clients with few samples. Learning rate, strength of the tie and round are chosen
on validation accuracy for every method; mean of {figures["draws"]} draws ± standard deviation; worst: the mean of the
worst decile of clients (of fewer than 20, the worst).</p>
{_table(heads, lines, 2)}"""
    return f"personal-{name}-{figures['model']}", f"Personal models: {name}, {figures['model']}", text


# -- cells -------------------------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], text: int, raw: bool = False) -> str:
    """Write a table whose first `text` columns are words; cells are escaped unless they are `raw`."""
    top = "".join(f'<th{_words(at, text)} scope="col">{_safe(head)}</th>' for at, head in enumerate(heads))
    rows = ""
    for line in lines:
        cells = (cell if raw else _safe(cell) for cell in line)
        rows += "<tr>" + "".join(f"<td{_words(at, text)}>{cell}</td>" for at, cell in enumerate(cells)) + "</tr>"
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'


def _words(at: int, text: int) -> str:
    return ' class="text"' if at < text else ""


def _or_dash(at: Mapping[str, Any] | None, key: str) -> str:
    return "–" if at is None else str(at[key])


def _kilo(at: Mapping[str, Any] | None, key: str) -> str:
    return "–" if at is None else f"{at[key] / 1e3:,.1f}"


def _fewer(at: Mapping[str, Any] | None, key: str) -> str:
    return "–" if at is None else f"{at[key]:.1f}"


def _test(at: Mapping[str, Any] | None) -> str:
    return "–" if at is None else f"{100 * at['test']:.2f} ± {100 * at['spread']:.2f}"


def _points(at: Mapping[str, Any]) -> str:
    return f"{100 * at['gap']:+.2f}"


def _safe(text: Any) -> str:
    return html.escape(str(text))
