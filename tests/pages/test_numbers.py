import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.comparison.comparison import Comparison
from coterie.pages.weights import client_order, evenly, group_weights, weight_maps
from support.report_cases import Page, make_clients, make_comparison, make_graph, make_result, unpack, write_and_read


def test_curves_are_mean_and_band_over_all_clients_and_seeds(tmp_path):
    comparison = make_comparison()
    data = Page(write_and_read(comparison, tmp_path)).data
    for method, results in comparison.results.items():
        curve = data["curves"][method]
        assert curve["rounds"] == [5, 10, 15, 20]
        for name in ("score", "loss"):
            pooled = np.array([np.concatenate([r.rows[t][f"test_{name}"] for r in results]) for t in range(4)])
            np.testing.assert_allclose(curve[name]["mean"], pooled.mean(1), rtol=1e-5)
            np.testing.assert_allclose(curve[name]["low"], np.percentile(pooled, 10, axis=1), rtol=1e-5)
            np.testing.assert_allclose(curve[name]["high"], np.percentile(pooled, 90, axis=1), rtol=1e-5)
    assert data["curves"]["fedavg"]["bytes"] == [10_000, 20_000, 30_000, 40_000]


def test_a_seed_that_stopped_early_stays_where_it_stopped(tmp_path):
    clients = make_clients()
    long, short = make_result(clients, "fedavg", 0), make_result(clients, "fedavg", 1, stop=10)
    comparison = Comparison({"fedavg": [long, short]}, clients, None, "coterie run", None)
    text = write_and_read(comparison, tmp_path)
    curve = Page(text).data["curves"]["fedavg"]
    expected = (np.mean(long.rows[3]["test_score"]) + np.mean(short.rows[1]["test_score"])) / 2
    assert curve["score"]["mean"][3] == pytest.approx(expected, rel=1e-5)
    assert "A run that stopped early stays where it stopped." in text


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_each_client_is_drawn_from_worst_to_best_with_its_gain(tmp_path, kind):
    comparison = make_comparison(make_clients(kind=kind))
    data = Page(write_and_read(comparison, tmp_path)).data
    assert data["higher_is_better"] == (kind == "classification")
    drawn = data["per_client"]["fedavg"]
    scores, alone = comparison.scores("fedavg"), comparison.scores("local")
    better = scores - alone if kind == "classification" else alone - scores
    assert sorted(drawn["ids"]) == list(range(12))
    worst_first = drawn["score"] if kind == "classification" else [-score for score in drawn["score"]]
    assert worst_first == sorted(worst_first)
    np.testing.assert_allclose(drawn["score"], scores[drawn["ids"]], rtol=1e-5)
    np.testing.assert_allclose(drawn["alone"], alone[drawn["ids"]], rtol=1e-5)
    np.testing.assert_allclose(drawn["gain"], better[drawn["ids"]], rtol=1e-4, atol=1e-8)
    assert drawn["gaining"] == (better > 0).sum()
    assert drawn["losing"] == (better < 0).sum()
    assert data["per_client"]["local"]["gain"] is None
    assert drawn["note"] == ""


def test_the_ten_worst_clients_of_the_best_method_are_named(tmp_path):
    clients = make_clients(30)
    comparison = make_comparison(clients)
    page = Page(write_and_read(comparison, tmp_path))
    shown = [a for tag, a in page.elements if a.get("class") == "worst" and "hidden" not in a]
    assert [a["data-method"] for a in shown] == ["gossip-sgd"]  # it has the highest level of those that cooperate
    named = [table[1:] for table in page.tables if "training samples" in table[0]]
    rows = named[list(comparison.results).index("gossip-sgd")]
    scores = comparison.scores("gossip-sgd")
    worst = np.argsort(scores)[:10]
    assert [cells[0] for cells in rows] == [f"client-{i}" for i in worst]
    for cells, i in zip(rows, worst, strict=True):
        assert cells[1] == f"{100 * (scores - comparison.scores('local'))[i]:+.1f}".replace("-", "−")
        assert cells[2] == f"{100 * scores[i]:.1f} %"
        assert cells[3] == f"{100 * comparison.scores('local')[i]:.1f} %"
        assert cells[4] == str(sum(clients["label_counts"][i]))
        labels = {int(label): int(n) for label, n in re.findall(r"(\d+) \((\d+)\)", cells[5])}
        assert labels == {label: n for label, n in enumerate(clients["label_counts"][i]) if n}


def test_heat_maps_are_the_weights_of_the_result_in_group_order(tmp_path):
    groups = [2, 0, 1, 0, 2, 1, 0, 1, 2, 0, 1, 2]
    comparison = make_comparison(make_clients(groups=groups))
    (heat_map,) = Page(write_and_read(comparison, tmp_path)).data["weights"]
    assert heat_map["method"] == "gossip-sgd"
    assert heat_map["rounds"] == [5, 10, 15, 20]
    order = [int(name.removeprefix("client-")) for name in heat_map["labels"]]
    assert [groups[i] for i in order] == sorted(groups)
    assert heat_map["borders"] == [3.5, 7.5]
    for at, number in enumerate(heat_map["rounds"]):
        weights = comparison.results["gossip-sgd"][0].weights(number)[np.ix_(order, order)]
        np.testing.assert_allclose(heat_map["own"][at], np.diag(weights), rtol=1e-5)
        np.fill_diagonal(weights, 0)
        np.testing.assert_allclose(unpack(heat_map, at), weights, atol=1e-5)


def test_at_most_twelve_heat_maps_and_one_where_nothing_changes():
    clients = make_clients(10)
    moving = make_result(clients, "moving", graphs={n: make_graph(10, seed=n) for n in range(1, 41)})
    still = make_result(clients, "still", graphs={n: make_graph(10) for n in range(1, 41)})
    first, second = weight_maps({"moving": moving, "hub": make_result(clients, "hub"), "still": still}, clients)
    assert len(first["tables"]) == len(first["rounds"]) == 12
    assert (first["rounds"][0], first["rounds"][-1]) == (1, 40)
    assert not first["fixed"]
    assert second["fixed"]
    assert len(second["tables"]) == 1


@pytest.mark.parametrize("known", [True, False])
def test_beyond_200_clients_weights_are_grouped(known):
    count = 240
    groups = [i % 3 for i in range(count)] if known else None
    clients = make_clients(count, groups=groups)
    result = make_result(clients, "gossip-sgd", graphs={7: make_graph(count)})
    (heat_map,) = weight_maps({"gossip-sgd": result}, clients)
    assert "240 clients are grouped" in heat_map["note"]
    dense = result.weights(7)
    own = np.diag(dense).copy()
    np.fill_diagonal(dense, 0)
    if known:
        members = [[i for i in range(count) if i % 3 == g] for g in range(3)]
    else:
        members = [list(part) for part in np.split(client_order(clients), np.ceil(np.arange(1, 100) * 2.4).astype(int))]
    assert len(heat_map["labels"]) == len(members)
    expected = np.array([[dense[np.ix_(a, b)].sum(1).mean() for b in members] for a in members])
    np.testing.assert_allclose(unpack(heat_map, 0), expected, atol=1e-5)
    np.testing.assert_allclose(heat_map["own"][0], [own[a].mean() for a in members])


def test_group_weights_by_hand():
    # 0 hears 1 with 0.25 and 2 with 0.5; 1 hears 0 with 0.5, its second slot is absent; 2 hears nobody.
    graph = {
        "neighbours": np.array([[1, 2], [0, 0], [2, 2]]),
        "present": np.array([[1, 1], [1, 0], [0, 0]], bool),
        "weights": np.array([[0.25, 0.5], [0.5, 0.9], [0.9, 0.9]]),
    }
    table, own = group_weights(graph, np.array([0, 0, 1]), 2)
    np.testing.assert_allclose(table, [[(0.25 + 0.5) / 2, 0.5 / 2], [0, 0]])
    np.testing.assert_allclose(own, [(0.25 + 0.5) / 2, 1])


def test_order_is_by_group_then_by_the_labels_that_count():
    clients = make_clients(5, classes=3)
    clients["label_counts"] = [[0, 50, 0], [50, 0, 1], [0, 0, 50], [50, 0, 0], [25, 25, 0]]
    # a single sample of label 2 does not move client 1; clients with label 0 and 1 come before those with 0 alone
    assert client_order(clients).tolist() == [4, 3, 1, 0, 2]
    clients["groups"] = [1, 1, 0, 1, 1]
    assert client_order(clients).tolist() == [2, 4, 3, 1, 0]


def test_partition_is_clients_by_classes(tmp_path):
    clients = make_clients(9, classes=5)
    part = Page(write_and_read(make_comparison(clients), tmp_path)).data["partition"]
    expected = np.array(clients["label_counts"])
    for place, i in enumerate(part["ids"]):
        assert [row[place] for row in part["counts"]] == expected[i].tolist()
        assert part["sizes"]["train"][place] == expected[i].sum()
    assert sorted(part["ids"]) == list(range(9))


def test_partition_of_regression_is_sizes(tmp_path):
    clients = make_clients(9, kind="regression")
    text = write_and_read(make_comparison(clients), tmp_path)
    part = Page(text).data["partition"]
    assert part["counts"] is None
    assert part["sizes"]["train"] == sorted(clients["sizes"]["train"])
    assert "How many samples each client has" in text
    assert "labels (samples)" not in text
    assert "%" not in "".join(Page(text).table["leaderboard-table"][1])  # RMSE is no percentage


@pytest.mark.parametrize("count", [5_000, 100_000])
def test_many_clients_stay_small_and_it_says_what_is_left_out(tmp_path, count):
    clients = make_clients(count, classes=10)
    methods = (
        ("local", "pooled", "fedavg") if count > 5_000 else ("local", "pooled", "fedavg", "ditto", "fedprox", "gossip")
    )
    comparison = make_comparison(clients, methods, seeds=1, rounds=(5, 10))
    if count == 5_000:
        ring = (np.arange(count)[:, None] + np.array([1, 2, 5])) % count
        graph = {"neighbours": ring, "present": np.ones_like(ring, bool), "weights": np.full(ring.shape, 0.2)}
        comparison.results["gossip"][0].graphs = dict.fromkeys(range(20), graph)
    text = write_and_read(comparison, tmp_path)
    data = Page(text).data
    drawn = data["per_client"]["fedavg"]
    assert len(drawn["ids"]) == 300
    assert drawn["note"] == f"300 of {count:,} clients are drawn, evenly spaced in order of score."
    scores = np.sort(comparison.scores("fedavg"))
    assert drawn["score"][0] == pytest.approx(scores[0], rel=1e-5)
    assert drawn["score"][-1] == pytest.approx(scores[-1], rel=1e-5)
    assert drawn["gaining"] == (comparison.gains("fedavg") > 0).sum()
    assert len(data["partition"]["ids"]) == 200
    assert f"200 of {count:,} clients are drawn" in text
    assert ("are not recorded" in text) == (count > 5_000)
    assert len(data["clients"]) <= 6 * 300 + 200


def test_what_is_not_finite_is_left_open(tmp_path):
    comparison = make_comparison()
    for row in comparison.results["fedavg"][0].rows[:2] + comparison.results["fedavg"][1].rows[:2]:
        row["test_loss"] = [float("nan")] * 12
    comparison.results["fedavg"][0].rows[2]["test_loss"][0] = float("inf")
    loss = Page(write_and_read(comparison, tmp_path)).data["curves"]["fedavg"]["loss"]
    assert loss["mean"][:2] == [None, None]
    assert loss["mean"][2] < 2


@given(st.integers(1, 5000), st.integers(2, 600))
def test_evenly_keeps_the_ends_and_the_order(count, most):
    chosen = evenly(count, most)
    assert len(chosen) == min(count, most)
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    steps = np.diff(chosen)
    assert count == 1 or (steps.min() >= 1 and steps.max() - steps.min() <= 1)
