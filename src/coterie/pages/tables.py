"""The tables of methods: the leaderboard, all scores, and what each method was given and chose in tuning."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.learning.score import SCORES, Score
from coterie.pages.answer import role
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
    board, score, compared = comparison.leaderboard(), comparison.score, comparison.baseline is not None
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
        kind = "aside" if role(comparison, method) in ("guess", "pooled") else ""
        rows.append(Row(cells, "best" if method == data["chosen"] else kind))
    failures: Mapping[str, str] = getattr(comparison, "failures", {})
    rows += [Row([h("span", label)], "failed", f"No result: {why}") for label, why in failures.items()]
    explained = ["Every client counts once: its score is a mean over runs."]
    explained += ["After each mean gain over training alone: its 95 % interval."] if compared else []
    explained += ["Seconds are those of one run, without compiling."]
    if any(role(comparison, row["method"]) == "pooled" for row in board):
        explained.append("The pooled method trains one model on all data in one place, which these clients cannot do.")
    return join(table(heads, rows, "leaderboard-table", sortable=True), h("p", " ".join(explained), class_="note"))


def _named(comparison: "Comparison", method: str) -> Html:
    return join(h("i", class_="dot", data_method=method), method, " ", role_tag(comparison, method))


def _between(gain: Any, score: Score) -> str:
    low, high = (gain_text(value, score) for value in (gain.low, gain.high))
    return "" if "–" in (low, high) else f"({low} to {high})"


def scores(comparison: "Comparison", data: Mapping[str, Any]) -> Html | str:
    """Return every score of every method, the mean over clients and runs; empty for runs that have only one."""
    means = {label: _means(runs) for label, runs in comparison.results.items()}
    names = [name for name in SCORES if any(name in mean for mean in means.values())]
    if len(names) < 2:
        return ""
    best = {name: _best(means, SCORES[name]) for name in names}
    rows = []
    for row in data["methods"]:
        method = row["method"]
        cells: list[Any] = [_named(comparison, method)]
        for name in names:
            value, text = means[method].get(name), score_text(means[method].get(name), SCORES[name])
            cells.append(Cell(h("strong", text) if value is not None and value == best[name] else text, value))
        rows.append(Row(cells, "best" if method == data["chosen"] else ""))
    heads = ["text:method", *(_score_head(SCORES[name]) for name in names)]
    words = "Means over clients and runs, on test samples; the best of a column is bold."
    return join(h("p", words), table(heads, rows, "scores-table", sortable=True))


def _score_head(score: Score) -> str:
    return score.label if score.higher_is_better else f"{score.label} (low is good)"


def _means(runs: Any) -> dict[str, float]:
    """Return the mean of every score that a method's runs have, over clients that have it."""
    names = {name for run in runs for name in getattr(run, "scores", None) or {}}
    means = {}
    for name in names & SCORES.keys():
        values = np.concatenate([np.asarray(run.scores[name], float) for run in runs if name in run.scores])
        if np.isfinite(values).any():
            means[name] = float(np.nanmean(values))
    return means


def _best(means: Mapping[str, Mapping[str, float]], score: Score) -> float | None:
    values = [mean[score.name] for mean in means.values() if score.name in mean]
    return max(values, key=lambda value: score.sign * value, default=None)


def tuning(comparison: "Comparison", data: Mapping[str, Any]) -> Html | str:
    """Return what each method was given to choose from, and what it chose on validation data."""
    tuned: Mapping[str, list[dict[str, Any]]] = getattr(comparison, "tuning", {})
    if not tuned:
        return ""
    rows = []
    for label, candidates in tuned.items():
        tried = [_settings(candidate) for candidate in candidates]
        chosen = next((text for text, c in zip(tried, candidates, strict=True) if c.get("chosen")), "–")
        value = next((c.get("validation_score") for c in candidates if c.get("chosen")), None)
        rows.append(
            Row([label, h("strong", chosen), score_text(value, comparison.score), str(len(tried)), "; ".join(tried)])
        )
    words = (
        "What each method was given and what it chose. All have the same number of tries, and each try was judged on "
        "validation samples only, never on the test samples that this report is about."
    )
    heads = ["text:method", "text:chose", f"validation {comparison.score.label}", "tries", "text:was given"]
    return join(h("p", words), table(heads, rows))


def _settings(candidate: Mapping[str, Any]) -> str:
    shown = candidate.get("settings", candidate)
    return ", ".join(f"{key} {value}" for key, value in shown.items() if key not in ("validation_score", "chosen"))
