"""What went in: the task, every column of a table and what became of it, or the shape of arrays, and the classes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.experiment.folder import RunFolder
from coterie.pages.html import Cell, Html, Row, h, join, table
from coterie.pages.words import clip, count_text, listed

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["section"]

ROWS = 40  # columns listed at once; the others are behind a click
LISTED = 1000  # columns listed at all
CLASSES = 12  # classes that are listed in the sentence about the task
WHAT = {
    "number": "number",
    "words": "words, one input for each level",
    "date": "date, as numbers",
    "identifier": "left out: an identifier",
    "constant": "left out: always the same",
    "dropped": "left out",
}


def section(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return what the methods were trained on; empty for folders that do not say."""
    record = _record(comparison)
    warnings = [h("li", words) for words in record.get("warnings", ())]
    return join(
        [h("p", sentence) for sentence in _sentences(comparison, record)],
        h("ul", warnings, class_="warnings") if warnings else None,
        _columns(record["columns"]) if record.get("columns") else None,
    )


def _record(comparison: "Comparison") -> Mapping[str, Any]:
    """Return what is known about a table (`Intake.to_dict`): from memory, or from a run's folder; empty for arrays."""
    if "intake" in comparison.clients:
        return comparison.clients["intake"] or {}
    folder = next(iter(comparison.results.values()))[0].folder
    preparation = None if folder is None else RunFolder(folder).preparation()
    return {} if preparation is None else preparation.intake().to_dict()


def _sentences(comparison: "Comparison", record: Mapping[str, Any]) -> list[str]:
    """Return the task and the inputs as sentences."""
    clients = comparison.clients
    shape = clients.get("sample_shape")
    inputs = ""
    if record.get("columns"):
        used = [column for column in record["columns"] if column["becomes"]]
        numbers = [len(used), len(record["columns"]), record["inputs"]]
        inputs = "{} of {} columns became {} inputs".format(*map(count_text, numbers))
        inputs += f"; {record['statistics']}." if record.get("statistics") else "."
    elif shape:
        inputs = f"A sample is an array of {' × '.join(map(str, shape))} numbers."
    said = (record.get("task") or _task(clients), inputs)
    return [sentence[:1].upper() + sentence[1:].rstrip(".") + "." for sentence in said if sentence]


def _task(clients: Mapping[str, Any]) -> str:
    """Return the task as a sentence, with the classes and how many training samples each has."""
    counts = np.asarray(clients.get("label_counts") or [], np.int64)
    if clients["kind"] == "regression":
        return "Regression."
    if clients["kind"] != "classification" or counts.ndim != 2 or not counts.size:
        return ""
    names = clients.get("class_names") or range(counts.shape[1])
    each = [f"{clip(str(name))} ({count_text(int(n))})" for name, n in zip(names, counts.sum(0), strict=True)]
    more = [f"{count_text(len(each) - CLASSES)} more"] if len(each) > CLASSES else []
    words = listed([*each[: CLASSES if more else len(each)], *more])
    return f"Classification, {count_text(counts.shape[1])} classes (training samples): {words}."


def _columns(columns: Sequence[Mapping[str, Any]]) -> Html:
    rows = []
    for column in columns[:LISTED]:
        inputs, missing = column["becomes"], float(column["missing"] or 0)
        share = "–" if not missing else "< 1 %" if missing < 0.01 else f"{100 * missing:.0f} %"
        cells = [
            Cell(clip(str(column["name"])), kind="name"),
            WHAT.get(column["kind"], column["kind"]),
            Cell(count_text(len(inputs)), len(inputs)),
            Cell(share, missing),
            clip(column["note"] or "–"),
        ]
        rows.append(Row(cells, "" if inputs else "aside"))
    heads = ["text:column", "text:what became of it", "inputs", "missing", "text:notes"]
    if len(rows) <= ROWS:
        return table(heads, rows, "intake-table")
    rest = h("details", h("summary", f"{count_text(len(rows) - ROWS)} more columns"), table(heads, rows[ROWS:]))
    left_out = count_text(len(columns) - LISTED)
    note = h("p", f"{left_out} more columns are not listed here.", class_="note") if len(columns) > LISTED else None
    return join(table(heads, rows[:ROWS], "intake-table"), rest, note)
