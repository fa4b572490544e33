"""Tables 2 and 3 of Lyu, Hanzely, Kolar (2022, section 6.2) beside the donors that are public: other data, as said."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.reproduce import differences_of
from coterie.reproduce.clusters.paper import DONOR_DIFFERENCES, TABLE2, TABLE2_ABOVE_1, TABLE3, TABLE_DIFFERENCES
from coterie.reproduce.clusters.studies import CROSS_VALIDATED, LOCAL, NO_DISTRICTS, OURS, SINGLE
from coterie.reproduce.record import Record, make_record

__all__ = ["donor_records", "expected_donors"]

# The rows of both tables, and the model in each column of ours. Nothing can be tuned in the first two.
ROWS = {
    LOCAL: {"printed": LOCAL},
    SINGLE: {"printed": SINGLE},
    OURS: {"printed": CROSS_VALIDATED, "tuned": OURS},
    NO_DISTRICTS: {"tuned": NO_DISTRICTS},
}
# Each table: what its figures are, how the last one is called, and the keys of all of them.
TABLES = {
    "table2": ("cross-entropy", "maximum", "max"),
    "table3": ("accuracy", "performance ratio", "ratio"),
}
QUARTILES = ("lower_quartile", "median", "upper_quartile")


def donor_records(summary: Sequence[Mapping[str, Any]], command: str) -> dict[str, Record]:
    """Return the records of Tables 2 and 3 from the summary of the study of donors."""
    by_method = {row["method"]: row for row in summary}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for name, columns in ROWS.items():
        own = {block: by_method[method] for block, method in columns.items()}
        rows["table2"] += _rows("table2", name, own)
        rows["table3"] += _rows("table3", name, {block: row["accuracy"] for block, row in own.items()})
    for name, theirs in TABLE2_ABOVE_1.items():
        counts = {block: f"{by_method[method]['above_1']:.0f}" for block, method in ROWS[name].items()}
        rows["table2"].append({"row": f"{name}, above 1", "paper": theirs, **counts})
    words = "over areas, means over divisions [standard deviation of the mean over divisions]"
    notes = {"table2": f"{words}; above 1: number of areas", "table3": words}
    seeds = summary[0]["seeds"]
    return {
        name: _record(name, rows[name], command, statistics=notes[name], differences=_differences(name), seeds=seeds)
        for name in TABLES
    }


def expected_donors() -> list[Record]:
    """Return the records of Tables 2 and 3 before anything is run."""
    command = "coterie reproduce clusters --study donors"
    rows = {name: [row for model in TABLE2 for row in _rows(name, model, {})] for name in TABLES}
    rows["table2"] += [{"row": f"{name}, above 1", "paper": text} for name, text in TABLE2_ABOVE_1.items()]
    return [_record(name, rows[name], command, statistics="") for name in TABLES]


def _differences(table: str) -> list[str]:
    blocks = ("printed", "tuned")
    return differences_of((*DONOR_DIFFERENCES, *TABLE_DIFFERENCES[table]), ROWS, blocks)


def _record(name: str, rows: Sequence[Mapping[str, Any]], command: str, **about: Any) -> Record:
    number, what = name.removeprefix("table"), TABLES[name][0]
    title = f"known clusters, Table {number}: {what}, substitute donors"
    source = f"Lyu, Hanzely, Kolar 2022, Table {number} (donors that are not public)"
    return make_record(title, source, rows, command=command, needs="karlan_list_2007.csv", **about)


def _rows(table: str, name: str, own: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make the rows of a model: mean and standard deviation; quartiles; and the last figure of the table."""
    paper = {"table2": TABLE2, "table3": TABLE3}[table].get(name, ("", "", "", "", "", ""))
    theirs = (" ± ".join(filter(None, paper[:2])), " / ".join(filter(None, paper[2:5])), paper[5])
    _, word, last = TABLES[table]
    cells: dict[str, tuple[str, str, str]] = {}
    for block, row in own.items():
        spread = "" if row["over_seeds"] is None else f" [{row['over_seeds']:.3f}]"
        quartiles = " / ".join(f"{row[key]:.3f}" for key in QUARTILES)
        cells[block] = (f"{row['mean']:.3f} ± {row['sd']:.3f}{spread}", quartiles, f"{row[last]:.3f}")
    keys = ("mean", "sd", *QUARTILES, last, "over_seeds")
    figures = {block: {key: row[key] for key in keys} for block, row in own.items()}
    labels = (name, f"{name}, quartiles", f"{name}, {word}")
    rows: list[dict[str, Any]] = []
    for k, (label, text) in enumerate(zip(labels, theirs, strict=True)):
        rows.append({"row": label, "paper": text} | {block: each[k] for block, each in cells.items()})
    rows[0]["figures"] = figures
    return rows
