"""The quality of a learned graph, computed by hand."""

import numpy as np
import pytest

from coterie.graphs.graph import Graph
from coterie.graphs.quality import graph_quality, true_groups

GROUPS = np.array([0, 0, 1, 1])


def table(rows):
    """Weights of four clients on the complete graph, given as a matrix with an empty diagonal."""
    graph = Graph.complete(4)
    weights = np.take_along_axis(np.asarray(rows, float), graph.neighbours, 1)
    return {"neighbours": graph.neighbours, "present": graph.present, "weights": weights}


def test_a_perfect_graph():
    figures = graph_quality(table([[0, 0.4, 0, 0], [0.3, 0, 0, 0], [0, 0, 0, 0.5], [0, 0, 0.1, 0]]), GROUPS)
    assert figures == {"graph_l1": 0.0, "graph_auroc": 1.0, "graph_ari": 1.0}


def test_equal_weights_are_a_guess():
    """Each row is (1/3, 1/3, 1/3) where (1, 0, 0) is true: |1/3 - 1| + 1/3 + 1/3 = 4/3; every pair ties."""
    figures = graph_quality(table(1 - np.eye(4)), GROUPS)
    assert figures["graph_l1"] == pytest.approx(4 / 3)
    assert figures["graph_auroc"] == pytest.approx(0.5)


def test_a_graph_that_is_all_wrong():
    """All weight on the other group: rows (0, 1/2, 1/2) against (1, 0, 0) are 2 apart, every edge is wrong."""
    figures = graph_quality(table([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]), GROUPS)
    assert figures["graph_l1"] == pytest.approx(2)
    assert figures["graph_auroc"] == 0


def test_a_dropped_true_neighbour_counts_as_missed():
    """Client 0 keeps only a stranger: its row is 1 off there and misses its one true neighbour, 2 in all; others 0."""
    kept = Graph.from_edges([0, 1, 2, 3], [2, 0, 3, 2], 4)
    rows = {"neighbours": kept.neighbours, "present": kept.present, "weights": np.ones((4, 1))}
    assert graph_quality(rows, GROUPS)["graph_l1"] == pytest.approx(2 / 4)


def test_truth_is_known_groups_or_equal_label_sets():
    assert true_groups(["b", "a", "b"], []).tolist() == [1, 0, 1]
    counts = np.array([[3, 1, 0], [0, 2, 5], [9, 9, 0]])
    groups = true_groups(None, counts)
    assert groups[0] == groups[2] != groups[1]


@pytest.mark.parametrize("counts", [[[1, 1], [2, 3]], [[1, 0], [0, 1]], [], [[], []]])
def test_no_truth_where_all_label_sets_are_equal_or_all_differ(counts):
    assert true_groups(None, counts) is None
