"""The picture of clusters along the path: where lines lie, what is said of them, and that other runs have none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.pages.path import COLORS, TIGHT, cluster_paths, places
from support.report_cases import Page, make_clients, make_comparison, make_result, write_and_read

NESTED = np.array([[0, 0, 0, 0], [0, 0, 2, 2], [0, 1, 2, 2]])


def test_places_by_hand():
    """One ribbon of four around 1.5; two of two around 0.5 and 2.5; then the first of these falls apart."""
    order, place = places(NESTED)
    assert order.tolist() == [0, 1, 2, 3]
    gap = TIGHT / 2
    np.testing.assert_allclose(place[0], [1.5 - 3 * gap, 1.5 - gap, 1.5 + gap, 1.5 + 3 * gap])
    np.testing.assert_allclose(place[1], [0.5 - gap, 0.5 + gap, 2.5 - gap, 2.5 + gap])
    np.testing.assert_allclose(place[2], [0, 1, 2.5 - gap, 2.5 + gap])


@given(st.integers(1, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_lines_of_clusters_that_only_split_never_cross(clients, steps, random):
    labels, member = [], [0] * clients
    for _ in range(steps):
        labels.append([min(i for i in range(clients) if member[i] == member[j]) for j in range(clients)])
        member = [(part, random.random() < 0.5) for part in member]
    order, place = places(np.array(labels))
    assert sorted(order) == list(range(clients))
    assert (np.diff(place[:, order], axis=1) > 0).all()


def table(labels):
    """A complete network whose weights are above 0 within a cluster."""
    clients = len(labels)
    neighbours = np.array([[j for j in range(clients) if j != i] for i in range(clients)])
    weights = 0.1 * (labels[neighbours] == labels[:, None])
    return {"neighbours": neighbours, "present": np.ones(neighbours.shape, bool), "weights": weights}


def followed(clients, labels, scores, kept):
    """A made-up run along a path of lam 4, 2, 1, ... with these clusters and mean validation scores."""
    count = len(clients["names"])
    rounds = tuple(10 * (t + 1) for t in range(len(labels)))
    graphs = {number: table(np.asarray(row)) for number, row in zip(rounds, labels, strict=True)}
    result = make_result(clients, "network-lasso", rounds=rounds, graphs=graphs)
    result.config["method"]["path_factor"] = 0.5
    result.best_round = rounds[kept]
    for t, row in enumerate(result.rows):
        row |= {"lam": [4 * 0.5**t] * count, "validation_loss": [1.0] * count, "validation_score": [scores[t]] * count}
    return result


@pytest.mark.parametrize("known", [True, False])
def test_what_is_drawn_and_said(known, tmp_path):
    clients = make_clients(4, groups=["x", "x", "y", "y"] if known else None)
    comparison = make_comparison(clients, methods=("local",), seeds=1)
    comparison.results["network-lasso"] = [followed(clients, NESTED, (0.5, 0.75, 0.6), kept=2)]
    text = write_and_read(comparison, tmp_path)
    assert "<h2>Clusters along the path</h2>" in text
    assert 'href="#path"' in text
    (drawn,) = Page(text).data["paths"]
    assert drawn["method"] == "network-lasso"
    assert drawn["lam"] == [4, 2, 1]
    assert drawn["rounds"] == [10, 20, 30]
    assert drawn["clusters"] == [1, 2, 3]
    assert drawn["validation"] == [0.5, 0.75, 0.6]
    assert drawn["kept"] == 2
    assert drawn["together"] == [[4] * 4, [2] * 4, [1, 1, 2, 2]]
    np.testing.assert_allclose(drawn["place"], places(NESTED)[1])
    words = "lam = 1 is best on validation data: 3 clusters, the largest of 2 clients, 2 with a single client."
    assert drawn["reading"].startswith(words)
    if known:
        assert drawn["color"] == [0, 0, 1, 1]
        assert drawn["legend"] == ["group x", "group y"]
        assert "With lam = 2 the clusters are exactly the 2 known groups." in drawn["reading"]
    else:  # the nearest step with more than one cluster of several clients
        assert drawn["color"] == [0, 0, 1, 1]
        assert drawn["legend"] == []
        assert "Colours are the clusters with lam = 2" in drawn["note"]
        assert "known groups" not in drawn["reading"]


def said(labels, groups=None, kept=0, clients=None):
    clients = clients or make_clients(len(labels[0]), groups=groups)
    scores = (0.5,) * len(labels)
    return cluster_paths({"network-lasso": followed(clients, np.asarray(labels), scores, kept)}, clients)[0]


def test_readings():
    groups = [0, 0, 1, 1]
    assert "all clients have the same personal part" in said([[0] * 4])["reading"]
    assert "every client has a personal part of its own" in said([[0, 1, 2, 3]])["reading"]
    twice = said([[0, 0, 2, 2], [0, 0, 2, 2], [0, 1, 2, 3]], groups)
    assert "From lam = 4 to 2 the clusters are exactly" in twice["reading"]
    assert "larger method.lam" in twice["note"]  # it does not begin with one cluster
    again = said([[0, 0, 2, 2], [0, 0, 0, 0], [0, 0, 2, 2]], groups)
    assert "With 2 of 3 values of lam the clusters are exactly" in again["reading"]
    # ARI of {0, 1, 2}, {3} against {0, 1}, {2, 3}: pairs 1 in both, 3 and 2 of 6; (1 - 1) / (2.5 - 1) = 0
    never = said([[0] * 4, [0, 0, 0, 3]], groups)
    assert "Nearest to the 2 known groups is lam = 4 (adjusted Rand index 0.00)" in never["reading"]


def test_many_clients_are_sampled_and_many_groups_share_colours():
    labels = np.stack([np.zeros(1000, int), np.arange(1000) // 2 * 2])
    neighbours = np.stack([np.arange(1000) ^ 1, (np.arange(1000) + 2) % 1000], axis=1)
    clients = make_clients(1000, groups=(np.arange(1000) % 9).tolist())
    result = followed(make_clients(4), NESTED[:2], (0.5, 0.5), 1)
    result.names = tuple(clients["names"])
    for row, weights, number in zip(result.rows, ([1, 1], [1, 0]), result.graphs, strict=True):
        row |= {key: [value[0]] * 1000 for key, value in row.items() if isinstance(value, list)}
        result.graphs[number] = {
            "neighbours": neighbours,
            "present": np.ones((1000, 2), bool),
            "weights": np.broadcast_to(weights, (1000, 2)),
        }
    (drawn,) = cluster_paths({"network-lasso": result}, clients)
    np.testing.assert_array_equal(np.stack(result.path()["labels"]), labels)
    assert len(drawn["names"]) == drawn["place"].shape[1] == 200
    assert "200 of 1,000 clients are drawn" in drawn["note"]
    assert set(drawn["color"]) == set(range(COLORS))
    assert drawn["legend"] == []
    assert drawn["total"] == 1000


def test_runs_without_a_path_have_no_such_section(tmp_path):
    text = write_and_read(make_comparison(), tmp_path)
    assert Page(text).data["paths"] == []
    assert 'id="path"' not in text
    assert "#path" not in text
