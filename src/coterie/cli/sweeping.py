"""`coterie sweep`: one experiment with many settings."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import (
    Flags,
    Json,
    Out,
    Preallocate,
    Rounds,
    Set,
    TrustCode,
    Where,
    changed,
    chosen_device,
    code_of,
    report_or_note,
    screen_for,
)
from coterie.cli.terminal import console_for
from coterie.errors import CoterieError
from coterie.registry import names_from
from coterie.storage.commands import command

__all__ = ["resume_sweep", "sweep"]

SHOWN = 20  # candidates in the table at the end; all are in results.csv
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show the candidates and how many programs there would be.")
]
Batch = Annotated[
    int | None, typer.Option(help="At most so many runs in one program; without it, as many as memory allows.")
]


def sweep(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file with a section [sweep].")],
    changes: Set = None,
    rounds: Rounds = None,
    out: Out = None,
    dry_run: DryRun = False,
    batch: Batch = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Try many settings of one experiment, and keep the best by validation samples.

    coterie sweep experiment.toml --dry-run

    coterie sweep experiment.toml --set 'sweep.method.lr=[0.01, 0.1]' --out lr

    The file is that of `coterie run` with one section more. A key is SECTION.KEY, as for --set:

    [sweep]

    method.lr = { from = 0.001, to = 0.1, steps = 5, scale = "log" }

    method.tie = [0.01, 0.1, 1.0]         (with every lr: 15 candidates)

    seed = [0, 1, 2]                      (runs of each candidate, which is judged by their mean)

    [[sweep.together]]                    (first with first, second with second)

    model.hidden = [[32], [64, 64]]

    method.batch_size = [10, 20]

    Candidates that differ in real numbers and seeds only share one program and, where the clients are batched (small
    models, accelerators), are trained together. results.csv and report.html are in the folder, and a run for each
    candidate and seed. The same command, or `coterie resume`, continues a sweep that was stopped.
    """
    from coterie.comparison.sweeps.axes import flat
    from coterie.comparison.sweeps.plan import SweepConfig
    from coterie.sites.federation import simulated
    from coterie.storage.toml import read_toml

    flags: Flags = {"run": {"rounds": rounds}}
    tables = read_toml(experiment)
    if isinstance(tables.get("sweep"), dict):
        tables["sweep"] = flat(tables["sweep"])  # as --set writes its keys
    with code_of(experiment, trust_code):
        config = SweepConfig.from_dict(simulated(changed(tables, flags, changes)))
        if dry_run:
            _plan(config, where, preallocate, batch, as_json)
        else:
            _run(config, out or Path("sweep"), where, preallocate, batch, trust_code, as_json)


def resume_sweep(folder: Path, where: str, preallocate: bool, trust_code: bool, as_json: bool) -> None:
    """Continue the sweep in a folder."""
    from coterie.comparison.sweeps.folder import SWEEP_FILE, SweepFolder
    from coterie.comparison.sweeps.plan import SweepConfig

    tables = SweepFolder(folder).read()
    if tables.get("data", {}).get("name") == "in-memory":
        raise CoterieError(f"{folder} was started with data from Python: call coterie.sweep again with the same data")
    with names_from(folder / SWEEP_FILE, trust_code):
        _run(SweepConfig.from_dict(tables), folder, where, preallocate, None, trust_code, as_json)


def _plan(config: Any, where: str, preallocate: bool, batch: int | None, as_json: bool) -> None:
    """Print the candidates, and what would be trained together."""
    from coterie.comparison.sweeps.plan import words_of
    from coterie.comparison.sweeps.runner import Runner, evenly

    console = console_for(as_json)
    device = chosen_device(where, preallocate, console)
    runner = Runner(config, None, device, batch=batch)
    programs = []
    for group in runner.groups():
        parts = evenly(group.runs, group.width) if group.width > 1 else [([run], 1) for run in group.runs]
        programs.append({"runs": len(group.runs), "together": max(width for _, width in parts), "calls": len(parts)})
    refused = [row for row in runner.known_rows() if row.note]
    candidates = {run.candidate: run.settings for run in config.runs}
    if as_json:
        runs = [{"candidate": run.candidate, "seed": run.seed, "settings": run.settings} for run in config.runs]
        print(json.dumps({"runs": runs, "programs": programs, "refused": [row.note for row in refused]}))
        return
    _print_candidates(console, config, candidates)
    for row in refused:
        console.print(f"refused: {words_of(row.settings)}: {row.note}", markup=False, soft_wrap=True)
    sizes = ", ".join(f"{p['runs']} runs{_in_parts(p)}" for p in programs)
    console.print(
        f"{len(candidates)} candidates, {len(config.runs)} runs, {len(programs)} "
        f"{'program' if len(programs) == 1 else 'programs'} to compile ({sizes}); nothing was trained",
        markup=False,
        soft_wrap=True,
    )


def _in_parts(program: dict[str, int]) -> str:
    if program["runs"] == 1:
        return ""
    if program["together"] == 1:
        return " one after another"
    return " together" if program["calls"] == 1 else f", {program['together']} at a time"


def _print_candidates(console: Any, config: Any, candidates: dict[int, dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in ("candidate", *config.keys, "seeds"):
        table.add_column(name, justify="right" if name == "candidate" else "left")
    for number, settings in candidates.items():
        seeds = [str(run.seed) for run in config.runs if run.candidate == number]
        table.add_row(str(number), *(_text(settings[key]) for key in config.keys), " ".join(seeds))
    console.print(table)


def _text(value: Any) -> str:
    from rich.markup import escape

    return escape(f"{value:g}" if isinstance(value, float) else str(value))


def _run(
    config: Any,
    folder: Path,
    where: str,
    preallocate: bool,
    batch: int | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Run a sweep with progress bars and show its result."""
    console = console_for(as_json)
    device = chosen_device(where, preallocate, console, folder)
    from coterie.comparison.sweeps.sweep import sweep as run_sweep

    with screen_for(console, folder, len(config.runs)) as screen:
        done = run_sweep(config, out=folder, device=device, progress=screen.update, batch=batch, trust_code=trust_code)
    path = report_or_note(done, folder / "report.html", console)
    if as_json:
        print(json.dumps(done.summary() | {"folder": str(folder), "report": path}))
        return
    _show(done, folder, path, console)


def _show(done: Any, folder: Path, report: str | None, console: Any) -> None:
    """Print the best candidates, and what to do next."""
    from rich.table import Table

    from coterie.comparison.sweeps.plan import words_of
    from coterie.pages.words import bytes_text, score_text

    table = Table(box=None, header_style="bold")
    for name in ("candidate", *done.keys, f"validation {done.score.label}", "test", "bytes per client"):
        table.add_column(name, justify="left" if name in done.keys else "right")
    lines = done.lines()
    for line in lines[:SHOWN]:
        cells = [str(line["candidate"]), *(_text(line["settings"][key]) for key in done.keys)]
        if line["note"]:
            cells += ["diverged" if line["diverged"] else "refused", "", ""]
        else:
            cells += [score_text(line["validation"], done.score), score_text(line["test"], done.score)]
            cells.append(bytes_text(line["bytes_per_client"]))
        table.add_row(*cells, style="bold" if line["best"] else None)
    console.print(table)
    if len(lines) > SHOWN:
        console.print(f"and {len(lines) - SHOWN} more, in {folder / 'results.csv'}", markup=False, soft_wrap=True)
    console.print(f"best on validation samples: {words_of(done.best_settings)}", markup=False, style="bold")
    console.print(f"table: {folder / 'results.csv'}", markup=False, soft_wrap=True)
    if report is not None:
        console.print(f"report: {report}", markup=False, soft_wrap=True)
    if done.best.folder is not None and (done.best.folder / "preparation.json").exists():
        console.print(f"predict: {command('predict', folder, 'NEW.csv')}", markup=False, soft_wrap=True)
