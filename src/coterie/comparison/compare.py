"""`compare`: several methods on one federation, and the answer to "would cooperation help my clients?".

Every method and seed is a run of its own in `OUT/<method>/seed-<n>/`, so that a second call does only what is missing.
All of them share one federation, one task and one engine: data are placed once, programs compiled once a method.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.lineup import DEFAULT_METHODS, FIRST, Entry, Lineup, entry_of, variant
from coterie.comparison.repeat import repeat_command
from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.config import SECTIONS, Experiment
from coterie.experiment.folder import RunFolder, about_clients
from coterie.experiment.result import Result

__all__ = ["Comparison", "compare"]

Progress = Callable[[str, int, str, int, int, dict[str, Any]], None]  # (label, seed, stage, round, rounds, metrics)


def compare(
    experiment: Experiment | Federation | None = None,
    methods: Sequence[Any] = DEFAULT_METHODS,
    seeds: int = 1,
    out: str | Path | None = None,
    device: Any = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Train the same clients with several methods.

    Args:
        experiment: what is the same for all methods; a federation; or None for the embedded one. Settings of local
            training (`lr`, `batch_size`, ...) in the experiment's method hold for every method that has them.
        methods: names, pairs of a label and settings, or configured methods such as `coterie.methods.Ditto(tie=1)`.
        seeds: runs of each method; clients' scores are averaged over them.
        out: folder of the comparison; None keeps everything in memory. What is complete in it is not run again.
        device: "auto", "cpu", "gpu", "gpu:1".
        progress: called as `progress(label, seed, stage, round, rounds, metrics)`.
        **options: with a federation, what `coterie.run` takes: `model`, `graph`, `rounds`, `seed`, ...

    Example:
        >>> comparison = compare(federation, ["local", "ditto"], rounds=20)  # doctest: +SKIP
        >>> print(comparison.verdict())  # doctest: +SKIP
    """
    from coterie.experiment.device import Device, choose_device
    from coterie.experiment.run import execute

    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
    device = device if isinstance(device, Device) else choose_device(device)  # before JAX is used: it counts the cores
    entries = _unique([entry_of(method) for method in methods])
    jobs, command = _jobs(experiment, entries, seeds, options)
    base = next(iter(jobs.values()))
    count = range(base.settings.seed, base.settings.seed + seeds)
    runs = [(label, seed, job.with_seed(seed)) for seed in count for label, job in jobs.items()]
    folder = None if out is None else ComparisonFolder(out)
    if folder is not None:
        folder.check(base.config)
        for label, seed, run in runs:  # all of them before the first runs, and before anything is written
            held = RunFolder(folder.run(label, seed))
            if held.exists():
                held.check_same(run.config)
        settings = {label: _settings(job.config) for label, job in jobs.items()}
        folder.write(base.config, settings, seeds, command)
    bench = _Bench(base, device)
    results: dict[str, list[Result]] = {label: [] for label in jobs}
    for label, seed, run in runs:
        place = None if folder is None else folder.run(label, seed)
        tell = None if progress is None else _named(progress, label, seed)
        done = place is not None and RunFolder(place).complete
        result = execute(run, out=place, progress=tell, engine=None if done else bench.engine)
        if done and tell is not None:
            tell("read", result.best_round, run.settings.rounds, result.final)
        if place is not None:
            result.variables = None  # the models of many runs would fill the memory, and they are on disk
        results[label].append(result)
    kept = None if folder is None else folder.path
    return Comparison(results, about_clients(base.federation), baseline_of(results), command, kept)


class _Bench:
    """The engine all runs share, made when the first run needs it."""

    def __init__(self, job: Any, device: Any):
        self._job, self._device = job, device
        self._engine: Any = None

    @property
    def engine(self) -> Any:
        if self._engine is None:
            from coterie.experiment.engine import Engine

            self._engine = Engine.of(self._job, self._device)
        return self._engine


def _jobs(subject: Any, entries: list[Entry], seeds: int, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Make one job per method, so that mistakes are found before anything runs; and the command that repeats them."""
    from coterie.experiment.job import Job, make_task

    if isinstance(subject, Federation):
        federation, command = subject, "coterie.compare(...) in Python, with the same data"
        variants = _python_variants(federation, entries, options)
        experiment = next(iter(variants.values()))
    elif options:
        raise CoterieError(
            f"{next(iter(options))} belongs to the experiment: set it there (only a federation takes it)"
        )
    else:
        asked = Lineup.from_dict(FIRST).experiment if subject is None else subject
        variants = {entry.label: variant(asked, entry) for entry in entries}
        experiment, federation = asked.load()
        variants = {k: dataclasses.replace(each, partition=experiment.partition) for k, each in variants.items()}
        command = repeat_command(experiment, entries, seeds)
    task = make_task(experiment, federation)
    return {label: Job.of(each, federation, task) for label, each in variants.items()}, command


def _python_variants(federation: Federation, entries: list[Entry], options: Mapping[str, Any]) -> dict[str, Experiment]:
    """Return one experiment per method on a federation from Python."""
    from coterie import registry
    from coterie.experiment.parts import codec_part, method_part
    from coterie.spec import build

    variants: dict[str, Experiment] = {}
    for entry in entries:
        own = {key: value for key, value in entry.settings.items() if key != "codec"}
        codec = entry.settings.get("codec", options.get("codec", "none"))
        method = build(registry.load("methods", entry.name), own, entry.label)
        if not variants:
            first = Experiment.from_objects(federation, method=method, **{**options, "codec": codec})
        variants[entry.label] = dataclasses.replace(first, method=method_part(method), codec=codec_part(codec))
    return variants


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method as a comparison writes them down, its codec among them."""
    codec = config["codec"]
    return dict(config["method"]) | ({} if codec["name"] == SECTIONS["codec"].default else {"codec": codec})


def _named(progress: Progress, label: str, seed: int) -> Callable:
    return lambda *event: progress(label, seed, *event)


def _unique(entries: list[Entry]) -> list[Entry]:
    labels = [entry.label for entry in entries]
    if not entries:
        raise CoterieError(f"methods is empty; name at least one, for example {DEFAULT_METHODS[0]}")
    for label in labels:
        if labels.count(label) > 1:
            raise CoterieError(
                f"methods names {label} twice; give one of them a label: [methods.LABEL] with a name in it"
            )
    return entries
