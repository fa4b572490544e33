"""What a reproduction found, as plain values: one row for each row of the paper's table, with its cells and figures.

`coterie reproduce` prints a record as a table and writes it to `reproduce.json`; docs/results/papers.md is made of the
records in benchmarks/results. A comparison becomes a record by `record_of`; experiments of another kind (estimators,
codecs) make their rows themselves.

    {"format": 1, "title", "source", "statistics", "command", "device", "seeds", "needs",
     "rows": [{"row", "name", "paper", "printed", "tuned", "gain", "figures": {"printed": {...}, "tuned": {...}}}],
     "differences": [...]}

Cells are text, with "" where there is nothing; figures are numbers, in per cent where the score is. Where both columns
run, a row whose settings as printed have the better validation score, or which failed when tuned, is the same in both.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.reproduce import STATISTICS, Reproduction, differences_of
from coterie.reproduce.cells import BLOCKS, SPREADS, cell, gain_cell
from coterie.storage.commands import command
from coterie.storage.durable import durable_write, storage_errors

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = [
    "FILE",
    "Record",
    "better_as_printed",
    "expected",
    "figures_of",
    "make_record",
    "merged",
    "record_of",
    "repeat",
    "with_rows",
    "write_record",
]

FILE = "reproduce.json"

Record = dict[str, Any]


def make_record(
    title: str,
    source: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    statistics: str,
    command: str,
    differences: Sequence[str] = (),
    seeds: int | None = None,
    device: str = "",
    needs: str = "",
) -> Record:
    """Return a record; a row may leave out every key but `row`.

    Args:
        title: of the table.
        source: where the paper's figures stand.
        rows: with the keys `row`, `name`, `paper`, `printed`, `tuned`, `gain`, `figures`.
        statistics: what the cells are, in words.
        command: the command that computes it.
        differences: sentences for the lines below the table.
        seeds: runs of each row; None where nothing was run.
        device: where it ran.
        needs: data without which it cannot be run, such as "CIFAR-10"; "" where the product has or makes them.
    """
    empty = {"name": "", "paper": "", "printed": "", "tuned": "", "gain": "", "figures": {}}
    return {
        "format": 1,
        "title": title,
        "source": source,
        "statistics": statistics,
        "command": command,
        "device": device,
        "seeds": seeds,
        "needs": needs,
        "rows": [empty | dict(row) for row in rows],
        "differences": list(differences),
    }


def record_of(laid_out: Reproduction, found: Mapping[str, "Comparison"], command: str, device: str) -> Record:
    """Return the record of a table whose comparisons ran.

    Args:
        laid_out: the experiment.
        found: the comparisons by block, "printed" or "tuned".
        command: the command that repeats them.
        device: where they ran.
    """
    kept = better_as_printed(found)
    failed = {label: found["tuned"].failures[label] for label in kept if label in found["tuned"].failures}
    if kept:
        found = {**found, "tuned": with_rows(found["tuned"], found["printed"], kept)}
    figures = {block: figures_of(comparison) for block, comparison in found.items()}
    labels = list(dict.fromkeys(label for block in figures.values() for label in block))
    last = list(figures)[-1]
    rows = []
    for label in labels:
        own = {block: figures[block][label] for block in figures if label in figures[block]}
        cells = {block: cell(each, laid_out.columns, laid_out.decimals) for block, each in own.items()}
        gain = gain_cell(own.get(last, {}), laid_out.decimals)
        about = {"row": label, "name": laid_out.names.get(label, ""), "paper": laid_out.paper.get(label, "")}
        rows.append(about | cells | {"gain": gain, "figures": own})
    notes = differences_of(laid_out.differences, labels, list(found), as_printed=kept)
    notes += [f"{label}, {BLOCKS[b]}: {why}" for b, each in found.items() for label, why in each.failures.items()]
    better = [label for label in kept if label not in failed]
    notes += [f"tuned: {', '.join(better)} as printed, because that has the better validation score"][: len(better)]
    notes += [f"tuned: {label} as printed, because it failed otherwise: {why}" for label, why in failed.items()]
    return make_record(
        laid_out.title,
        laid_out.source,
        rows,
        statistics=_in_words(laid_out.columns, BLOCKS[last]),
        command=command,
        differences=notes,
        seeds=max(len(runs) for each in found.values() for runs in each.results.values()),
        device=device,
    )


def better_as_printed(found: Mapping[str, "Comparison"]) -> list[str]:
    """Return the rows whose settings as printed have a better mean validation score than the tuned ones, or any."""
    if not {"printed", "tuned"} <= found.keys():
        return []
    printed, tuned = ({label: _validation(runs) for label, runs in found[b].results.items()} for b in BLOCKS)
    sign = found["tuned"].score.sign

    def better(label: str) -> bool:
        if label in found["tuned"].failures:
            return True
        return label in tuned and sign * printed[label] > sign * tuned[label]

    return [label for label in printed if better(label)]


def _validation(runs: Sequence[Any]) -> float:
    """Return the mean over runs and clients of the score on validation samples; NaN where nobody has any."""
    scores = np.concatenate([run.final["validation_score"] for run in runs])
    known = scores[np.isfinite(scores)]
    return float(known.mean()) if known.size else float("nan")


def with_rows(tuned: "Comparison", printed: "Comparison", labels: Sequence[str]) -> "Comparison":
    """Return the tuned comparison with some of the rows as printed."""
    chosen = {label: printed.tuning[label] for label in labels if label in printed.tuning}
    return dataclasses.replace(
        tuned,
        results=tuned.results | {label: printed.results[label] for label in labels},
        failures={label: why for label, why in tuned.failures.items() if label not in labels},
        tuning={label: each for label, each in tuned.tuning.items() if label not in labels} | chosen,
    )


def merged(records: Sequence[Record]) -> Record:
    """Return one record of several commands that ran rows or columns of one table; of what ran twice the last counts.

    The rows stand in the order in which they were run, without gains over a baseline that ran apart. A difference that
    only some of the records have names their rows, unless it begins with the name of a row.
    """
    rows: dict[str, Record] = {}
    for row in (row for record in records for row in record["rows"]):
        before = rows.get(row["row"], {})
        rows[row["row"]] = before | {key: value for key, value in row.items() if value or key not in before}
        rows[row["row"]]["figures"] = before.get("figures", {}) | row.get("figures", {})
    return records[-1] | {
        "command": "\n".join(dict.fromkeys(line for record in records for line in record["command"].splitlines())),
        "rows": list(rows.values()),
        "differences": _differences(records),
    }


def _differences(records: Sequence[Record]) -> list[str]:
    """Return the differences of records that are put together."""
    everywhere, of_some = [], []
    rows = {row["row"] for record in records for row in record["rows"]}
    for text in dict.fromkeys(text for record in records for text in record["differences"]):
        having = [record for record in records if text in record["differences"]]
        labels = dict.fromkeys(row["row"] for record in having for row in record["rows"])
        if len(having) == len(records) or re.sub("^tuned: ", "", text).split()[0].strip(",:") in rows:
            everywhere.append(text)
        else:
            of_some.append(f"{', '.join(labels)}: {text}")
    return everywhere + of_some


def expected(laid_out: Reproduction, command: str, needs: str = "") -> Record:
    """Return the record of a table that was not run: its rows with the paper's figures, and the command."""
    labels = dict.fromkeys([*laid_out.paper, *laid_out.tables["compare"]["methods"]])
    rows = [
        {"row": label, "name": laid_out.names.get(label, ""), "paper": laid_out.paper.get(label, "")}
        for label in labels
    ]
    words = _in_words(laid_out.columns)
    return make_record(laid_out.title, laid_out.source, rows, statistics=words, command=command, needs=needs)


def figures_of(comparison: "Comparison") -> dict[str, dict[str, Any]]:
    """Return the statistics of every row of a comparison, the gain over training alone, what was chosen, and the cost.

    A row that has no result has only `failed`.
    """
    means = {label: _per_run(runs, comparison)["mean"] for label, runs in comparison.results.items()}
    figures: dict[str, dict[str, Any]] = {}
    for label, runs in comparison.results.items():
        own = _per_run(runs, comparison)
        row: dict[str, Any] = {name: float(np.mean(values)) for name, values in own.items()}
        row["seeds"] = float(np.std(own["mean"], ddof=1)) if len(runs) > 1 else None
        row["runs"] = [float(value) for value in own["mean"]]
        row |= _gain(label, means, comparison)
        row["bytes_per_client"] = float(np.mean([result.ledger.bytes_per_client() for result in runs]))
        row["seconds"] = float(np.mean([result.seconds["wall"] for result in runs]))
        row["chosen"] = [record["chosen"] for record in comparison.tuning.get(label, [])]
        figures[label] = row
    return figures | {label: {"failed": why} for label, why in comparison.failures.items()}


def _per_run(runs: Sequence[Any], comparison: "Comparison") -> dict[str, np.ndarray]:
    """Return each statistic over the clients `[runs]`."""
    scale = 100 if comparison.score.percent else 1
    rows = [over_clients(scale * run.final["test_score"], comparison.higher_is_better) for run in runs]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return columns | {"own": np.array([scale * run.final["test_own_score"].mean() for run in runs])}


def over_clients(scores: np.ndarray, higher_is_better: bool = True) -> dict[str, float]:
    """Return the statistics of one run's scores `[K]`; percentile and tenth are those of the bad end."""
    worst_first = np.sort(scores) if higher_is_better else np.sort(scores)[::-1]
    return {
        "mean": float(scores.mean()),
        "clients": float(scores.std()),
        "p10": float(np.percentile(scores, 10 if higher_is_better else 90)),
        "worst_tenth": float(worst_first[: -(-len(scores) // 10)].mean()),
    }


def _gain(label: str, means: Mapping[str, np.ndarray], comparison: "Comparison") -> dict[str, float | None]:
    """Return the gain over training alone and its standard error, paired by seed."""
    if comparison.baseline is None or comparison.role(label) == "alone":
        return {"gain": None, "gain_error": None}
    gaps = comparison.score.sign * (means[label] - means[comparison.baseline])
    error = float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else None
    return {"gain": float(gaps.mean()), "gain_error": error}


def _in_words(columns: Sequence[str], gain_of: str = "") -> str:
    """Say what the cells are."""
    marks = [" ± " if name in SPREADS else " / " for name in columns[1:]]
    text = STATISTICS[columns[0]] + "".join(m + STATISTICS[c] for m, c in zip(marks, columns[1:], strict=True))
    if gain_of:
        text += " [standard deviation over seeds]; over alone: paired by seed, ± standard error, of " + gain_of
    return text


def repeat(paper: str, options: Mapping[str, Any]) -> str:
    """Return the command that runs a paper's experiment with these options."""
    words = ["reproduce", paper]
    for name, value in options.items():
        text = (
            ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value) if isinstance(value, tuple) else value
        )
        words += [f"--{name}"] if value is True else [f"--{name}", str(text)]
    return command(*words)


def write_record(folder: Path, record: Record, name: str = FILE) -> Path:
    """Write a record into a folder; a command with several tables names the file of each, "reproduce-table2.json"."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    durable_write(folder / name, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return folder / name
