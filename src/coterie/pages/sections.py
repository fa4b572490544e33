"""The sections of the report as HTML: text and tables, and the elements in which `report.js` draws the plots."""

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.learning.score import Score
from coterie.pages.content import worst_clients
from coterie.pages.words import bytes_text, count_text, gain_text, score_text, seconds_text
from coterie.storage.toml import dump_toml

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = [
    "cost",
    "each_client",
    "leaderboard",
    "opening",
    "partition",
    "repeat",
    "rounds",
    "title",
    "weights",
    "worst",
]

LONGEST_LIST = 200  # values per key that a config is shown with


def title(comparison: "Comparison") -> str:
    """Return the title of the page."""
    return f"coterie: {_question(comparison)}"


def _question(comparison: "Comparison") -> str:
    clients = count_text(len(comparison.clients["names"]))
    if len(comparison.results) > 1:
        return f"Does cooperation help these {clients} clients?"
    return f"How {escape(next(iter(comparison.results)))} serves {clients} clients"


def opening(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the question, the answer in one sentence, and facts about the comparison."""
    clients = comparison.clients
    train = np.asarray(clients["sizes"]["train"])
    tests = int(np.sum(clients["sizes"]["test"]))
    results = [result for seeds in comparison.results.values() for result in seeds]
    seeds = max(len(runs) for runs in comparison.results.values())
    low, high = int(train.min()), int(train.max())
    facts = [
        ("clients", count_text(len(clients["names"]))),
        ("training samples each", count_text(low) if low == high else f"{count_text(low)} to {count_text(high)}"),
        ("test samples in total", count_text(tests)),
        ("rounds", count_text(max(result.rows[-1]["round"] for result in results))),
        ("seeds", str(seeds)),
        ("device", escape(", ".join(sorted({result.device for result in results})))),
    ]
    if clients["kind"] == "classification":
        facts.insert(1, ("classes", count_text(clients["classes"])))
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    about = f'<p class="about">{escape(clients["about"])}</p>' if clients.get("about") else ""
    answer, colon, detail = comparison.verdict().partition(": ")
    spoken = escape(answer + colon) + (f'<span class="detail">{escape(detail)}</span>' if detail else "")
    return (
        f'<header><h1>{_question(comparison)}</h1><p class="verdict">{spoken}</p>{about}'
        f'<dl class="facts">{listed}</dl></header>'
    )


def leaderboard(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the table of methods."""
    board = comparison.leaderboard()
    score = comparison.score
    unit = ", points" if score.percent else ""
    name = score.label
    heads = [("method", "text"), (f"mean {name}", ""), ("std over clients", ""), (escape(board[0]["worst_label"]), "")]
    if comparison.baseline:
        heads += [("beat training alone", ""), (f"mean gain{unit}", "")]
    heads += [("bytes per client", ""), ("seconds", "")]
    rows = []
    for i, row in enumerate(board):
        cells = [
            (row["mean"], f"<strong>{score_text(row['mean'], score)}</strong>"),
            (row["std"], gain_text(row["std"], score).lstrip("+")),
            (row["worst"], score_text(row["worst"], score)),
        ]
        if comparison.baseline:
            alone = row["method"] == comparison.baseline
            beat = None if alone else row["beat_alone"]
            gain = None if alone else row["mean_gain"]
            error = gain_text(row["gain_error"], score).lstrip("+")
            around = f" <small>± {error}</small>" if gain is not None and error != "–" else ""
            cells.append((beat, "–" if beat is None else f"{count_text(beat)} of {count_text(row['clients'])}"))
            cells.append((gain, _gain(gain, score) + around))
        cells += [
            (row["bytes_per_client"], bytes_text(row["bytes_per_client"])),
            (row["seconds"], f"{row['seconds']:.1f}"),
        ]
        tag = ""
        if row["pooled"]:
            tag = ' <span class="tag" title="One model trained on all data in one place">one model on all data</span>'
        elif row["method"] == comparison.baseline:
            tag = ' <span class="tag" title="What every client can do without the others">alone</span>'
        kind = ' class="pooled"' if row["pooled"] else ' class="best"' if row["method"] == data["chosen"] else ""
        first = f'<th scope="row" data-value="{i}"><i class="dot" data-method="{escape(row["method"])}"></i>'
        rows.append(f"<tr{kind}>{first}{escape(row['method'])}{tag}</th>{''.join(map(_cell, cells))}</tr>")
    explained = ["Every client counts once: its score is a mean over seeds."]
    if comparison.baseline:
        explained.append("± is the standard error of the gain over clients.")
    explained.append("Seconds are those of one run, without compiling.")
    if any(row["pooled"] for row in board):
        explained.append(
            "One model on all data needs them in one place, which these clients cannot do; personal models may beat it."
        )
    notes = " ".join(explained)
    return _table("leaderboard-table", heads, rows, sortable=True) + f'<p class="note">{notes}</p>'


def rounds(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the section with the curves over rounds."""
    stopped = any(curve["stopped_early"] for curve in data["curves"].values())
    more = " A seed that stopped early stays where it stopped." if stopped else ""
    name = data["metric_name"]
    return (
        "<p>Each line is the mean over clients, on their own test samples; the band holds the middle 80 % of the "
        f"clients (10th to 90th percentile, seeds pooled).{more}</p>"
        '<div class="controls"><div class="chips" id="legend" role="group" aria-label="Methods shown"></div>'
        '<label class="switch"><input type="checkbox" id="bands" checked> bands</label></div>'
        f'<div class="pair">{_figure("score-curve", f"Test {name} over rounds", f"Test {name}")}'
        f"{_figure('loss-curve', 'Test loss over rounds', 'Test loss')}</div>"
    )


def each_client(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the section with the plot of single clients."""
    name = data["metric_name"]
    if len(comparison.results) > 1 and comparison.baseline:
        words = f"Every client's {name} with the chosen method, sorted, and below it the gain over training alone."
    else:
        words = f"Every client's {name}, sorted."
    if not comparison.baseline:
        words += " Training alone (the method <code>local</code>) was not run, so gains are not known."
    return (
        f'<p>{words}</p><div class="controls">'
        '<div class="chips" id="choose-client" role="group" aria-label="Method"></div>'
        '<label class="switch" id="sort-switch"><input type="checkbox" id="by-gain"> sort by gain</label></div>'
        '<p class="reading" id="client-reading" aria-live="polite"></p>'
        + _figure("client-plot", f"{name} and gain of each client")
        + '<p class="note" id="client-note"></p>'
    )


def worst(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return a table of the ten clients with the worst score for each method; one table is shown at a time."""
    score = comparison.score
    unit = ", points" if score.percent else ""
    parts = ["<p>The clients with the lowest score, by name.</p>"]
    if not score.higher_is_better:
        parts = ["<p>The clients with the largest error, by name.</p>"]
    parts.append(
        '<div class="controls"><div class="chips" id="choose-worst" role="group" aria-label="Method"></div></div>'
    )
    for method in comparison.results:
        clients = worst_clients(comparison, method)
        heads = [("client", "text"), (data["metric_name"], "")]
        with_gain, with_labels = clients[0]["gain"] is not None, any(row["labels"] for row in clients)
        with_group = any(row["group"] is not None for row in clients)
        heads += [("training alone", ""), (f"gain{unit}", "")] if with_gain else []
        heads += [("training samples", "")] + ([("group", "")] if with_group else [])
        heads += [("labels (samples)", "text")] if with_labels else []
        rows = []
        for row in clients:
            cells = [(row["score"], f"<strong>{score_text(row['score'], score)}</strong>")]
            if with_gain:
                cells.append((row["alone"], score_text(row["alone"], score)))
                cells.append((row["gain"], _gain(row["gain"], score)))
            cells.append((row["samples"], count_text(row["samples"])))
            cells += [(row["group"], escape(str(row["group"])))] if with_group else []
            labels = f'<td class="text">{escape(row["labels"])}</td>' if with_labels else ""
            name = f'<th scope="row" class="name">{escape(row["name"])}</th>'
            rows.append(f"<tr>{name}{''.join(map(_cell, cells))}{labels}</tr>")
        hidden = "" if method == data["chosen"] else " hidden"
        parts.append(f'<div class="worst" data-method="{escape(method)}"{hidden}>{_table("", heads, rows)}</div>')
    return "".join(parts)


def weights(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the section with the heat maps of cooperation weights."""
    if not data["weights"]:
        return "<p>None of these methods has a cooperation graph: their clients talk to a hub or to nobody.</p>"
    return (
        "<p>A row shows how much a client listens to each of the others. The weight of its own model is not coloured; "
        "it is given in the text below.</p>"
        '<div class="controls"><div class="chips" id="choose-weights" role="group" aria-label="Method"></div>'
        '<label class="slide" id="round-label">round <input type="range" id="round" min="0" value="0" step="1">'
        '<output id="round-value"></output></label></div>'
        '<p class="reading" id="weights-reading" aria-live="polite"></p>'
        + _figure("weights-plot", "Cooperation weights")
        + '<p class="note" id="weights-note"></p>'
        + _graph_quality(data)
    )


def _graph_quality(data: dict[str, Any]) -> str:
    """Return the part about the quality of learned graphs, if the clients have true groups."""
    if not data["quality"]:
        return ""
    return (
        "<h3>Do the right clients find each other?</h3>"
        "<p>Compared with the true groups (known ones, or clients with equal label sets): the area under the ROC curve "
        "of the edges, solid (1 is perfect, 0.5 a guess), and the adjusted Rand index of the groups that the weights "
        "form, dotted (1 is perfect, 0 a guess). Dropped edges count as not found.</p>"
        + _figure("quality-plot", "Quality of the learned graph over rounds")
    )


def cost(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the section with the score against bytes."""
    name = data["metric_name"]
    methods = [escape(row["method"]) for row in data["methods"]]
    key = "".join(f'<span><i class="dot" data-method="{method}"></i>{method}</span>' for method in methods)
    return (
        f"<p>The bytes a client has sent and received (mean over clients, logarithmic) and its {name} then; the "
        "large marker is the end of the run. Methods that send nothing are drawn as a line.</p>"
        + f'<div class="key">{key}</div>'
        + _figure("bytes-plot", f"{name} against bytes per client")
        + '<p class="note">A round with the hub costs one model up and one down per participating client.</p>'
    )


def partition(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the section about the partition."""
    drawing = data["partition"]
    if drawing["counts"] is None:
        words = "How many samples each client has, from the fewest training samples to the most."
    else:
        by = "group and labels" if comparison.clients.get("groups") is not None else "their labels"
        words = f"Training samples of each client (above) and of each class (below); clients are ordered by {by}."
    note = f'<p class="note">{escape(drawing["note"])}</p>' if drawing["note"] else ""
    return f"<p>{words}</p>{_figure('partition-plot', 'The partition: clients by classes')}{note}"


def repeat(comparison: "Comparison", data: dict[str, Any]) -> str:
    """Return the command, the config of each method, and the time of each run."""
    parts = [
        "<p>This command repeats the comparison:</p>",
        f'<div class="command"><pre id="command">{escape(comparison.command)}</pre>',
    ]
    parts.append('<button type="button" id="copy">Copy</button></div>')
    if comparison.folder is not None:
        parts.append(f"<p>The runs are in <code>{escape(str(comparison.folder))}</code>.</p>")
    parts.append("<h3>Configuration</h3>")
    for method, results in comparison.results.items():
        seeds = ", ".join(str(result.config["run"]["seed"]) for result in results)
        words = f"seed {seeds}" if len(results) == 1 else f"seeds {seeds}; the first is shown"
        text = escape(dump_toml(_shortened(results[0].config)))
        parts.append(f"<details><summary>{escape(method)} <small>{words}</small></summary><pre>{text}</pre></details>")
    heads = [("method", "text"), ("seed", ""), ("device", "text")]
    heads += [(words, "") for words in ("total", "compiling", "in the program")]
    rows = []
    for method, results in comparison.results.items():
        for result in results:
            spent = [result.seconds.get(part) for part in ("wall", "compile", "program")]
            device = f'<td class="text">{escape(result.device)}</td>'
            times = "".join(_cell((value, seconds_text(value))) for value in spent)
            seed = _cell((result.config["run"]["seed"], str(result.config["run"]["seed"])))
            rows.append(f'<tr><th scope="row">{escape(method)}</th>{seed}{device}{times}</tr>')
    return "".join(parts) + "<h3>Device and time</h3>" + _table("", heads, rows)


def _shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Replace lists that are too long to read (the edges of a given graph) by a note."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list | tuple) and len(value) > LONGEST_LIST:
            return f"{len(value)} values, left out here: they are in config.toml of the run's folder"
        return value

    return short(config)


def _table(name: str, heads: list[tuple[str, str]], rows: list[str], sortable: bool = False) -> str:
    cells = []
    for words, kind in heads:
        inside = f'<button type="button">{words}</button>' if sortable else words
        cells.append(f'<th scope="col"{f" class={kind!r}" if kind else ""}>{inside}</th>')
    mark = f' id="{name}"' if name else ""
    head = f"<thead><tr>{''.join(cells)}</tr></thead>"
    return f'<div class="scroll" tabindex="0"><table{mark}>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _cell(cell: tuple[Any, str]) -> str:
    value, words = cell
    return f'<td data-value="{"" if value is None else escape(str(value))}">{words}</td>'


def _gain(value: float | None, score: Score) -> str:
    """Return a gain in its colour; zero has none."""
    text = gain_text(value, score)
    kind = {"+": "gain", "−": "loss"}.get(text[0], "")
    return f'<span class="{kind}">{text}</span>' if kind else text


def _figure(name: str, label: str, caption: str = "") -> str:
    words = f"<figcaption>{escape(caption[:1].upper() + caption[1:])}</figcaption>" if caption else ""
    return f'<figure>{words}<div id="{name}" class="plot" role="img" aria-label="{escape(label)}"></div></figure>'
