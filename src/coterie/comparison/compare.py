"""`compare`: several methods on one federation, and the answer to "would cooperation help my clients?".

Every method and seed is a run of its own in `OUT/<method>/seed-<n>/`, so that a second call does only what is missing.
All of them share one federation, one task and one engine: data are placed once, programs are compiled once per method.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.comparison.config import (
    DEFAULT_METHODS,
    DEFAULT_TABLES,
    ComparisonConfig,
    MethodChoice,
    choice_of,
    with_method,
)
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.repeat import repeat_command
from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.config import SECTIONS, Experiment
from coterie.experiment.folder import RunFolder, about_clients
from coterie.experiment.result import Result

if TYPE_CHECKING:
    from coterie.experiment.job import Job
    from coterie.experiment.loop import Progress

__all__ = ["Comparison", "ComparisonProgress", "compare", "for_one_run"]

ComparisonProgress = Callable[[str, int, str, int, int, dict[str, Any]], None]
"""Called as `progress(label, seed, stage, round, rounds, metrics)`: label and seed of a run, then what the run says."""


def compare(
    experiment: Experiment | Federation | None = None,
    methods: Sequence[Any] = DEFAULT_METHODS,
    seeds: int = 1,
    out: str | Path | None = None,
    device: Any = "auto",
    progress: ComparisonProgress | bool | None = None,
    **options: Any,
) -> Comparison:
    """Train the same clients with several methods.

    Args:
        experiment: what is the same for all methods; a federation; or None for the embedded one. Settings of local
            training (`lr`, `batch_size`, ...) in the experiment's method hold for every method that has them.
        methods: names, pairs of a label and settings, or configured methods such as `coterie.methods.Ditto(tie=1)`.
        seeds: runs of each method; clients' scores are averaged over them.
        out: folder of the comparison; None keeps everything in memory. Runs that are complete in it are not repeated.
        device: "auto", "cpu", "gpu", "gpu:1".
        progress: True shows bars, False nothing, None (the default) bars in a terminal and in a notebook; or a
            function, called as `progress(label, seed, stage, round, rounds, metrics)`.
        **options: only with a federation, what `coterie.run` takes: `model`, `graph`, `rounds`, `seed`, ...

    Example:
        >>> comparison = compare(federation, ["local", "ditto"], rounds=20)  # doctest: +SKIP
        >>> print(comparison.verdict())  # doctest: +SKIP
    """
    from coterie.experiment.device import Device, choose_device
    from coterie.experiment.engine import Engine
    from coterie.experiment.screen import shown

    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
    device = device if isinstance(device, Device) else choose_device(device)  # before JAX is used: it counts the cores
    choices = _unique([choice_of(method) for method in methods])
    jobs, command = _jobs(experiment, choices, seeds, options)
    base = next(iter(jobs.values()))
    numbers = range(base.settings.seed, base.settings.seed + seeds)
    runs = [_Run(label, seed, job.with_seed(seed)) for seed in numbers for label, job in jobs.items()]
    folder = None if out is None else ComparisonFolder(out)
    if folder is not None:
        _prepare(folder, runs, jobs, seeds, command)
    engine = functools.cache(lambda: Engine.of(base, device))  # made when the first run needs it
    results: dict[str, list[Result]] = {label: [] for label in jobs}
    with shown(progress, len(runs)) as notify:
        for run in runs:
            results[run.label].append(_execute(run, folder, engine, notify))
    path = None if folder is None else folder.path
    return Comparison(results, about_clients(base.federation), baseline_of(results), command, path)


class _Run(NamedTuple):
    """One method with one seed."""

    label: str
    seed: int
    job: "Job"


def _prepare(folder: ComparisonFolder, runs: Sequence[_Run], jobs: Mapping[str, Any], seeds: int, command: str) -> None:
    """Refuse a folder with other runs in it, before anything is written; then write down what is compared."""
    base = next(iter(jobs.values()))
    folder.check(base.config)
    for run in runs:
        earlier = RunFolder(folder.run(run.label, run.seed))
        if earlier.exists():
            earlier.check_same(run.job.config)
    settings = {label: _settings(job.config) for label, job in jobs.items()}
    folder.write(base.config, settings, seeds, command)


def _execute(
    run: _Run, folder: ComparisonFolder | None, engine: Callable[[], Any], progress: ComparisonProgress | None
) -> Result:
    """Run one method with one seed, or read what its folder has."""
    from coterie.experiment.run import execute

    path = None if folder is None else folder.run(run.label, run.seed)
    notify = for_one_run(progress, run.label, run.seed)
    complete = path is not None and RunFolder(path).complete
    result = execute(run.job, out=path, progress=notify, engine=None if complete else engine())
    if complete and notify is not None:
        notify("read", result.best_round, run.job.settings.rounds, result.final)
    if path is not None:
        result.forget_models()  # those of many runs would fill the memory, and they are on disk
    return result


def _jobs(
    subject: Any, choices: list[MethodChoice], seeds: int, options: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Make one job per method, so that mistakes are found before anything runs; and the command that repeats them."""
    from coterie.experiment.job import Job, make_task

    if isinstance(subject, Federation):
        federation, command = subject, "coterie.compare(...) in Python, with the same data"
        variants = _python_variants(federation, choices, options)
        experiment = next(iter(variants.values()))
    elif options:
        raise CoterieError(
            f"{next(iter(options))} belongs to the experiment: set it there (only a federation takes it)"
        )
    else:
        asked = ComparisonConfig.from_dict(DEFAULT_TABLES).experiment if subject is None else subject
        variants = {choice.label: with_method(asked, choice) for choice in choices}
        experiment, federation = asked.load()
        variants = {k: dataclasses.replace(each, partition=experiment.partition) for k, each in variants.items()}
        command = repeat_command(experiment, choices, seeds)
    task = make_task(experiment, federation)
    return {label: Job.of(each, federation, task) for label, each in variants.items()}, command


def _python_variants(
    federation: Federation, choices: list[MethodChoice], options: Mapping[str, Any]
) -> dict[str, Experiment]:
    """Return one experiment per method on a federation from Python."""
    from coterie import registry
    from coterie.experiment.parts import codec_part, method_part
    from coterie.spec import build

    variants: dict[str, Experiment] = {}
    for choice in choices:
        own = {key: value for key, value in choice.settings.items() if key != "codec"}
        codec = choice.settings.get("codec", options.get("codec", "none"))
        method = build(registry.load("methods", choice.name), own, choice.label)
        if not variants:
            first = Experiment.from_objects(federation, method=method, **{**options, "codec": codec})
        variants[choice.label] = dataclasses.replace(first, method=method_part(method), codec=codec_part(codec))
    return variants


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method, with its codec, as a comparison's file has them."""
    codec = config["codec"]
    return dict(config["method"]) | ({} if codec["name"] == SECTIONS["codec"].default else {"codec": codec})


def for_one_run(progress: ComparisonProgress | None, label: str, seed: int) -> "Progress | None":
    """Return the progress function of one run: it calls that of the comparison with the run's label and seed."""
    return None if progress is None else lambda *event: progress(label, seed, *event)


def _unique(choices: list[MethodChoice]) -> list[MethodChoice]:
    labels = [choice.label for choice in choices]
    if not choices:
        raise CoterieError(f"methods is empty; name at least one, for example {DEFAULT_METHODS[0]}")
    for label in labels:
        if labels.count(label) > 1:
            raise CoterieError(
                f"methods names {label} twice; give one of them a label: [methods.LABEL] with a name in it"
            )
    return choices
