"""Ensembles: the mixture of the members' predictions, in a task, in a run, and in the files of a run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import coterie
from coterie.data.embedded import Digits
from coterie.data.partition import Classes, Natural
from coterie.data.synthetic import HierarchicalLinear
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.models.ensemble import Ensemble, ensemble_of
from coterie.models.linear import Linear
from coterie.models.lstm import Lstm
from coterie.models.mlp import Mlp


def members_of(module, x):
    return np.stack([np.asarray(member(x), np.float64) for member in module.members])


def test_the_log_of_a_mixture_of_softmaxes():
    module = ensemble_of(lambda key: Mlp(hidden=(4,)).build((3,), 5, key), 3, True, True)(jax.random.key(0))
    module = eqx.tree_at(lambda m: m.mixture, module, jnp.array([0.3, -1.0, 2.0]))
    x = jnp.array([0.5, -1.0, 2.0])
    outputs = members_of(module, x)
    weights = np.exp([0.3, -1.0, 2.0]) / np.exp([0.3, -1.0, 2.0]).sum()
    each = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    np.testing.assert_allclose(module(x), np.log(weights @ each), rtol=1e-5)


def test_regression_averages_outputs():
    module = ensemble_of(lambda key: Linear().build((3,), 2, key), 4, False, False)(jax.random.key(1))
    x = jnp.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(module(x), members_of(module, x).mean(0), rtol=1e-6)


@pytest.mark.soak
def test_characters_are_mixed_at_every_position():
    module = ensemble_of(lambda key: Lstm(hidden=4).build((6,), 80, key), 2, False, True)(jax.random.key(2))
    x = jnp.arange(6)
    outputs = members_of(module, x)
    each = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    np.testing.assert_allclose(module(x), np.log(each.mean(0)), rtol=1e-5)


def test_the_first_member_is_the_model_alone_and_the_others_differ():
    build = lambda key: Linear().build((3,), 2, key)  # noqa: E731
    ensemble, alone = ensemble_of(build, 3, False, True)(jax.random.key(3)), build(jax.random.key(3))
    np.testing.assert_array_equal(ensemble.members[0].weight, alone.weight)
    assert not np.array_equal(ensemble.members[1].weight, ensemble.members[2].weight)


def test_dropout_gets_a_key_for_each_member():
    build = lambda key: eqx.nn.Sequential([eqx.nn.Linear(3, 2, key=key), eqx.nn.Dropout(0.5)])  # noqa: E731
    module = Ensemble((build(jax.random.key(0)),) * 2, None, False)
    seen = {tuple(np.asarray(module(jnp.ones(3), jax.random.key(k)))) for k in range(20)}
    assert len(seen) > 4  # two members that shared a mask could only give the four of one


def test_a_task_of_members_is_their_mixture():
    federation = Classes(classes=3)(Digits().load(), 4, 0)
    task = Task.of(federation, Mlp(hidden=(8,)), members=3)
    assert task.names[:2] == ["members.0.layers.0.weight", "members.0.layers.0.bias"]
    mixed = task.mixed(5)
    assert mixed.members == 3  # the user's own number wins
    assert mixed.personal_names == ["mixture"]
    key, x = jax.random.key(0), jnp.asarray(federation.train.x[0, :4])
    equal, learned = task.init(key), mixed.init(key)
    np.testing.assert_allclose(task.apply(equal, x)[0], mixed.apply(learned, x)[0], rtol=1e-5)
    assert not jax.tree.leaves(mixed.shared(learned.params).mixture)


def test_models_with_statistics_are_refused():
    def build(key):
        return eqx.nn.make_with_state(lambda: eqx.nn.BatchNorm(3, "batch", mode="batch"))()

    with pytest.raises(CoterieError, match="batch norm"):
        Task(build, "regression", members=2)


def test_a_lone_module_cannot_be_drawn_again():
    with pytest.raises(CoterieError, match="members"):
        Task(eqx.nn.Linear(3, 2, key=jax.random.key(0)), "regression", members=2)


def test_personal_layers_beside_learned_weights_are_refused():
    federation = Natural()(HierarchicalLinear().load(), None, 0)
    with pytest.raises(CoterieError, match="personal"):
        Task.of(federation, Linear(), personal=("weight",)).mixed(2)


@pytest.mark.soak
def test_a_run_with_members(tmp_path):
    federation = Classes(classes=3)(Digits().load(), 4, 0)
    result = coterie.run(federation, "linear", "local", rounds=2, members=2, out=tmp_path / "run")
    assert result.config["model"]["members"] == 2
    (file, *_) = sorted((tmp_path / "run" / "models").iterdir())
    assert set(load_file(file)) == {f"members.{k}.{part}" for k in range(2) for part in ("weight", "bias")}
    model = result.model(0)
    x = federation.test.x[0, :3]
    task = Task.of(federation, Linear(), members=2)
    expected = task.apply(Variables(jax.tree.map(jnp.asarray, model.variables.params)), jnp.asarray(x))[0]
    np.testing.assert_allclose(model(x), expected, rtol=1e-6)
