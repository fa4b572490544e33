"""Train one method with several settings, only to see which validates best: no files, no ledger, no test scores.

On a CPU candidates are trained one after another by the programs of the run that follows: real-valued settings are
arguments of a program, so nothing is compiled for them. All start, and only the best few go on (successive halving).
On an accelerator, where small programs leave most of it idle, all candidates become one program if that saves more
time than its compilation takes. (Twenty clients of digits, 200 rounds: on an H200 one program is 3 to 4 times faster
and takes 5 s to compile; on two CPU cores it is 1 to 3 times slower.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.experiment.engine import Engine
from coterie.experiment.job import Job, precision
from coterie.experiment.plan import memory_budget, working_bytes
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.evaluate import validation_loss, validation_score
from coterie.methods.base import Method, Solved
from coterie.peers.base import Traffic

__all__ = ["FINALISTS", "Candidate", "StackedTraining", "Trials", "budget", "most_together"]

FINALISTS = 2  # candidates that are trained longer
SMALL_TOGETHER = 6000  # parameters up to which 16 candidates in one program are faster on a CPU (1.2 times at 4,810)
WORTH_COMPILING = 10.0  # seconds of training one by one from which a program for all of them is worth compiling


def budget(rounds: int, every: int) -> tuple[int, int]:
    """Return for how many rounds all candidates are trained, and for how many the finalists.

    A fifth and two fifths of the run, but not fewer than 10 and 20 rounds: with very few rounds a large learning rate
    would win only because it is fast.
    """
    short, long = max(rounds / 5, 10), max(2 * rounds / 5, 20)
    return tuple(min(rounds, math.ceil(each / every) * every) for each in (short, long))  # type: ignore[return-value]


class StackedTraining(Training):
    """Several settings of one method, trained as one program: states and results have them as their first axis.

    What a block of rounds reports is a list, with the `Rounds` of each of them.

    Args:
        engine: the federation on its device.
        methods: the same method with other real-valued settings (zero in all of them or in none).
        graph, weights: as for a `Training`, the same for all.
        seed: one for all, or one for each. With one for all, what is random is drawn only once.
        **options: `peers`, `faults` and `robust` of a `Training`, the same for all.
    """

    def __init__(
        self,
        engine: Engine,
        methods: Sequence[Method],
        graph: Graph,
        weights: np.ndarray,
        seed: int | Sequence[int],
        **options: Any,
    ):
        seeds = [seed] if isinstance(seed, int) else list(seed)
        super().__init__(engine, methods[0], graph, weights, seeds[0], **options)
        self.method = jax.tree.map(lambda *leaves: np.stack(leaves), *methods)
        self.count = len(methods)
        self.one_seed = len(set(seeds)) == 1
        if not self.one_seed:
            keys = jnp.stack([jax.random.split(jax.random.key(each), 3) for each in seeds])
            self._init_key, self._round_key, self._tune_key = (engine.put(keys[:, i]) for i in range(3))

    def init(self, arrivals: Any = None) -> tuple[Any, Any]:
        """Return the states before the first round, and for each what it cost to get there."""
        state, start = super().init(arrivals)
        sent = [jax.tree.map(lambda a, i=i: a[:, i], start.traffic) for i in range(self.count)]
        return state, [start._replace(traffic=each) for each in sent]

    def advance(self, state: Any, first: int, rounds: int, arrivals: Any = None) -> tuple[Any, Any]:
        """Run rounds of all; returns the states, and the `Rounds` of each."""
        return super().advance(state, first, rounds, arrivals)

    def _placed(self, state: Any) -> Any:
        return self.engine.place(state, axis=1)

    def _reported(self, info: Any, traffic: Traffic, rounds: int) -> Any:
        parts = [jax.tree.map(lambda a, i=i: a[i], (info, traffic)) for i in range(self.count)]
        return [super(StackedTraining, self)._reported(info, sent, rounds) for info, sent in parts]

    def call(self, program: Callable, name: Any, *arguments: Any, **options: Any) -> Any:
        """Run a program of this training, as `Engine.call` does; the method, its tables and the data come first."""
        # The arguments of all programs are method, tables, clients, key, state, ...; that of `init` has no state.
        stacked = {0, *(() if self.one_seed else (3,)), *(() if name == "init" else (4,))}
        axes = tuple(0 if i in stacked else None for i in range(3 + len(arguments)))
        together = jax.vmap(program, in_axes=axes)
        return super().call(together, ("stacked", self.count, self.one_seed, name), *arguments, **options)


def most_together(job: Job, engine: Engine) -> int:
    """Return how many candidates fit into one program, 1 where they are better trained one after another.

    That is so where clients are, too (mode `exact`, which batching would make slower and no longer exact), where a CPU
    gains nothing from it, where the graph changes during the run (every candidate would get a graph of its own), with a
    codec, without rounds, and on a mesh.
    """
    method = job.method
    slower = engine.device.platform == "cpu" and job.task.size > SMALL_TOGETHER
    alone = slower or engine.plan.mode == "exact" or engine.plan.spread
    if alone or method.stages() or job.codec is not None or isinstance(method, Solved):
        return 1
    training = Training(engine, method, job.graph, job.weights, job.settings.seed)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(training.shapes()))
    needed = len(job.federation) * working_bytes(job.task, job.federation) + 3 * state  # before, after, and between
    return max(1, memory_budget(engine.device) // max(needed, 1))


class Candidate:
    """One setting of the method: how long it was trained, and validation loss and score of the evaluation it keeps.

    Of two candidates the one with the smaller `rank` is better; one that diverged has an infinite loss.
    """

    def __init__(self, method: Method, training: Training | None = None):
        self.method, self.training = method, training
        self.state: Any = None
        self.round, self.best_round, self.loss = 0, 0, math.inf
        self.score: float | None = None  # better if higher; None where the loss decides
        self.diverged = False

    @property
    def rank(self) -> tuple[float, ...]:
        """The loss; or the score, and the loss where two scores are equal."""
        if self.diverged or self.score is None:
            return (math.inf, math.inf) if self.diverged else (self.loss,)
        return -self.score, self.loss

    def judge(self, number: int, finite: bool, loss: float, score: float | None = None, last: bool = False) -> None:
        """Take note of an evaluation after round `number`; early stopping keeps the lowest loss, `last` the last."""
        self.round = number
        if not (finite and math.isfinite(loss)):
            self.diverged, self.loss, self.state = True, math.inf, None
        elif last or loss < self.loss:
            self.loss, self.score, self.best_round = loss, score, number


class Trials:
    """Trains candidates of one method on one split.

    Args:
        job: the run they are candidates for.
        engine: its federation on its device.
        notify: called with the number of candidates that have been trained.
        by_score: train every candidate as long as the run, and compare them by their validation score.
    """

    def __init__(
        self, job: Job, engine: Engine, notify: Callable[[int], None] = lambda done: None, by_score: bool = False
    ):
        self.job, self.engine, self.notify, self.by_score = job, engine, notify, by_score
        self.every = job.settings.evaluate_every or max(1, -(-job.settings.rounds // 20))
        whole = (job.settings.rounds, job.settings.rounds)
        self.short, self.long = whole if by_score else budget(job.settings.rounds, self.every)
        self.done = self.width = 0  # candidates trained; candidates in one program
        self.counts = job.federation.validation.count
        # Candidates live in the world of the run; what else goes wrong on its network they are spared.
        self.faults = job.injection() if job.experiment.world else None

    def together(self, count: int) -> bool:
        """Whether so many candidates can be one program: on an accelerator, if memory allows."""
        return self.engine.device.platform != "cpu" and 1 < count <= most_together(self.job, self.engine)

    def halving(self, methods: Sequence[Method]) -> list[Candidate]:
        """Train all candidates for a short time, and the best of them to the end of their budget.

        The first one shows how long the others would take; if that is long, all become one program, and none stops
        before the end.
        """
        with precision(self.job.settings.precision):
            before = self.engine.seconds["program"]
            candidates = [self._to(self._start(methods[0]), self.short)]
            each = self.engine.seconds["program"] - before
            left = each * (len(methods) - 1 + FINALISTS * (self.long - self.short) / self.short)
            if self.together(len(methods)) and left > WORTH_COMPILING:
                self.width, self.done = len(methods), 0
                return self._stacked(methods)
            candidates += [self._to(self._start(method), self.short) for method in methods[1:]]
            for candidate in sorted(candidates, key=lambda each: each.rank)[:FINALISTS]:
                self._to(candidate, self.long)
                self.done -= 1  # it was counted before
            for candidate in candidates:
                candidate.state = candidate.training = None  # free the memory
            return candidates

    def all_of(self, methods: Sequence[Method]) -> list[Candidate]:
        """Train more candidates to the end of their budget, as one program if those before them were one."""
        with precision(self.job.settings.precision):
            if 0 < len(methods) <= self.width:
                return self._stacked(methods)
            return [self._to(self._start(method), self.long) for method in methods]

    def _start(self, method: Method) -> Candidate:
        job = self.job
        usual = (self.engine, method, job.graph, job.weights, job.settings.seed)
        training = Training(*usual, codec=job.codec, faults=self.faults)
        candidate = Candidate(method, training)
        candidate.state, _ = training.init()
        return candidate

    def _to(self, candidate: Candidate, until: int) -> Candidate:
        """Train a candidate until some round."""
        training = candidate.training
        assert training is not None
        while candidate.round < until and not candidate.diverged:
            first = candidate.round + 1
            count = training.rounds_to_stage(first, min(self.every - candidate.round % self.every, until + 1 - first))
            state, block = training.advance(candidate.state, first, count)
            number = candidate.round + count
            row = training.evaluate(state, number)
            self._judge(candidate, number, bool(np.isfinite(block.loss).all()), row)
            if not candidate.diverged:
                candidate.state, _ = training.next_stage(state, number)
        self.done += 1
        self.notify(self.done)
        return candidate

    def _judge(self, candidate: Candidate, number: int, finite: bool, row: Mapping[str, np.ndarray]) -> None:
        score = self.job.task.score.sign * validation_score(row, self.counts) if self.by_score else None
        last = self.job.settings.keep == "last"
        candidate.judge(number, finite, validation_loss(row, self.counts), score, last)

    def _stacked(self, methods: Sequence[Method]) -> list[Candidate]:
        """Train all candidates as one program, which is filled up to its width so that it is compiled once."""
        job, width, candidates = self.job, self.width, [Candidate(method) for method in methods]
        filled = [*methods, *[methods[-1]] * (width - len(methods))]
        usual = (job.graph, job.weights, job.settings.seed)
        training = StackedTraining(self.engine, filled, *usual, faults=self.faults)
        state, _ = training.init()
        for first in range(1, self.long + 1, self.every):
            count = min(self.every, self.long + 1 - first)
            state, blocks = training.advance(state, first, count)
            number = first + count - 1
            rows = training.evaluate(state, number)
            finite = [np.isfinite(block.loss).all() for block in blocks]
            for i, candidate in enumerate(candidates):
                if not candidate.diverged:
                    self._judge(candidate, number, bool(finite[i]), {name: each[i] for name, each in rows.items()})
        self.done += len(methods)
        self.notify(self.done)
        return candidates
