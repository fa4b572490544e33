"""`sweep`: one experiment with many settings, and the best of them by validation samples.

Every candidate and seed is an ordinary run, in `OUT/candidate-<n>/seed-<s>/`, so that a second call does only what is
missing. Data are loaded once for all candidates that share them, and programs are compiled once for all that differ in
real numbers and seeds only; where clients are batched (`mode` fast), these runs are trained together, as one program
(`lockstep.py`). A run that diverges, or a method that refuses these clients, is a row that says so.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.comparison.compare import ComparisonProgress
from coterie.comparison.sweeps.axes import flat
from coterie.comparison.sweeps.folder import SWEEP_FILE, SweepFolder
from coterie.comparison.sweeps.plan import SweepConfig
from coterie.comparison.sweeps.result import IN_PYTHON_SWEEP, Sweep
from coterie.comparison.sweeps.runner import Runner
from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.machine import keep_machine
from coterie.registry import names_from
from coterie.storage.commands import command
from coterie.storage.csv_text import csv_bytes
from coterie.storage.owned import holds
from coterie.storage.toml import read_toml

__all__ = ["config_of", "sweep"]


def sweep(
    experiment: "SweepConfig | Experiment | Federation | str | Path",
    values: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    device: Any = "auto",
    progress: ComparisonProgress | bool | None = None,
    batch: int | None = None,
    trust_code: bool = False,
    **options: Any,
) -> Sweep:
    """Run an experiment with many settings.

    Args:
        experiment: a TOML file with a section `[sweep]`; a federation, with the arguments of `coterie.run`; an
            experiment; or a sweep as a file describes it (`SweepConfig`).
        values: what varies, by SECTION.KEY: a list, or a range such as {"from": 0.001, "to": 0.1, "steps": 5, "scale":
            "log"}. Every value is combined with every other; those of a table in "together" go side by side. With a
            file that has a section `[sweep]`, they are added to it. "run.seed" are runs of the same candidate.
        out: folder of the sweep; None keeps everything in memory, all models too. Runs that are complete in it are not
            repeated.
        device: as for `coterie.run`.
        progress: True shows bars, False nothing, None (the default) bars in a terminal and in a notebook; or a
            function, called as `progress(label, seed, stage, round, rounds, metrics)`.
        batch: at most so many runs are trained together, as one program; None: as many as memory allows.
        trust_code: whether code may run that the folder names (FILE.py:CLASS): it can do whatever you can do.
        **options: only with a federation, what `coterie.run` takes: `model`, `method`, `rounds`, ...

    Example:
        >>> tried = sweep(federation, {"method.lr": [0.01, 0.1], "run.seed": [0, 1]}, method="ditto")  # doctest: +SKIP
        >>> tried.best_settings, tried.best.model("client-3")  # doctest: +SKIP
    """
    from coterie.experiment.device import Device, choose_device
    from coterie.experiment.screen import shown

    if not isinstance(device, Device):  # before JAX is used: it counts the cores
        device = choose_device(device, folder=out)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise CoterieError(f"batch must be an integer of at least 1, not {batch!r}")
    with _trust(experiment, trust_code):
        config = config_of(experiment, values, options)
    given = experiment if isinstance(experiment, Federation) else None
    folder = None if out is None else SweepFolder(out)
    with contextlib.ExitStack() as locks:
        if folder is not None:
            tables = config.to_dict()
            folder.check(tables)  # before anything is written
            locks.enter_context(folder.lock())
            folder.check(tables)
            if not folder.exists():
                folder.write(tables)
            keep_machine(folder.path, device.machine)
        runner = Runner(config, folder, device, given, batch)
        with shown(progress, len(config.runs)) as notify:
            runner.progress = notify
            runner.run()
        repeat = IN_PYTHON_SWEEP
        if folder is not None and given is None:
            repeat = command("sweep", folder.path / SWEEP_FILE, "--out", "another-folder")
        path = None if folder is None else folder.path
        done = Sweep(runner.rows(), config.keys, runner.metric, repeat, path, runner.results, trust_code)
        if folder is not None:
            folder.finish(done.summary(), csv_bytes(done.to_frame()))
    return done


def _trust(experiment: Any, trust_code: bool) -> contextlib.AbstractContextManager[None]:
    """Return the scope in which the names of an experiment are read: code that a folder names needs trust."""
    file = Path(experiment) if isinstance(experiment, str | Path) else None
    of_folder = file is not None and file.name == SWEEP_FILE and holds(file.parent, "coterie.json")
    return names_from(file, trust_code) if of_folder and file is not None else contextlib.nullcontext()


def config_of(experiment: Any, values: Mapping[str, Any] | None, options: Mapping[str, Any]) -> SweepConfig:
    """Return what `sweep` was called with as a config; everything that can be refused without data is refused."""
    if isinstance(experiment, Federation):
        return SweepConfig.of(Experiment.from_objects(experiment, **options), values or {})
    if options:
        raise CoterieError(
            f"{next(iter(options))} belongs to the experiment: set it there (only a federation takes it)"
        )
    if isinstance(experiment, SweepConfig) and values is None:
        return experiment
    if isinstance(experiment, str | Path):
        tables = read_toml(experiment)
        if values is not None:
            tables["sweep"] = flat(tables.get("sweep", {})) | flat(values)
        return SweepConfig.from_dict(tables)
    if isinstance(experiment, Experiment):
        return SweepConfig.of(experiment, values or {})
    raise CoterieError("sweep needs a federation, an experiment or a TOML file with a section [sweep]")
