"""The interval of the mean gain against independent formulas, the four outcomes, and what the sentence says."""

import dataclasses

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.comparison.intervals import client_errors, estimate, half_width, noise_of, repetitions
from coterie.comparison.verdict import RISK, Paired, Setting, client_gains, interval_of, judge
from coterie.learning.score import SCORES

ACCURACY = SCORES["accuracy"]
RMSE = SCORES["rmse"]
NAMES = [f"c{i}" for i in range(10)]


def setting(names=NAMES, rows=50, runs=1, score=ACCURACY, **more):
    return Setting(names, score, np.broadcast_to(rows, (runs, len(names))).astype(float), **more)


def gains_of(*values, variance=0.3):
    """Return paired gains of one run, with this variance on every row."""
    gains = np.array([values], float)
    return Paired(gains, np.full(gains.shape, variance))


# -- the parts of the interval -----------------------------------------------------------------------------------------


def test_an_interval_done_by_hand():
    # Gains 1, 2, 3 without known errors: mean 2, variance 1. Over clients 1/3; the seed is assumed: 0.09 of the spread.
    # Student's t with 2 degrees of freedom, 3.5 % on both sides together: 5.20 (by integration below).
    interval = interval_of(Paired(np.array([[1.0, 2.0, 3.0]])), setting(NAMES[:3], score=RMSE))
    quantile = scipy.optimize.brentq(lambda t: scipy.integrate.quad(student2, -t, t)[0] - (1 - RISK), 1, 20)
    assert interval.mean == 2
    assert interval.error == pytest.approx(np.sqrt(1 / 3 + 0.09))
    assert interval.high - 2 == pytest.approx(quantile * np.sqrt(1 / 3 + 0.09))
    assert interval.low + interval.high == pytest.approx(4)


def student2(t):
    return (2 + t**2) ** -1.5


def moments(gains, variance):
    """DerSimonian and Kacker's two steps, written with loops; no variance between clients below the median error."""
    weights = [1 / (np.median(variance) + v) for v in variance]
    for _ in range(2):
        total = sum(weights)
        mean = sum(w * g for w, g in zip(weights, gains, strict=True)) / total
        scatter = sum(w * (g - mean) ** 2 for w, g in zip(weights, gains, strict=True))
        expected = sum(w * v * (1 - w / total) for w, v in zip(weights, variance, strict=True))
        between = max(0.0, (scatter - expected) / (total - sum(w * w for w in weights) / total))
        least = max(between, float(np.median(variance)))
        weights = [1 / (least + v) for v in variance]
    return between, np.array(weights) / sum(weights)


def jackknife(gains, share, groups):
    """Leave out one group after the other and weigh the rest as before."""
    mean = share @ gains
    moved = []
    for group in sorted(set(groups)):
        rest = np.array(groups) != group
        moved.append((share[rest] @ gains[rest]) / share[rest].sum() - mean)
    return (len(moved) - 1) / len(moved) * np.sum(np.square(moved))


@settings(deadline=None)
@given(st.integers(3, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_mean_and_error_agree_with_plain_loops(count, seed, grouped):
    random = np.random.default_rng(seed)
    gains, rows = random.normal(0.05, 0.2, count), random.integers(2, 400, count)
    groups = np.arange(count) % 3 if grouped else None
    noise = noise_of(np.full((1, count), 0.25), rows[None], False, None)
    known = estimate(gains[None], noise, groups)
    variance = 0.25 * rows.sum() / (rows.sum() - count) / rows  # Bessel's correction, pooled
    between, share = moments(gains, variance)
    np.testing.assert_allclose(noise.variance, variance)
    np.testing.assert_allclose(known.between, between, atol=1e-12)
    np.testing.assert_allclose(known.weights, share)
    mean = share @ gains
    hartung_knapp = share @ (gains - mean) ** 2 / (count - 1)
    each = jackknife(gains, share, np.arange(count) if groups is None else groups)
    np.testing.assert_allclose(known.mean, mean)
    np.testing.assert_allclose(known.clients, max(hartung_knapp, each))
    np.testing.assert_allclose(known.sampling, share**2 @ variance)
    units = share if groups is None else np.array([share[groups == g].sum() for g in range(3)])
    assert known.client_freedom == pytest.approx(1 / np.sum(units**2) - 1)


def test_the_error_of_the_test_rows_comes_from_the_rows():
    random = np.random.default_rng(0)
    rows = [random.choice([-1.0, 0, 1], size) for size in (3, 40, 9)]
    spread = np.array([[np.var(each) for each in rows]])
    sizes = np.array([[3.0, 40, 9]])
    pooled = sum(((each - each.mean()) ** 2).sum() for each in rows) / (3 + 40 + 9 - 3)
    assert noise_of(spread, sizes, False, None).row == pytest.approx(pooled)
    with_two = (pooled * 49 + 2) / 51  # a row of +1 and one of -1 more
    assert noise_of(spread, sizes, True, None).row == pytest.approx(with_two)
    certain = noise_of(np.zeros((1, 2)), np.array([[3.0, 3.0]]), True, None)
    assert certain.row == pytest.approx(2 / 6)  # three wins in three rows are not certain


def test_repeated_splits_of_the_same_rows_are_not_independent():
    spread, rows = np.full((5, 4), 0.25), np.full((5, 4), 20.0)
    once = noise_of(spread[:1], rows[:1], False, None)
    same_split = noise_of(spread, rows, False, None)
    np.testing.assert_allclose(same_split.variance, once.variance)  # the same rows five times
    redrawn = noise_of(spread, rows, False, np.arange(5), 1 / 3)
    np.testing.assert_allclose(redrawn.variance, once.variance * (1 / 5 + 1 / 3))  # Nadeau and Bengio 2003
    many = noise_of(spread, rows, False, np.arange(5), 3.0)
    np.testing.assert_allclose(many.variance, once.variance)  # never more than one split's
    gains = np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(repetitions(gains, np.array([0, 1, 0, 1])), [gains[::2].mean(0), gains[1::2].mean(0)])
    assert repetitions(gains, np.zeros(4)) is gains
    assert repetitions(gains, np.arange(4)) is gains


def test_the_effect_of_seeds_is_measured_where_runs_differ_together():
    clients, seeds = np.linspace(-0.1, 0.1, 9), np.array([-0.2, 0.1, 0.3, -0.1])
    noise = noise_of(np.full((4, 9), 1e-12), np.full((4, 9), 1e6), False, None)
    known = estimate(0.05 + clients + seeds[:, None], noise)
    assert known.mean == pytest.approx(0.05 + seeds.mean())
    assert known.runs == pytest.approx(seeds.var(ddof=1) / 4)  # larger than assumed: as measured
    assert known.run_freedom == 6  # three seeds' worth of an assumption, and four runs
    calm = estimate(np.tile(0.05 + clients, (4, 1)), noise)
    assert calm.runs == pytest.approx(3 / 6 * 0.09 * clients.var(ddof=1) / 4)  # no run differs: half of what is assumed
    one = estimate(0.05 + clients[None], noise)
    assert one.runs == pytest.approx(0.09 * clients.var(ddof=1))
    seeds_part = scipy.stats.t.ppf(0.98, 6) ** 2 * known.runs
    both = scipy.stats.t.ppf(0.98, 8) ** 2 * known.clients + seeds_part
    assert half_width(known, 0.04) == pytest.approx(np.sqrt(both))
    rows = known._replace(clients=1e-9, sampling=0.04)  # clients that agree by chance: the test rows say more
    assert half_width(rows, 0.04) == pytest.approx(np.sqrt(scipy.stats.norm.ppf(0.98) ** 2 * 0.04 + seeds_part))


@given(st.integers(3, 60), st.integers(2, 2000))
def test_equal_gains_never_give_a_width_of_zero(count, rows):
    # The whole of a client's test set won: the sample variance is 0 everywhere.
    interval = interval_of(gains_of(*[1.0] * count, variance=0.0), setting([f"c{i}" for i in range(count)], rows))
    least = 2 / (count * (rows - 1) + 2) / (rows * count)
    assert interval.error**2 >= least * 0.999
    assert interval.low < 1


def test_a_client_with_three_rows_does_not_weigh_like_one_with_1500():
    rows = np.array([3, 60, 60, 60, 1500])
    noise = noise_of(np.full((1, 5), 0.3), rows[None], True, None)
    weights = estimate(np.array([[0.33, 0.02, 0.0, -0.03, 0.01]]), noise).weights
    assert weights[0] < weights[4] / 10
    assert weights[4] < 0.5  # nor does the largest decide alone


def test_one_row_that_turns_right_is_not_the_mean_gain_of_70_clinics():
    # As met on real data: 1 test row from 0 to 100 % made 1.4 of the 2.5 points of a mean over 70 clinics.
    gains, rows = np.r_[np.full(69, 0.011), 1.0], np.r_[np.full(69, 20), 1]
    interval = interval_of(gains_of(*gains), setting([f"c{i}" for i in range(70)], rows))
    assert gains.mean() == pytest.approx(0.025, abs=2e-4)
    assert interval.mean - 0.011 < 0.003


# -- clients -----------------------------------------------------------------------------------------------------------


def test_a_clients_own_interval_comes_from_its_rows():
    random = np.random.default_rng(1)
    rows = random.choice([-1.0, 0, 1], 4000, p=[0.1, 0.7, 0.2])
    paired = Paired(np.array([[rows.mean(), 1.0, 0.1]]), np.array([[rows.var(), 0.0, 0.25]]))
    here = setting(["big", "tiny", "usual"], np.array([4000, 3, 40]))
    big, tiny, usual = client_gains(paired, here)
    plain = scipy.stats.norm.interval(0.95, rows.mean(), scipy.stats.sem(rows))
    assert (big.low, big.high) == pytest.approx(plain, rel=0.01)
    assert (tiny.gain, tiny.high, tiny.rows) == (1, 1, 3)  # nothing gains more than 100 points
    assert tiny.low < 0.6  # three of three rows won are not certain: it borrows from the others
    assert abs(tiny.shrunk - tiny.gain) > 5 * abs(big.shrunk - big.gain)
    assert usual.low < usual.shrunk < usual.high


def test_runs_widen_a_clients_interval_as_splits_do():
    random = np.random.default_rng(2)
    gains = random.normal(0.1, 0.05, (5, 6))
    spread, rows = np.full((5, 6), 0.3), np.full((5, 6), 100.0)
    one_split = client_errors(gains, spread, rows, noise_of(spread, rows, True, None))
    pooled = 4 * gains.var(0, ddof=1).mean() + 4 * gains.var(0, ddof=1)
    sampling = (0.3 * 100 * 5 * 6 + 2) / (99 * 5 * 6 + 2) * 10 + 0.3 * 500
    np.testing.assert_allclose(one_split**2, sampling / (10 + 495) / 100 + pooled / 8 / 5)
    unknown = client_errors(gains[:1], None, rows[:1], noise_of(None, rows[:1], True, None))
    assert np.isnan(unknown).all()
    assert client_gains(Paired(gains[:1]), setting(NAMES[:6]))[0].low is None


# -- outcomes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gains", "outcome", "parts"),
    [
        (
            {"ditto": np.linspace(0.08, 0.16, 10), "fedavg": np.linspace(-0.1, 0.1, 10)},
            "helps",
            [
                "Cooperation helps these clients: with ditto",
                "+12.0 points of accuracy",
                "among 2 methods",
                "10 of 10 clients",
                "the effect of the seed assumed",
            ],
        ),
        (
            {"fedavg": np.linspace(-0.16, -0.08, 10)},
            "hurts",
            [
                "Cooperation hurts",
                "with the best method, fedavg",
                "-12.0 points",
                "0 of 10",
                "10 lose",
                "c0 (-16.0)",
            ],
        ),
        (
            {"fedavg": np.linspace(-0.02, 0.06, 10)},
            "cannot-tell",
            [
                "cannot be told from noise",
                "fedavg",
                "+2.0 points",
                "; 3 lose, most of all c0 (-2.0), c1 (-1.1)",
                "more test rows",
            ],
        ),
        # the better mean without evidence does not win; a mean gain that hides losers names them
        (
            {"steady": np.array([0.3] * 7 + [-0.02] * 3), "wild": np.array([4.0] + [-0.3] * 9)},
            "helps",
            ["Cooperation helps these clients: with steady", "7 of 10", "; 3 lose, most of all c7 (-2.0)"],
        ),
        ({"fedavg": np.zeros(10)}, "cannot-tell", ["makes no difference"]),
        ({}, "cannot-tell", ["No method of this comparison lets the clients cooperate"]),
    ],
)
def test_the_verdict_says_what_the_numbers_say(gains, outcome, parts):
    verdict = judge({method: gains_of(*values) for method, values in gains.items()}, setting())
    assert verdict.outcome == outcome
    for part in parts:
        assert part in verdict.sentence
    assert verdict.sentence.count(". ") == 0
    assert verdict.sentence.endswith(".")


def test_two_clients_are_too_few_whatever_they_gain():
    verdict = judge({"ditto": gains_of(0.3, 0.3)}, setting(["north", "south"], 1000))
    assert verdict.outcome == "cannot-tell"
    assert verdict.sentence.startswith("There are too few clients (2) to tell")
    assert "north +30.0 (+26" in verdict.sentence  # their own test rows do speak
    assert verdict.rows_needed is None
    assert judge({"ditto": gains_of(0.3, 0.3, 0.3)}, setting(["n", "s", "w"], 1000)).outcome == "helps"
    assert "only one client" in judge({"ditto": gains_of(0.5)}, setting(["alone"])).sentence


def test_clients_of_a_group_count_as_one_in_every_respect():
    gains = np.repeat([0.02, 0.1, 0.12], 10) + np.tile(np.linspace(-0.01, 0.01, 10), 3)
    names = [f"c{i}" for i in range(30)]
    apart = judge({"ditto": gains_of(*gains)}, setting(names, 400))
    together = judge({"ditto": gains_of(*gains)}, setting(names, 400, groups=np.repeat([4, 7, 9], 10)))
    assert (apart.outcome, together.outcome) == ("helps", "cannot-tell")
    assert "over groups of clients" in together.sentence
    assert any("3 groups count" in note for note in together.notes)
    two = judge({"ditto": gains_of(*gains)}, setting(names, 400, groups=np.repeat([0, 1], 15)))
    assert two.sentence.startswith("There are too few known groups of clients (2)")
    for nothing in (np.zeros(30, int), np.arange(30)):  # all in one group, or each in its own
        assert judge({"ditto": gains_of(*gains)}, setting(names, 400, groups=nothing)) == apart


def test_nobody_beats_guessing():
    gain = gains_of(*np.linspace(0.08, 0.16, 10))
    close = gains_of(*np.linspace(-0.05, 0.06, 10))
    verdict = judge({"ditto": gain}, setting(), {"local": gains_of(*[-0.1] * 10), "ditto": close})
    assert verdict.outcome == "nobody-beats-guessing"
    assert verdict.sentence.startswith("Nobody here beats guessing: ditto, the best, is +0.5 points of accuracy better")
    # a mean of 10 clients with 50 rows each, 2 methods: 1.9 % on both sides, one row of +1 and one of -1 added
    error = np.sqrt((0.3 * 500 + 2) / 492 / 500)
    reach = scipy.stats.t.ppf(1 - RISK / 4, 492) * error
    assert verdict.interval == pytest.approx((0.005, error, 0.005 - reach, 0.005 + reach))
    better = judge({"ditto": gain}, setting(), {"local": gains_of(*[-0.1] * 10), "ditto": gains_of(*[0.3] * 10)})
    assert better.outcome == "helps"
    assert judge({"ditto": gain}, setting(), {}).outcome == "helps"


def test_the_rows_that_are_missing_are_those_that_would_tell():
    # No spread between clients but that of their rows. A gain is seen in 80 % of all comparisons if it is
    # 1 + 0.84 / 1.96 times half the interval: with that many rows more, and the same gain, it must be so.
    gains = 0.03 + np.tile([-0.05, 0.05], 10)
    names = [f"c{i}" for i in range(20)]
    few = judge({"ditto": gains_of(*gains)}, setting(names, 40))
    assert few.outcome == "cannot-tell"
    assert 500 < few.rows_needed < 50_000
    assert f"about {few.rows_needed:,} more test rows would tell" in few.sentence
    factor = 1 + few.rows_needed / 800
    calm = 0.03 + np.tile([-0.05, 0.05], 10) / np.sqrt(factor)
    enough = judge({"ditto": gains_of(*calm)}, setting(names, 40 * factor))
    assert enough.outcome == "helps"
    assert enough.interval.mean == pytest.approx((1 + 0.8416 / 1.96) * (enough.interval.high - 0.03), rel=0.1)
    scattered = judge({"ditto": gains_of(*(0.03 + np.tile([-0.5, 0.5], 10)))}, setting(names, 4000))
    assert scattered.rows_needed is None
    assert "more test rows alone would not tell" in scattered.sentence


def test_a_client_without_a_score_is_left_out_and_named():
    gains = gains_of(*np.linspace(0.1, 0.12, 9), np.nan)
    verdict = judge({"ditto": gains}, setting())
    assert verdict.outcome == "helps"
    assert "9 of 9 clients" in verdict.sentence
    assert any(note.startswith("Left out") and "c9" in note for note in verdict.notes)
    assert [client.client for client in verdict.per_client] == NAMES[:9]
    assert np.isfinite(interval_of(gains, setting()).high)


def test_a_regression_speaks_in_its_unit_and_says_what_is_not_known():
    gains = Paired(np.array([0.25 + np.linspace(-0.01, 0.01, 10)]))
    verdict = judge({"ditto": gains}, setting(score=RMSE))
    assert "is +0.25 in RMSE" in verdict.sentence
    assert any("error of the test sets is not known" in note for note in verdict.notes)


def test_the_sentence_says_what_the_interval_covers():
    random = np.random.default_rng(0)
    gains = Paired(0.2 + random.normal(0, 0.01, (5, 10)), np.full((5, 10), 0.3))
    several = setting(runs=5)
    assert "over clients and seeds)" in judge({"a": gains}, several).sentence
    redrawn = dataclasses.replace(several, splits=np.arange(5), overlap=0.3)
    assert "over clients, seeds and splits)" in judge({"a": gains}, redrawn).sentence
    assert any("same split" in note for note in judge({"a": gains}, several).notes)
    one = judge({"a": Paired(gains.gains[:1], gains.spread[:1])}, setting())
    assert any("assumed to be 0.3 of the spread" in note for note in one.notes)
