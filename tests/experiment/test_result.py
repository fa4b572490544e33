"""What a run gives back: metrics, models, graph; and that it is the same in memory, in a folder and read from there."""

import json
import os
import shutil

import equinox as eqx
import jax
import networkx as nx
import numpy as np
import pytest

import coterie as ct
from coterie.errors import CoterieError
from coterie.experiment import result
from coterie.experiment.config import Experiment
from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.graphs.topologies import Ring
from coterie.methods import GossipSGD, Local
from coterie.testing.small import small_federation
from support.run_cases import make_job

FIVE = small_federation(5)


def logits(weights, x):
    return x @ weights["weight"].T + weights["bias"]


@pytest.fixture(scope="module")
def job():
    return make_job(FIVE, "linear", GossipSGD(lr=0.1), graph=Ring(), rounds=4, evaluate_every=2)


@pytest.fixture(scope="module")
def engine(job, device):
    return Engine(job.task, job.federation, device)


@pytest.fixture(scope="module")
def gossip(job, engine):
    """Five clients on a ring, four rounds."""
    return execute(job, engine=engine)


@pytest.fixture(scope="module")
def whole(job, engine, tmp_path_factory):
    """The same in a folder."""
    return execute(job, out=tmp_path_factory.mktemp("whole") / "run", engine=engine)


# -- the result -------------------------------------------------------------------------------------------------------


def test_metrics_are_a_data_frame(gossip):
    frame = gossip.metrics
    assert frame.shape[0] == 2 * 5
    assert frame["round"].tolist() == [2] * 5 + [4] * 5
    assert frame["client"].tolist() == [*FIVE.names] * 2
    for name in ("train_loss", "validation_loss", "test_loss", "test_score", "test_own_score", "bytes_sent"):
        assert frame[name].tolist() == gossip.rows[0][name] + gossip.rows[1][name]


def test_a_model_is_a_function_of_a_batch(gossip):
    x = FIVE.test.x[3]
    model = gossip.model("client-3")
    weights = {"weight": model.module.weight, "bias": model.module.bias}
    np.testing.assert_allclose(model(x), logits(weights, x), rtol=1e-5)
    np.testing.assert_array_equal(model(x), gossip.model(3)(x))
    assert np.abs(model(x) - gossip.model("client-2")(x)).max() > 1e-4
    with pytest.raises(CoterieError, match="there is no client 'client-33'; did you mean client-3"):
        gossip.model("client-33")
    with pytest.raises(CoterieError, match="there is no client 5"):
        gossip.model(5)


def test_weights_and_graph(gossip):
    ring = np.zeros((5, 5))  # Metropolis: every client has two neighbours, so each of the three gets a third
    for i in range(5):
        ring[i, [i - 1, i, (i + 1) % 5]] = 1 / 3
    for number in (None, 2, 4):
        np.testing.assert_allclose(gossip.weights(number), ring, atol=1e-7)
    graph = gossip.graph()
    assert set(graph.nodes) == set(FIVE.names)
    assert {(u, v) for u, v in graph.edges} == {
        (f"client-{i}", f"client-{j}") for i in range(5) for j in ((i + 1) % 5, (i - 1) % 5)
    }
    assert all(data["weight"] == pytest.approx(1 / 3) for _, _, data in graph.edges(data=True))
    with pytest.raises(CoterieError, match="no weights of round 3; rounds: 2, 4"):
        gossip.weights(3)
    alone = ct.run(FIVE, "linear", Local(lr=0.1), rounds=1)
    with pytest.raises(CoterieError, match="local has no cooperation graph"):
        alone.graph()


@pytest.mark.soak
def test_any_graph_and_module_of_ones_own():
    star = nx.star_graph(4)
    result = ct.run(FIVE, eqx.nn.Linear(6, 3, key=jax.random.key(0)), "gossip-sgd", graph=star, rounds=1)
    assert {(u, v) for u, v in result.graph().edges} == {
        pair for i in range(1, 5) for pair in (("client-0", f"client-{i}"), (f"client-{i}", "client-0"))
    }
    assert result.config["model"]["name"] == "Linear"


# -- a folder and memory ----------------------------------------------------------------------------------------------


def records(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def assert_same_result(left, right):
    assert left.rows == right.rows
    assert (left.names, left.best_round, left.metric) == (right.names, right.best_round, right.metric)
    assert left.role == right.role
    assert left.ledger.edges().equals(right.ledger.edges())
    np.testing.assert_array_equal(left.weights(), right.weights())
    for name in left.names:
        a, b = left.model(name).variables, right.model(name).variables
        assert jax.tree.structure(a) == jax.tree.structure(b)
        assert all((u == v).all() for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
        np.testing.assert_array_equal(left.model(name)(FIVE.test.x[0]), right.model(name)(FIVE.test.x[0]))


@pytest.mark.parametrize(("name", "role"), [("local-exact", "alone"), ("pooled", "pooled"), ("mine.py:Mine", "alone")])
def test_a_folder_says_the_role_of_its_method_and_an_earlier_one_by_its_name(whole, tmp_path, name, role):
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('name = "gossip-sgd"', f'name = "{name}"'))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["role"] == whole.role == "cooperates"
    (folder / "summary.json").write_text(json.dumps(summary | {"role": role}))
    assert ct.Result.read(folder).role == role  # no method is imported: there is no mine.py
    (folder / "summary.json").write_text(json.dumps(summary | {"role": "ceiling"}))  # the word of version 0.1
    assert ct.Result.read(folder).role == "pooled"
    del summary["role"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert ct.Result.read(folder).role == (role if ".py" not in name else "cooperates")


def test_memory_and_folder_agree_and_a_complete_one_is_only_read(job, gossip, whole, tmp_path):
    assert gossip.folder is None
    assert_same_result(gossip, whole)
    before = records(whole.folder)
    with RunFolder(whole.folder).lock():  # even while somebody else holds it
        again = execute(job, out=whole.folder, device="none such")
    assert_same_result(again, whole)
    assert records(whole.folder) == before
    copies = again.save_models(tmp_path / "models")
    saved = sorted(file for file in (whole.folder / "models").iterdir() if file.name != "shared.safetensors")
    assert [file.read_bytes() for file in copies] == [file.read_bytes() for file in saved]


def test_an_experiment_from_a_file_gives_its_models_back(tmp_path):
    tables = {"data": {"name": "planted-groups"}, "model": {"name": "linear"}, "run": {"rounds": 1}}
    ran = execute(Job.of(Experiment.from_dict(tables)), out=tmp_path / "run", device="cpu")
    read = ct.Result.read(tmp_path / "run")
    x = np.ones((3, ran.model(0).module.weight.shape[1]), np.float32)
    np.testing.assert_array_equal(read.model(read.names[1])(x), ran.model(1)(x))


class Normed(eqx.Module):
    """A model with batch statistics."""

    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(6, "batch", mode="ema")
        self.head = eqx.nn.Linear(6, 3, key=key)

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.head(x), state


@pytest.mark.soak
def test_statistics_are_saved_with_the_model(tmp_path):
    given = {"model": eqx.nn.make_with_state(Normed), "method": "fedavg", "rounds": 1, "out": tmp_path / "run"}
    ran, read = ct.run(FIVE, **given), ct.run(FIVE, **given)
    assert read.variables is None
    leaves = [jax.tree.leaves(found.model(1).variables.statistics) for found in (ran, read)]
    assert len(leaves[0]) > 1
    assert all((a == b).all() for a, b in zip(*leaves, strict=True))
    np.testing.assert_array_equal(ran.model(1)(FIVE.test.x[1]), read.model(1)(FIVE.test.x[1]))


def test_many_clients_share_one_file(job, engine, gossip, tmp_path, monkeypatch):
    monkeypatch.setattr(result, "MODEL_FILES", 3)
    execute(job, out=tmp_path / "run", engine=engine)
    assert sorted(os.listdir(tmp_path / "run" / "models")) == ["all-clients.safetensors", "shared.safetensors"]
    assert_same_result(execute(job, out=tmp_path / "run"), gossip)
