"""The tables of a comparison as papers print them: mean ± standard deviation over runs, the best bold, daggers.

A run's number is the mean over clients of the score that methods are judged by; runs differ in their seed and, with
several splits, in their split. A dagger is a paired test: the 95 % interval of the mean gain over training alone,
corrected for the number of methods, lies above zero (or, the double dagger, below it).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.comparison.pairing import split_of, values
from coterie.learning.score import Score

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["FORMATS", "Line", "csv_table", "latex", "lines", "long_frame", "markdown", "over_runs", "pfllib_frame"]

BETTER, WORSE = "better", "worse"
LATEX_LETTERS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One method in the table.

    Attributes:
        method, role: its label, and what it is in the comparison.
        mean, std: over runs, of the mean over clients; std is None with one run.
        runs: how many.
        rank: 1 for the best, 2 for the second, among methods that train without pooling the data; 0 for the others.
        mark: "better" or "worse" than training alone by the paired test, else "".
        gain, low, high: the mean gain over training alone and its 95 % interval; None without it.
        worst: the mean over the worst decile of clients, or the worst client.
        bytes_per_client: sent and received in the whole run.
    """

    method: str
    role: str
    mean: float | None
    std: float | None
    runs: int
    rank: int
    mark: str
    gain: float | None
    low: float | None
    high: float | None
    worst: float | None
    bytes_per_client: float


def over_runs(comparison: "Comparison", method: str) -> np.ndarray:
    """Return the mean over clients of every run of a method `[R]`; NaN where no client has the score."""
    means = []
    for result in comparison.results[method]:
        score = values(result, comparison.score)
        known = score[np.isfinite(score)]
        means.append(known.mean() if len(known) else math.nan)
    return np.asarray(means)


def lines(comparison: "Comparison") -> list[Line]:
    """Return the rows of the table in the order of the leaderboard; methods without a result are left out."""
    board = [row for row in comparison.leaderboard() if not row["failed"]]
    sign = comparison.score.sign
    ranked = [row for row in board if row["role"] in ("alone", "cooperates") and _mean(comparison, row) is not None]
    ranked.sort(key=lambda row: -sign * (_mean(comparison, row) or 0.0))
    ranks = {row["method"]: place for place, row in enumerate(ranked[:2], 1)}
    table = []
    for row in board:
        runs = over_runs(comparison, row["method"])
        known = runs[np.isfinite(runs)]
        above, below = (row["low"] or 0) > 0, (row["high"] or 0) < 0
        table.append(
            Line(
                method=row["method"],
                role=row["role"],
                mean=_mean(comparison, row),
                std=float(known.std(ddof=1)) if len(known) > 1 else None,
                runs=len(runs),
                rank=ranks.get(row["method"], 0),
                mark=BETTER if above else WORSE if below else "",
                gain=row["mean_gain"],
                low=row["low"],
                high=row["high"],
                worst=row["worst"],
                bytes_per_client=row["bytes_per_client"],
            )
        )
    return table


def _mean(comparison: "Comparison", row: dict[str, Any]) -> float | None:
    runs = over_runs(comparison, row["method"])
    known = runs[np.isfinite(runs)]
    return float(known.mean()) if len(known) else None


def caption(comparison: "Comparison", rows: Sequence[Line], marks: tuple[str, str]) -> str:
    """Return what the numbers are, as a caption says it."""
    runs, clients = max(line.runs for line in rows), len(comparison.clients["names"])
    score = comparison.score
    spread = f"mean ± standard deviation over {runs} runs of the mean" if runs > 1 else "mean of one run"
    text = [f"Test {score.label}{' in %' if score.percent else ''}: {spread} over {clients} clients."]
    text.append(
        f"{'Higher' if score.higher_is_better else 'Lower'} is better; the best is bold, the second underlined."
    )
    if comparison.baseline is not None:
        count = sum(line.role == "cooperates" for line in rows)
        text.append(
            f"{marks[0]} better, {marks[1]} worse than training alone ({comparison.baseline}): paired over clients, "
            f"95 %, corrected for {count} methods."
        )
    return " ".join(text)


def _heads(comparison: "Comparison") -> list[str]:
    score = comparison.score
    heads = ["method", f"{score.label}{' (%)' if score.percent else ''}"]
    heads += [f"gain{' (points)' if score.percent else ''}"] if comparison.baseline is not None else []
    return [*heads, "worst decile" if len(comparison.clients["names"]) >= 20 else "worst client", "MB per client"]


def _cells(line: Line, comparison: "Comparison") -> list[str]:
    """Return the numbers of a line as text, without emphasis; the first is the score."""
    score = comparison.score
    spread = "" if line.std is None else f" ± {_number(line.std, score)}"
    cells = [f"{_number(line.mean, score)}{spread}"]
    if comparison.baseline is not None:
        own = line.method == comparison.baseline or line.gain is None
        cells.append("" if own else f"{_number(line.gain, score, sign=True)}")
    return [*cells, _number(line.worst, score), f"{line.bytes_per_client / 1e6:.3g}"]


def _number(value: float | None, score: Score, sign: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    plus = "+" if sign else ""
    return f"{100 * value:{plus}.2f}" if score.percent else f"{value:{plus}.4g}"


def latex(comparison: "Comparison") -> str:
    """Return the table as LaTeX, for the packages booktabs and (of underlined numbers) none other."""
    rows, heads = lines(comparison), _heads(comparison)
    marks = {BETTER: r"$^{\dagger}$", WORSE: r"$^{\ddagger}$", "": ""}
    body = []
    for line in rows:
        score, *rest = (cell.replace("±", r"$\pm$").replace("–", "--") for cell in _cells(line, comparison))
        rest = [f"${cell}$" if cell[:1] in "+-" and cell[1:2].isdigit() else cell for cell in rest]
        score = {1: rf"\textbf{{{score}}}", 2: rf"\underline{{{score}}}"}.get(line.rank, score) + marks[line.mark]
        body.append(" & ".join([_tex(line.method), score, *rest]) + r" \\")
    words = _tex(caption(comparison, rows, ("DAGGER", "DDAGGER"))).replace("±", r"$\pm$")
    words = words.replace("DDAGGER", r"$\ddagger$").replace("DAGGER", r"$\dagger$")
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{words}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(map(_tex, heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _tex(text: str) -> str:
    """Write text so that LaTeX prints it as it is."""
    return "".join(LATEX_LETTERS.get(letter, letter) for letter in text)


def markdown(comparison: "Comparison") -> str:
    """Return the table as Markdown."""
    rows, heads = lines(comparison), _heads(comparison)
    marks = {BETTER: "†", WORSE: "‡", "": ""}
    body = []
    for line in rows:
        score, *rest = _cells(line, comparison)
        score = {1: f"**{score}**", 2: f"<u>{score}</u>"}.get(line.rank, score) + marks[line.mark]
        body.append([line.method.replace("|", r"\|"), score, *rest])
    rule = ["---", *["---:"] * (len(heads) - 1)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, rule, *body])
    return f"{table}\n\n{caption(comparison, rows, ('†', '‡'))}\n"


def csv_table(comparison: "Comparison") -> str:
    """Return the table as CSV: numbers in the score's own unit, one column for each field of `Line`."""
    import pandas as pd

    from coterie.storage.csv_text import csv_bytes

    return csv_bytes(pd.DataFrame([dataclasses.asdict(line) for line in lines(comparison)])).decode()


FORMATS: dict[str, tuple[str, Callable[["Comparison"], str]]] = {
    "latex": ("table.tex", latex),
    "markdown": ("table.md", markdown),
    "csv": ("table.csv", csv_table),
}


def long_frame(comparison: "Comparison") -> Any:
    """Return every number of every run: method, seed, split, client, round, metric, value.

    Metrics are those of each evaluation (`test_score`, `validation_loss`, ...), and for the kept models every score as
    `test.accuracy`, `validation.log-loss` and so on.
    """
    import pandas as pd

    frames, splits = [], []
    for method, results in comparison.results.items():
        for result in results:
            if (split := split_of(result)) not in splits:
                splits.append(split)
            about = {"method": method, "seed": result.config["run"]["seed"], "split": splits.index(split)}
            clients = list(result.names)

            def rows(number: int, metric: str, found: Any, about: Any = about, clients: Any = clients) -> Any:
                return pd.DataFrame({**about, "client": clients, "round": number, "metric": metric, "value": found})

            for row in result.rows:
                numbers = {k: v for k, v in row.items() if isinstance(v, list) and len(v) == len(clients)}
                frames += [rows(row["round"], metric, found) for metric, found in numbers.items()]
            scored = result.all_scores()  # None in a run of version 0.1
            parts = () if scored is None else (("test", scored.test), ("validation", scored.validation))
            for part, scores in parts:
                frames += [rows(result.best_round, f"{part}.{name}", found) for name, found in scores.items()]
    return pd.concat(frames, ignore_index=True)


def pfllib_frame(comparison: "Comparison") -> Any:
    """Return the scores as PFLlib counts them, beside ours: to lay them next to tables that were made with it.

    A client weighs as much as it has test samples, and the round with the best test score counts. Test samples that
    choose the round make it look better than it is, so the column is called `optimistic`; `ours` is the score of the
    kept models, every client once. Both are in the metric that runs were trained with, means over runs.
    """
    import pandas as pd

    weight = np.asarray(comparison.clients["sizes"]["test"], float)
    table = []
    for method, results in comparison.results.items():
        sign = results[0].score.sign
        best = []
        for result in results:
            scores = [np.asarray(row["test_score"], float) @ weight / weight.sum() for row in result.rows]
            best.append(max(scores, key=lambda score: sign * score))
        ours = [float(np.mean(result.final["test_score"])) for result in results]
        spread = float(np.std(best, ddof=1)) if len(best) > 1 else None
        row = {"method": method, "optimistic": float(np.mean(best)), "optimistic_std": spread}
        table.append(row | {"ours": float(np.mean(ours)), "metric": results[0].metric})
    return pd.DataFrame(table).set_index("method")
