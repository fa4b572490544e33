"""A whole run of clients in buckets: the same scores, intervals and models as with all of them in one stack."""

import numpy as np
import pytest

import coterie as ct

SIZES = (4, 200, 9, 90, 300)  # the first has no validation row


@pytest.mark.soak
@pytest.mark.parametrize("method", ["local", "local-exact"])
def test_a_run_in_buckets_reports_the_same(method):
    random = np.random.default_rng(1)
    pairs = {}
    for i, n in enumerate(SIZES):
        x = random.normal(size=(n, 3))
        pairs[f"site-{i}"] = (x, 40 + x @ [1.0, 2.0, i] + random.normal(size=n))
    one = ct.federation(pairs)
    several = one.in_buckets([np.array([0, 2]), np.array([1, 3]), np.array([4])])
    assert several.validation.count[0] == 0
    runs = [ct.run(data, "linear", method, rounds=2, mode="exact", device="cpu") for data in (one, several)]
    mine, other = runs
    for name in mine.scores:
        np.testing.assert_array_equal(mine.scores[name], other.scores[name])
    for name in ("rmse", "mae"):
        np.testing.assert_array_equal(mine.each(name), other.each(name))
    x = several.test.rows(4)[0]
    np.testing.assert_array_equal(mine.model("site-4")(x), other.model("site-4")(x))
    np.testing.assert_array_equal(mine.final["test_score"], other.final["test_score"])
    left, right = (run.model("site-4").predict(x) for run in runs)  # with intervals from the validation rows
    assert left.equals(right)
