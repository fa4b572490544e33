"""Stochastic gradient push as a method: three rounds redone in NumPy, what it sends, and runs over the command line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.codecs.frame import frame_bytes
from coterie.graphs.directed import RandomDirected, expected_weights
from coterie.graphs.graph import Graph
from coterie.methods.sgp import SGP
from coterie.models.linear import Linear
from support.cases import own, regression, run, slope, training

SIZES = (4, 6, 5, 7)
DIRECTED = Graph.from_adjacency([[0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1], [1, 0, 0, 0]])


def _plain(**settings):
    return SGP(batch_size=0, lr=0.2, **settings)


@pytest.mark.parametrize(
    "order", ["before", *(pytest.param(name, marks=pytest.mark.soak) for name in ("after", "authors"))]
)
@pytest.mark.parametrize("least", [0.6, pytest.param(0.0, marks=pytest.mark.soak)])
@pytest.mark.usefixtures("x64")
def test_three_rounds_in_numpy(order, least, device):
    """With a least weight, columns of P are those of the identity for clients below it: they keep everything."""
    federation = regression(SIZES)
    all_send, lr, waits = expected_weights(DIRECTED).matrix(), 0.2, 0
    z, w = np.zeros((4, 3)), np.ones(4)

    def gradients(x):
        return np.stack([slope(x[i], *own(federation, i)) for i in range(4)])

    if order == "after":  # its first half comes before the first round
        z, w = all_send @ z, all_send @ w
    for _ in range(3):
        P = np.where(w < least, np.eye(4), all_send)
        waits += np.sum(w < least)
        step = -lr * gradients(z / w[:, None])
        z = P @ z + step if order == "authors" else P @ (z + step)
        w = P @ w
    method = _plain(order=order, least_weight=least)
    state, models = run(training(federation, method, device, DIRECTED), 3)
    np.testing.assert_allclose(models, z / w[:, None], atol=1e-12)
    np.testing.assert_allclose(state.mass.weight, w, atol=1e-13)
    assert (waits > 0) == (least > 0)
    assert abs(w - 1).max() > 0.1  # the weights matter here


@pytest.mark.usefixtures("x64")
def test_several_pushes_make_one_round_and_a_schedule_goes_on(device):
    federation = regression(SIZES)
    links = np.random.default_rng(0).random((5, 4, 4)) < 0.6
    links[:, np.arange(4), (np.arange(4) + 1) % 4] = True
    changing = Graph.from_schedule(links)
    P = [hears / hears.sum(0) for hears in links | np.eye(4, dtype=bool)]
    z, w = np.zeros((4, 3)), np.ones(4)
    for t in range(8):  # past the end of the schedule
        x = z / w[:, None]
        z = P[t % 5] @ (z - 0.2 * np.stack([slope(x[i], *own(federation, i)) for i in range(4)]))
        w = P[t % 5] @ w
    _, models = run(training(federation, _plain(pushes=4, least_weight=0.0), device, changing), 2)
    np.testing.assert_allclose(models, z / w[:, None], atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_learning_rate_falls_as_in_the_paper(device):
    """Tenfold less after T - 4 and again after T - 2 rounds of T = 6; alone, so that it is gradient descent."""
    federation = regression((5,))
    x = np.zeros(3)
    for rate in (0.2, 0.2, 0.02, 0.02, 0.002, 0.002):
        x = x - rate * slope(x, *own(federation, 0))
    _, models = run(training(federation, _plain(decay=0.1, decay_after=2, decay_every=2), device), 6)
    np.testing.assert_allclose(models[0], x, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_personal_layers_stay_and_messages_hold_the_others_and_a_weight(device):
    federation = regression(SIZES)
    started = training(federation, _plain(), device, DIRECTED, model=Linear(), personal=("bias",))
    state, _ = started.init()
    assert len(jax.tree.leaves(state.mass.value)) == 1  # the matrix, not the bias
    state, rounds = started.advance(state, 1, 1)
    kernel, weight = jax.ShapeDtypeStruct((1, 3), jnp.float64), jax.ShapeDtypeStruct((), jnp.float64)
    expected = DIRECTED.present * frame_bytes([kernel, weight])
    np.testing.assert_array_equal(rounds.traffic.heard_bytes[0], expected)
    first = started.init()[0].variables.params
    for i in range(4):  # one's own layer takes plain gradient steps
        x, y = own(federation, i)
        error = x @ np.asarray(first.weight)[i, 0] + np.asarray(first.bias)[i, 0] - y
        moved = np.asarray(first.bias)[i, 0] - 0.2 * error.mean()
        np.testing.assert_allclose(np.asarray(state.variables.params.bias)[i, 0], moved, atol=1e-13)


@pytest.mark.soak
@pytest.mark.usefixtures("x64")
def test_random_links_lead_everyone_near_the_minimum_of_the_sum(device):
    federation = regression((8, 8, 8, 8))
    H = [x.T @ x / len(x) for x, _ in (own(federation, i) for i in range(4))]
    b = [x.T @ y / len(x) for x, y in (own(federation, i) for i in range(4))]
    minimum = np.linalg.solve(sum(H), sum(b))
    network = RandomDirected().build(4, 0)
    method = SGP(batch_size=0, lr=0.2, decay=0.1, decay_after=200, decay_every=100)
    state, models = run(training(federation, method, device, network), 400)
    apart = np.linalg.norm(np.linalg.solve(H[0], b[0]) - minimum)
    assert np.linalg.norm(models - minimum, axis=1).max() < 0.05 * apart
    assert state.mass.weight.sum() == pytest.approx(4)


@pytest.mark.soak
def test_run_graph_and_report_work_on_networks_whose_links_come_and_go(tmp_path):
    links = np.random.default_rng(0).random((3, 5, 5)) < 0.7
    links[0] = True
    np.save(tmp_path / "links.npy", links)
    config = tmp_path / "sgp.toml"
    config.write_text(
        'format = 1\n[data]\nname = "digits"\n[partition]\nname = "classes"\nclients = 5\n[model]\nname = "linear"\n'
        '[method]\nname = "sgp"\n[run]\nrounds = 2\n'
    )
    changing = ["graph.name=time-varying", f"graph.path={tmp_path}/links.npy"]
    for name, options in (("random", []), ("changing", changing)):
        folder = tmp_path / name
        extra = [word for option in options for word in ("--set", option)]
        _succeeds("run", config, "--json", *extra, "--out", folder)
        _succeeds("graph", folder, "--out", folder / "weights.npy")
        weights = np.load(folder / "weights.npy")
        assert weights.shape == (5, 5)
        assert 0 < weights[~np.eye(5, dtype=bool)].max() <= 0.5
        _succeeds("report", folder, "--out", folder / "report.html")


def _succeeds(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
