"""`compare`: several methods on one federation, and the answer to "would cooperation help my clients?".

Every method and seed is a run of its own in `OUT/<method>/seed-<n>/`, so that a second call does only what is missing.
All of them share one federation, one task and one engine per split: data are placed once, programs are compiled once
per method. Before its runs, a method is tuned (`tuning.py`). A method that diverges or refuses these clients is written
down as such, and the others go on.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.comparison.config import ComparisonConfig
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.plan import Asked, Plan
from coterie.comparison.splits import same_programs
from coterie.comparison.tuning import choose, with_settings
from coterie.data.clients import Federation
from coterie.data.tables.intake import describe
from coterie.errors import CoterieError, Diverged, StorageError
from coterie.experiment.about import about_clients
from coterie.experiment.config import Experiment
from coterie.experiment.folder import RunFolder
from coterie.experiment.machine import keep_machine
from coterie.experiment.result import Result
from coterie.storage.toml import difference

if TYPE_CHECKING:
    from coterie.experiment.device import Device
    from coterie.experiment.engine import Engine
    from coterie.experiment.evaluations import OnEvaluation
    from coterie.experiment.job import Job
    from coterie.experiment.loop import Progress

__all__ = ["Comparison", "ComparisonProgress", "compare", "for_one_run"]

ComparisonProgress = Callable[[str, int, str, int, int, dict[str, Any]], None]
"""Called as `progress(label, seed, stage, round, rounds, metrics)`: label and seed of a run, then what the run says.
While a method is tuned, the stage is "tune", and candidates take the place of rounds."""


def compare(
    experiment: ComparisonConfig | Experiment | Federation | None = None,
    methods: Sequence[Any] | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    device: Any = "auto",
    progress: ComparisonProgress | bool | None = None,
    *,
    devices: int | None = None,
    splits: int | None = None,
    tune: bool | Literal["score"] = True,
    trust_code: bool = False,
    on_evaluation: "OnEvaluation | None" = None,
    **options: Any,
) -> Comparison:
    """Train the same clients with several methods.

    Args:
        experiment: what is the same for all methods; a federation; a whole comparison as a file describes it
            (`ComparisonConfig`, which has methods, seeds, splits and tune); or None for the embedded one. Settings of
            local training (`lr`, `batch_size`, ...) in the experiment's method hold for every method that has them.
        methods: names, pairs of a label and settings, or configured methods such as `coterie.methods.Ditto(tie=1)`;
            None: the usual ones that suit these clients.
        seeds: runs of each method, with seeds that count up.
        out: folder of the comparison; None keeps everything in memory. Runs that are complete in it are not repeated,
            and methods that it has already stay in the comparison.
        device, devices: "auto", "cpu", "cpu:2", "gpu", "gpu:1", and over how many, as for `coterie.run`.
        progress: True shows bars, False nothing, None (the default) bars in a terminal and in a notebook; or a
            function, called as `progress(label, seed, stage, round, rounds, metrics)`.
        splits: how often the clients' samples are divided into train, validation and test; the runs take these splits
            in turn, and there are at least as many runs as splits. None: 5 where clients have few test samples, else 1.
        tune: choose the learning rate and the main own setting of every method on validation samples, with the same
            budget for all; settings that are given are not tuned, or only to one of a list. True: by validation loss,
            with short trainings; "score": by validation score, with trainings as long as the run.
        trust_code: whether code may run that the folder names (FILE.py:CLASS): it can do whatever you can do.
        on_evaluation: called with a plain dict after every evaluation of every run: method, seed, round, means.
        **options: only with a federation, what `coterie.run` takes: `model`, `graph`, `rounds`, `seed`, ...

    Example:
        >>> comparison = compare(federation, ["local", "ditto"], rounds=20)  # doctest: +SKIP
        >>> print(comparison.verdict())  # doctest: +SKIP
    """
    from coterie.experiment.device import Device, choose_device
    from coterie.experiment.evaluations import telling
    from coterie.experiment.screen import shown

    if not isinstance(device, Device):  # before JAX is used: it counts the cores
        device = choose_device(device, folder=out, devices=devices)
    asked = Asked.of(experiment, methods, seeds, splits, tune, options)._replace(trust_code=trust_code)
    folder = None if out is None else ComparisonFolder(out)
    with contextlib.ExitStack() as locks:
        began = folder is not None and folder.exists()
        if folder is not None and began and not folder.is_ours():
            raise folder.owned.refuse()
        if folder is not None and began:
            locks.enter_context(folder.lock())  # what is there must not change any more
        plan = Plan.of(asked, folder)
        runner = Runner(plan, folder, device)
        runner.prepare()
        if folder is not None:
            if not began:
                locks.enter_context(folder.lock())
                if folder.exists():
                    raise CoterieError(f"{folder.path} was begun by another process just now; call this once more")
            plan.write(folder)
            keep_machine(folder.path, device.machine)
        with shown(progress, len(plan.runs) * len(plan.variants)) as notify:
            runner.progress = telling(on_evaluation, notify)
            runner.run()
    results = runner.results
    path = None if folder is None else folder.path
    clients = about_clients(plan.federations[0])
    if plan.federations[0].preparation is not None:
        clients["intake"] = plan.federations[0].preparation.intake().to_dict()  # for the report
    return Comparison(
        results,
        clients,
        baseline_of(results, clients),
        plan.command,
        path,
        failures=runner.failures,
        tuning=runner.tuning(),
    )


class Runner:
    """Trains what is missing of a plan.

    Args:
        plan: what is compared.
        folder: where it is kept; None keeps everything in memory.
        device: where to run.
    """

    def __init__(self, plan: Plan, folder: ComparisonFolder | None, device: "Device"):
        self.plan, self.folder, self.device = plan, folder, device
        self.progress: ComparisonProgress | None = None
        self.results: dict[str, list[Result]] = {label: [] for label in plan.variants}
        self.failures: dict[str, str] = {}
        self._records: dict[str, dict[int, dict[str, Any]]] = {label: {} for label in plan.variants}
        self._jobs: dict[tuple[str, int], Job] = {}
        self._engines: dict[int, Engine] = {}
        self._refused: dict[str, CoterieError] = {}
        self._changed: list[str] = []  # methods that had no result, and are tried with other settings
        self._first_error: CoterieError | None = None

    def prepare(self) -> None:
        """See which methods can be used with these clients, before anything is written; raise if none can."""
        self._recall_failures()
        refused: dict[str, CoterieError] = {}
        _ = self.plan.tasks  # a model that does not fit the data is refused here, whatever the method
        for label in self.plan.variants:
            if label not in self.failures:
                try:
                    self._job(label, 0)
                except CoterieError as error:
                    refused[label] = error
        if refused and len(refused) + len(self.failures) == len(self.plan.variants):
            raise next(iter(refused.values()))
        self._refused = refused

    def run(self) -> None:
        """Run every method with every seed; raise the first error if none has a result."""
        if self.progress is not None:
            about = {"intake": describe(self.plan.federations[0])}
            self.progress("", 0, "plan", 0, len(self.plan.runs) * len(self.plan.variants), about)
        for label in self._changed:
            if self.folder is not None:
                self.folder.forget(label)
        for label, error in self._refused.items():
            self._fail(label, error)
        for number in self.plan.runs:
            for label in self.plan.variants:
                if label not in self.failures:
                    self._run(label, number)
        self.failures = {label: self.failures[label] for label in self.plan.variants if label in self.failures}
        for label in self.failures:
            del self.results[label]
        if not self.results:
            raise self._first_error or CoterieError(next(iter(self.failures.values())))

    def tuning(self) -> dict[str, list[dict[str, Any]]]:
        """Return what was tried and chosen: for each method that was tuned, one record per split."""
        return {
            label: [records[split] for split in sorted(records)]
            for label, records in self._records.items()
            if records and label not in self.failures
        }

    def _recall_failures(self) -> None:
        """Take over what an earlier call wrote down of methods without a result, if their settings are the same."""
        if self.folder is None:
            return
        for label, variant in self.plan.variants.items():
            record = self.folder.failure(label)
            if record is None:
                continue
            if difference(record["config"], variant.to_dict()) is None:
                self.failures[label] = record["failure"]
            else:
                self._changed.append(label)

    def _run(self, label: str, number: int) -> None:
        """Run one method with one seed; what goes wrong with the method is written down."""
        from coterie.methods.base import Solved

        split, seed = number % self.plan.splits, self.plan.first_seed + number
        try:
            job = self._job(label, split).with_seed(seed)
        except CoterieError as error:  # the method refuses these clients
            self._fail(label, error)
            return
        try:
            job = self._tuned(label, split, job)
            path = None if self.folder is None else self.folder.run(label, seed)
            if path is not None:
                RunFolder(path).check(job.config, job.federation)
        except Diverged as error:
            self._fail(label, error)
            return
        try:
            self.results[label].append(self._execute(label, split, seed, job, path))
        except CoterieError as error:
            if isinstance(error, Diverged) or (isinstance(job.method, Solved) and not isinstance(error, StorageError)):
                self._fail(label, error)
            else:
                raise

    def _fail(self, label: str, error: CoterieError) -> None:
        self.failures[label] = str(error)
        self._first_error = self._first_error or error
        if self.folder is not None:
            self.folder.fail(label, str(error), self.plan.variants[label].to_dict())

    def _job(self, label: str, split: int) -> "Job":
        """Return a method's job on a split, untuned."""
        from coterie.experiment.job import Job

        if (label, split) not in self._jobs:
            federation, task = self.plan.federations[split], self.plan.tasks[split]
            self._jobs[label, split] = Job.of(self.plan.experiment(label, split), federation, task)
        return self._jobs[label, split]

    def _tuned(self, label: str, split: int, job: "Job") -> "Job":
        """Return the job with the settings chosen for its split; the split's first run is what they are tuned for."""
        values, records = self.plan.values[label], self._records[label]
        if not values:
            return job
        if split not in records:
            path = None if self.folder is None else self.folder.tuning_file(label, split)
            notify = for_one_run(self.progress, label, job.settings.seed)
            records[split] = choose(
                job,
                values,
                lambda: self._engine(split, job),
                path,
                lambda done, count: None if notify is None else notify("tune", done, count, {}),
                self.plan.tune == "score",
            )
        return with_settings(job, records[split]["chosen"])

    def _engine(self, split: int, job: "Job") -> "Engine":
        """Return the engine of a split; it is made when something is trained there for the first time."""
        from coterie.experiment.engine import Engine

        if split not in self._engines:
            here = self.plan.federations[split]
            like = [e for s, e in self._engines.items() if same_programs(self.plan.federations[s], here)]
            self._engines[split] = Engine.of(job, self.device, like[0] if like else None)
        return self._engines[split]

    def _execute(self, label: str, split: int, seed: int, job: "Job", path: Path | None) -> Result:
        """Run one method with one seed, or read what its folder has."""
        from coterie.experiment.run import execute

        notify = for_one_run(self.progress, label, seed)
        complete = path is not None and RunFolder(path).complete
        result = execute(job, out=path, progress=notify, engine=None if complete else self._engine(split, job))
        if complete and notify is not None:
            notify("read", result.best_round, job.settings.rounds, result.final)
        if path is not None:
            result.forget_models()  # those of many runs would fill the memory, and they are on disk
        return result


def for_one_run(progress: ComparisonProgress | None, label: str, seed: int) -> "Progress | None":
    """Return the progress function of one run: it calls that of the comparison with the run's label and seed."""
    return None if progress is None else lambda *event: progress(label, seed, *event)
