"""`coterie run`, `resume` and `report`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.comparing import run_comparison
from coterie.cli.options import (
    CodecName,
    Coordinator,
    Devices,
    FaultsFile,
    Flags,
    Json,
    MeetWithin,
    Memory,
    Out,
    Preallocate,
    Precision,
    ProcessCount,
    ProcessIndex,
    Profiled,
    Rounds,
    Seed,
    Set,
    TrustCode,
    Where,
    WorldDropout,
    WorldLate,
    WorldParticipation,
    WorldSlow,
    changed,
    chosen_device,
    code_of,
    refuse_sweep,
    report_or_note,
    screen_for,
)
from coterie.cli.profiles import print_profile
from coterie.cli.terminal import console_for, only_python_speaks, say
from coterie.errors import CoterieError
from coterie.registry import names_from

__all__ = ["report", "resume", "run"]


def run(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    changes: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    codec: CodecName = None,
    faults: FaultsFile = None,
    participation: WorldParticipation = None,
    dropout: WorldDropout = None,
    slow: WorldSlow = None,
    late: WorldLate = None,
    precision: Precision = None,
    memory: Memory = None,
    out: Out = None,
    where: Where = "auto",
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: ProcessCount = None,
    process: ProcessIndex = None,
    meet_within: MeetWithin = None,
    preallocate: Preallocate = False,
    profiled: Profiled = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Run one experiment, or simulate a federation of real peers (federation.toml).

    A file with a section [sweep] is for `coterie sweep`.
    """
    from coterie.experiment.config import Experiment
    from coterie.peers.faults import Faults
    from coterie.processes.address import address_of
    from coterie.processes.meeting import told
    from coterie.sites.federation import simulated
    from coterie.storage.toml import read_toml

    address = address_of(coordinator, processes, process, meet_within)
    if address is not None:
        only_python_speaks()
    world = {"participation": participation, "dropout": dropout, "slow": slow, "late": late}
    running = {"rounds": rounds, "seed": seed, "precision": precision, "memory": memory}
    flags: Flags = {"codec": {"name": codec}, "run": running, "world": world}
    tables = changed(read_toml(experiment), flags, changes)
    refuse_sweep(tables, experiment)
    if faults is not None:
        tables["faults"] = Faults.read(faults).to_dict()
    with code_of(experiment, trust_code):
        chosen = Experiment.from_dict(_for_one_run(simulated(tables)))
    name = chosen.method.name.rpartition(":")[2]
    data = chosen.data.name.rpartition(":")[2]
    more = "-world" * bool(chosen.world) + "-faults" * bool(chosen.faults)
    folder = out or Path("runs") / f"{data}-{name}-seed{chosen.run.seed}{more}"
    console = console_for(as_json)
    from coterie.experiment.profiling import NO_PROFILE, Profile

    speaks = address is None or address.process == 0
    profile = Profile(folder) if profiled and speaks else NO_PROFILE
    with told():
        with profile.part("start"):
            device = chosen_device(where, preallocate, console, folder, devices, address)
            from coterie.comparison.compare import for_one_run
            from coterie.experiment.folder import RunFolder
            from coterie.experiment.job import Job
            from coterie.experiment.run import execute
            from coterie.experiment.several import loading, place_here

        complete = RunFolder(folder).complete
        if profiled and complete:
            raise CoterieError(
                f"--profile: {folder} is complete already, there is nothing to time; choose another --out"
            )
        with screen_for(console, folder) as screen:
            notify = for_one_run(screen.update, name, chosen.run.seed)
            with code_of(experiment, trust_code), profile.part("input and output"):  # a graph may name another one
                job = Job.of(chosen, load=loading(device))
                if "members" in tables:  # of a federation, whose faults name its members
                    job = job.with_fault_names([str(member["name"]) for member in tables["members"]])
                job, place = place_here(job, device)
            result = execute(job, out=folder, device=device, progress=notify, place=place, profile=profile)
            if complete:
                console.print(f"{folder} is complete already: it is only read", markup=False, soft_wrap=True)
    if isinstance(profile, Profile):
        print_profile(console, profile.finish(), folder)
    if speaks:
        _show_run(result, folder, console, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison or a sweep.")],
    where: Where = "auto",
    devices: Devices = None,
    preallocate: Preallocate = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Continue a run, a comparison or a sweep that was stopped."""
    from coterie.comparison.config import ComparisonConfig
    from coterie.comparison.folder import ComparisonFolder
    from coterie.comparison.sweeps.folder import SweepFolder

    if SweepFolder(folder).exists():
        from coterie.cli.sweeping import resume_sweep

        resume_sweep(folder, where, preallocate, trust_code, as_json)
        return
    comparison = ComparisonFolder(folder)
    if comparison.exists():
        tables = comparison.read()
        if tables["data"]["name"] == "in-memory":
            raise CoterieError(
                f"{folder} was started with data from Python: call coterie.compare again with the same data"
            )
        with names_from(folder / "comparison.toml", trust_code):
            config = ComparisonConfig.from_dict(tables)
            run_comparison(config, folder, where, preallocate, as_json, trust_code=trust_code, devices=devices)
        return
    from coterie.experiment.folder import RunFolder

    tables = RunFolder(folder).config()
    console = console_for(as_json)
    device = chosen_device(where, preallocate, console, folder, devices)
    from coterie.comparison.compare import for_one_run
    from coterie.experiment.run import resume as resume_run

    with screen_for(console, folder) as screen:
        notify = for_one_run(screen.update, tables["method"]["name"].rpartition(":")[2], tables["run"]["seed"])
        result = resume_run(folder, device=device, progress=notify, trust_code=trust_code)
    _show_run(result, folder, console, as_json)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR [DIR ...]", help="Folders of runs or comparisons; or one of a sweep.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; with --format or --figures, the folder to write into.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="latex|csv|markdown",
            help="Write the table of a paper instead: mean ± standard deviation over runs. With csv also results.csv.",
        ),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(metavar="pdf|svg", help="Write curves, gains and graphs as files of this kind instead."),
    ] = None,
) -> None:
    """Write the report of runs and comparisons as one HTML file, or its tables and figures for a paper."""
    from coterie.pages import report as write

    here = folders[0] if len(folders) == 1 else Path()
    if form is None and figures is None:
        say(f"report: {write(folders, out or here / 'report.html')}")
        return
    from coterie.pages.papers import write_figures, write_tables

    files = [] if form is None else write_tables(folders, out or here, form)
    files += [] if figures is None else write_figures(folders, (out or here) / "figures", figures)
    say("written: " + ", ".join(map(str, files)))


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


def _for_one_run(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of one run from those of a comparison, with the settings of its method."""
    from coterie.experiment.config import SECTIONS

    rest = {key: value for key, value in tables.items() if key not in ("compare", "methods")}
    method, own = rest.get("method", {}), tables.get("methods", {})
    if isinstance(method, Mapping) and isinstance(own, Mapping):
        name = method.get("name", SECTIONS["method"].default)
        table = own.get(name, {}) if isinstance(name, str) else {}
        if isinstance(table, Mapping) and table:
            rest["method"] = {**method, **table}
    return rest
