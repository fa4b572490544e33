"""ResNet-18: the published size and torchvision's names, the stems, and statistics that follow the client's batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.data.clients import Federation, stack
from coterie.errors import CoterieError
from coterie.learning.task import Task
from coterie.models.naming import names
from coterie.models.resnet18 import ResNet18


def outline(spec, shape, outputs):
    made = eqx.filter_eval_shape(spec.build, shape, outputs, jax.random.key(0))
    network = made[0] if isinstance(made, tuple) else made
    return dict(names(eqx.filter(network, lambda leaf: hasattr(leaf, "shape"))))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_the_published_size_and_names(norm):
    """torchvision: resnet18 has 11,689,512 parameters for 1,000 classes and images of 224 pixels."""
    parameters = outline(ResNet18(norm=norm), (3, 224, 224), 1000)
    assert sum(leaf.size for leaf in parameters.values()) == 11_689_512
    assert parameters["conv1.weight"].shape == (64, 3, 7, 7)
    assert parameters["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    assert parameters["layer4.1.bn2.bias"].shape == (512,)
    assert "layer1.0.downsample.0.weight" not in parameters


def test_small_images_have_a_small_stem():
    assert outline(ResNet18(), (3, 32, 32), 10)["conv1.weight"].shape == (64, 3, 3, 3)
    assert outline(ResNet18(stem="imagenet"), (3, 32, 32), 10)["conv1.weight"].shape == (64, 3, 7, 7)
    with pytest.raises(CoterieError, match="groups must divide width = 9, not be 2"):
        ResNet18(width=9)


def images(count):
    x = np.random.default_rng(0).normal(2.0, 3.0, size=(count, 1, 8, 8)).astype(np.float32)
    part = stack([(x, np.arange(count, dtype=np.int32) % 2)])
    return Federation(("a",), part, part, part, kind="classification", classes=2)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_it_is_a_model_of_a_task(norm):
    """Traced, not compiled: a task refuses a model that does not fit its data."""
    task = Task.of(images(2), ResNet18(width=2, norm=norm))
    assert task.names[0] == "conv1.weight"
    assert task.names[-1] == "fc.bias"


@pytest.mark.soak
def test_batch_norm_moves_its_statistics_in_training_and_only_then():
    federation = images(6)
    task = Task.of(federation, ResNet18(width=2, norm="batch"))
    variables, x = task.init(jax.random.key(0)), jnp.asarray(federation.train.x[0])
    before = variables.statistics
    output, trained = jax.jit(lambda v, x: task.apply(v, x, train=True))(variables, x)
    assert output.shape == (6, 2)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), trained, before)))
    used = jax.jit(lambda v, x: task.apply(v, x, train=False))(variables, x)[1]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), used, before))
