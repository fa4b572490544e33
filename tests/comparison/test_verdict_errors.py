"""A sample of `benchmarks/verdict_errors.py`: false "helps" and "hurts" are rare, and a plain effect is seen."""

import numpy as np
import pytest
import scipy.stats

from coterie.comparison.verdict import Paired, Setting, judge
from coterie.learning.score import SCORES
from support.verdict_cases import Case, covered, draw, said

COUNT = 400

# What is known to have gone wrong before, and the cases of the full simulation that come closest to 5 %.
NOTHING = {
    "two clients": Case(2, 30),
    "three clients, three rows": Case(3, 3),
    "very unequal test sets": Case(20, "3 to 1000"),
    "one large client": Case(20, "one of 1000"),
    "seed, one run": Case(20, 1000, seed=0.3),
    "seed, one run, many clients": Case(100, 30, seed=0.3),
    "seed, five splits": Case(20, 30, seed=0.3, runs=5, splits=5),
    "five runs of one split": Case(5, 1000, runs=5),
    "groups": Case(20, 30, groups=5, alike=0.7),
    "uneven groups, five splits": Case(100, "3 to 1000", groups=5, alike=0.7, uneven=True, runs=5, splits=5),
    "seven methods": Case(20, 30, methods=7, runs=5, splits=5),
    "a continuous score": Case(10, 30, seed=0.3, binary=False),
}


@pytest.mark.parametrize("case", NOTHING.values(), ids=NOTHING.keys())
def test_help_and_harm_are_rarely_seen_where_there_is_none(case):
    rate = sum(said(case, COUNT, np.random.default_rng(5)))
    assert rate * COUNT <= scipy.stats.binom.ppf(0.999, COUNT, 0.05)


@pytest.mark.parametrize(
    ("case", "least"),
    [
        (Case(20, 50, 0.03, effect=0.08, runs=5, splits=5), 0.95),
        (Case(20, 50, 0.03, effect=0.08, runs=5, splits=5, methods=7), 0.95),
        (Case(20, 50, 0.03, effect=0.08), 0.5),
        (Case(5, 100, 0.05, effect=0.15, runs=5, splits=5), 0.85),
    ],
)
def test_a_plain_effect_is_seen(case, least):
    helps, hurts = said(case, COUNT, np.random.default_rng(6))
    assert helps >= least
    assert hurts == 0


def test_the_simulation_judges_as_the_product_does():
    case = Case(12, "3 to 1000", 0.05, groups=4, alike=0.3, runs=4, splits=2, methods=2, effect=0.06)
    count = 30
    gains, spread, _ = draw(case, count, np.random.default_rng(7))
    rows = np.broadcast_to(case.sizes(), (4, 12)).astype(float)
    splits, overlap = np.arange(4) % 2, np.full(12, 0.25 / 0.75)
    names = [f"c{i}" for i in range(12)]
    setting = Setting(names, SCORES["accuracy"], rows, case.group_of(), splits, overlap)
    outcomes = [
        judge({str(m): Paired(gains[m, i], spread[m, i]) for m in range(2)}, setting).outcome for i in range(count)
    ]
    helps, hurts = said(case, count, np.random.default_rng(7))
    assert (outcomes.count("helps"), outcomes.count("hurts")) == (round(helps * count), round(hurts * count))
    assert 0 < helps < 1


@pytest.mark.parametrize("rows", [3, 30, "3 to 1000"])
@pytest.mark.parametrize("runs", [{"runs": 1}, {"runs": 5, "splits": 5}])
def test_a_clients_own_interval_has_its_true_gain_in_it(rows, runs):
    assert covered(Case(20, rows, **runs), COUNT, np.random.default_rng(8)) > 0.94
