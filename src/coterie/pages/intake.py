"""What went in: the task, every column of a table and what became of it, or the shape of arrays, and the classes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.pages.html import Cell, Html, Row, h, join, table
from coterie.pages.words import clip, count_text, listed

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["section"]

LEVELS = 8  # words of a column that are listed
CLASSES = 12  # classes that are listed in the sentence about the task
WHAT = {
    "number": "number",
    "words": "words, one input for each level",
    "date": "date, as numbers",
    "identifier": "left out: an identifier",
    "constant": "left out: always the same",
    "dropped": "left out",
}


def section(comparison: "Comparison", data: Mapping[str, Any]) -> Html | str:
    """Return what the methods were trained on; empty for folders that do not say."""
    record = _record(comparison)
    warnings = [h("li", words) for words in record.get("warnings", ())]
    return join(
        [h("p", sentence) for sentence in _sentences(comparison.clients, record)],
        h("ul", warnings, class_="warnings") if warnings else None,
        _columns(record["columns"]) if record.get("columns") else None,
    )


def _record(comparison: "Comparison") -> Mapping[str, Any]:
    """Return what is known about the table: from memory, or from the folder of a run; empty for arrays."""
    if "intake" in comparison.clients:
        return comparison.clients["intake"] or {}
    folder = next(iter(comparison.results.values()))[0].folder
    path = None if folder is None else Path(folder) / "preparation.json"
    if path is None or not path.is_file():
        return {}
    from coterie.data.tables import Preparation

    return Preparation.from_dict(json.loads(path.read_bytes())).intake()


def _sentences(clients: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Return the task and the inputs as sentences."""
    task = record.get("task") or _task(clients)
    shape = clients.get("sample_shape")
    inputs = ""
    if record.get("columns"):
        used = [column for column in record["columns"] if column.get("features")]
        counts = [len(used), len(record["columns"]), sum(len(column["features"]) for column in used)]
        inputs = "{} of {} columns became {} inputs.".format(*map(count_text, counts))
    elif shape:
        inputs = f"A sample is an array of {' × '.join(map(str, shape))} numbers."
    return [sentence for sentence in (task, inputs) if sentence]


def _task(clients: Mapping[str, Any]) -> str:
    """Return the task as a sentence, with the classes and how many training samples each has."""
    counts = np.asarray(clients.get("label_counts") or [], np.int64)
    if clients["kind"] == "regression":
        return "Regression."
    if clients["kind"] != "classification" or counts.ndim != 2 or not counts.size:
        return ""
    names = clients.get("class_names") or range(counts.shape[1])
    each = [f"{clip(str(name))} {count_text(int(n))}" for name, n in zip(names, counts.sum(0), strict=True)]
    more = [f"{count_text(len(each) - CLASSES)} more"] if len(each) > CLASSES else []
    words = listed([*each[: CLASSES if more else len(each)], *more])
    return f"Classification, {count_text(counts.shape[1])} classes (training samples): {words}."


def _columns(columns: Sequence[Mapping[str, Any]]) -> Html:
    rows = []
    for column in columns:
        inputs = column.get("features") or ()
        levels = [str(level) for level in column.get("levels") or ()]
        shown = ", ".join(clip(level) for level in levels[:LEVELS])
        shown += f" and {count_text(len(levels) - LEVELS)} more" if len(levels) > LEVELS else ""
        missing = float(column.get("missing") or 0)
        rows.append(
            Row(
                [
                    Cell(clip(str(column["name"])), kind="name"),
                    WHAT.get(column["kind"], column["kind"]),
                    Cell(count_text(len(inputs)), len(inputs)),
                    Cell(f"{100 * missing:.1f} %" if missing else "–", missing),
                    " ".join(part for part in (shown, column.get("note") or "") if part) or "–",
                ],
                "" if inputs else "aside",
            )
        )
    return table(["text:column", "text:what became of it", "inputs", "missing", "text:levels and notes"], rows)
