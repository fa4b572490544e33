"""The report of a sweep as one HTML file: what is best, parallel coordinates, and the table of candidates."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError
from coterie.pages.html import Cell, Html, Row, asset, document, figure, h, join, table
from coterie.pages.words import bytes_text, count_text, score_text, seconds_text

if TYPE_CHECKING:
    from coterie.comparison.sweeps.result import Sweep

__all__ = ["axis_of", "render_sweep"]

LINES = 500  # candidates that are drawn: the best of them
TICKS = 8  # values of a setting that are all written beside its axis
WIDE = 30.0  # from this ratio of the largest value to the smallest on, an axis is logarithmic
SCRIPTS = ("figures.js", "page.js", "sweep.js")


def render_sweep(sweep: "Sweep", plotly: str) -> str:
    """Return the whole file; `plotly` is the text of plotly.js."""
    lines = sweep.lines()
    title = f"{count_text(len(lines))} candidates, {count_text(len(sweep.rows))} runs"
    sections = [
        ("coordinates", "Parallel coordinates", _coordinates(sweep, lines)),
        ("candidates", "Candidates", _candidates(sweep, lines)),
        ("repeat", "Repeat it", _repeat(sweep)),
    ]
    scripts = [plotly, "".join(map(asset, SCRIPTS))]
    return document(f"coterie: {title}", _opening(sweep, title), sections, drawing(sweep, lines), scripts)


def _opening(sweep: "Sweep", title: str) -> Html:
    try:
        settings = "; ".join(f"{_name(key)} = {_value(value)}" for key, value in sweep.best_settings.items())
        best = next(line for line in sweep.lines() if line["best"])
        score = sweep.score
        words = (
            f"Validation {score.label} {score_text(best['validation'], score)}, "
            f"test {score.label} {score_text(best['test'], score)}."
        )
        spoken = [
            "Best on validation samples: ",
            h("span", settings or f"candidate {best['candidate']}", class_="detail"),
        ]
        return h("header", h("h1", title), h("p", spoken, class_="verdict"), h("p", words, class_="about"))
    except CoterieError as error:
        return h("header", h("h1", title), h("p", f"There is no best candidate: {error}.", class_="verdict"))


def drawing(sweep: "Sweep", lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what `sweep.js` draws: axes with their ticks, and for every line its place on each axis, from 0 to 1."""
    score, shown = sweep.score, lines[:LINES]
    axes = {_name(key): axis_of([line["settings"][key] for line in shown]) for key in sweep.keys}
    for part in ("validation", "test"):
        values = [line[part] for line in shown]
        if any(value is not None for value in values):
            axes[f"{part} {score.label}"] = _score_axis(values, score)
    shares = next((axis["at"] for name, axis in axes.items() if name.startswith("validation ")), [None] * len(shown))
    known = [line["validation"] for line in shown if line["validation"] is not None]
    ends = sorted(known, key=lambda value: score.sign * value) if known else []
    return {
        "axes": [{"label": name, "ticks": axis["ticks"]} for name, axis in axes.items()],
        "lines": [
            {
                "at": [axis["at"][i] for axis in axes.values()],
                "share": shares[i],
                "best": line["best"],
                "text": _hover(sweep, line),
            }
            for i, line in enumerate(shown)
        ],
        "settings": len(sweep.keys),  # the first axes
        "colour": f"validation {score.label}",
        "ends": [score_text(ends[0], score), score_text(ends[-1], score)] if ends else [],
    }


def axis_of(values: Sequence[Any]) -> dict[str, Any]:
    """Return the places of values on an axis from 0 to 1, and its ticks: numbers by size, everything else in order."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    distinct: list[Any] = sorted(set(values)) if numbers else list(dict.fromkeys(map(_value, values)))
    if len(distinct) == 1:
        return {"at": [0.5] * len(values), "ticks": [[0.5, _value(distinct[0])]]}
    if not numbers:
        place = {value: i / (len(distinct) - 1) for i, value in enumerate(distinct)}
        return {"at": [place[_value(value)] for value in values], "ticks": [[at, v] for v, at in place.items()]}
    logarithmic = distinct[0] > 0 and distinct[-1] / distinct[0] >= WIDE
    scaled = math.log if logarithmic else float
    low, high = scaled(distinct[0]), scaled(distinct[-1])

    def at(value: float) -> float:
        return (scaled(value) - low) / (high - low)

    written = distinct if len(distinct) <= TICKS else [distinct[round(i * (len(distinct) - 1) / 4)] for i in range(5)]
    return {"at": [at(value) for value in values], "ticks": [[at(value), _value(value)] for value in written]}


def _score_axis(values: Sequence[float | None], score: Any) -> dict[str, Any]:
    """Return the axis of a score, whose better end is above; None where a candidate has no result."""
    known = [score.sign * value for value in values if value is not None]
    low, high = min(known), max(known)
    span = high - low or 1.0
    at = [None if value is None else (score.sign * value - low) / span if high > low else 0.5 for value in values]
    shares = [0, 0.25, 0.5, 0.75, 1] if high > low else [0.5]
    marks = [low + share * span if high > low else low for share in shares]
    ticks = [[share, score_text(score.sign * mark, score)] for share, mark in zip(shares, marks, strict=True)]
    return {"at": at, "ticks": ticks}


def _hover(sweep: "Sweep", line: dict[str, Any]) -> list[str]:
    words = [f"candidate {line['candidate']}{', the best' if line['best'] else ''}"]
    words += [f"{_name(key)} = {_value(value)}" for key, value in line["settings"].items()]
    if line["note"]:
        return [*words, "diverged" if line["diverged"] else line["note"]]
    for part in ("validation", "test"):
        words.append(f"{part} {sweep.score.label} {score_text(line[part], sweep.score)}")
    return words


def _coordinates(sweep: "Sweep", lines: Sequence[dict[str, Any]]) -> Html:
    label = sweep.score.label
    words = (
        "Each line is a candidate, from its settings to its scores (the mean over its seeds); the thick line is the "
        f"best on validation samples. The better end of a score is above, and the colour is the validation {label}."
    )
    notes = []
    if len(lines) > LINES:
        notes.append(f"The best {LINES} of {count_text(len(lines))} candidates are drawn.")
    if failed := sum(bool(line["note"]) for line in lines[:LINES]):
        notes.append(f"Dotted: {count_text(failed)} without a result, which diverged or could not be used.")
    return join(
        h("p", words),
        figure("sweep-plot", f"Parallel coordinates of settings and {label}"),
        h("p", " ".join(notes), class_="note") if notes else None,
    )


def _candidates(sweep: "Sweep", lines: Sequence[dict[str, Any]]) -> Html:
    score = sweep.score
    heads = ["text:candidate", *(f"text:{_name(key)}" for key in sweep.keys), f"validation {score.label}"]
    heads += [f"test {score.label}", "runs", "rounds", "bytes per client", "seconds"]
    rows = []
    for line in lines:
        settings = [Cell(_value(line["settings"][key]), _number(line["settings"][key])) for key in sweep.keys]
        name = f"{line['candidate']}{' (best)' if line['best'] else ''}"
        if line["note"]:
            words = "; ".join(f"{_name(key)} = {_value(value)}" for key, value in line["settings"].items())
            rows.append(Row([Cell(name, line["candidate"])], "failed", f"{words}: {line['note']}"))
            continue
        cells = [Cell(name, line["candidate"]), *settings]
        cells.append(Cell(h("strong", score_text(line["validation"], score)), line["validation"]))
        cells.append(Cell(score_text(line["test"], score), line["test"]))
        cells += [Cell(count_text(line[key]), line[key]) for key in ("runs", "rounds")]
        cells.append(Cell(bytes_text(line["bytes_per_client"]), line["bytes_per_client"]))
        cells.append(Cell(seconds_text(line["seconds"]), line["seconds"]))
        rows.append(Row(cells, "best" if line["best"] else ""))
    words = (
        "The best on validation samples is marked; its test score is that of an honest choice, the best test score of "
        "the table is not. Seconds of runs that were trained together are shares."
    )
    return join(table(heads, rows, "candidates-table", sortable=True), h("p", words, class_="note"))


def _repeat(sweep: "Sweep") -> Html:
    command = [h("pre", sweep.command, id="command"), h("button", "Copy", type="button", id="copy")]
    where = None
    if sweep.folder is not None:
        where = h("p", "The runs are in ", h("code", Path(sweep.folder)), ", the table is results.csv there.")
    return join(h("p", "This command repeats the sweep:"), h("div", command, class_="command"), where)


def _name(key: str) -> str:
    """Return a setting's name: a section's name is the section."""
    return key.removesuffix(".name")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
