"""Local training against NumPy: which samples it uses, how often, and what SGD makes of them.

The counting trick: the k-th sample is the k-th unit vector with target 1 and the model is linear without bias, so that
weight k moves only when sample k is used, by lr * (1 - w_k) / (size of the minibatch).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from coterie.data.clients import Split
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from support.cases import one, regression, slope, zero_model

pytestmark = pytest.mark.usefixtures("x64")


def unit_samples(counts, n):
    """Clients with the first `count` unit vectors; their padding is poisoned."""
    real = np.arange(n) < np.array(counts)[:, None]
    x = np.where(real[:, :, None], np.eye(n), np.nan)
    return Split(jnp.asarray(x), jnp.asarray(np.where(real, 1.0, np.nan)), jnp.array(counts, jnp.int32))


def train(settings, data, seed=0, task=None, **options):
    """Train every client of a stacked split from zero weights; returns the weights `[K, features]` and the losses."""
    task = task or Task(zero_model(data.x.shape[-1]), "regression", dtype=jnp.float64)

    def one_client(data, key):
        return settings.train(task, task.init(key), data, key, **options)

    keys = jax.random.split(jax.random.key(seed), len(data.count))
    trained = jax.jit(jax.vmap(one_client))(data, keys)
    return np.asarray(trained.variables.params.w)[:, 0], np.asarray(trained.loss)


def test_an_epoch_uses_every_own_sample_once_in_balanced_batches():
    """A sample used once in a batch of B moves its weight from 0 to lr / B, so the weights tell the batches."""
    counts = [23, 17, 5, 1]
    weights, _ = train(LocalSGD(lr=0.5, batch_size=4), unit_samples(counts, 23))
    for w, count in zip(weights, counts, strict=True):
        assert (w[count:] == 0).all()
        batch = 0.5 / w[:count]
        np.testing.assert_allclose(batch, np.round(batch), rtol=1e-12)
        sizes, members = np.unique(np.round(batch).astype(int), return_counts=True)
        assert (members % sizes == 0).all()  # whole batches
        assert (members // sizes).sum() == -(-count // 4)  # as few as batches of at most 4 allow
        assert sizes.max() <= 4
        assert np.ptp(sizes) <= 1  # and as equal as possible


def test_the_batches_of_62_samples_on_paper():
    """At most 10 of 62 make 7 steps: six of 9 and one of 8."""
    weights, _ = train(LocalSGD(lr=0.5, batch_size=10), unit_samples([62], 62))
    sizes, members = np.unique(np.round(0.5 / weights[0]).astype(int), return_counts=True)
    assert dict(zip(sizes.tolist(), (members // sizes).tolist(), strict=True)) == {8: 1, 9: 6}


def test_every_epoch_uses_every_sample_once_more():
    """12 samples in batches of 4, three epochs: each weight is 1 - (1 - lr / 4)^3, the padding's 0."""
    weights, _ = train(LocalSGD(lr=0.5, batch_size=4, epochs=3), unit_samples([12, 12], 14))
    expected = np.r_[np.full(12, 1 - (1 - 0.125) ** 3), 0, 0]
    np.testing.assert_allclose(weights, [expected, expected], rtol=1e-12)


def test_every_epoch_has_an_order_of_its_own():
    """Targets 0 and 1, lr = 1/2, batch 1: w <- (w + y) / 2 writes the targets, in order, as the digits of w."""
    data = Split(jnp.ones((1, 2, 1)), jnp.array([[0.0, 1.0]]), jnp.array([2]))
    weights, _ = train(LocalSGD(lr=0.5, batch_size=1, epochs=20), data)
    digits = np.array([int(bit) for bit in f"{int(weights[0, 0] * 2**40):040b}"]).reshape(20, 2)  # the last step first
    assert weights[0, 0] * 2**40 == int(weights[0, 0] * 2**40)
    assert (digits.sum(1) == 1).all()  # each epoch uses the 0 once and the 1 once
    assert 0 < digits[:, 0].sum() < 20  # in either order


def test_batch_size_zero_takes_all_samples():
    """Batch size 0 is the full gradient, however many samples a client has, counted in epochs or in steps."""
    federation = regression([4, 7, 2])
    data = jax.tree.map(jnp.asarray, federation.train)
    for settings in (LocalSGD(lr=0.3, batch_size=0, epochs=2), LocalSGD(lr=0.3, batch_size=0, steps=2)):
        weights, losses = train(settings, data)
        for client, (w, loss) in enumerate(zip(weights, losses, strict=True)):
            x, y = (np.asarray(a)[: data.count[client]] for a in (data.x[client], data.y[client]))
            first = -0.3 * slope(np.zeros(3), x, y)
            np.testing.assert_allclose(w, first - 0.3 * slope(first, x, y), rtol=1e-12)
            values = [0.5 * np.mean((x @ v - y) ** 2) for v in (np.zeros(3), first)]
            np.testing.assert_allclose(loss, np.mean(values), rtol=1e-12)  # the mean over the local steps


def test_steps_draw_uniformly_from_own_samples():
    """Batch 1: after m uses a weight is 1 - (1 - lr)^m, so that it tells m exactly."""
    counts, steps, lr = [8, 3], 400, 0.01
    weights, _ = train(LocalSGD(lr=lr, batch_size=1, steps=steps), unit_samples(counts, 9), seed=4)
    uses = np.log1p(-weights) / np.log1p(-lr)
    np.testing.assert_allclose(uses, np.round(uses), atol=1e-9)
    for used, count in zip(np.round(uses), counts, strict=True):
        assert used.sum() == steps
        assert (used[count:] == 0).all()
        assert stats.chisquare(used[:count]).pvalue > 0.01


def test_steps_average_over_the_minibatch():
    """One sample drawn ten times is a batch of ten: one step moves the weight by lr, not by ten times that."""
    weights, _ = train(LocalSGD(lr=0.25, batch_size=10, steps=1), unit_samples([1], 3))
    np.testing.assert_allclose(weights[0], [0.25, 0, 0], rtol=1e-12)


def numpy_sgd(x, y, steps, lr, momentum, decay, w, velocity):
    for _ in range(steps):
        velocity = momentum * velocity + slope(w, x, y) + decay * w
        w = w - lr * velocity
    return w, velocity


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.2), (0.8, 0.1)])
def test_momentum_and_weight_decay_are_those_of_sgd(momentum, decay):
    federation = regression([6])
    x, y = federation.train.x[0], federation.train.y[0]
    settings = LocalSGD(lr=0.2, batch_size=0, steps=3, momentum=momentum, weight_decay=decay)
    task = Task(zero_model(), "regression", dtype=jnp.float64)
    start = Variables(zero_model().__class__(jnp.ones((1, 3))))
    first = settings.train(task, start, one(federation.train, 0), jax.random.key(0))
    again = settings.train(
        task, first.variables, one(federation.train, 0), jax.random.key(1), optimiser_state=first.optimiser
    )
    w, velocity = numpy_sgd(x, y, 3, 0.2, momentum, decay, np.ones(3), np.zeros(3))
    np.testing.assert_allclose(first.variables.params.w[0], w, rtol=1e-12)
    w, _ = numpy_sgd(x, y, 3, 0.2, momentum, decay, w, velocity)  # the next round continues with the velocity
    np.testing.assert_allclose(again.variables.params.w[0], w, rtol=1e-12)


def test_a_pull_is_added_to_the_gradient():
    """f(w) = (w - 1)^2 / 2 and a pull of 3 (w + 1): w <- w - 0.1 (w - 1 + 3 w + 3); from 0: -0.2, then -0.32."""
    data = Split(jnp.ones((1, 1, 1)), jnp.ones((1, 1)), jnp.array([1]))
    options = {"pull": lambda params: jax.tree.map(lambda w: 3 * (w + 1), params)}
    weights, _ = train(LocalSGD(lr=0.1, batch_size=0, steps=2), data, **options)
    np.testing.assert_allclose(weights, [[-0.32]], rtol=1e-12)


def test_clients_of_equal_size_take_the_same_steps_with_a_known_number_of_them():
    federation = regression([7, 7])
    data = jax.tree.map(jnp.asarray, federation.train)
    results = [
        train(
            LocalSGD(lr=0.1, batch_size=3, epochs=2),
            data,
            task=Task(zero_model(), "regression", dtype=jnp.float64, equal_sizes=equal),
        )
        for equal in (False, True)
    ]
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-14)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-14)
    assert Task.of(federation, zero_model()).equal_sizes
    assert not Task.of(regression([7, 6]), zero_model()).equal_sizes


def test_a_part_of_the_samples_is_one_pass_though_all_clients_are_of_one_size():
    """5 of 8 samples in batches of at most 2 are three steps, of 2, 2 and 1; 8 samples would be four."""
    equal = Task(zero_model(8), "regression", dtype=jnp.float64, equal_sizes=True)
    weights, _ = train(LocalSGD(lr=0.5, batch_size=2), unit_samples([5], 8), task=equal, whole=False)
    sizes, members = np.unique(np.round(0.5 / weights[0][:5]).astype(int), return_counts=True)
    assert dict(zip(sizes.tolist(), (members // sizes).tolist(), strict=True)) == {1: 1, 2: 2}


@pytest.mark.soak
def test_a_pool_of_many_samples_is_still_used_once_each():
    """At 150,000 samples step x count passes 2^31. With lr = 1e-10 the weight stays near 0, so that it is
    lr times the sum of the minibatches' mean targets: 15,000 times the mean of all targets, if each is used once."""
    count = 150_000
    y = np.random.default_rng(0).normal(1, 1, count)
    data = Split(jnp.ones((1, count, 1)), jnp.asarray(y)[None], jnp.array([count], jnp.int32))
    weights, _ = train(LocalSGD(lr=1e-10, batch_size=10), data)
    np.testing.assert_allclose(weights[0, 0], 1e-10 * 15_000 * y.mean(), rtol=1e-5)
