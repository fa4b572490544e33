"""The distance by which the soak of a mesh judges sees every kind of difference."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from soak_mesh import distance

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, NAN], [1.0, NAN], 0),  # a metric that nobody has
        ([1.5, NAN], [1.0, NAN], 0.5),
        ([NAN, 2.0], [1.0, 2.0], INF),
        ([1.0, 2.0], [NAN, 2.0], INF),
        ([INF, 2.0], [-INF, 2.0], INF),
        ([INF, 2.0], [NAN, 2.0], INF),
        ([], [], 0),
    ],
)
def test_distance(ours, theirs, apart):
    with np.errstate(invalid="ignore"):
        assert distance({"a": np.array(ours)}, {"a": np.array(theirs)}) == apart


def test_another_shape():
    with pytest.raises(AssertionError, match="on the mesh"):
        distance([np.zeros(2)], [np.zeros(3)])
