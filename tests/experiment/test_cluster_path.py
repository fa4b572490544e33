"""Clusters read from weights, and runs that go along a path: when they evaluate, what they keep, what a user sees."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.cluster_path import clusters_of, path_words
from coterie.experiment.result import Result
from coterie.methods import NetworkLasso
from coterie.methods.base import method
from support.run_cases import Scripted, plain_federation


def test_clusters_by_hand():
    """0 - 1 - 2 in a row with a weight in one direction only, 3 alone; a slot that is not there joins nobody."""
    table = {
        "neighbours": np.array([[1, 2], [0, 2], [1, 2], [0, 1]]),
        "present": np.array([[True, False], [True, True], [True, False], [False, False]]),
        "weights": np.array([[0.5, 0.3], [0.0, 0.4], [0.0, 0.0], [0.2, 0.1]]),
    }
    assert clusters_of(table).tolist() == [0, 0, 0, 3]


@given(st.data())
def test_clusters_are_connected_components(data):
    clients = data.draw(st.integers(1, 8))
    neighbours = np.array([[j for j in range(clients) if j != i] for i in range(clients)]).reshape(clients, -1)
    weights = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 0.25]), min_size=neighbours.size, max_size=neighbours.size))
    ).reshape(neighbours.shape)
    graph = nx.Graph()
    graph.add_nodes_from(range(clients))
    graph.add_edges_from((i, int(neighbours[i, k])) for i, k in zip(*np.nonzero(weights), strict=True))
    labels = clusters_of({"neighbours": neighbours, "present": np.ones_like(weights, bool), "weights": weights})
    for part in nx.connected_components(graph):
        assert {labels[i] for i in part} == {min(part)}


@method
class AlongAPath(Scripted):
    """Gives a model after every second round."""

    @property
    def rounds_per_model(self):
        return 2


def test_a_path_is_evaluated_at_its_models_and_the_best_is_kept(tmp_path):
    """Class 0 is right for 3 of 4 validation samples, 1 for one of four, 2 for none; of equals the first is kept."""
    along = AlongAPath(script=(0, 1, 0, 0, 2, 0, 0, 2))
    folder = tmp_path / "run"
    result = ct.run(plain_federation(), "linear", along, rounds=8, device="cpu", out=folder)
    assert [row["round"] for row in result.rows] == [2, 4, 6, 8]
    assert [row["validation_score"][0] for row in result.rows] == [0.25, 0.75, 0.75, 0]
    assert result.best_round == 4
    np.testing.assert_array_equal(result.model(0).variables.params.bias, [4, 0, 0])
    assert Result.read(folder).best_round == 4
    usual = ct.run(plain_federation(), "linear", Scripted(script=along.script), rounds=8, device="cpu")
    assert usual.best_round == 8
    finer = ct.run(plain_federation(), "linear", along, rounds=8, device="cpu", evaluate_every=1)
    assert finer.best_round == 1


def test_without_validation_samples_a_path_keeps_its_last_model_and_says_so():
    whole = plain_federation()
    federation = dataclasses.replace(whole, validation=whole.validation._replace(count=0 * whole.validation.count))
    with pytest.warns(CoterieWarning, match="partition.validation"):
        result = ct.run(federation, "linear", AlongAPath(script=(0, 0, 1, 1)), rounds=4, device="cpu")
    assert result.best_round == 4


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Planted groups along a short path, with an evaluation in the middle of each lam."""
    method = NetworkLasso(lam=1.5, lr=0.5, batch_size=0, path_factor=0.3, path_every=20)
    federation = ct.load("planted-groups", train_size=50, clients=12, groups=3)
    folder = tmp_path_factory.mktemp("path") / "run"
    return ct.run(federation, "linear", method, rounds=80, evaluate_every=10, device="cpu", out=folder)


@pytest.mark.soak
def test_path_has_a_row_for_each_lam(followed):
    path = followed.path()
    assert path["round"].tolist() == [20, 40, 60, 80]
    np.testing.assert_allclose(path["lam"], 1.5 * 0.3 ** np.arange(4), rtol=1e-6)
    assert path["clusters"].is_monotonic_increasing
    assert path["clusters"].tolist() == [len(set(labels)) for labels in path["labels"]]
    assert path["kept"].sum() == 1
    (kept,) = path.index[path["kept"]]
    assert path["round"][kept] - 20 < followed.best_round <= path["round"][kept]
    last = followed.rows[-1]
    assert path["validation_score"].iloc[-1] == pytest.approx(np.mean(last["validation_score"]))
    assert path["test_score"].iloc[-1] == pytest.approx(np.mean(last["test_score"]))
    count, lam = path["clusters"][kept], path["lam"][kept]
    assert path_words(followed) == f"path: lam from 1.5 to 0.0405; kept lam {lam:.3g} with {count} clusters"
    held = Result.read(followed.folder).path()
    assert held.drop(columns="labels").equals(path.drop(columns="labels"))


def test_clients_of_a_cluster_have_the_same_model(followed):
    labels = followed.clusters()
    np.testing.assert_array_equal(labels, followed.clusters(followed.best_round))
    models = [np.asarray(followed.model(i).variables.params.weight) for i in range(12)]
    for i in range(12):
        for j in range(12):
            assert (labels[i] == labels[j]) == np.array_equal(models[i], models[j])


def test_what_has_no_clusters_or_no_path_says_so(followed):
    alone = ct.run(plain_federation(), "linear", "local", rounds=1, device="cpu")
    with pytest.raises(CoterieError, match="no cooperation graph"):
        alone.clusters()
    with pytest.raises(CoterieError, match="path_factor"):
        alone.path()
    with pytest.raises(CoterieError, match="round 7"):
        followed.clusters(7)
