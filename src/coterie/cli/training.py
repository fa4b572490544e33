"""`coterie run`, `resume` and `report`; and what all commands that train have in common."""

import contextlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.errors import CoterieError

__all__ = [
    "CodecName",
    "Flags",
    "Json",
    "Out",
    "Preallocate",
    "Rounds",
    "Set",
    "Where",
    "changed",
    "chosen_device",
    "console_for",
    "report",
    "report_or_note",
    "resume",
    "run",
    "screen_for",
]

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting, for example method.lr=0.1; repeatable."),
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Seed = Annotated[int | None, typer.Option(help="Everything random in training is drawn from it.")]
Out = Annotated[Path | None, typer.Option(help="The folder to write to.")]
CodecName = Annotated[str | None, typer.Option("--codec", help="How messages are compressed (coterie list codecs).")]
Where = Annotated[str, typer.Option("--device", help="auto, cpu, gpu, or gpu:1 for the second GPU.")]
Preallocate = Annotated[bool, typer.Option("--preallocate", help="Take the GPU's memory in advance.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts; progress goes to standard error.")]

Flags = Mapping[str, Mapping[str, Any]]  # section -> key -> value; None: not given


def run(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    changes: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    codec: CodecName = None,
    out: Out = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """Run one experiment."""
    from coterie.experiment.config import Experiment
    from coterie.storage.toml import read_toml

    flags: Flags = {"codec": {"name": codec}, "run": {"rounds": rounds, "seed": seed}}
    tables = changed(read_toml(experiment), flags, changes)
    chosen = Experiment.from_dict(_for_one_run(tables))
    name = chosen.method.name.rpartition(":")[2]
    data = chosen.data.name.rpartition(":")[2]
    folder = out or Path("runs") / f"{data}-{name}-seed{chosen.run.seed}"
    console = console_for(as_json)
    device = chosen_device(where, preallocate, console)
    from coterie.comparison.compare import for_one_run
    from coterie.experiment.folder import RunFolder
    from coterie.experiment.job import Job
    from coterie.experiment.run import execute

    with screen_for(console, folder) as screen:
        notify = for_one_run(screen.update, name, chosen.run.seed)
        complete = RunFolder(folder).complete
        result = execute(Job.of(chosen), out=folder, device=device, progress=notify)
        if complete:
            console.print(f"{folder} is complete already: it is only read", markup=False, soft_wrap=True)
    _show_run(result, folder, console, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """Continue a run or a comparison that was stopped."""
    from coterie.cli.comparing import run_comparison
    from coterie.comparison.config import ComparisonConfig
    from coterie.comparison.folder import ComparisonFolder

    comparison = ComparisonFolder(folder)
    if comparison.exists():
        tables = comparison.read()
        if tables["data"]["name"] == "in-memory":
            raise CoterieError(
                f"{folder} was started with data from Python: call coterie.compare again with the same data"
            )
        run_comparison(ComparisonConfig.from_dict(tables), folder, where, preallocate, as_json)
        return
    from coterie.experiment.folder import RunFolder

    config = RunFolder(folder).config()
    console = console_for(as_json)
    device = chosen_device(where, preallocate, console)
    from coterie.comparison.compare import for_one_run
    from coterie.experiment.run import resume as resume_run

    with screen_for(console, folder) as screen:
        notify = for_one_run(screen.update, config["method"]["name"].rpartition(":")[2], config["run"]["seed"])
        result = resume_run(folder, device=device, progress=notify)
    _show_run(result, folder, console, as_json)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR [DIR ...]", help="Folders of runs or comparisons.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write.")] = None,
) -> None:
    """Write the report of runs and comparisons as one HTML file."""
    from coterie.pages import report as write

    print(
        f"report: {write(folders, out or (folders[0] / 'report.html' if len(folders) == 1 else Path('report.html')))}"
    )


def _show_run(result: Any, folder: Path, console: Any, as_json: bool) -> None:
    from coterie.cli.screen import print_leaderboard
    from coterie.comparison.comparison import Comparison
    from coterie.experiment.cluster_path import has_path, path_words

    comparison = Comparison.read([folder])
    path = report_or_note(comparison, folder / "report.html", console)
    if as_json:
        scores = dict(zip(result.names, result.final["test_score"].tolist(), strict=True))
        print(json.dumps(result.summary() | {"scores": scores, "folder": str(folder), "report": path}))
        return
    print_leaderboard(console, comparison.leaderboard())
    if has_path(result):
        console.print(path_words(result), markup=False)
    console.print(f"run: {folder}", markup=False, soft_wrap=True)
    if path is not None:
        console.print(f"report: {path}", markup=False, soft_wrap=True)


def changed(tables: Mapping[str, Any], flags: Flags, changes: list[str] | None) -> dict[str, Any]:
    """Return the tables of a file, changed by the flags that were given and then by `--set`."""
    from coterie.storage.toml import parse_override

    given = {section: {k: v for k, v in values.items() if v is not None} for section, values in flags.items()}
    wanted: dict[str, dict[str, Any]] = {section: values for section, values in given.items() if values}
    result: dict[str, Any] = dict(tables)
    own: dict[str, dict[str, Any]] = {}
    for text in changes or []:
        for section, values in parse_override(text).items():
            for key, value in values.items():
                label, dot, setting = key.rpartition(".")
                if section == "methods":
                    if not dot:
                        raise CoterieError(
                            f"--set {text!r}: write methods.NAME.KEY=VALUE, for example methods.ditto.tie=0.5"
                        )
                    own.setdefault(label, {})[setting] = value
                else:
                    wanted.setdefault(section, {})[key] = value
    for section, values in wanted.items():
        result[section] = _updated(result.get(section, {}), values)
    if own:
        methods = result.get("methods", {})
        result["methods"] = {**methods, **{label: _updated(methods.get(label, {}), v) for label, v in own.items()}}
    return result


def _updated(table: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Change some keys of a section; with another name, the settings of the old one are dropped."""
    if not isinstance(table, Mapping) or ("name" in values and values["name"] != table.get("name")):
        return dict(values)
    return {**table, **values}


def _for_one_run(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of one run from those of a comparison, with the settings of its method."""
    from coterie.experiment.config import SECTIONS

    rest = {key: value for key, value in tables.items() if key not in ("compare", "methods")}
    method, own = rest.get("method", {}), tables.get("methods", {})
    if isinstance(method, Mapping) and isinstance(own, Mapping):
        table = own.get(method.get("name", SECTIONS["method"].default), {})
        if isinstance(table, Mapping) and table:
            rest["method"] = {**method, **table}
    return rest


def console_for(as_json: bool) -> Any:
    """Return where to print for people: standard output, or standard error where that is for JSON."""
    from rich.console import Console

    return Console(stderr=as_json, highlight=False)


def chosen_device(where: str, preallocate: bool, console: Any) -> Any:
    """Choose the device before anything else uses JAX, and print it: the first line of every run."""
    from coterie.experiment.device import choose_device

    device = choose_device(where, preallocate=preallocate)
    console.print(f"device: {device.label}", markup=False, soft_wrap=True)
    return device


@contextlib.contextmanager
def screen_for(console: Any, folder: Path, runs: int = 1) -> Iterator[Any]:
    """Show progress; on Ctrl-C print the command that continues."""
    from coterie.experiment.screen import Screen

    screen = Screen(console, runs)
    try:
        with screen:
            yield screen
    except KeyboardInterrupt:
        typer.echo(f"stopped after round {screen.round}; continue with: coterie resume {folder}", err=True)
        raise typer.Exit(130) from None


def report_or_note(comparison: Any, path: Path, console: Any) -> str | None:
    """Write the report; if Plotly is missing, print how to install it."""
    if importlib.util.find_spec("plotly") is None:
        console.print("there is no report.html, which needs plotly: pip install 'coterie[report]'", markup=False)
        return None
    from coterie.pages import write_report

    return str(write_report(comparison, path))
