"""A client's task against NumPy: losses, normalisation, the shared part, and errors for a model that does not fit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data.clients import Federation, stack
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.models.linear import Linear
from coterie.models.mlp import Mlp
from support.cases import Weights, regression, zero_model


def log_softmax(z):
    return z - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True)) - z.max(-1, keepdims=True)


def classes(count=4, shape=(3,), number=3, dtype=np.float32):
    random = np.random.default_rng(0)
    part = [(random.normal(size=(count, *shape)).astype(dtype), random.integers(0, number, count))]
    split = stack(part)
    return Federation(("a",), split, split, split, kind="classification", classes=number)


def task_of(kind, outputs=3):
    return Task(Weights(jnp.zeros((outputs, 2))), kind)


def test_cross_entropy():
    logits = np.array([[2.0, -1.0, 0.5], [100.0, 0.0, -100.0]])
    losses = task_of("classification").losses(jnp.asarray(logits), jnp.array([2, 1]))
    np.testing.assert_allclose(losses, [-log_softmax(logits)[0, 2], 100.0], rtol=1e-6)


def test_the_loss_of_a_text_is_the_mean_over_its_characters():
    logits = np.random.default_rng(1).normal(size=(2, 5, 4))
    y = np.random.default_rng(2).integers(0, 4, (2, 5))
    expected = -np.take_along_axis(log_softmax(logits), y[..., None], -1)[..., 0].mean(1)
    np.testing.assert_allclose(
        task_of("next-character").losses(jnp.asarray(logits), jnp.asarray(y)), expected, rtol=1e-5
    )


def test_half_the_squared_error_on_paper():
    """Outputs (1, 2) for targets (0, 4): (1 + 4) / 2 = 2.5. One output 3 for a plain number 1: 2."""
    assert task_of("regression").losses(jnp.array([[1.0, 2.0]]), jnp.array([[0.0, 4.0]])).tolist() == [2.5]
    assert task_of("regression").losses(jnp.array([[3.0]]), jnp.array([1.0])).tolist() == [2.0]


def test_the_loss_is_a_mean_over_the_masked_samples():
    """w = 0 and targets 1, 2, 3 of which the first two count: (1 + 4) / 2 / 2 = 1.25; none: 0, not 0 / 0."""
    task = Task(zero_model(1), "regression")
    params, x, y = task.init(jax.random.key(0)).params, jnp.ones((3, 1)), jnp.array([1.0, 2.0, 3.0])
    assert task.loss(params, (), x, y, jnp.array([True, True, False]))[0] == 1.25
    assert task.loss(params, (), x, y, jnp.zeros(3, bool))[0] == 0


def test_bytes_are_normalised_and_floats_are_not():
    """Two channels with mean (0.5, 0.1) and deviation (0.25, 0.2): 255 becomes (1 - 0.5) / 0.25 = 2 and 4.5."""
    task = Task(Weights(jnp.zeros((1, 2))), "regression", mean=(0.5, 0.1), std=(0.25, 0.2))
    images = jnp.array([[[[255, 0]], [[255, 51]]]], jnp.uint8)  # [1, 2, 1, 2]
    np.testing.assert_allclose(task.prepare(images)[0, :, 0], [[2.0, -2.0], [4.5, 0.5]], rtol=1e-6)
    floats = jnp.array([[255.0, 1.0]])
    assert (task.prepare(floats) == floats).all()
    characters = jnp.array([[3, 4]], jnp.int32)
    assert task.prepare(characters).dtype == jnp.int32  # looked up, not computed with


def test_personal_parameters_are_named_and_never_in_what_is_shared():
    task = Task.of(classes(), Mlp(hidden=(5,)), personal=("layers.1",))
    assert task.names == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    params = task.init(jax.random.key(0)).params
    shared = task.shared(params)
    assert [a.shape for a in jax.tree.leaves(shared)] == [(5, 3), (5,)]
    others = jax.tree.map(lambda a: a + 1, task.shared(task.init(jax.random.key(1)).params))
    joined = task.join(others, params)
    assert (joined.layers[0].weight == others.layers[0].weight).all()
    assert (joined.layers[1].weight == params.layers[1].weight).all()
    assert (joined.layers[1].bias == params.layers[1].bias).all()


def test_parameters_have_the_type_of_the_task(x64):
    for dtype in (jnp.float32, jnp.float64, jnp.bfloat16):
        task = Task.of(regression([2]), Linear(), dtype=dtype)
        assert {a.dtype for a in jax.tree.leaves(task.init(jax.random.key(0)))} == {jnp.dtype(dtype)}
        assert task.apply(task.init(jax.random.key(0)), jnp.ones((2, 3)))[0].dtype == dtype


def test_a_fresh_model_depends_on_the_key_and_on_nothing_else():
    task = Task.of(classes(), Linear())
    first, again, other = (task.init(jax.random.key(seed)).params.weight for seed in (0, 0, 1))
    assert (first == again).all()
    assert not np.allclose(first, other)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Weights(jnp.zeros((3, 7))), r"model does not accept inputs of shape \(3,\): .*"),
        (Weights(jnp.zeros((5, 3))), r"model returns \(5,\) for a sample but the data need \(3,\)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_sentence(model, sentence):
    with pytest.raises(CoterieError, match=sentence) as error:
        Task.of(classes(), model)
    assert "\n" not in str(error.value)


def test_an_unknown_personal_layer_is_refused_with_the_nearest():
    with pytest.raises(CoterieError, match=r"no parameter called 'layer.1'; did you mean layers.1\?"):
        Task.of(classes(), Mlp(), personal=("layer.1",))


def test_a_module_an_initialised_pair_and_a_function_are_all_models():
    federation = classes()
    network = Weights(jnp.ones((3, 3)))
    for model in (network, lambda key: network):
        task = Task.of(federation, model)
        assert (task.init(jax.random.key(5)).params.w == 1).all()
    stateful = eqx.nn.make_with_state(Normalised)(3, 3, key=jax.random.key(0))
    for model in (stateful, lambda key: eqx.nn.make_with_state(Normalised)(3, 3, key=key)):
        task = Task.of(federation, model)
        variables = task.init(jax.random.key(5))
        output, statistics = task.apply(variables, jnp.ones((2, 3)), None, train=True)
        assert output.shape == (2, 3)
        assert len(jax.tree.leaves(statistics)) == 3


class Normalised(eqx.Module):
    """Batch norm, then a linear layer."""

    norm: eqx.nn.BatchNorm
    linear: eqx.nn.Linear

    def __init__(self, inputs, outputs, key):
        self.norm = eqx.nn.BatchNorm(inputs, "batch", momentum=0.5, mode="batch")
        self.linear = eqx.nn.Linear(inputs, outputs, key=key)

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.linear(x), state


def test_batch_statistics_are_those_of_the_batch_and_only_training_moves_them():
    task = Task.of(classes(), lambda key: eqx.nn.make_with_state(Normalised)(3, 3, key=key))
    variables = task.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(2, 3, (6, 3)).astype(np.float32)
    output, statistics = task.apply(variables, jnp.asarray(x), None, train=True)
    mean, variance = x.mean(0), x.var(0)
    linear = variables.params.linear
    expected = (x - mean) / np.sqrt(variance + 1e-5) @ np.asarray(linear.weight).T + np.asarray(linear.bias)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    # Running means start at 0 and 1 and move half way (momentum 1/2).
    counter, running_mean, running_variance = jax.tree.leaves(statistics)
    assert counter == 1
    np.testing.assert_allclose(running_mean, mean / 2, rtol=1e-5)
    np.testing.assert_allclose(running_variance, (1 + variance) / 2, rtol=1e-5)
    _, still = task.apply(Variables(variables.params, statistics), jnp.asarray(x))
    for before, after in zip(jax.tree.leaves(statistics), jax.tree.leaves(still), strict=True):
        assert (before == after).all()
