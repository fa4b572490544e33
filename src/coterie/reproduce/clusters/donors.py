"""Tables 2 and 3 of Lyu, Hanzely, Kolar (2022, section 6.2) beside the donors that are public: other data, as said."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.reproduce import differences_of
from coterie.reproduce.clusters.paper import DONOR_DIFFERENCES, TABLE2, TABLE2_ABOVE_1, TABLE3
from coterie.reproduce.clusters.studies import CROSS_VALIDATED, LOCAL, NO_DISTRICTS, OURS, SINGLE
from coterie.reproduce.record import Record, make_record

__all__ = ["donor_records"]

# The rows of both tables, and the model in each column of ours. Nothing can be tuned in the first two.
ROWS = {
    LOCAL: {"printed": LOCAL},
    SINGLE: {"printed": SINGLE},
    OURS: {"printed": CROSS_VALIDATED, "tuned": OURS},
    NO_DISTRICTS: {"tuned": NO_DISTRICTS},
}
SPREAD = ("lower_quartile", "median", "upper_quartile")


def donor_records(summary: Sequence[Mapping[str, Any]], command: str) -> dict[str, Record]:
    """Return the records of Tables 2 and 3 from the summary of the study of donors."""
    by_method = {row["method"]: row for row in summary}
    losses, shares = [], []
    for name, columns in ROWS.items():
        own = {block: by_method[method] for block, method in columns.items()}
        accuracy = {block: row["accuracy"] for block, row in own.items()}
        losses.append(_row(name, TABLE2.get(name), own, (*SPREAD, "max")))
        shares.append(_row(name, TABLE3.get(name), accuracy, (*SPREAD, "ratio")))
    for name in TABLE2_ABOVE_1:
        counts = {block: f"{by_method[method]['above_1']:.0f}" for block, method in ROWS[name].items()}
        losses.append({"row": f"{name}: how many above 1", "paper": TABLE2_ABOVE_1[name], **counts})
    words = "mean ± standard deviation / quartiles / {} over areas [standard deviation of the mean over divisions]"
    return {
        name: make_record(
            title,
            f"Lyu, Hanzely, Kolar 2022, {number} (other donors)",
            rows,
            statistics=words.format(last),
            command=command,
            differences=differences_of(DONOR_DIFFERENCES, ROWS, ("printed", "tuned")),
            seeds=summary[0]["seeds"],
            needs="karlan_list_2007.csv",
        )
        for name, title, number, rows, last in (
            ("table2", "known clusters, Table 2: cross-entropy, substitute donors", "Table 2", losses, "maximum"),
            ("table3", "known clusters, Table 3: accuracy, substitute donors", "Table 3", shares, "performance ratio"),
        )
    }


def _row(name: str, paper: Sequence[str] | None, own: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> Any:
    """Make a row; `keys` are the figures after the mean and its standard deviation."""
    theirs = "" if paper is None else f"{paper[0]} ± {' / '.join(paper[1:])}"
    cells = {}
    for block, row in own.items():
        text = f"{row['mean']:.3f} ± " + " / ".join(f"{row[key]:.3f}" for key in ("sd", *keys))
        cells[block] = text if row["over_seeds"] is None else f"{text} [{row['over_seeds']:.3f}]"
    figures = {block: {key: row[key] for key in ("mean", "sd", *keys, "over_seeds")} for block, row in own.items()}
    return {"row": name, "paper": theirs, "figures": figures, **cells}
