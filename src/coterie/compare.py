"""`compare`: several methods on one federation, and the answer to "would cooperation help my clients?".

Every method and seed is a run of its own in `OUT/<method>/seed-<n>/`, so that a second call does only what is missing.
All of them share one federation, one task and one engine: data are placed once, programs compiled once a method.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clients import Federation
from coterie.config import Experiment
from coterie.errors import CoterieError
from coterie.lineup import DEFAULT_METHODS, ComparisonFolder, Entry, differences, entry_of, repeat_command, variant
from coterie.result import Result, worst
from coterie.statistics import paired_interval, verdict
from coterie.storage import RunFolder, about_clients

__all__ = ["Comparison", "compare", "report"]

ALONE, CEILING = "local", "pooled"

Progress = Callable[[str, int, str, int, int, dict[str, Any]], None]  # (label, seed, stage, round, rounds, metrics)


@dataclasses.dataclass
class Comparison:
    """Methods compared on the same clients.

    Attributes:
        results: for each method's label, one result a seed.
        clients: names, sizes, label counts and groups of the clients, and what is predicted.
        baseline: the label of training alone, if it is among the methods.
        command: the command that repeats the comparison.
        folder: where it is kept.
    """

    results: dict[str, list[Result]]
    clients: dict[str, Any]
    baseline: str | None
    command: str
    folder: Path | None = None

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self._first.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self._first.higher_is_better

    @property
    def _first(self) -> Result:
        return next(iter(self.results.values()))[0]

    def is_ceiling(self, method: str) -> bool:
        """Whether a method needs all data in one place, so that it is a ceiling and no cooperation."""
        return _name(self.results[method]) == CEILING

    def scores(self, method: str) -> np.ndarray:
        """Return every client's final test score `[K]`, averaged over seeds."""
        return np.mean([result.final["test_score"] for result in self.results[method]], axis=0)

    def gains(self, method: str) -> np.ndarray | None:
        """Return every client's gain over training alone `[K]`, positive where it is better off; None without a baseline."""
        if self.baseline is None:
            return None
        difference = self.scores(method) - self.scores(self.baseline)
        return difference if self.higher_is_better else -difference

    def leaderboard(self) -> list[dict[str, Any]]:
        """Return one row a method, the best first and the ceiling last."""
        rows = [self._row(method) for method in self.results]
        sign = -1 if self.higher_is_better else 1
        return sorted(rows, key=lambda row: (row["ceiling"], sign * row["mean"]))

    def _row(self, method: str) -> dict[str, Any]:
        score, gain, results = self.scores(method), self.gains(method), self.results[method]
        if method == self.baseline:
            gain = None
        interval = None if gain is None else paired_interval(gain)
        compiling = float(np.mean([result.seconds["compile"] for result in results]))
        return {
            "method": method,
            "mean": float(score.mean()),
            "std": float(score.std()),
            "worst": worst(score, self.higher_is_better),
            "worst_label": "worst decile" if len(score) >= 20 else "worst client",
            "beat_alone": None if gain is None else int((gain > 0).sum()),
            "clients": len(score),
            "bytes_per_client": float(np.mean([result.ledger.bytes_per_client() for result in results])),
            "seconds": float(np.mean([result.seconds["wall"] for result in results])) - compiling,
            "compile": compiling,
            "mean_gain": None if interval is None else interval.mean,
            "gain_error": None if interval is None or len(score) < 2 else interval.error,
            "ceiling": self.is_ceiling(method),
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "seeds": len(results),
        }

    def verdict(self) -> str:
        """Say in one sentence whether cooperation helps these clients, with which method and by how much."""
        if self.baseline is None:
            return (
                "Whether cooperation helps these clients cannot be said: training alone (local) is not among the methods."
            )
        gains: dict[str, np.ndarray] = {}
        for method, results in self.results.items():
            found = self.gains(method)
            if found is not None and _name(results) not in (ALONE, CEILING):
                gains[method] = found
        return verdict(gains, self.clients["names"], self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Return everything a script wants, as plain values."""
        names = self.clients["names"]
        scores = {method: dict(zip(names, self.scores(method).tolist(), strict=True)) for method in self.results}
        return {
            "verdict": self.verdict(),
            "baseline": self.baseline,
            "leaderboard": self.leaderboard(),
            "scores": scores,
            "command": self.command,
            "folder": None if self.folder is None else str(self.folder),
        }

    @classmethod
    def read(cls, folders: Sequence[str | Path]) -> "Comparison":
        """Read complete runs and comparisons from their folders; all must be of the same clients."""
        if isinstance(folders, str | Path):
            folders = [folders]
        found: list[tuple[str, Result]] = []
        commands = []
        for folder in map(Path, folders):
            held = ComparisonFolder(folder)
            if held.exists():
                found += held.results()
                commands.append(held.read()["compare"]["command"])
            else:
                result = Result.read(folder)
                found.append((entry_of(result.config["method"]["name"]).label, result))
                commands.append(f"coterie run {folder / 'config.toml'}")
        if not found:
            raise CoterieError("there is nothing to compare: name at least one folder of a run or a comparison")
        first = found[0][1]
        for _, result in found[1:]:
            _check_same_clients(first, result)
        clients = RunFolder(first.folder or "").clients()
        results = _by_label(found)
        where = Path(folders[0]) if len(folders) == 1 else None
        return cls(results, clients, _baseline(results), " && ".join(commands), where)


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
    from coterie.run import execute
    from coterie.runtime import Device, choose_device

    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
    device = device if isinstance(device, Device) else choose_device(device)  # before JAX is used: it counts the cores
    entries = _unique([entry_of(method) for method in methods])
    jobs, command = _jobs(experiment, entries, seeds, options)
    base = next(iter(jobs.values()))
    folder = None if out is None else ComparisonFolder(out)
    if folder is not None:
        folder.create(base.config, {label: job.config["method"] for label, job in jobs.items()}, seeds, command)
    bench = _Bench(base, device)
    results: dict[str, list[Result]] = {label: [] for label in jobs}
    first = base.settings.seed
    for seed in range(first, first + seeds):
        for label, job in jobs.items():
            place = None if folder is None else folder.run(label, seed)
            tell = None if progress is None else _named(progress, label, seed)
            run = _with_seed(job, seed)
            done = place is not None and RunFolder(place).complete
            result = execute(run, out=place, progress=tell, engine=None if done else bench.engine)
            if done and tell is not None:
                tell("read", result.best_round, job.settings.rounds, result.final)
            if place is not None:
                result.variables = None  # the models of many runs would fill the memory, and they are on disk
            results[label].append(result)
    kept = None if folder is None else folder.path
    return Comparison(results, about_clients(base.federation), _baseline(results), command, kept)


def report(what: Comparison | str | Path | Sequence[str | Path], path: str | Path = "report.html") -> Path:
    """Write the report of a comparison, or of the folders of runs and comparisons, as one HTML file."""
    from coterie.report import write_report

    comparison = what if isinstance(what, Comparison) else Comparison.read([what] if isinstance(what, str | Path) else what)
    write_report(comparison, Path(path))
    return Path(path)


class _Bench:
    """The engine all runs share, made when the first run needs it."""

    def __init__(self, job: Any, device: Any):
        self._job, self._device, self._engine = job, device, None

    @property
    def engine(self) -> Any:
        if self._engine is None:
            from coterie.engine import Engine, plan_for
            from coterie.run import precision

            job = self._job
            plan = plan_for(job.task, len(job.federation), self._device, job.settings.mode, job.settings.chunk)
            with precision(job.settings.precision):
                self._engine = Engine(job.task, job.federation, self._device, plan)
        return self._engine


def _jobs(subject: Any, entries: list[Entry], seeds: int, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Make one job a method, so that every mistake is found before anything runs; and the command that repeats them."""
    from coterie import registry
    from coterie.run import Job, load_federation, make_task
    from coterie.spec import build

    if isinstance(subject, Federation):
        jobs = {}
        for entry in entries:
            method = build(registry.load("methods", entry.name), entry.settings, entry.label)
            jobs[entry.label] = Job.from_objects(subject, method=method, **options)
        return jobs, "coterie.compare(...) in Python, with the same data"
    if options:
        raise CoterieError(f"{next(iter(options))} belongs to the experiment: set it there (only a federation takes it)")
    experiment = Experiment.from_dict({}) if subject is None else subject
    variants = {entry.label: variant(experiment, entry) for entry in entries}
    federation = load_federation(experiment)
    task = make_task(experiment, federation)
    jobs = {label: Job.of(held, federation, task) for label, held in variants.items()}
    return jobs, repeat_command(experiment, entries, seeds)


def _with_seed(job: Any, seed: int) -> Any:
    config = job.config | {"run": job.config["run"] | {"seed": seed}}
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, seed=seed), config=config)


def _named(progress: Progress, label: str, seed: int) -> Callable:
    return lambda *event: progress(label, seed, *event)


def _unique(entries: list[Entry]) -> list[Entry]:
    labels = [entry.label for entry in entries]
    if not entries:
        raise CoterieError(f"methods is empty; name at least one, for example {DEFAULT_METHODS[0]}")
    for label in labels:
        if labels.count(label) > 1:
            raise CoterieError(f"methods names {label} twice; give one of them a label: [methods.LABEL] with a name in it")
    return entries


def _name(results: list[Result]) -> str:
    return results[0].config["method"]["name"]


def _baseline(results: dict[str, list[Result]]) -> str | None:
    """Return the label of training alone; of several, that of the best, so that nobody beats a straw man."""
    alone = [label for label, held in results.items() if _name(held) == ALONE]
    sign = 1 if next(iter(results.values()))[0].higher_is_better else -1
    mean = {label: sign * np.mean([result.final["test_score"].mean() for result in results[label]]) for label in alone}
    return max(alone, key=mean.__getitem__, default=None)


def _check_same_clients(first: Result, other: Result) -> None:
    held = [{s: r.config[s] for s in ("data", "partition") if s in r.config} for r in (first, other)]
    for name, here, there in differences(*held):
        raise CoterieError(
            f"{other.folder} has other clients than {first.folder}: {name} is {there!r} there and {here!r} here; "
            "only runs on the same clients can be compared"
        )
    if first.names != other.names:
        raise CoterieError(f"{other.folder} has other clients than {first.folder}; only the same can be compared")


def _by_label(found: list[tuple[str, Result]]) -> dict[str, list[Result]]:
    """Collect seeds under a label; the same method with other settings gets a label that says which."""
    groups: dict[str, list[tuple[dict, list[Result]]]] = {}
    for label, result in found:
        about = {s: table for s, table in result.config.items() if s not in ("format", "data", "partition")}
        about = about | {"run": {key: value for key, value in about["run"].items() if key != "seed"}}
        held = groups.setdefault(label, [])
        same = next((results for config, results in held if config == about), None)
        if same is None:
            held.append((about, [result]))
        elif result.config["run"]["seed"] in [r.config["run"]["seed"] for r in same]:
            raise CoterieError(f"{result.folder} is given twice, or repeats the seed of another run; leave one out")
        else:
            same.append(result)
    results = {}
    for label, held in groups.items():
        varying = {name for config, _ in held for name, _, _ in differences(held[0][0], config)}
        for config, runs in held:
            settings = [f"{key}={config.get(s, {}).get(key)}" for s, _, key in (n.partition(".") for n in sorted(varying))]
            results[f"{label} ({', '.join(settings)})" if varying else label] = runs
    return results
