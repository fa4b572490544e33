"""The tables of methods: the leaderboard, all scores, and what each method was given and chose in tuning."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.learning.score import SCORES, Score
from coterie.pages.html import Cell, Html, Row, h, join, table
from coterie.pages.opening import role_tag
from coterie.pages.words import bytes_text, count_text, gain_text, score_text

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["gain_cell", "leaderboard", "scores", "tuning"]


def gain_cell(value: float | None, score: Score, after: str = "") -> Cell:
    """Return a gain in its colour; zero has none."""
    text = gain_text(value, score)
    kind = {"+": "gain", "−": "loss"}.get(text[0])
    return Cell(join(h("span", text, class_=kind), h("small", f" {after}") if after else None), value)


def leaderboard(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the table of methods: the gain first, since it is the answer."""
    board = [row for row in comparison.leaderboard() if not row["failed"]]
    score, compared = comparison.score, comparison.baseline is not None
    unit = ", points" if score.percent else f", {score.label}"
    heads = ["text:method", *([f"gain{unit}"] if compared else []), f"mean {score.label}"]
    heads += ["std over clients", board[0]["worst_label"], *(["beat alone"] if compared else [])]
    heads += ["bytes per client", "seconds"]
    rows = []
    for i, row in enumerate(board):
        method, alone = row["method"], row["method"] == comparison.baseline
        cells: list[Any] = [Cell(_named(comparison, method), i)]
        if compared:
            gain = data["gains"].get(method)
            cells.append(
                gain_cell(gain.mean, score, _between(gain, score)) if gain is not None and not alone else Cell("–")
            )
        cells.append(Cell(h("strong", score_text(row["mean"], score)), row["mean"]))
        cells.append(Cell(gain_text(row["std"], score).lstrip("+"), row["std"]))
        cells.append(Cell(score_text(row["worst"], score), row["worst"]))
        if compared:
            beat = None if alone else row["beat_alone"]
            cells.append(Cell("–" if beat is None else f"{count_text(beat)} of {count_text(row['clients'])}", beat))
        cells.append(Cell(bytes_text(row["bytes_per_client"]), row["bytes_per_client"]))
        cells.append(Cell(f"{row['seconds']:.1f}", row["seconds"]))
        kind = "aside" if comparison.role(method) in ("guess", "pooled") else ""
        rows.append(Row(cells, "best" if method == data["chosen"] else kind))
    rows += [Row([label], "failed", f"No result: {why}") for label, why in comparison.failures.items()]
    explained = ["Every client counts once: its score is a mean over runs."]
    explained += ["After each mean gain over training alone: its 95 % interval."] if compared else []
    explained += ["Seconds are those of one run, without compiling."]
    if any(row["role"] == "pooled" for row in board):
        explained.append("The pooled method trains one model on all data in one place, which these clients cannot do.")
    return join(table(heads, rows, "leaderboard-table", sortable=True), h("p", " ".join(explained), class_="note"))


def _named(comparison: "Comparison", method: str) -> Html:
    return join(h("i", class_="dot", data_method=method), method, " ", role_tag(comparison, method))


def _between(gain: Any, score: Score) -> str:
    low, high = (gain_text(value, score) for value in (gain.low, gain.high))
    return f"({low} to {high})" if gain.known else ""


def scores(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return every score of every method, the mean over clients and runs; empty for runs that have only one."""
    board = [row for row in comparison.leaderboard() if not row["failed"]]
    names = [name for name in SCORES if any(row["scores"].get(name) is not None for row in board)]
    if len(names) < 2:
        return join()
    best = {name: _best([row["scores"].get(name) for row in board], SCORES[name]) for name in names}
    rows = []
    for row in board:
        cells: list[Any] = [_named(comparison, row["method"])]
        for name in names:
            value = row["scores"].get(name)
            text = score_text(value, SCORES[name])
            cells.append(Cell(h("strong", text) if value is not None and value == best[name] else text, value))
        rows.append(Row(cells, "best" if row["method"] == data["chosen"] else ""))
    heads = ["text:method", *(_score_head(SCORES[name]) for name in names)]
    words = (
        f"Means over clients and runs, on test samples; the best of a column is bold. Methods are judged by "
        f"{comparison.score.label}."
    )
    return join(h("p", words), table(heads, rows, "scores-table", sortable=True))


def _score_head(score: Score) -> str:
    return score.label if score.higher_is_better else f"{score.label} (low is good)"


def _best(values: Sequence[float | None], score: Score) -> float | None:
    return max((v for v in values if v is not None), key=lambda value: score.sign * value, default=None)


def tuning(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return what each method was given to choose from, and what it chose on validation data; empty without tuning."""
    tuned = comparison.tuning
    if not tuned:
        return join()
    words = (
        "What each method was given, and what it chose. Candidates are judged on validation samples only, never on the "
        "test samples that this report is about, and every split of the data is tuned anew."
    )
    heads = ["text:method", "text:chose", "text:was given", "candidates", "validation loss", "seconds"]
    rows = [_tuned(row["method"], tuned.get(row["method"])) for row in data["methods"]]
    return join(h("p", words), table(heads, rows, "tuning-table"))


def _tuned(method: str, records: Sequence[Mapping[str, Any]] | None) -> Row:
    """Return the row of one method; its records are those of the splits."""
    if not records:
        return Row([method], "aside", "not tuned: it has nothing to tune, or its settings were given")
    chosen = Counter(_settings(record["chosen"]) for record in records)
    times = [f"{text} ({n} of {len(records)} splits)" if len(chosen) > 1 else text for text, n in chosen.most_common()]
    given = "; ".join(f"{name} {', '.join(f'{v:g}' for v in tried)}" for name, tried in records[0]["values"].items())
    losses = [min(losses) for record in records if (losses := _losses(record))]
    loss = float(np.mean(losses)) if losses else None
    count = len(records[0]["candidates"])
    seconds = sum(record.get("seconds", 0) for record in records)
    cells = [method, h("strong", "; ".join(times)), given, Cell(str(count), count)]
    return Row([*cells, Cell("–" if loss is None else f"{loss:.4g}", loss), Cell(f"{seconds:.1f}", seconds)])


def _losses(record: Mapping[str, Any]) -> list[float]:
    """Return the losses of the candidates; only that of the choice where the score decided."""
    decided = [c for c in record["candidates"] if c["settings"] == record["chosen"] and "validation_score" in c]
    return [c["validation_loss"] for c in decided or record["candidates"] if c["validation_loss"] is not None]


def _settings(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in chosen.items())
