"""The loop of a run: rounds, evaluation, ledger, checkpoint, resume. It knows no method by name."""

import time
import tomllib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.errors import CoterieError, CoterieWarning, Diverged
from coterie.experiment import checkpoints
from coterie.experiment.ahead import compile_ahead
from coterie.experiment.charges import with_cost_of_graph, with_cost_of_inputs, with_stage
from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder
from coterie.experiment.history import History
from coterie.experiment.interruption import held_back
from coterie.experiment.job import Job
from coterie.experiment.judging import EVALUATIONS
from coterie.experiment.outcome import make_result, write_result
from coterie.experiment.place import Place
from coterie.experiment.result import Result
from coterie.experiment.rounds import Rounds, joined
from coterie.experiment.snapshot import Record, Snapshot
from coterie.experiment.solving import Fitting
from coterie.experiment.states import from_host, on_host, outline_on_host
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.evaluate import validation_loss
from coterie.methods.base import Solved
from coterie.storage.toml import difference, dump_toml

__all__ = ["Loop", "Progress"]

CHECKPOINT_SECONDS = 10.0

Progress = Callable[[str, int, int, dict[str, Any]], None]  # (stage, round, rounds, metrics)


class Loop:
    """The state of a run between two blocks of rounds.

    Args:
        job: what to run.
        engine: the federation on its device.
        folder: where to write; None keeps everything in memory.
        progress: called after every evaluation.
        place: where the clients live; default: all of them here, in a simulation.
    """

    def __init__(
        self, job: Job, engine: Engine, folder: RunFolder | None, progress: Progress, place: Place | None = None
    ):
        self.job, self.engine, self.folder, self.progress = job, engine, folder, progress
        self.place = place or Place()
        self.validated = job.federation.validation.count > 0
        self.staged = bool(job.method.stages())
        if job.settings.patience and not self.validated.any():
            raise CoterieError("run.patience needs validation samples: raise partition.validation or set patience to 0")
        self.per_model = job.method.rounds_per_model  # where the method goes along a path of models
        wanted = job.settings.patience > 0 or self.per_model > 0 or job.settings.keep == "best"
        self.keeps_best = self.validated.any() and wanted
        if self.per_model and not self.keeps_best:
            warnings.warn(
                "without validation samples nothing says which model of the path is best, and the last one is kept; "
                "raise partition.validation",
                CoterieWarning,
                stacklevel=2,
            )
        self.training = self._training(job.graph, job.weights)
        self.history = History(job, engine, folder if self.place.writes else None, self.place)
        self.round = self.best_round = self.waited = 0
        self.best: Any = None
        self.best_score: float | None = None
        self.unrecorded: list[Rounds] = []  # since the last record
        self.last_saved = time.monotonic()

    def _training(self, graph: Graph, weights: np.ndarray) -> Training | Fitting:
        """Make what trains on a graph: round after round, or at once where the method solves its problem."""
        kind = Fitting if isinstance(self.job.method, Solved) else Training
        return kind(
            self.engine,
            self.job.method,
            graph,
            weights,
            self.job.settings.seed,
            ids=self.place.ids,
            codec=self.job.codec,
            peers=self.place.peers or self.job.simulation(self.engine.plan),
            faults=self.job.injection(None if self.place.members is None else self.place.members.names),
            robust=self.job.robust,
        )

    def run(self) -> Result:
        """Go from the start, or from the newest checkpoint, to the end."""
        self.begin()
        # Where others do the same at the same time, a signal waits until all of them know of it.
        stop = False
        with held_back(self.place.together) as asked:
            while not (stop or self.ended()):
                stop = self.step(asked)
            if stop:
                self.place.agree_to_stop()
        if stop:
            raise KeyboardInterrupt  # another process was asked to end
        return self.finish()

    def begin(self) -> None:
        """Get ready for the first block of rounds."""
        settings = self.job.settings
        self.every = settings.evaluate_every or self.per_model or max(1, -(-settings.rounds // EVALUATIONS))
        self.training.longest = min(self.every, settings.rounds) if self.place.members is None else 1
        self.progress("start", 0, settings.rounds, {})
        self._begin()
        compile_ahead(self.training, self.state, self.round + 1, settings.rounds)
        self._short = self.place.members is not None  # how long a block takes is not known before the first

    def step(self, asked: Callable[[], bool] = lambda: False) -> bool:
        """Run a block of rounds, up to the next evaluation; returns whether another process was asked to end.

        `asked` says whether this one was, where signals are held back for the whole run.
        """
        self._keep_up()
        began = time.monotonic() - self.engine.seconds["compile"]
        # A signal waits until a short block is saved; before a long one there was a checkpoint.
        with held_back(self._short and not self.place.together) as stopping:
            row = self._block(self.every)
            due, stop = self.place.any_of(self._due(), asked())
            if due:
                self._save()
            self.progress("round", self.round, self.job.settings.rounds, row)
            if (stop or stopping()) and not due:
                self._save()
        seconds = time.monotonic() - self.engine.seconds["compile"] - began
        self._short = self.place.members is not None or seconds < CHECKPOINT_SECONDS
        return stop

    def _begin(self) -> None:
        """Restore the newest checkpoint, or start; on a network, meet the others first."""
        restored = self._restore()
        self.place.meet(self.round if restored else -1, self.training.prepare)
        if restored:
            return
        self.state, opening = self.training.init()
        self.place.round_done(0)
        opening = with_cost_of_inputs(with_cost_of_graph(opening, self.job), self.job.federation)
        self.history.record(0, opening, self.job.graph)
        if self.place.members is not None:  # who comes back finds the state it began with
            self._save()

    def _keep_up(self) -> None:
        """Go on with the round that the others are in; a simulation is never behind."""
        try:
            number = min(self.place.next_round(self.round + 1), self.job.settings.rounds)
        except (CoterieError, KeyboardInterrupt):  # nobody else is left, or this process shall end while it waits
            self._save()
            raise
        if number <= self.round + 1:
            return
        self._record_rest()
        missed, self.round = self.round + 1, number - 1
        ended = [end for end in self.job.method.stages() if missed <= end < number]
        if ended:  # a stage has ended in between: the others know its graph
            graph = self.place.graph_in_use(max(ended)) or self.training.graph
            self.state = self.training.enter_stage(self.state, graph, number)
        note = f"rounds {missed} to {number - 1} went on without this site; it goes on with round {number}"
        self.progress("note", self.round, self.job.settings.rounds, {"note": note})

    def _block(self, every: int) -> dict[str, np.ndarray]:
        """Train until the next evaluation and record it; returns its row. On a network, a block is one round, and
        those without an evaluation return no row."""
        count = min(every - self.round % every, self.job.settings.rounds - self.round)
        count, graph = self.training.rounds_to_stage(self.round + 1, count), self.training.graph
        to_evaluation, count = count, min(count, self.training.peers.rounds_per_call or count)
        if self.round == 0 and self.place.members is None:
            self.training.refuse_secret_mixing(self.state, count)
        self.state, block = self.training.advance(self.state, self.round + 1, count)
        for number, loss in enumerate(block.loss, self.round + 1):
            self._refuse_nan(number, {"train_loss": loss})
        self.round += count
        self.place.round_done(self.round, block, graph)
        self.unrecorded.append(block)
        if count < to_evaluation:
            return {}
        row = self.training.evaluate(self.state, self.round) | {"train_loss": block.loss[-1]}
        self._refuse_nan(self.round, row)
        self.place.evaluated(row)
        self._judge(self.round, row)
        self.state, announced = self.training.next_stage(self.state, self.round, self.place.agree)
        block, self.unrecorded = joined(self.unrecorded), []
        self.history.record(self.round, block if announced is None else with_stage(block, announced), graph, row)
        return row

    def _record_rest(self) -> None:
        """Record the rounds that no evaluation has followed yet."""
        if self.unrecorded:
            block, self.unrecorded = joined(self.unrecorded), []
            self.history.record(self.round, block, self.training.graph)

    def ended(self) -> bool:
        """Whether all rounds are done or patience is used up."""
        settings = self.job.settings
        return self.round >= settings.rounds or (bool(settings.patience) and self.waited >= settings.patience)

    def _refuse_nan(self, number: int, values: dict[str, np.ndarray]) -> None:
        for what, value in values.items():
            bad = np.flatnonzero(~np.isfinite(value))
            if bad.size:
                name = self.job.federation.names[bad[0]]
                raise Diverged(
                    f"training diverged: {what} of client {name!r} is not finite in round {number}; "
                    f"try a smaller method.lr{'' if self.folder is None else ' in another --out'}"
                )

    def _judge(self, number: int, row: dict[str, np.ndarray]) -> None:
        """Remember the best evaluation if the run may stop early or goes along a path; otherwise the last counts."""
        if not self.keeps_best:
            self.best_round = number
            return
        if self.job.settings.keep == "best":
            score = -validation_loss(row, self.job.federation.validation.count)
        else:
            score = self.job.task.score.sign * float(row["validation_score"][self.validated].mean())
        if self.best_score is None or score > self.best_score:
            self.best_score, self.best_round, self.waited = score, number, 0
            self.best = self.training.models(self.state, number)
        else:
            self.waited += 1

    def _due(self) -> bool:
        """Whether it is time for a checkpoint."""
        if not self.place.writes:
            return False  # the process that writes says when
        every = self.job.settings.checkpoint_every
        due = len(self.history.rows) % every == 0 if every else time.monotonic() - self.last_saved > CHECKPOINT_SECONDS
        return due or self.ended()

    def _save(self) -> None:
        """Write a checkpoint, after everything it covers is safely on disk."""
        if self.folder is None:
            return
        self._record_rest()
        self.place.saving()
        self.folder.sync()
        record = Record(
            best_round=self.best_round,
            waited=self.waited,
            best_score=self.best_score,
            written=self.history.written(),
            config=dump_toml(self.job.config),
        )
        checkpoints.save(
            self.folder.path, self.round, self.training, Snapshot(self.state, self.best, self._graph_arrays()), record
        )
        self.last_saved = time.monotonic()

    def _graph_arrays(self) -> dict[str, np.ndarray] | None:
        """Return the graph in use, where the method changes it."""
        graph = self.training.graph
        return {"neighbours": graph.neighbours, "present": graph.present} if self.staged else None

    def _restore(self) -> bool:
        """Continue from the newest checkpoint that is whole; what was written after it is cut off."""
        if self.folder is None:
            return False
        saved = checkpoints.load(self.folder.path, self.engine)
        if saved is None:
            if self.place.writes:
                self.folder.cut(-1)
            return False
        self.round = saved.round
        changed = difference(tomllib.loads(saved.record.config), self.job.config)
        if changed:
            path = self.folder.path / "config.toml"
            raise CoterieError(f"{path} was changed since the last checkpoint: {changed}; change it back to continue")
        for note in saved.notes:
            self.progress("note", self.round, self.job.settings.rounds, {"note": note})
        record = saved.record
        self.best_round, self.waited, self.best_score = record.best_round, record.waited, record.best_score
        if self.staged:
            self._return_to_stage(saved.graph())
        like = outline_on_host(self.training)
        best = self.training.kept_models(self.job.method, self.training.inner(like)) if saved.has("best") else None
        arrays = saved.snapshot(like=Snapshot(state=like, best=best, graph=self._graph_arrays()))
        self.state = from_host(self.training, arrays.state)
        self.best = checkpoints.best_kept(saved, arrays.best, self.engine)
        if self.place.writes:
            self.history.read_back(self.folder, self.round, record.written)
        return True

    def _return_to_stage(self, graph: Graph) -> None:
        """Train on the graph that a checkpoint was written with."""
        weights = self.job.weights if graph.edges() == self.job.graph.edges() else np.zeros(graph.neighbours.shape)
        self.training = self._training(graph, weights)
        self.training.return_to_stage(self.round + 1)

    def finish(self) -> Result:
        """Return the result, and make the folder complete."""
        models = self.best
        if models is None:
            models = self.training.models(self.state, self.best_round)
        result = make_result(self.job, self.training, self.history, models, self.best_round)
        if self.folder is not None:
            with self.engine.profile.part("input and output"):
                state = self.state if self.place.together else on_host(self.training, self.state)
                write_result(self.folder, result, self.job, self.training, state, models, self.place)
        self.progress("end", self.round, self.job.settings.rounds, result.final)
        return result
