"""The report's curves, gains and graphs as PDF or SVG files for a paper, drawn with Matplotlib.

The report itself is drawn in the browser. Matplotlib is used here because its files need no browser, hold text as text
and follow the style sheet of the person who writes the paper (`matplotlibrc`). It is imported only for this.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.errors import CoterieError
from coterie.learning.score import Score

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["draw_figures"]

# Okabe and Ito's palette, as in the report; training alone, guessing and one model on all data have their own colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800")
ROLES = {"alone": "#888888", "guess": "#bbbbbb", "pooled": "#222222"}
WIDTH, HEIGHT = 3.4, 2.4  # inches: one column of a paper


def draw_figures(comparison: "Comparison", folder: str | Path, form: Literal["pdf", "svg"] = "pdf") -> list[Path]:
    """Write `curves`, `loss`, `gains` and one `graph-METHOD` for each method with a graph; returns the files.

    Args:
        comparison: what to draw.
        folder: where; it is made if it is missing.
        form: "pdf" or "svg".
    """
    plt = _matplotlib()
    from coterie.pages.content import content
    from coterie.pages.weights import client_axis
    from coterie.storage.durable import durable_write, storage_errors

    data = content(comparison)
    colours = _colours(comparison)
    drawings: dict[str, Callable[[Any], None]] = {
        "curves": lambda axes: _curves(axes, data, "score", colours),
        "loss": lambda axes: _curves(axes, data, "loss", colours),
    }
    if data["gains"]:
        drawings["gains"] = lambda axes: _gains(axes, data["gains"], comparison, colours)
    axis = client_axis(comparison.clients)
    graphs = {name: results[0] for name, results in comparison.results.items() if results[0].graphs}
    for name, result in graphs.items():
        drawings[f"graph-{_file_name(name)}"] = partial(_graph, result=result, axis=axis)
    folder = Path(folder)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in drawings.items():
        path = folder / f"{name}.{form}"
        durable_write(path, _rendered(plt, draw, form))
        files.append(path)
    return files


def _matplotlib() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise CoterieError("figures need Matplotlib; install it with: pip install 'coterie[figures]'") from None
    mpl.use("agg", force=False)
    import matplotlib.pyplot as plt

    return plt


def _rendered(plt: Any, draw: Callable[[Any], None], form: str) -> bytes:
    """Return one figure as the bytes of a file that depend on nothing but the figure."""
    import io

    # Type 42 fonts are text that can be searched and edited; no date, and a fixed salt, so that bytes repeat.
    settings = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "coterie", "font.size": 8}
    with plt.rc_context(settings):
        figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
        try:
            draw(axes)
            target = io.BytesIO()
            figure.savefig(target, format=form, metadata={"CreationDate": None} if form == "pdf" else {"Date": None})
        finally:
            plt.close(figure)
    return target.getvalue()


def _colours(comparison: "Comparison") -> dict[str, str]:
    others = [name for name in comparison.results if comparison.role(name) == "cooperates"]
    chosen = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}
    return chosen | {name: ROLES[role] for name in comparison.results if (role := comparison.role(name)) in ROLES}


def _curves(axes: Any, data: Mapping[str, Any], what: str, colours: Mapping[str, str]) -> None:
    """Draw the mean over clients and runs, and the middle 80 % of the clients."""
    trained = data["trained"]
    factor = 100 if what == "score" and trained["percent"] else 1
    for name, curve in data["curves"].items():
        rounds = curve["rounds"]
        mean, low, high = (
            factor * np.asarray([np.nan if v is None else v for v in curve[what][part]], float)
            for part in ("mean", "low", "high")
        )
        axes.plot(
            rounds, mean, color=colours[name], label=name, linewidth=1.2, marker="." if len(rounds) == 1 else None
        )
        axes.fill_between(rounds, low, high, color=colours[name], alpha=0.12, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    unit = " (%)" if factor == 100 else ""
    axes.set_ylabel(f"test {trained['metric_name']}{unit}" if what == "score" else "test loss")
    axes.legend(frameon=False, fontsize="x-small", ncols=2)


def _gains(axes: Any, gains: Mapping[str, Any], comparison: "Comparison", colours: Mapping[str, str]) -> None:
    """Draw the mean gain of every method over training alone with its 95 % interval."""
    score: Score = comparison.score
    factor = 100 if score.percent else 1
    names = [name for name in gains if name != comparison.baseline][::-1]
    for place, name in enumerate(names):
        gain = gains[name]
        if gain.known:
            axes.plot([factor * gain.low, factor * gain.high], [place, place], color=colours[name], linewidth=1.2)
        axes.plot(factor * gain.mean, place, "o", color=colours[name], markersize=4)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    unit = "points" if score.percent else score.label
    axes.set_xlabel(f"gain over training alone ({unit})")


def _graph(axes: Any, result: Any, axis: Mapping[str, Any]) -> None:
    """Draw the weights of the last round: a row is a client, a column whom it hears."""
    from coterie.pages.weights import group_weights

    last = result.graphs[max(result.graphs)]
    table, _ = group_weights(last, axis["member"], len(axis["labels"]))
    image = axes.imshow(
        table, cmap="Blues", vmin=min(0.0, float(table.min())), interpolation="nearest", rasterized=True
    )
    for border in axis["borders"]:
        axes.axhline(border, color="#888888", linewidth=0.5)
        axes.axvline(border, color="#888888", linewidth=0.5)
    for one in (axes.xaxis, axes.yaxis):
        one.get_major_locator().set_params(integer=True)
    axes.set_xlabel("hears" if axis["single"] else "hears the group")
    axes.set_ylabel("client" if axis["single"] else "group of clients")
    axes.figure.colorbar(image, ax=axes, label="weight")


def _file_name(name: str) -> str:
    """Return a label as a part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
