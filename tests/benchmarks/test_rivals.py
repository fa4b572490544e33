"""The experiment of `benchmarks/rivals`: dealt the same to all, and run by coterie as worked out by hand in NumPy."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

RIVALS = Path(__file__).parents[2] / "benchmarks" / "rivals"


@pytest.fixture(scope="module")
def rivals():
    """The benchmark's own modules, which are scripts beside each other and no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RIVALS)
        import by_hand
        import run
        import with_coterie
        import workload

        yield SimpleNamespace(by_hand=by_hand, run=run, with_coterie=with_coterie, workload=workload)
    for name in ("by_hand", "common", "environments", "record", "run", "with_coterie", "workload"):
        sys.modules.pop(name, None)


def test_every_sample_is_dealt_to_one_client_and_none_is_tested_on(rivals):
    x, y = np.arange(1000), np.repeat(np.arange(10), 100)
    own, labels, test, test_labels = rivals.workload.deal(x, y, clients=9, samples=100, test=100)
    assert own.shape == (9, 100)
    assert sorted([*own.ravel(), *test]) == list(range(1000))
    assert (labels == own // 100).all()
    assert (test_labels == test // 100).all()
    # Two shards of 50 samples in the order of labels have at most two labels each.
    assert all(len(set(row)) <= 4 for row in labels)
    with pytest.raises(SystemExit, match="need 1100"):
        rivals.workload.deal(x, y, clients=10, samples=100, test=100)


def test_everybody_reads_the_same_experiment(rivals, tmp_path):
    file = rivals.run.make_exact("mlp", tmp_path)
    first, again = rivals.workload.read(file), rivals.workload.read(file, block=3)
    assert again.block == 3
    assert (first.clients, first.samples, first.steps) == (3, 10, 2)
    for name in ("x", "y", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert first.x.min() >= 0
    assert first.x.max() <= 1


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.soak)])
def test_coterie_gives_what_fedavg_by_hand_gives(rivals, tmp_path, model):
    work, clock = rivals.workload.read(rivals.run.make_exact(model, tmp_path)), rivals.workload.Clock()
    found, answer = rivals.with_coterie.train(work, "cpu", clock), rivals.by_hand.fedavg(work)
    assert found.keys() == work.weights.keys()
    for name, value in answer.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
        assert np.abs(value - work.weights[name]).max() > 1e-4  # it has learned
    assert rivals.by_hand.score(found, work) == rivals.by_hand.score(answer, work)
    assert len(clock.intervals()["wall_s"]) == len(clock.intervals()["cpu_s"]) == work.blocks


def test_gradient_by_hand_is_the_slope_of_the_loss(rivals, tmp_path):
    work = rivals.workload.read(rivals.run.make_exact("mlp", tmp_path))
    weights = {name: value.astype(np.float64) for name, value in work.weights.items()}
    x, y = work.x[0].astype(np.float64), work.y[0]

    def loss(weights):
        outputs, _ = rivals.by_hand._forward(weights, x)
        return -np.log(rivals.by_hand._probabilities(outputs)[np.arange(len(y)), y]).mean()

    slope = rivals.by_hand._gradient(weights, x, y)
    for name, place in (("fc1.weight", (3, 300)), ("fc1.bias", (5,)), ("fc2.weight", (2, 7)), ("fc2.bias", (1,))):
        moved = []
        for change in (1e-6, -1e-6):
            near = {**weights, name: weights[name].copy()}
            near[name][place] += change
            moved.append(loss(near))
        assert slope[name][place] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-5, abs=1e-9)
