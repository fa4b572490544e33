"""`coterie reproduce`: run a paper's experiment and print its figures next to ours.

To add a paper that compares methods, write `coterie/reproduce/x.py` with a function that returns a `Reproduction`, and
add a row to `PAPERS`. The parameters of the function become the options of the command.
"""

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.clusters import clusters_command
from coterie.cli.comparing import run_comparison
from coterie.cli.component import component_command
from coterie.cli.options import Json, Out, Preallocate, Where
from coterie.cli.outcome import text_table
from coterie.errors import CoterieError
from coterie.reproduce import Reproduction, pdbo, scool, spdb

__all__ = ["PAPERS", "as_command", "paired_rows", "papers"]


def as_command(lay_out: Callable[..., Reproduction]) -> Callable[..., None]:
    """Make a command of a function that lays out a paper's experiment."""
    parameters = inspect.signature(lay_out).parameters

    def command(
        out: Out = None, where: Where = "auto", preallocate: Preallocate = False, as_json: Json = False, **given: Any
    ) -> None:
        chosen = {name: _read(parameters[name], value) for name, value in given.items() if value is not None}
        laid_out = lay_out(**chosen)
        _reproduce(laid_out, out or Path(f"reproduce-{laid_out.folder}"), where, preallocate, as_json)

    common = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [_option(parameter) for parameter in parameters.values()]
    command.__signature__ = inspect.Signature([*options, *common])  # type: ignore[attr-defined]
    command.__doc__ = lay_out.__doc__
    return command


def _option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as Typer wants it; a tuple is a text with commas."""
    hint, help_text = typing.get_args(parameter.annotation)
    option = typer.Option(f"--{parameter.name}", help=help_text)
    if typing.get_origin(hint) is tuple:
        return parameter.replace(annotation=Annotated[str | None, option], default=None)
    return parameter.replace(annotation=Annotated[hint, option])


def _read(parameter: inspect.Parameter, value: Any) -> Any:
    """Return the value of an option as the function takes it."""
    hint, _ = typing.get_args(parameter.annotation)
    if typing.get_origin(hint) is not tuple:
        return value
    kind = typing.get_args(hint)[0]
    try:
        return tuple(kind(part.strip()) for part in value.split(",") if part.strip())
    except ValueError:
        raise CoterieError(f"--{parameter.name} {value!r}: write numbers with commas between") from None


PAPERS: dict[str, Callable[..., None]] = {
    "scool": as_command(scool.reproduction),
    "spdb": as_command(spdb.reproduction),
    "pdbo": as_command(pdbo.reproduction),
    "clusters": clusters_command,
    "component": component_command,
}

papers = typer.Typer(
    name="reproduce",
    help="Run a paper's experiment and print its figures next to ours.",
    epilog="Every method and seed is a run of its own; a second call does what is missing.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for name, command in PAPERS.items():
    papers.command(name)(command)


def _reproduce(laid_out: Reproduction, folder: Path, where: str, preallocate: bool, as_json: bool) -> None:
    """Run the comparison of a `Reproduction`, and print our figures next to the paper's."""
    from coterie.comparison.config import ComparisonConfig

    config = ComparisonConfig.from_dict(laid_out.tables)
    comparison, console = run_comparison(config, folder, where, preallocate, as_json)
    if as_json:
        return
    paper = laid_out.paper
    heads = ("method", "ours", "worst", "own classes", *(["paper"] if paper else []), "over alone")
    table = text_table(laid_out.title, heads, laid_out.note)
    for row in paired_rows(comparison):
        gain = "-" if row["gain"] is None else f"{row['gain']:+.2f}"
        gain += "" if row["error"] is None else f" ± {row['error']:.2f}"
        figures = [f"{row['mean']:.2f} ± {row['spread']:.2f}", f"{row['worst']:.2f}", f"{row['own']:.2f}"]
        theirs = [f"{paper[row['method']]:.2f}" if row["method"] in paper else "-"] if paper else []
        table.add_row(row["method"], *figures, *theirs, gain)
    console.print(table)


def paired_rows(comparison: Any) -> list[dict[str, Any]]:
    """Return the mean score of each method, its spread over seeds, and the gain over training alone, paired by seed.

    Scores that are written in percent are in percent.
    """
    import numpy as np

    score = comparison.score
    scale = 100 if score.percent else 1
    means = {
        label: np.array([scale * result.final["test_score"].mean() for result in results])
        for label, results in comparison.results.items()
    }
    rows = []
    for label, values in means.items():
        own = np.mean([scale * result.final["test_own_score"].mean() for result in comparison.results[label]])
        low = np.mean([scale * result.summary()["worst"] for result in comparison.results[label]])
        is_paired = comparison.baseline is not None and comparison.role(label) != "alone"
        gaps = score.sign * (values - means[comparison.baseline]) if is_paired else None
        error = None if gaps is None or len(gaps) < 2 else float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
        rows.append(
            {
                "method": label,
                "mean": float(values.mean()),
                "spread": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
                "own": float(own),
                "worst": float(low),
                "gain": None if gaps is None else float(gaps.mean()),
                "error": error,
            }
        )
    return sorted(rows, key=lambda row: -score.sign * row["mean"])
