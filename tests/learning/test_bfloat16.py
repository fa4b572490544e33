"""Training in bfloat16 on weights of float32: steps on paper, every model, and what must stay in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie import registry
from coterie.data.clients import Federation, Split, stack
from coterie.experiment.config import Experiment
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job
from coterie.experiment.training import Training
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.methods.base import Solved
from coterie.models.cnn import Cnn
from coterie.models.ensemble import Ensemble
from coterie.models.layers import GroupNorm
from coterie.models.linear import LinearNetwork
from coterie.models.lstm import Lstm
from coterie.models.mlp import Mlp
from coterie.models.mobilenet import MobileNet
from coterie.models.precision import WideBatchNorm, in_bfloat16
from coterie.models.resnet18 import ResNet18
from coterie.models.torch_modules import Chain, Dense, Norm, Step

LITTLE = 2.0**-9  # below the 8 significant bits of bfloat16 beside a 1


def test_one_step_on_paper():
    """w = 1 + 2^-9 rounds to 1, x = 3: the output is 3, not 3 + 3 * 2^-9. With target 1 the error is 2, the gradient
    6, and with lr = 1/2 the new weight is 1 + 2^-9 - 3: the weight in float32 keeps what the step did not see. The
    bias takes the gradient 2, so it is -1. The loss is half of 2^2.
    """
    module = LinearNetwork(jnp.array([[1 + LITTLE]]), jnp.zeros(1))
    task = Task(module, "regression", bfloat16=True)
    variables = task.init(jax.random.key(0))
    data = Split(jnp.array([[3.0]]), jnp.array([[1.0]]), jnp.int32(1))
    after = LocalSGD(lr=0.5, batch_size=0).train(task, variables, data, jax.random.key(0))
    assert after.variables.params.weight.dtype == jnp.float32
    assert after.variables.params.weight.item() == -2 + LITTLE
    assert after.variables.params.bias.item() == -1
    assert (after.loss.dtype, after.loss.item()) == (jnp.float32, 2.0)


def test_a_model_is_judged_in_float32():
    """The same weight, not trained: 3 + 3 * 2^-9, exactly."""
    task = Task(LinearNetwork(jnp.array([[1 + LITTLE]]), jnp.zeros(1)), "regression", bfloat16=True)
    output, _ = task.apply(task.init(jax.random.key(0)), jnp.array([[3.0]]))
    assert (output.dtype, output.item()) == (jnp.float32, 3 + 3 * LITTLE)


def torch_like(key):
    """What `from_torch` makes of Linear, LayerNorm, ReLU, Linear."""
    norm = Norm(jnp.ones(6), jnp.zeros(6), 0, 1, 1e-5)
    first, last = jax.random.normal(key, (6, 4)), jax.random.normal(key, (3, 6))
    return Chain((Dense(first, jnp.zeros(6)), norm, Step(jax.nn.relu), Dense(last, jnp.zeros(3))))


MODELS = {
    "mlp": (Mlp(hidden=(8,)), (4,)),
    "cnn": (Cnn(), (1, 8, 8)),
    "lstm": (Lstm(hidden=8, layers=2), (6,)),
    "resnet18": (ResNet18(width=4), (1, 8, 8)),
    "resnet18 with batch norm": (ResNet18(width=4, norm="batch"), (1, 8, 8)),
    "mobilenet": (MobileNet(width=0.05), (1, 8, 8)),
    "from torch": (torch_like, (4,)),
}


def federation(shape, text):
    random = np.random.default_rng(0)
    x = random.integers(0, 3, (5, *shape)).astype(np.int32) if text else random.normal(size=(5, *shape))
    y = random.integers(0, 3, (5, *shape) if text else 5).astype(np.int32)
    split = stack([(x if text else x.astype(np.float32), y)])
    return Federation(("a",), split, split, split, "next-character" if text else "classification", 3)


def slopes(name, bfloat16):
    """Return a model's variables, its loss and gradient as a function of them, and their arguments."""
    model, shape = MODELS[name]
    data = federation(shape, name == "lstm")
    task = Task.of(data, model, bfloat16=bfloat16)
    batch = (data.train.x[0], data.train.y[0], np.ones(5, bool), jax.random.key(2))
    return task.init(jax.random.key(1)), jax.value_and_grad(task.loss, has_aux=True), batch


@pytest.mark.parametrize("name", MODELS)
def test_products_of_every_model_are_bfloat16_and_its_gradients_float32(name):
    """Read off the program, without running it."""
    variables, slope, batch = slopes(name, bfloat16=True)
    program, ((loss, statistics), gradient) = jax.make_jaxpr(slope, return_shape=True)(*variables, *batch)
    for before, after in ((variables.params, gradient), (variables.statistics, statistics)):
        assert [a.dtype for a in jax.tree.leaves(before)] == [a.dtype for a in jax.tree.leaves(after)]
    assert loss.dtype == jnp.float32
    products = [line for line in str(program).splitlines() if "= dot_general[" in line]
    assert products
    assert all(":bf16[" in line.split("=")[0] for line in products)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "from torch"])
def test_gradients_are_near_those_of_float32(name):
    found = []
    for bfloat16 in (False, True):
        variables, slope, batch = slopes(name, bfloat16)
        (loss, _), gradient = jax.jit(slope)(*variables, *batch)
        found.append((loss, jnp.concatenate([a.ravel() for a in jax.tree.leaves(gradient)])))
    # The CNN has the largest difference: more values are equal in its maxima, and share their gradient.
    (loss, exact), (rounded_loss, rounded) = found
    assert 0 < abs(loss - rounded_loss) < 0.02 * abs(loss)
    assert 1e-4 < jnp.linalg.norm(rounded - exact) / jnp.linalg.norm(exact) < 0.1


def test_normalisation_and_mixtures_compute_in_float32():
    """256 and 258 are neighbours in bfloat16: their mean, 257, is none of its numbers."""
    norm = GroupNorm(jnp.full(2, 1 + LITTLE), jnp.zeros(2), groups=1)
    assert in_bfloat16(norm).weight.dtype == jnp.float32
    x = jnp.array([[[256.0, 258.0]]], jnp.bfloat16)
    y = norm(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), [[[-1, 1]]], rtol=0.01)
    ensemble = Ensemble((LinearNetwork(jnp.ones((2, 2)), jnp.zeros(2)),) * 2, jnp.array([0.0, LITTLE]), True)
    narrow = in_bfloat16(ensemble)
    assert narrow.mixture.dtype == jnp.float32
    assert narrow.members[0].weight.dtype == jnp.bfloat16
    assert narrow(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32


def test_batch_norm_keeps_its_statistics_in_float32():
    """A batch of 256 and 258 in bfloat16: the mean is 257 and the variance 1; bfloat16 has no 257."""
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(1, "batch", momentum=0.0, mode="batch")
    wide = in_bfloat16(norm)
    assert isinstance(wide, WideBatchNorm)
    x = jnp.array([[256.0], [258.0]], jnp.bfloat16)
    y, state = jax.vmap(wide, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
    mean, variance = state.get(norm.batch_state_index)
    assert (y.dtype, mean.dtype, mean.item(), variance.item()) == (jnp.bfloat16, jnp.float32, 257, 1)


def test_a_run_by_one_word(tmp_path):
    """No method knows of it: the weights it keeps and writes are float32, and not those of a run in float32."""
    digits = ct.load("digits", partition="iid", clients=3, samples=60)
    runs = [ct.run(digits, "linear", "ditto", rounds=1, precision=each) for each in ("float32", "bfloat16")]
    weights = [run.variables.params.weight for run in runs]
    assert [each.dtype for each in weights] == [np.float32] * 2
    assert 0 < np.abs(weights[0] - weights[1]).max() < 0.02 * np.abs(weights[0]).max()


@pytest.mark.soak
@pytest.mark.parametrize("method", [row.name for row in registry.rows("methods")])
def test_every_method_keeps_its_models_in_float32(method):
    """A round of every method, traced: its state has the types it had in float32."""
    cls, types = registry.load("methods", method), []
    if issubclass(cls, Solved):
        pytest.skip("it is solved in float64, without local training")
    for precision in ("float32", "bfloat16"):
        digits = ct.load("digits", partition="iid", clients=4, samples=40)
        spec = cls(**({"personal": ("layers.0.bias",)} if method == "fedbn" else {}))  # it looks for normalisation
        job = Job.of(Experiment.from_objects(digits, Mlp(hidden=(4,)), spec, precision=precision), digits)
        training = Training(Engine.of(job, choose_device("cpu")), job.method, job.graph, job.weights, 0)
        program, _, inputs = training._rounds_program(training.shapes(), 1, 1, None)
        after = jax.eval_shape(program, job.method, training._tables, training.engine.clients, *inputs)[0]
        types.append([a.dtype for a in jax.tree.leaves(after)])
    assert types[0] == types[1]
    assert jnp.bfloat16 not in types[1]
