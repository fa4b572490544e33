"""The result of a comparison: leaderboard, roles, verdict, and what scripts and notebooks get."""

import json

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.comparison import Comparison, baseline_of
from coterie.experiment.about import about_clients
from coterie.experiment.result import Result
from coterie.experiment.scores import Scores
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


# -- what the verdict is made of ---------------------------------------------------------------------------------------


def scored(method, rows, seed=0, split=0, metric="accuracy", sizes=None):
    """Return a result with a value per test row for each score, `{score: [K, n]}`, every row real unless `sizes`."""
    first = np.asarray(next(iter(rows.values())), float)
    counts = np.full(len(first), first.shape[1]) if sizes is None else np.asarray(sizes)
    real = np.arange(first.shape[1]) < counts[:, None]
    each = {name: np.asarray(values, float) for name, values in rows.items()}
    test = {name: np.array([v[r].mean() for v, r in zip(values, real, strict=True)]) for name, values in each.items()}
    if "rmse" in test:
        test["rmse"] = np.sqrt(test["rmse"])
    result = made_up(method, test[metric], seed, metric)
    result.config["partition"] = {"seed": split}
    result.scored = Scores(test, {}, counts, {name: values[real] for name, values in each.items()})
    return result


def clients_of(count, kind="classification", test=40, train=120, **more):
    sizes = {"test": np.broadcast_to(test, count).tolist(), "train": np.broadcast_to(train, count).tolist()}
    return {"names": [f"c{i}" for i in range(count)], "kind": kind, "sizes": sizes, **more}


def comparison_of(clients, baseline="local", **results):
    by_label = {name.replace("_", "-"): runs for name, runs in results.items()}
    return Comparison(by_label, clients, baseline, "coterie compare")


def right(random, share, shape=(12, 40)):
    return (random.random(shape) < share).astype(float)


def test_rows_pair_the_methods():
    # Both methods are right on the same rows but for four of each client's 40: the error is that of those rows alone.
    random = np.random.default_rng(0)
    alone = right(random, 0.6)
    better = alone.copy()
    better[:, :4] = 1
    alone[:, :4] = 0
    comparison = comparison_of(
        clients_of(12), local=[scored("local", {"accuracy": alone})], ditto=[scored("ditto", {"accuracy": better})]
    )
    judged = comparison.judgement()
    assert judged.outcome == "helps"
    assert judged.interval.mean == pytest.approx(0.1)
    variance = (12 * 40 * 0.1 * 0.9 + 2) / (12 * 39 + 2)
    usual = 0.09 * variance / 40  # one run: the seed is assumed
    assert judged.interval.error == pytest.approx(np.sqrt(variance / 480 + usual))
    old = comparison_of(
        clients_of(12), local=[made_up("local", alone.mean(1))], ditto=[made_up("ditto", better.mean(1))]
    )
    assert old.judgement().interval.error > judged.interval.error  # version 0.1 kept no rows: as if half were chance


def test_splits_are_recognised_and_test_rows_counted():
    random = np.random.default_rng(1)
    sizes = np.r_[3, np.full(11, 40)]

    def runs(method, share):
        return [
            scored(method, {"accuracy": right(random, share)}, seed, split, sizes=sizes)
            for seed, split in enumerate((0, 1, 2, 0, 1, 2))
        ]

    comparison = comparison_of(clients_of(12, test=99), local=runs("local", 0.5), ditto=runs("ditto", 0.8))
    judged = comparison.judgement()
    assert judged.outcome == "helps"
    assert "over clients, seeds and splits" in judged.sentence
    assert [client.rows for client in judged.per_client] == sizes.tolist()
    assert judged.per_client == comparison.client_gains("ditto")
    gains = comparison.scores("ditto") - comparison.scores("local")
    np.testing.assert_allclose([client.gain for client in judged.per_client], gains)
    assert judged.interval.mean != pytest.approx(gains.mean(), abs=1e-4)  # the client with 3 rows counts less


def test_rows_of_a_root_mean_square_add_its_linear_part():
    random = np.random.default_rng(2)
    errors = random.exponential(size=(2, 8, 5000)) * np.array([2.0, 1.8])[:, None, None]
    local, ditto = (
        scored(name, {"rmse": each}, metric="rmse") for name, each in zip(("local", "ditto"), errors, strict=True)
    )
    comparison = comparison_of(clients_of(8, "regression", 5000), local=[local], ditto=[ditto])
    client = comparison.client_gains("ditto")[0]
    resampled = random.integers(0, 5000, (400, 5000))
    drawn = np.sqrt(errors[0, 0][resampled].mean(1)) - np.sqrt(errors[1, 0][resampled].mean(1))
    assert client.high - client.gain == pytest.approx(1.96 * drawn.std(), rel=0.1)  # the bootstrap agrees


def test_unbalanced_classes_are_judged_by_log_loss_unless_the_user_says_otherwise():
    random = np.random.default_rng(3)
    counts = [[90, 10]] * 12
    rows = {"accuracy": right(random, 0.9), "log-loss": random.exponential(size=(12, 40))}
    better = {"accuracy": rows["accuracy"], "log-loss": rows["log-loss"] * 0.5}
    clients = clients_of(12, label_counts=counts, class_names=["no", "yes"])
    comparison = comparison_of(clients, local=[scored("local", rows)], ditto=[scored("ditto", better)])
    judged = comparison.judgement()
    assert (comparison.metric, judged.outcome) == ("log-loss", "helps")
    assert any("log-loss" in note and "no" in note for note in judged.notes)
    row = comparison.leaderboard()[0]
    assert row["scores"] == pytest.approx({"accuracy": rows["accuracy"].mean(), "log-loss": better["log-loss"].mean()})
    assert row["mean"] == row["scores"]["log-loss"]
    for runs in comparison.results.values():
        runs[0].config["run"]["metric"] = "accuracy"
    chosen = Comparison(comparison.results, clients, "local", "")
    assert (chosen.metric, chosen.judgement().outcome) == ("accuracy", "cannot-tell")


def test_groups_count_where_they_are_known_not_where_they_were_planted():
    random = np.random.default_rng(5)
    alone = right(random, 0.5, (12, 200))
    help_of = np.repeat([0.05, 0.5, 0.7], 4)[:, None]
    better = np.maximum(alone, right(random, help_of, (12, 200)))
    runs = {"local": [scored("local", {"accuracy": alone})], "ditto": [scored("ditto", {"accuracy": better})]}
    groups = np.repeat([0, 1, 2], 4).tolist()
    known = comparison_of(clients_of(12, groups=groups, planted=False), **runs).judgement()
    planted = comparison_of(clients_of(12, groups=groups, planted=True), **runs).judgement()
    assert (known.outcome, planted.outcome) == ("cannot-tell", "helps")
    made = ct.load("planted-groups", clients=4, groups=2, train_size=8, test_size=8)
    assert about_clients(made)["planted"]
    frame = pd.DataFrame(
        {"x": np.arange(40.0), "y": [0, 1] * 20, "site": list("abcd") * 10, "chain": list("uuvv") * 10}
    )
    told = about_clients(ct.load(frame, target="y", client="site", group="chain"))
    assert (told["groups"], told["planted"]) == ([0, 0, 1, 1], False)


def test_nobody_beats_guessing_and_the_rows_say_so():
    random = np.random.default_rng(4)
    common = right(random, 0.65)
    runs = {
        name: [scored(name, {"accuracy": np.where(random.random(common.shape) < 0.05, 1 - common, common)})]
        for name in ("local", "ditto", "pooled")
    }
    guess = scored("guess", {"accuracy": common})
    guess.role = "guess"
    comparison = comparison_of(clients_of(12), **runs, guess=[guess])
    judged = comparison.judgement()
    assert (judged.outcome, comparison.guess) == ("nobody-beats-guessing", "guess")
    assert "Nobody here beats guessing" in comparison.verdict()
    assert comparison.verdict().count(". ") == 0
    assert [row["role"] for row in comparison.leaderboard()][2:] == ["guess", "pooled"]
    assert comparison.best() == "ditto"


def test_methods_without_a_result_are_rows_at_the_end_and_notes():
    comparison = together(
        local=[made_up("local", [0.5, 0.5, 0.4])],
        fedavg=[made_up("fedavg", [0.6, 0.7, 0.8])],
        pooled=[made_up("pooled", [0.6, 0.7, 0.8])],
    )
    comparison.failures = {"ditto": "training diverged in round 3; try a smaller method.lr"}
    rows = comparison.leaderboard()
    assert [row["method"] for row in rows] == ["fedavg", "local", "pooled", "ditto"]
    assert all(set(row) == set(rows[0]) for row in rows)
    assert [row["failed"] for row in rows[:3]] == [None] * 3
    assert rows[3]["failed"].startswith("training diverged")
    assert rows[3]["mean"] is None
    assert any("ditto has no result: training diverged" in note for note in comparison.judgement().notes)
    said = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert said["failures"] == comparison.failures
    assert said["judgement"]["outcome"] == comparison.judgement().outcome
    assert said["judgement"]["per_client"][0]["client"] == "c0"


def test_only_runs_that_all_methods_have_are_paired():
    comparison = together(
        local=[made_up("local", [0.5, 0.4, 0.3], seed) for seed in (0, 1)],
        fedavg=[made_up("fedavg", [0.9, 0.9, 0.9], 0), made_up("fedavg", [0.6, 0.5, 0.4], 1)],
        ditto=[made_up("ditto", [0.7, 0.6, 0.5], 1)],
    )
    np.testing.assert_allclose(comparison.gains("fedavg"), 0.1)
    np.testing.assert_allclose(comparison.gains("ditto"), 0.2)
    disjoint = together(local=[made_up("local", [0.5] * 3, 4)], fedavg=[made_up("fedavg", [0.6] * 3, 5)])
    np.testing.assert_allclose(disjoint.gains("fedavg"), 0.1)


def test_a_table_for_pandas_and_short_words_for_a_notebook():
    comparison = together(local=[made_up("local", [0.5, 0.5, 0.4])], fedavg=[made_up("<b>", [0.6, 0.7, 0.8])])
    frame = comparison.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.index.tolist() == ["fedavg", "local"]
    assert frame.loc["fedavg", "accuracy"] == pytest.approx(0.7)
    assert len(repr(comparison)) < 600
    assert comparison.verdict() in repr(comparison)
    page = comparison._repr_html_()
    assert "<table" in page
    assert "fedavg" in page


def test_one_client_has_its_own_gain_and_nothing_more():
    rows = {"accuracy": np.r_[np.ones(30), np.zeros(10)][None]}
    clients = clients_of(1)
    comparison = comparison_of(
        clients, local=[scored("local", rows)], ditto=[scored("ditto", {"accuracy": np.ones((1, 40))})]
    )
    assert "only one client" in comparison.verdict()
    (client,) = comparison.client_gains("ditto")
    assert (client.gain, client.shrunk) == (0.25, 0.25)
    assert 0 < client.low < 0.25 < client.high
    assert comparison.leaderboard()[0]["mean_gain"] == 0.25


def test_nothing_is_judged_without_a_score():
    empty = together(local=[made_up("local", [np.nan] * 3)], fedavg=[made_up("fedavg", [np.nan] * 3)])
    assert empty.judgement().outcome == "cannot-tell"
    assert "too few clients with a score" in empty.verdict()
    assert empty.leaderboard()[0]["mean"] is None
