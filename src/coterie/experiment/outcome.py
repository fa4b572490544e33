"""The end of a run: its result, and the files that make its folder complete."""

import functools
from typing import Any

from coterie.experiment.folder import RunFolder
from coterie.experiment.history import History
from coterie.experiment.intervals import intervals_of
from coterie.experiment.job import Job, precision
from coterie.experiment.personal_model import shared_model
from coterie.experiment.place import Place
from coterie.experiment.prediction import Answers
from coterie.experiment.result import MODEL_FILES, SHARED_MODEL, Result
from coterie.experiment.scores import Scores
from coterie.experiment.scoring import score_models
from coterie.experiment.solving import Fitting
from coterie.experiment.training import Training
from coterie.numerics.tree import for_each

__all__ = ["make_result", "write_result"]


def make_result(job: Job, training: Training | Fitting, history: History, models: Any, best_round: int) -> Result:
    """Return the result of a run whose kept models are those of round `best_round`."""
    apart, folder = history.place.members is not None, history.folder
    return Result(
        config=job.config,
        names=job.federation.names,
        rows=history.rows,
        ledger=history.ledger,
        graphs={} if apart else history.graphs,
        cooperation=history.graphs,
        members=history.place.members,
        seconds=history.seconds(),
        best_round=best_round,
        metric=job.task.metric,
        role=job.method.role,
        learns_weights=job.method.learns_weights,
        device=history.engine.device.label,
        folder=None if folder is None else folder.path,
        task=training.task,
        variables=None
        if history.place.together
        else for_each(models, len(job.federation)),  # the others' models are in the folder
        scored=functools.partial(_scores, job, training, models),
        answers=functools.partial(_answers, job, training, models),
    )


def write_result(
    folder: RunFolder, result: Result, job: Job, training: Training | Fitting, state: Any, models: Any, place: Place
) -> None:
    """Write scores, models and the summary, which comes last; `state` is the one after the last round.

    Of several processes each writes the models of its own clients, and the first one everything else.
    """
    scores, engine, method = result.all_scores(), training.engine, job.method
    assert scores is not None  # just computed
    everyone = engine.place_kept(models) if place.together else models
    if place.together and engine.size > MODEL_FILES:  # which are one file, that the first process writes
        models = engine.fetched(everyone)
    if place.writes or engine.size <= MODEL_FILES:
        mine = range(engine.mine.start, min(engine.mine.stop, engine.size))
        for file, data in result.model_files(for_each(models, engine.size), mine):
            folder.save_model(file, data)
    shared = None
    if method.newcomer == "shared":
        shared = shared_model(method, training.task, training.inner(state), everyone, engine.fetched)
    intervals = result.prediction_rules().intervals
    folder.sync()
    place.wait("models")
    if not place.writes:
        return
    folder.save_scores(scores.arrays())
    if shared is not None:
        folder.save_model(SHARED_MODEL, result.encode_shared(shared))
    if intervals is not None:
        folder.save_record("intervals.json", dict(intervals))
    folder.finish(result.summary())


def _scores(job: Job, training: Training | Fitting, models: Any) -> Scores:
    """Return every score of the kept models; a program that a result in memory may never need."""
    with precision(job.settings.precision):
        return score_models(training, models, job.federation)


def _answers(job: Job, training: Training | Fitting, models: Any) -> Answers:
    """Return how rows become inputs and outputs predictions, with the intervals of a regression."""
    with precision(job.settings.precision):
        return Answers.of(job.federation, job.config, intervals_of(training, models, job.federation))
