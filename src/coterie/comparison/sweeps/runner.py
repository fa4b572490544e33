"""Trains the runs of a sweep that are missing: alone, or together where they are of one program and fit into memory."""

import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.comparison.compare import ComparisonProgress, for_one_run
from coterie.comparison.sweeps.folder import SweepFolder
from coterie.comparison.sweeps.plan import Run, SweepConfig, by_key, words_of
from coterie.comparison.sweeps.result import Row, row_of
from coterie.data.clients import Federation
from coterie.data.tables.intake import describe
from coterie.errors import CoterieError, CoterieWarning, Diverged, StorageError
from coterie.experiment.config import Experiment
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result
from coterie.storage.toml import difference

if TYPE_CHECKING:
    from coterie.experiment.device import Device
    from coterie.experiment.engine import Engine
    from coterie.experiment.job import Job

__all__ = ["Group", "Runner", "evenly"]

FEW = 8  # runs that are trained together and have a bar each


class Group(NamedTuple):
    """Runs of one program.

    Attributes:
        runs: all of them, also those that are complete.
        job: that of the first; the others have another experiment.
        engine: their federation on its device.
        width: how many of them are trained together, at most.
    """

    runs: list[Run]
    job: "Job"
    engine: "Engine"
    width: int


class Runner:
    """Trains what is missing of a sweep.

    Args:
        config: what varies.
        folder: where it is kept; None keeps everything in memory.
        device: where to run.
        federation: the clients' data where they come from Python; otherwise they are loaded.
        batch: at most so many runs are trained together; None: as many as memory allows.
    """

    def __init__(
        self,
        config: SweepConfig,
        folder: SweepFolder | None,
        device: "Device",
        federation: Federation | None = None,
        batch: int | None = None,
    ):
        self.config, self.folder, self.device, self.federation, self.batch = config, folder, device, federation, batch
        self.progress: ComparisonProgress | None = None
        self.results: dict[tuple[int, int], Result] = {}
        self.metric = ""
        self._rows: dict[tuple[int, int], Row] = {}

    def rows(self) -> list[Row]:
        """Return the rows in the order of the candidates."""
        return [self._rows[run.candidate, run.seed] for run in self.config.runs]

    def known_rows(self) -> list[Row]:
        """Return the rows that there are so far."""
        return list(self._rows.values())

    def run(self) -> None:
        """Train what is missing; raise the first error if no candidate can be used with these clients."""
        for group in self.groups():
            missing = [run for run in group.runs if not self._known(run, group.job)]
            alone = [run for run in missing if self._begun_alone(run)]
            together = [run for run in missing if run not in alone]
            if group.width < 2 or len(together) < 2:
                alone, together = missing, []
            for part, width in evenly(together, group.width):
                self._train_together(part, width, group)
            for run in alone:
                self._train_alone(run, group)
        failures = [row for row in self._rows.values() if row.note]
        if len(failures) == len(self._rows) and not any(row.diverged for row in failures):
            raise CoterieError(failures[0].note)

    def groups(self) -> Iterator[Group]:
        """Load data and build what is run on them, one group after the other; what is refused becomes a row."""
        for number, on_data in enumerate(by_key(self.config.runs, "data")):
            first, federation = self._loaded(on_data[0].experiment)
            if number == 0 and self.progress is not None:
                self.progress("", 0, "plan", 0, len(self.config.runs), {"intake": describe(federation)})
            # The data may have decided what the partition is.
            divided = [
                run._replace(experiment=dataclasses.replace(run.experiment, partition=first.partition))
                for run in on_data
            ]
            for on_engine in by_key(divided, "engine"):
                yield from self._on_engine(on_engine, federation)

    def _loaded(self, experiment: Experiment) -> tuple[Experiment, Federation]:
        first, federation = experiment, self.federation
        if federation is None:
            first, federation = experiment.load()
        if not (federation.validation.count > 0).any():
            warnings.warn(
                "nothing says which candidate is best, since no client has validation samples; raise "
                "partition.validation",
                CoterieWarning,
                stacklevel=2,
            )
        return first, federation

    def _on_engine(self, runs: list[Run], federation: Federation) -> Iterator[Group]:
        """Build the jobs of runs that share an engine, which is made when the first of them can be run."""
        from coterie.comparison.candidates import most_together
        from coterie.comparison.sweeps.lockstep import MOST_LANES
        from coterie.experiment.engine import Engine
        from coterie.experiment.job import Job, make_task, precision

        task, engine = make_task(runs[0].experiment, federation), None
        if self.metric not in ("", task.metric):
            raise CoterieError(
                f"candidates are judged by different scores, {self.metric} and {task.metric}; sweep them one at a time"
            )
        self.metric = task.metric
        for group in by_key(runs, "program"):
            try:
                job = Job.of(group[0].experiment, federation, task)
            except CoterieError as error:  # the method refuses these clients
                for run in group:
                    self._fail(run, error)
                continue
            engine = engine or Engine.of(job, self.device)
            with precision(job.settings.precision):
                fits = 1 if job.measured_graph is not None else most_together(job, engine)
            yield Group(group, job, engine, min(fits, self.batch or MOST_LANES, MOST_LANES))

    def _begun_alone(self, run: Run) -> bool:
        return self.folder is not None and self.folder.begun_alone(run.label, run.seed)

    def _known(self, run: Run, job: "Job") -> bool:
        """Take over what the folder has of a run: its result, or why it has none."""
        if self.folder is None:
            return False
        record = self.folder.failure(run.label, run.seed)
        if record is not None and difference(record["config"], run.experiment.to_dict()) is None:
            self._rows[run.candidate, run.seed] = self._failed_row(run, record["failure"], record["diverged"])
            return True
        path = RunFolder(self.folder.run(run.label, run.seed))
        if not path.complete:
            return False
        path.check(run.experiment.to_dict(), job.federation)
        result = Result.read(path.path, job.method.adapt(job.task))
        self._keep(run, result, job)
        if (notify := self._notify(run)) is not None:
            notify("read", result.best_round, job.settings.rounds, result.final)
        return True

    def _train_together(self, runs: Sequence[Run], width: int, group: Group) -> None:
        from coterie.comparison.sweeps.lockstep import train_together

        jobs = [_job_of(run, group.job) for run in runs]
        paths = [None if self.folder is None else self.folder.run(run.label, run.seed) for run in runs]
        outcomes = train_together(jobs, group.engine, width, paths, self._notify_together(runs))
        for run, job, outcome in zip(runs, jobs, outcomes, strict=True):
            if isinstance(outcome, Diverged):
                self._fail(run, outcome)
            else:
                self._keep(run, outcome, job)

    def _train_alone(self, run: Run, group: Group) -> None:
        from coterie.experiment.run import execute
        from coterie.methods.base import Solved

        job = _job_of(run, group.job)
        path = None if self.folder is None else self.folder.run(run.label, run.seed)
        try:
            self._keep(run, execute(job, out=path, progress=self._notify(run), engine=group.engine), job)
        except CoterieError as error:
            unsolved = isinstance(job.method, Solved) and not isinstance(error, StorageError)
            if not (isinstance(error, Diverged) or unsolved):
                raise
            self._fail(run, error)

    def _keep(self, run: Run, result: Result, job: "Job") -> None:
        counts = job.federation.validation.count
        self._rows[run.candidate, run.seed] = row_of(result, counts, run.candidate, run.settings)
        self.results[run.candidate, run.seed] = result
        if self.folder is not None:
            result.forget_models()  # those of many runs would fill the memory, and they are on disk

    def _fail(self, run: Run, error: CoterieError) -> None:
        """Write down why a run has no result."""
        diverged = isinstance(error, Diverged)
        sentence = str(error).partition(";")[0] if diverged else str(error)  # the advice is for a run of its own
        self._rows[run.candidate, run.seed] = self._failed_row(run, sentence, diverged)
        if self.folder is not None:
            self.folder.fail(run.label, run.seed, sentence, diverged, run.experiment.to_dict())
        if self.progress is not None:
            self.progress(run.label, run.seed, "note", 0, 0, {"note": f"{words_of(run.settings)}: {sentence}"})

    def _failed_row(self, run: Run, sentence: str, diverged: bool) -> Row:
        return Row(run.candidate, run.seed, run.settings, diverged=diverged, note=sentence)

    def _notify_together(self, runs: Sequence[Run]) -> list[Any]:
        """Return the progress functions of runs that are trained together; more than a few have one bar for all."""
        each = [self._notify(run) or _silent for run in runs]
        if self.progress is None or len(runs) <= FEW:
            return each
        for_all = for_one_run(self.progress, f"{len(runs)} runs together", runs[0].seed)
        latest = -1

        def listener(own: Any) -> Any:
            def notify(stage: str, number: int, *rest: Any) -> None:
                nonlocal latest
                if stage not in ("start", "round"):
                    own(stage, number, *rest)
                elif number > latest and for_all is not None:  # the first of them to get there
                    latest = number
                    for_all(stage, number, *rest)

            return notify

        return [listener(own) for own in each]

    def _notify(self, run: Run) -> Any:
        return for_one_run(self.progress, words_of(run.settings) or run.label, run.seed)


def _silent(*_: Any) -> None:
    return


def _job_of(run: Run, job: "Job") -> "Job":
    """Return the job of a run from that of another of the same program."""
    return dataclasses.replace(job, experiment=run.experiment)


def evenly(runs: Sequence[Run], width: int) -> list[tuple[Sequence[Run], int]]:
    """Divide runs into as few parts as possible, of nearly equal size; returns them with the size of the largest.

    One program of that size then serves all of them.
    """
    parts = math.ceil(len(runs) / width) if runs else 0
    size = math.ceil(len(runs) / parts) if parts else 0
    return [(runs[start : start + size], size) for start in range(0, len(runs), size)] if size else []
