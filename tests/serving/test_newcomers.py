"""What a client gets that took no part, method by method; and joining a trained federation."""

import dataclasses

import jax
import numpy as np
import pytest

import coterie as ct
from coterie import registry
from coterie.errors import CoterieError
from coterie.learning.task import Variables
from coterie.models.linear import LinearNetwork
from coterie.serving.newcomers import fit_weights
from support.serving_cases import classes_federation, numbers_federation, saved_run, softmax


def lines(weights, bias=None):
    """Linear models [K, outputs, inputs] as a run saves them."""
    weights = np.asarray(weights, np.float32)
    return Variables(LinearNetwork(weights, np.zeros(weights.shape[:2], np.float32) if bias is None else bias))


def test_the_shared_model_is_the_mean_of_the_copies(tmp_path):
    federation = classes_federation()
    result = saved_run(tmp_path / "run", federation, "linear", "fedavg")
    mean = jax.tree.map(lambda a: a.mean(0, dtype=np.float64), result.variables)
    x = federation.test.x[0]
    new = ct.open(tmp_path / "run").new_client()
    np.testing.assert_allclose(new(x), x @ mean.params.weight.T + mean.params.bias, atol=1e-5)
    assert set(new.predict(x)["client"]) == {"new"}


def test_a_known_group_gives_its_mean(tmp_path):
    federation = dataclasses.replace(classes_federation(), groups=np.array([0, 0, 1, 1, 1]))
    result = saved_run(tmp_path / "run", federation, "linear", "async-l2gd")
    run, x = ct.open(tmp_path / "run"), federation.test.x[0]
    weight = result.variables.params.weight[2:].mean(0)
    bias = result.variables.params.bias[2:].mean(0)
    for group in (1, "client-4"):
        np.testing.assert_allclose(run.new_client(group=group)(x), x @ weight.T + bias, atol=1e-5)
    with pytest.raises(CoterieError, match=r"name the group \(0, 1\) or a client in it"):
        run.new_client()


def test_training_alone_has_nothing_for_others(tmp_path):
    saved_run(tmp_path / "run", classes_federation(), "linear", "local")
    with pytest.raises(CoterieError, match=r"local has no model for a client that took no part.*join-trained"):
        ct.open(tmp_path / "run").new_client()


def test_a_learned_graph_asks_for_rows_and_mixes(tmp_path):
    federation = classes_federation()
    good = np.eye(3, 6) * 4
    models = lines([good, -good, good * 0.95, -good, -good])
    saved_run(tmp_path / "run", federation, "linear", "scool-sbm", models)
    run = ct.open(tmp_path / "run")
    with pytest.raises(CoterieError, match=r"scool-sbm chooses a new client's model.*--rows"):
        run.new_client()
    x = (np.eye(3, 6)[np.arange(12) % 3] + 0.1 * np.random.default_rng(0).standard_normal((12, 6))).astype(np.float32)
    new = run.new_client((x, np.arange(12) % 3))
    assert {tuple(model.params.weight[0, :1]) for model in new.models} <= {(4.0,), (np.float32(3.8),)}
    mixed = sum(w * softmax(x @ m.params.weight.T) for w, m in zip(new.weights, new.models, strict=True))
    np.testing.assert_allclose(new.predict(x).filter(like="probability").to_numpy(), mixed, atol=1e-6)
    saved_run(tmp_path / "lasso", federation, "linear", "network-lasso", models, graph="ring")
    nearest = ct.open(tmp_path / "lasso").new_client((x, np.arange(12) % 3))
    assert len(nearest.models) == 1
    np.testing.assert_array_equal(nearest.models[0].params.weight, models.params.weight[0])
    with pytest.raises(CoterieError, match="know no class '7'; they know 0, 1, 2"):
        run.new_client((x, np.full(12, 7)))


def test_weights_of_models_by_hand():
    # Two equal models share. One that is worse by 0, 2, 0, 2 has mean 1, variance 1: z^2 = 4 / (1 + 1/4) = 3.2.
    losses = np.zeros((3, 4))
    losses[2] = [0, 2, 0, 2]
    np.testing.assert_allclose(fit_weights(losses), np.array([1, 1, np.exp(-1.6)]) / (2 + np.exp(-1.6)))
    # Worse in one row and better in another by the same amount: cannot be told from the best one.
    np.testing.assert_allclose(fit_weights(np.array([[0.0, 0.0], [1.0, -1.0]])), [0.5, 0.5])
    # Many rows: z^2 = 100 / (1 + 1/100), and only the best is left.
    losses = np.zeros((2, 100))
    losses[1, ::2] = 2
    np.testing.assert_allclose(fit_weights(losses), [1.0, 0.0])


def test_every_method_says_what_a_newcomer_gets():
    rules = {row.name: registry.load("methods", row.name).newcomer for row in registry.rows("methods")}
    assert {name for name, rule in rules.items() if rule == "none"} >= {"local", "local-exact"}
    assert {rules[name] for name in ("fedavg", "ditto", "fedper", "pooled", "gossip-sgd", "pooled-exact")} == {"shared"}
    assert {rules[name] for name in ("async-l2gd", "async-al2sgd+", "hierarchical")} == {"cluster"}
    assert {rules[name] for name in ("component", "network-lasso")} == {"nearest"}
    assert {rules[name] for name in ("scool-sbm", "fomo", "pfedgraph", "dada", "meta-l2c")} == {"mixture"}


# -- joining ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation_of_lines(tmp_path_factory):
    """Four clients whose models are the truth of two kinds of site: x0 - x1 and x1 - x0."""
    folder = tmp_path_factory.mktemp("join") / "run"
    truth = np.array([[[1.0, -1.0, 0.0]], [[1.0, -1.0, 0.0]], [[-1.0, 1.0, 0.0]], [[-1.0, 1.0, 0.0]]])
    saved_run(folder, numbers_federation(), "linear", "pfedgraph", lines(truth, np.zeros((4, 1), np.float32)))
    return folder


def new_rows(count, seed):
    """Rows of a site almost like the second kind: -x0 + x1 + 0.3 x2, in the target's unit."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 3)).astype(np.float32)
    return x, 100 + 7 * (x @ [-1.0, 1.0, 0.3] + 0.1 * random.standard_normal(count))


def test_joining_finds_its_place_and_improves(federation_of_lines, tmp_path):
    rows, (x, y) = new_rows(15, 0), new_rows(400, 1)
    member = ct.join_trained(federation_of_lines, rows, name="new site", out=tmp_path / "site", passes=40)
    assert member.clients == ("new site",)
    assert set(member.joined["weights"]) == {"client-2", "client-3"}
    np.testing.assert_allclose(sum(member.joined["weights"].values()), 1)
    assert member.joined["start"] in ("nearest", "mixture")

    def rmse(model):
        return np.sqrt(np.mean((model.predict(x)["prediction"] - y) ** 2))

    joined, nearest = rmse(member.model("new site")), 7 * np.sqrt(0.3**2 + 0.1**2)
    x0, y0 = rows
    alone = np.linalg.lstsq(np.c_[x0, np.ones(15)], y0, rcond=None)[0]
    assert joined < 0.8 * nearest  # the few steps learned the part that no client has
    assert joined < 2 * np.sqrt(np.mean((np.c_[x, np.ones(400)] @ alone - y) ** 2))
    again = ct.open(tmp_path / "site").model("new site").predict(x)
    np.testing.assert_allclose(again["prediction"], member.model("new site").predict(x)["prediction"], rtol=1e-6)
    assert np.isfinite(again["high"]).all()  # 15 rows are too few: the federation's pooled interval


def test_joining_refuses_what_it_cannot_use(federation_of_lines):
    with pytest.raises(CoterieError, match="has a client 'client-1' already"):
        ct.join_trained(federation_of_lines, new_rows(5, 0), name="client-1")
    with pytest.raises(CoterieError, match="is too few to train on"):
        ct.join_trained(federation_of_lines, new_rows(1, 0))
    with pytest.raises(CoterieError, match=r"a frame with the target column, or a pair \(x, y\)"):
        ct.join_trained(federation_of_lines, new_rows(5, 0)[0])
