"""Sections of the report as HTML: the words around the plots of `report.js`, and the worst served clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.pages.content import worst_clients
from coterie.pages.html import Cell, Html, Row, figure, h, join, table
from coterie.pages.tables import gain_cell
from coterie.pages.words import count_text, score_text

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["choice", "cost", "each_client", "partition", "rounds", "worst"]

INTERVALS = 60  # clients up to which their intervals are drawn, as in figures.js


def choice(name: str, label: str, *more: Any) -> Html:
    """Return the place for the buttons of the methods, and what stands beside them."""
    return h("div", h("div", id=name, class_="chips", role="group", aria_label=label), *more, class_="controls")


def rounds(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the section with the curves over rounds."""
    stopped = any(curve["stopped_early"] for curve in data["curves"].values())
    name = data["trained"]["metric_name"]
    words = (
        "Each line is the mean over clients, on their own test samples; the band holds the middle 80 % of the clients "
        "(10th to 90th percentile, runs pooled)." + (" A run that stopped early stays where it stopped." * stopped)
    )
    bands = h("label", h("input", type="checkbox", id="bands", checked=True), " bands", class_="switch")
    pair = h(
        "div",
        figure("score-curve", f"Test {name} over rounds", f"Test {name}"),
        figure("loss-curve", "Test loss over rounds", "Test loss"),
        class_="pair",
    )
    return join(h("p", words), choice("legend", "Methods shown", bands), key(data, "key print-only"), pair)


def key(data: Mapping[str, Any], kind: str = "key") -> Html:
    """Return the colours of the methods."""
    methods = [row["method"] for row in data["methods"]]
    return h("div", [h("span", h("i", class_="dot", data_method=name), name) for name in methods], class_=kind)


def each_client(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the section with the plot of single clients."""
    name = data["metric_name"]
    compared = len(comparison.results) > 1 and comparison.baseline
    words: list[Any] = [f"Every client's {name}, sorted."]
    if compared:
        line = "; a thin line is the 95\u00a0% interval of that client" if data["count"] <= INTERVALS else ""
        words = [
            f"Every client's {name} with the chosen method, sorted, and below it the gain over training alone{line}."
        ]
    if not comparison.baseline:
        words += [" Training alone (the method ", h("code", "local"), ") was not run, so gains are not known."]
    box = h("input", type="checkbox", id="by-gain")
    return join(
        h("p", words),
        choice("choose-client", "Method", h("label", box, " sort by gain", id="sort-switch", class_="switch")),
        h("p", class_="reading", id="client-reading", aria_live="polite"),
        figure("client-plot", f"{name} and gain of each client"),
        h("p", class_="note", id="client-note"),
    )


def worst(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return a table of the ten clients with the worst score for each method; one table is shown at a time."""
    which = "lowest score" if comparison.score.higher_is_better else "largest error"
    tables = [
        h("div", _worst(comparison, method), class_="worst", data_method=method, hidden=method != data["chosen"])
        for method in comparison.results
    ]
    named = h("p", "With ", h("strong", data["chosen"]), ":", class_="print-only")
    return join(h("p", f"The clients with the {which}, by name."), choice("choose-worst", "Method"), named, tables)


def _worst(comparison: "Comparison", method: str) -> Html:
    score, clients = comparison.score, worst_clients(comparison, method)
    with_gain = clients[0]["gain"] is not None
    with_labels = any(client["labels"] for client in clients)
    with_group = any(client["group"] is not None for client in clients)
    unit = ", points" if score.percent else ""
    heads = ["text:client", *([f"gain{unit}"] if with_gain else []), score.label]
    heads += [*(["training alone"] if with_gain else []), "training samples", *(["group"] if with_group else [])]
    heads += ["text:labels (samples)"] if with_labels else []
    rows = []
    for client in clients:
        cells: list[Any] = [Cell(client["name"], kind="name")]
        cells += [gain_cell(client["gain"], score)] if with_gain else []
        cells.append(Cell(h("strong", score_text(client["score"], score)), client["score"]))
        cells += [score_text(client["alone"], score)] if with_gain else []
        cells.append(Cell(count_text(client["samples"]), client["samples"]))
        cells += [client["group"]] if with_group else []
        cells += [client["labels"]] if with_labels else []
        rows.append(Row(cells))
    return table(heads, rows)


def cost(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the section with the score against bytes; empty if nobody sends anything."""
    if not any(row["bytes_per_client"] > 0 for row in data["methods"]):
        return join()
    name = data["trained"]["metric_name"]
    words = (
        f"The bytes a client has sent and received (mean over clients, logarithmic) and its {name} then; the large "
        "marker is the end of the run. Methods that send nothing are drawn as a line."
    )
    note = "A round with the hub costs one model up and one down per participating client."
    configs = [result.config["run"] for results in comparison.results.values() for result in results]
    hub = any(config.get("hub") is None for config in configs)
    return join(
        h("p", words),
        key(data),
        figure("bytes-plot", f"{name} against bytes per client"),
        h("p", note, class_="note") if hub else None,
    )


def partition(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the section about the partition."""
    drawing = data["partition"]
    if drawing["counts"] is None:
        words = "How many samples each client has, from the fewest training samples to the most."
    else:
        by = "group and labels" if comparison.clients.get("groups") is not None else "their labels"
        words = f"Training samples of each client (above) and of each class (below); clients are ordered by {by}."
    note = h("p", drawing["note"], class_="note") if drawing["note"] else None
    return join(h("p", words), figure("partition-plot", "The partition: clients by classes"), note)
