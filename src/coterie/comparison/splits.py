"""The splits of a comparison: the same clients' samples divided several times into train, validation and test.

Where test sets are small, the verdict hangs on who happens to be in them. Run r of every method uses split
r modulo `splits`, drawn with seed `partition.seed + r % splits`, so that the noise of the draw is in the results.
"""

import dataclasses
from typing import Any

import numpy as np

from coterie.data.clients import Federation
from coterie.data.partition import with_same_owners
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.fingerprint import fingerprint
from coterie.experiment.parts import Part

__all__ = ["FEW_TESTS", "SPLITS", "draw_splits", "number_of_splits", "same_programs", "with_split"]

SPLITS = 5
FEW_TESTS = 100  # test samples of the median client, below which a split is drawn several times


def number_of_splits(federation: Federation, asked: int | None) -> int:
    """Return how many splits to draw: what was asked, else 5 where clients are real and have few test samples.

    Clients that were made up by dividing a pool (iid, classes, dirichlet, ...) would be other clients in every draw, so
    that nothing is drawn twice unless it is asked for.
    """
    redraw = federation.redraw
    if asked is not None:
        if asked > 1 and redraw is None:
            raise CoterieError(
                f"splits is {asked}, but these data cannot be divided again: they bring test samples of their own, or "
                "come from Python without the samples they were drawn from; leave splits out"
            )
        return asked
    few = float(np.median(federation.test.count)) < FEW_TESTS
    return SPLITS if redraw is not None and redraw.same_clients and few else 1


def draw_splits(federation: Federation, splits: int) -> list[Federation]:
    """Return the federation as it is, then with its samples divided anew by the seeds that follow."""
    drawn = [federation]
    for number in range(1, splits):
        assert federation.redraw is not None  # number_of_splits has made sure
        drawn.append(federation.redraw(federation.redraw.seed + number))
    return drawn


def with_split(experiment: Experiment, federation: Federation, number: int) -> Experiment:
    """Return the experiment of split `number`, whose federation is given."""
    if number == 0:
        return experiment
    part = experiment.partition
    if part is None:  # data from Python, known by their fingerprint
        data = Part("in-memory", None, about={"digest": fingerprint(federation)})
        return dataclasses.replace(experiment, data=data)
    spec = with_same_owners(part.spec, part.common.clients, part.common.seed)
    common = dataclasses.replace(part.common, seed=part.common.seed + number)
    return dataclasses.replace(experiment, partition=dataclasses.replace(part, spec=spec, common=common))


def same_programs(one: Federation, other: Federation) -> bool:
    """Whether programs that were compiled for one federation serve another: all that enters them as constants agrees.

    Shapes need not agree: a program is compiled for the shapes of its arguments.
    """
    return _constants(one) == _constants(other)


def _constants(federation: Federation) -> tuple[Any, ...]:
    scale = (tuple(federation.mean), tuple(federation.std))
    return federation.kind, federation.classes, federation.sample_shape, federation.equal_sizes, scale
