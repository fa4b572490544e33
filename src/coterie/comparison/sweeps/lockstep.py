"""Runs of one program, trained together: one compiled program for all of them, and a loop, history and folder for each.

Every run has its own `Loop`, which evaluates, stops early, notices divergence and writes its folder as ever. Only its
training is a `Lane`: what it asks for is computed once for all lanes, as one vmapped program, and each takes its part.
Numbers equal those of a run alone up to rounding (1e-6 relative in the tests, and growing with rounds where training is
chaotic). A lane whose numbers are no longer finite does not touch the others.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from coterie.comparison.candidates import StackedTraining
from coterie.errors import Diverged
from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job, precision
from coterie.experiment.loop import Loop, Progress
from coterie.experiment.machine import keep_machine
from coterie.experiment.result import Result
from coterie.experiment.rounds import Rounds
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph

__all__ = ["MOST_LANES", "train_together"]

MOST_LANES = 256  # each has a folder that is locked, which takes an open file


class Together:
    """The training of all lanes; everything is computed when the first lane asks for it.

    Args:
        engine: the federation on its device.
        jobs: the runs, equal but for real-valued settings of their method and their seeds.
        width: lanes of the program; those that are left are filled with the last job, so that it is compiled once.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job], width: int):
        first, filled = jobs[0], [*jobs, *[jobs[-1]] * (width - len(jobs))]
        methods, seeds = [job.method for job in filled], [job.settings.seed for job in filled]
        self.engine = engine
        self.training = StackedTraining(engine, methods, first.graph, first.weights, seeds, **options(first, engine))
        self.round = -1  # of the state; -1: there is none yet
        self._state: Any = None
        self._blocks: list[Rounds] = []
        self._kept: dict[str, tuple[int, Any]] = {}  # what was computed for a round

    def start(self, lane: int) -> Rounds:
        """Return what it cost a lane to begin."""
        if self.round < 0:
            (self._state, self._blocks), self.round = self.training.init(), 0
        return self._blocks[lane]

    def advance(self, lane: int, first: int, rounds: int) -> Rounds:
        """Return a lane's rounds; the first lane that asks for them trains all."""
        last = first + rounds - 1
        if self.round < last:
            self._state, self._blocks = self.training.advance(self._state, first, rounds)
            self.round = last
        return self._blocks[lane]

    def evaluate(self, number: int) -> dict[str, Any]:
        """Return the metrics of all lanes after the round that was just trained."""
        return self._once("evaluate", number, lambda: self.training.evaluate(self._state, number))

    def models(self, number: int) -> Any:
        """Return the models of all lanes, on the host."""
        return self._once("models", number, lambda: self.training.models(self._state, number))

    def state(self, lane: int) -> Any:
        """Return a lane's state."""
        return jax.tree.map(lambda a: a[lane], self._state)

    def _once(self, what: str, number: int, compute: Callable[[], Any]) -> Any:
        if self._kept.get(what, (-1, None))[0] != number:
            self._kept[what] = number, compute()
        return self._kept[what][1]


class Lane(Training):
    """One run among several that are trained together; its state is the number of rounds it has behind it."""

    def __init__(self, together: Together, number: int, job: Job, graph: Graph, weights: Any):
        super().__init__(
            together.engine, job.method, graph, weights, job.settings.seed, **options(job, together.engine)
        )
        self.together, self.number, self.job = together, number, job

    def init(self, arrivals: Any = None) -> tuple[Any, Rounds]:
        """See `Training.init`."""
        return 0, self.together.start(self.number)

    def advance(self, state: Any, first: int, rounds: int, arrivals: Any = None) -> tuple[Any, Rounds]:
        """See `Training.advance`."""
        return state + rounds, self.together.advance(self.number, first, rounds)

    def evaluate(self, state: Any, number: int) -> dict[str, Any]:
        """See `Training.evaluate`."""
        return {name: values[self.number] for name, values in self.together.evaluate(number).items()}

    def models(self, state: Any, number: int) -> Any:
        """See `Training.models`."""
        # A copy: a part of the array would keep the models of all lanes in memory.
        return jax.tree.map(lambda a: np.array(a[self.number]), self.together.models(number))

    def inner(self, state: Any) -> Any:
        """See `Training.inner`."""
        return self.together.state(self.number)

    def refuse_secret_mixing(self, state: Any, rounds: int) -> None:
        """See `Training.refuse_secret_mixing`: one lane looks, with a training of its own."""
        if self.number == 0 and not type(self.method).__module__.startswith("coterie."):
            job, engine = self.job, self.engine
            alone = Training(engine, job.method, job.graph, job.weights, job.settings.seed, **options(job, engine))
            alone.refuse_secret_mixing(alone.init()[0], rounds)


def options(job: Job, engine: Engine) -> dict[str, Any]:
    """Return what a training has besides its method, graph and seed."""
    peers = job.simulation(engine.plan)
    return {"peers": peers, "faults": job.injection(), "robust": job.robust}


class LaneLoop(Loop):
    """The loop of one lane. It writes no checkpoints: what is resumed is a group of runs."""

    def __init__(self, together: Together, number: int, sharers: int, *args: Any):
        self.together, self.number = together, number
        super().__init__(*args)
        self.history.sharers = sharers

    def _training(self, graph: Graph, weights: Any) -> Any:
        return Lane(self.together, self.number, self.job, graph, weights)

    def _save(self) -> None:
        return


def train_together(
    jobs: Sequence[Job], engine: Engine, width: int, paths: Sequence[Path | None], notify: Sequence[Progress]
) -> list[Result | Diverged]:
    """Train runs of one program; returns for each its result, or why it has none.

    Args:
        jobs: the runs.
        engine: the federation on its device.
        width: lanes of the program, at least as many as there are jobs.
        paths: their folders, in which nothing is complete; None keeps a run in memory.
        notify: for each, called as the `progress` of a run.
    """
    outcomes: dict[int, Result | Diverged] = {}
    folders = [None if path is None else RunFolder(path) for path in paths]
    with contextlib.ExitStack() as stack:
        stack.enter_context(precision(jobs[0].settings.precision))
        for job, folder in zip(jobs, folders, strict=True):
            if folder is not None:
                folder.check(job.config, job.federation)
                stack.enter_context(folder.lock())
                folder.create(job.config, job.federation)
                keep_machine(folder.path, engine.device.machine)
        together = Together(engine, jobs, width)
        loops = [
            LaneLoop(together, i, len(jobs), job, engine, folder, progress)
            for i, (job, folder, progress) in enumerate(zip(jobs, folders, notify, strict=True))
        ]
        for loop in loops:
            loop.begin()
        while len(outcomes) < len(loops):
            for i, loop in enumerate(loops):
                if i not in outcomes:
                    outcome = _stepped(loop)
                    if outcome is not None:
                        outcomes[i] = outcome
    return [outcomes[i] for i in range(len(loops))]


def _stepped(loop: Loop) -> Result | Diverged | None:
    """Train a loop up to its next evaluation; returns how it ended, None if it goes on."""
    try:
        loop.step()
    except Diverged as error:
        return error
    return loop.finish() if loop.ended() else None
