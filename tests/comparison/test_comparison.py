"""The result of a comparison: leaderboard, roles, verdict, and what scripts and notebooks get."""

import json

import numpy as np
import pytest

from coterie.comparison.comparison import Comparison, baseline_of
from coterie.experiment.result import Result
from coterie.peers.ledger import Ledger
from support.report_cases import ROLES


def made_up(method, scores, seed=0, metric="accuracy", sent=0, seconds=(3.0, 1.0)):
    """Return a result whose clients have these final scores; earlier ones must not count."""
    names = tuple(f"c{i}" for i in range(len(scores)))
    rows = [{"round": n, "test_score": list(s)} for n, s in ((1, [0.0] * len(scores)), (2, scores))]
    block = {
        "rounds": np.array([1, 2]),
        "up_bytes": np.full((2, len(names)), sent),
        "up_messages": np.ones((2, len(names))),
    }
    return Result(
        config={"method": {"name": method}, "run": {"seed": seed}},
        names=names,
        rows=rows,
        ledger=Ledger(names, np.zeros((len(names), 0), np.int32), [block]),
        graphs={},
        seconds={"wall": seconds[0], "compile": seconds[1], "program": 0.5},
        best_round=2,
        metric=metric,
        role=ROLES.get(method, "cooperates"),
        device="cpu",
    )


def together(baseline="local", **results):
    by_label = {name.replace("_", "-"): runs for name, runs in results.items()}
    names = list(next(iter(by_label.values()))[0].names)
    return Comparison(by_label, {"names": names}, baseline, "")


# -- the leaderboard ---------------------------------------------------------------------------------------------------


def test_a_leaderboard_done_by_hand():
    comparison = together(
        pooled=[made_up("pooled", [1.0, 1.0, 1.0, 1.0], seed) for seed in (0, 1)],
        local=[made_up("local", [0.5, 0.5, 0.5, 0.5], seed) for seed in (0, 1)],
        fedavg=[made_up("fedavg", [0.4, 0.6, 0.6, 0.6], sent=50), made_up("fedavg", [0.6, 0.8, 1.0, 0.6], 1, sent=150)],
    )
    rows = comparison.leaderboard()
    assert [row["method"] for row in rows] == ["fedavg", "local", "pooled"]
    first = rows[0]
    np.testing.assert_allclose(comparison.scores("fedavg"), [0.5, 0.7, 0.8, 0.6])
    np.testing.assert_allclose(comparison.gains("fedavg"), [0, 0.2, 0.3, 0.1], atol=1e-12)
    assert first["mean"] == pytest.approx(0.65)
    assert first["std"] == pytest.approx(np.sqrt((0.15**2 + 0.05**2 + 0.15**2 + 0.05**2) / 4))
    assert (first["worst_label"], first["worst"]) == ("worst client", pytest.approx(0.5))
    assert (first["beat_alone"], first["clients"], first["seeds"]) == (3, 4, 2)
    assert first["bytes_per_client"] == 200  # (2 * 50 + 2 * 150) / 2 seeds
    assert (first["seconds"], first["compile"]) == (2.0, 1.0)
    assert first["mean_gain"] == pytest.approx(0.15)
    assert first["low"] < 0.15 < first["high"]
    assert first["gain_error"] > np.std([0, 0.2, 0.3, 0.1], ddof=1) / 2  # clients, and the two seeds
    assert rows[1]["beat_alone"] is None
    assert [row["role"] for row in rows] == ["cooperates", "alone", "pooled"]
    assert [row["pooled"] for row in rows] == [False, False, True]
    assert "pooled" not in comparison.verdict()
    assert any("One model on all data (pooled) gains +50.0 points" in note for note in comparison.judgement().notes)
    json.dumps(comparison.to_dict(), allow_nan=False)


def test_the_worst_decile_counts_from_twenty_clients_on():
    scores = np.linspace(0, 0.95, 20)
    row = together(local=[made_up("local", scores)]).leaderboard()[0]
    assert (row["worst_label"], row["worst"]) == ("worst decile", pytest.approx(0.025))  # the mean of 0 and 0.05


def test_lower_is_better_for_a_regression():
    comparison = together(
        local=[made_up("local", [2.0, 2.0, 2.0], metric="rmse")],
        fedavg=[made_up("fedavg", [1.0, 1.5, 2.5], metric="rmse")],
    )
    rows = comparison.leaderboard()
    assert [row["method"] for row in rows] == ["fedavg", "local"]
    np.testing.assert_allclose(comparison.gains("fedavg"), [1.0, 0.5, -0.5])
    assert (rows[0]["beat_alone"], rows[0]["worst"]) == (2, 2.5)


def test_the_same_scores_in_another_order_of_seeds_are_a_tie():
    a, b, c = [0.1, 0.7, 0.3], [0.2, 0.6, 0.4], [0.3, 0.9, 0.8]
    comparison = together(
        local=[made_up("local", s, i) for i, s in enumerate((a, b, c))],
        fedavg=[made_up("fedavg", s, i) for i, s in enumerate((c, b, a))],
    )
    assert comparison.leaderboard()[0]["beat_alone"] in (None, 0)
    assert comparison.gains("fedavg").tolist() == [0, 0, 0]
    assert "+0.0 points" in comparison.verdict()


def test_without_training_alone_there_is_no_verdict():
    comparison = together(baseline=None, fedavg=[made_up("fedavg", [0.5, 0.6])])
    assert comparison.gains("fedavg") is None
    assert "training alone (local) is not among the methods" in comparison.verdict()


def test_roles_decide_which_is_the_baseline_and_which_the_best_method():
    results = {
        "local": [made_up("local", [0.5, 0.5])],
        "local-exact": [made_up("local-exact", [0.9, 0.9])],
        "fedavg": [made_up("fedavg", [0.6, 0.7])],
        "pooled-exact": [made_up("pooled-exact", [1.0, 1.0])],
    }
    comparison = Comparison(results, {"names": ["c0", "c1"]}, baseline_of(results), "")
    assert comparison.baseline == "local-exact"  # the stronger of the two
    assert comparison.best() == "fedavg"  # though training alone has the higher score
    assert [row["method"] for row in comparison.leaderboard() if row["pooled"]] == ["pooled-exact"]
    assert "with fedavg, the best" in comparison.verdict()
    only_alone = Comparison({"local": results["local"]}, {"names": ["c0", "c1"]}, "local", "")
    assert only_alone.best() == "local"
