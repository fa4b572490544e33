"""The loop and what it gives back: when it evaluates, when it stops, what it counts, and the result's methods."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import safetensors.numpy

import coterie as ct
from coterie.errors import CoterieError, Diverged
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods import FedAvg, GossipSGD
from coterie.models.linear import Linear
from coterie.testing.small import small_federation
from support.run_cases import Scripted, plain_federation

FIVE = small_federation(5)


def logits(weights, x):
    return x @ weights["weight"].T + weights["bias"]


def accuracy(weights, split, i):
    """Accuracy of client i, with NumPy alone."""
    x, y = split.x[i, : split.count[i]], split.y[i, : split.count[i]]
    return np.mean(logits(weights, x).argmax(1) == y)


@pytest.fixture(scope="module")
def gossip():
    """Five clients on a ring, four rounds."""
    return ct.run(FIVE, "linear", GossipSGD(lr=0.1), graph=Ring(), rounds=4, evaluate_every=2, device="cpu")


# -- the schedule -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [
        (7, 3, [3, 6, 7]),
        (5, 9, [5]),
        (6, 0, [1, 2, 3, 4, 5, 6]),
        (41, 0, [3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 41]),  # at most 20 evaluations
    ],
)
def test_when_it_evaluates(rounds, every, expected):
    seen = []
    method = Scripted(script=(0,) * rounds)
    result = ct.run(
        plain_federation(),
        "linear",
        method,
        rounds=rounds,
        evaluate_every=every,
        progress=lambda stage, number, total, metrics: seen.append((stage, number, total)),
    )
    assert [row["round"] for row in result.rows] == expected
    middle = [("round", number, rounds) for number in expected]
    assert seen == [("start", 0, rounds), *middle, ("end", rounds, rounds)]
    assert result.best_round == rounds
    np.testing.assert_array_equal(result.model(0).variables.params.bias, [rounds, 0, 0])  # as many rounds were done


def test_blocks_of_any_length_are_one_program_with_the_same_numbers():
    """Seven rounds in blocks of three, three and one are those of seven blocks of one, and compile one program."""
    engine = Engine(Task.of(FIVE, Linear()), FIVE, choose_device("cpu"))

    def trained(*blocks):
        training = Training(engine, FedAvg(lr=0.1), Graph.empty(5), np.zeros((5, 0)), 0)
        state, _ = training.init()
        losses, done, traced = [], 0, 0
        for block in blocks:
            before = engine.traces
            state, report = training.advance(state, done + 1, block)
            traced, done = traced + engine.traces - before, done + block
            losses.append(np.asarray(report.loss))
            assert len(report.loss) == len(report.traffic.up_messages) == block
        return jax.device_get(state), np.concatenate(losses), traced

    (one, losses, _), (three, others, programs) = trained(*[1] * 7), trained(3, 3, 1)
    assert programs == 1
    np.testing.assert_allclose(others, losses, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), one, three)


def test_the_score_is_that_of_the_models(gossip, tmp_path):
    files = gossip.save_models(tmp_path / "models")
    for i, file in enumerate(files):
        weights = safetensors.numpy.load_file(file)
        assert gossip.final["test_score"][i] == pytest.approx(accuracy(weights, FIVE.test, i))
        assert gossip.final["validation_score"][i] == pytest.approx(accuracy(weights, FIVE.validation, i))


# -- stopping ---------------------------------------------------------------------------------------------------------

#            validation accuracy:  0, .75, .25, .25, .75, 0 ...; the fifth equals the second and is no better
SCRIPT = (2, 0, 1, 1, 0, 2, 0, 0)


def test_early_stop_keeps_the_best_models():
    result = ct.run(plain_federation(), "linear", Scripted(script=SCRIPT), rounds=8, evaluate_every=1, patience=3)
    scores = [row["validation_score"][0] for row in result.rows]
    assert scores == [0, 0.75, 0.25, 0.25, 0.75]
    assert result.best_round == 2
    assert result.summary()["round"] == 2
    assert result.final["test_score"].tolist() == [0.25] * 3
    np.testing.assert_array_equal(result.model("client-2").variables.params.bias, [2, 0, 0])  # the bias of round 2


def test_without_patience_the_last_models_count():
    result = ct.run(plain_federation(), "linear", Scripted(script=SCRIPT), rounds=8, evaluate_every=1)
    assert len(result.rows) == 8
    np.testing.assert_array_equal(result.model("client-2").variables.params.bias, [8, 0, 0])


def test_patience_needs_validation_samples():
    federation = small_federation(3, validation=False)
    with pytest.raises(CoterieError, match=r"run\.patience needs validation samples"):
        ct.run(federation, "linear", "local", rounds=2, patience=1)


@pytest.mark.parametrize(
    ("broken", "what"),
    [({"bad_loss": 4}, "train_loss"), ({"bad_model": 4}, "test_loss")],
)
@pytest.mark.parametrize("every", [1, 2])
def test_a_number_that_is_not_finite_names_client_and_round(tmp_path, broken, what, every):
    method = Scripted(script=(0,) * 6, **broken)
    with pytest.raises(Diverged, match=f"{what} of client 'client-1' is not finite in round 4; try a smaller"):
        ct.run(plain_federation(), "linear", method, rounds=6, evaluate_every=every, out=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (3 if every == 1 else 1)  # nothing that is not finite was written
    assert "NaN" not in "".join(lines)


def test_a_loss_that_is_not_finite_within_a_block_names_its_own_round():
    method = Scripted(script=(0,) * 6, bad_loss=2)
    with pytest.raises(Diverged, match="'client-1' is not finite in round 2"):
        ct.run(plain_federation(), "linear", method, rounds=6, evaluate_every=6)


# -- what was sent ----------------------------------------------------------------------------------------------------


def test_metrics_count_what_the_ledger_holds(gossip):
    edges = gossip.ledger.edges()
    assert len(edges) == 4 * 10  # four rounds, ten directed edges
    assert (edges.messages == 1).all()
    size = edges.bytes.iloc[0]
    assert size >= 4 * (6 * 3 + 3)  # a model of 21 numbers
    for row in gossip.rows:
        assert row["bytes_sent"] == [row["round"] * 2 * size] * 5
        assert row["bytes_received"] == [row["round"] * 2 * size] * 5
    assert gossip.ledger.bytes_per_client() == 4 * 4 * size


def test_a_hub_is_counted_by_who_takes_part():
    method = FedAvg(lr=0.1, participation=0.4)
    result = ct.run(FIVE, "linear", method, rounds=6, evaluate_every=2)
    edges = result.ledger.edges()
    assert set(edges["sender"]) | set(edges["receiver"]) == {*FIVE.names, "hub"}
    up = edges[edges.receiver == "hub"]
    assert up.groupby("round")["messages"].sum().tolist() == [2] * 6
    for row in result.rows:
        held = up[up["round"] <= row["round"]].groupby("sender")["bytes"].sum()
        assert row["bytes_sent"] == [held.get(name, 0) for name in FIVE.names]


# -- bad arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"federation": [1, 2]}, "federation must come from coterie.load or coterie.federation, not list"),
        ({"method": FedAvg}, "method must be configured: write FedAvg"),
        ({"method": 3}, "method must be a name or a configured method"),
        ({"method": "fedavgg"}, "did you mean fedavg"),
        ({"model": ct.models.Mlp}, "model must be a name, a configured model"),
        ({"model": 3}, "model must be a name, a configured model"),
        ({"graph": 3, "method": "gossip-sgd"}, "graph must be a name, a topology"),
        ({"graph": nx.path_graph(3), "method": "gossip-sgd"}, "the graph has 3 nodes but the federation 5 clients"),
        ({"rounds": 0}, r"run\.rounds must be at least 1"),
        ({"round": 3}, r"unknown key run\.round; did you mean rounds"),
        ({"device": "tpu"}, "device must be auto, cpu, cpu:N, gpu or gpu:N"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(CoterieError, match=message):
        ct.run(**({"federation": FIVE} | arguments))


# -- precision and batching --------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_double_precision_from_end_to_end():
    single, double = (ct.run(FIVE, "linear", "fedavg", rounds=3, precision=p) for p in ("float32", "float64"))
    fine, coarse = double.model(0).variables.params.weight, single.model(0).variables.params.weight
    assert (fine.dtype, coarse.dtype) == (np.float64, np.float32)
    assert np.abs(fine - fine.astype(np.float32)).max() > 0  # its digits go beyond those of float32
    x = FIVE.test.x[0]
    model = double.model(0)
    assert model(x).dtype == np.float64
    weights = {"weight": model.variables.params.weight, "bias": model.variables.params.bias}
    np.testing.assert_allclose(model(x), logits(weights, x.astype(np.float64)), rtol=1e-13)
    assert jnp.ones(1).dtype == jnp.float32  # the scope was left


@pytest.mark.soak
def test_modes_and_chunks_agree_to_rounding():
    plain = ct.run(FIVE, "linear", "gossip-sgd", mode="exact", rounds=2)
    for other in ({"mode": "fast"}, {"mode": "fast", "chunk": 2}):
        result = ct.run(FIVE, "linear", "gossip-sgd", rounds=2, **other)
        for a, b in zip(jax.tree.leaves(plain.variables), jax.tree.leaves(result.variables), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
