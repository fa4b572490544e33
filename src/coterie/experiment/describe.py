"""A result in a few words: the line that Python prints, and the small table that a notebook shows."""

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from coterie.learning.score import SCORES

if TYPE_CHECKING:
    from coterie.experiment.result import Result

__all__ = ["html", "line"]


def line(result: "Result") -> str:
    """Return what the run was and how its clients do, in one line."""
    where = "" if result.folder is None else f", folder {result.folder}"
    score = result.score
    mean = score.text(float(np.mean(result.final["test_score"])))
    return f"<Result: {_subject(result)}, mean {score.label} {mean}{where}>"


def html(result: "Result") -> str:
    """Return the scores as a table: mean over clients, best and worst client."""
    rows = []
    for name, values in result.scores.items():
        score, known = SCORES[name], values[np.isfinite(values)]
        if not known.size:
            continue
        ends = (known.min(), known.max()) if score.higher_is_better else (known.max(), known.min())
        cells = "".join(f"<td>{score.text(float(value))}</td>" for value in (known.mean(), *ends))
        rows.append(f"<tr><th style='text-align:left'>{escape(score.label)}</th>{cells}</tr>")
    head = "<tr><th></th><th>mean</th><th>worst client</th><th>best client</th></tr>"
    return f"<p>{escape(_subject(result))}</p><table>{head}{''.join(rows)}</table>"


def _subject(result: "Result") -> str:
    config, clients = result.config, len(result.names)
    data = config.get("data", {}).get("name", "in-memory").rpartition(":")[2]
    method = config["method"]["name"].rpartition(":")[2]
    many = "1 client" if clients == 1 else f"{clients} clients"
    return f"{method} on {'data from Python' if data == 'in-memory' else data}, {many}, round {result.best_round}"
