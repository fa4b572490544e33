"""Agreement with a truth, against scikit-learn and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, roc_auc_score

from coterie.numerics.agreement import adjusted_rand, area_under_roc

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), min_size=1, max_size=30)


@given(LABELS)
def test_adjusted_rand_is_scikit_learns(pairs):
    truth, labels = zip(*pairs, strict=True)
    assert adjusted_rand(truth, labels) == adjusted_rand_score(truth, labels)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_area_under_roc_is_scikit_learns(pairs):
    positive, scores = map(np.array, zip(*pairs, strict=True))
    if len(set(positive)) == 2:
        assert area_under_roc(positive, scores / 7) == pytest.approx(roc_auc_score(positive, scores / 7), abs=1e-12)


def test_by_hand():
    assert adjusted_rand([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)
    assert adjusted_rand(["a", "b"], [1, 1]) == 0
    assert area_under_roc([True, True, False], [3.0, 1.0, 2.0]) == 0.5
