"""What all commands that train have in common: their options, the console, the device, progress and the report."""

import contextlib
import errno
import importlib.util
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.terminal import say
from coterie.errors import CoterieError, shown
from coterie.storage.commands import command

__all__ = [
    "CodecName",
    "Coordinator",
    "Devices",
    "FaultsFile",
    "Flags",
    "Json",
    "MeetWithin",
    "Memory",
    "Out",
    "Preallocate",
    "Precision",
    "ProcessCount",
    "ProcessIndex",
    "Profiled",
    "Rounds",
    "Seed",
    "Set",
    "TrustCode",
    "Where",
    "WorldDropout",
    "WorldLate",
    "WorldParticipation",
    "WorldSlow",
    "changed",
    "checked_out",
    "chosen_device",
    "code_of",
    "refuse_sweep",
    "report_or_note",
    "screen_for",
]

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting, for example method.lr=0.1; repeatable."),
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Seed = Annotated[int | None, typer.Option(help="Everything random in training is drawn from it.")]


def checked_out(path: Path | None) -> Path | None:
    """Refuse a folder whose name no system, or no text file, can hold, before anything is trained."""
    if path is None:
        return None
    try:
        str(path).encode()
        os.lstat(path)
    except UnicodeEncodeError:
        raise CoterieError(f"--out {shown(str(path))} is not UTF-8; choose another name") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise CoterieError(f"--out {shown(str(path))} is too long a name; choose a shorter one") from None
    return path


Out = Annotated[Path | None, typer.Option(help="The folder to write to.", callback=checked_out)]
CodecName = Annotated[str | None, typer.Option("--codec", help="How messages are compressed (coterie list codecs).")]
FaultsFile = Annotated[
    Path | None, typer.Option("--faults", help="What goes wrong on the network: a TOML file (docs, Faults).")
]
# The settings of [world]; their ranges are checked where a file's are.
WorldParticipation = Annotated[
    float | None, typer.Option("--participation", help="Share of the clients drawn to take part in a round.")
]
WorldDropout = Annotated[
    float | None, typer.Option("--dropout", help="Chance that what a client sends in a round does not arrive.")
]
WorldSlow = Annotated[float | None, typer.Option("--slow", help="Share of the clients that are slow.")]
WorldLate = Annotated[int | None, typer.Option("--late", help="Rounds by which what slow clients do arrives later.")]
Where = Annotated[str, typer.Option("--device", help="auto, cpu, cpu:N for N virtual devices, gpu, gpu:N.")]
Devices = Annotated[
    int | None,
    typer.Option(help="Spread the clients, with their models and data, over so many devices (GPUs; or --device cpu)."),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        envvar="COTERIE_COORDINATOR",
        metavar="HOST:PORT|auto",
        help="Share the run with other processes, which meet at process 0; auto: as Slurm or Open MPI say (docs, "
        "Several processes and hosts).",
    ),
]
ProcessCount = Annotated[
    int | None, typer.Option("--processes", envvar="COTERIE_PROCESSES", help="How many processes share the run.")
]
ProcessIndex = Annotated[
    int | None, typer.Option("--process", envvar="COTERIE_PROCESS", help="Which of them this is, counted from 0.")
]
MeetWithin = Annotated[
    float | None,
    typer.Option(
        envvar="COTERIE_MEET_WITHIN",
        metavar="SECONDS",
        help="How long they wait for each other at the start (20); longer where a cluster starts them one by one.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(metavar="float32|float64|bfloat16", help="Of training; bfloat16 keeps weights and scores in float32."),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most memory for data and batches, such as 2GB; more data are read in groups."),
]
Preallocate = Annotated[bool, typer.Option("--preallocate", help="Take the GPU's memory in advance.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run code of others that the folder names (FILE.py:CLASS); read it first.")
]
Profiled = Annotated[
    bool,
    typer.Option("--profile", help="Say where the time went; write profile.json and a trace of the first rounds."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts; progress goes to standard error.")]

FOLDER_CONFIGS = ("config.toml", "comparison.toml", "sweep.toml")  # one of them is in every folder of ours
FOLDER_MARKS = ("coterie.json", "clients.json", "summary.json", "lock")  # beside it, one of these

Flags = Mapping[str, Mapping[str, Any]]  # section -> key -> value; None: not given


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
                            f"--set {shown(text)}: write methods.NAME.KEY=VALUE, for example methods.ditto.tie=0.5"
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


def code_of(file: Path, trust_code: bool) -> contextlib.AbstractContextManager[None]:
    """Return the scope in which the names of an experiment are read: code that a run's folder names needs trust."""
    from coterie.registry import names_from

    of_folder = file.name in FOLDER_CONFIGS and any((file.parent / mark).exists() for mark in FOLDER_MARKS)
    return names_from(file, trust_code) if of_folder else contextlib.nullcontext()


def chosen_device(
    where: str,
    preallocate: bool,
    console: Any,
    folder: Path | None = None,
    devices: int | None = None,
    address: Any = None,
) -> Any:
    """Choose the device before anything else uses JAX, and print it: the first line of every run.

    What has begun in `folder` continues on the kind and number of devices it began with. With the address of one of
    several processes, they meet here.
    """
    from coterie.experiment.device import choose_device

    if address is not None:
        console.quiet = address.process != 0  # the first one speaks for all
    device = choose_device(where, preallocate=preallocate, folder=folder, devices=devices, address=address)
    console.print(f"device: {device.label}", markup=False, soft_wrap=True)
    return device


@contextlib.contextmanager
def screen_for(console: Any, folder: Path, runs: int = 1) -> Iterator[Any]:
    """Show progress; on Ctrl-C, or when the process is asked to end, print the command that continues."""
    from coterie.experiment.interruption import Terminated, termination
    from coterie.experiment.screen import Screen

    screen = Screen(console, runs)
    try:
        with termination(), screen:
            yield screen
    except KeyboardInterrupt as stop:
        begun = any((folder / file).is_file() for file in FOLDER_CONFIGS)
        resume = f"continue with: {command('resume', folder)}"
        advice = f"stopped after round {screen.round}; {resume}" if begun else "stopped before it began; start it again"
        with contextlib.suppress(OSError):  # after SIGHUP the terminal is gone
            say(advice, to_errors=True)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)) from None


def refuse_sweep(tables: Mapping[str, Any], file: Path) -> None:
    """Refuse an experiment that varies its settings where only one set of them is asked for."""
    if "sweep" in tables:
        raise CoterieError(f"{file} has a section [sweep]: run it with `{command('sweep', file)}`, or take it out")


def report_or_note(comparison: Any, path: Path, console: Any) -> str | None:
    """Write the report; if Plotly is missing, print how to install it."""
    if importlib.util.find_spec("plotly") is None:
        console.print("there is no report.html, which needs plotly: pip install 'coterie[report]'", markup=False)
        return None
    from coterie.pages import report

    try:
        return str(report(comparison, path))
    except CoterieError as error:  # what was trained is shown all the same
        console.print(f"there is no report: {error}", markup=False, soft_wrap=True)
        return None
