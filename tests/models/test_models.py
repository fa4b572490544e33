"""Each model equals a NumPy re-implementation of the PyTorch network its saved file describes.

The oracle reads nothing but the file: names, layouts and arithmetic are those that PyTorch documents for `Linear`,
`Conv2d`, `GroupNorm`, `MaxPool2d`, `Embedding` and `LSTM`.
"""

import math
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import coterie.models
from coterie.errors import CoterieError
from coterie.models import naming
from coterie.models.cnn import Cnn
from coterie.models.cnn4 import Cnn4
from coterie.models.linear import Linear
from coterie.models.logistic import Logistic
from coterie.models.lstm import Lstm
from coterie.models.mlp import Mlp
from coterie.names import MODELS
from coterie.registry import load
from coterie.spec import describe


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def convolve(weights, name, x, padding):
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    kernel = weights[f"{name}.weight"]
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2:], axis=(1, 2))
    return np.einsum("ihwab,oiab->ohw", windows, kernel) + weights[f"{name}.bias"][:, None, None]


def pool(x):
    channels, height, width = x.shape[0], x.shape[1] // 2, x.shape[2] // 2
    out = np.empty((channels, height, width))
    for row in range(height):
        for column in range(width):
            out[:, row, column] = x[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].max((1, 2))
    return out


def numpy_cnn(padding):
    def run(weights, x):
        x = pool(relu(convolve(weights, "conv1", x, padding)))
        x = pool(relu(convolve(weights, "conv2", x, padding)))
        return linear(weights, "fc2", relu(linear(weights, "fc1", x.reshape(-1))))

    return run


def numpy_cnn4(groups):
    def run(weights, x):
        for block in range(4):
            x = convolve(weights, f"blocks.{block}.conv", x, 1)
            parts = x.reshape(groups, -1)
            parts = (parts - parts.mean(1, keepdims=True)) / np.sqrt(parts.var(1, keepdims=True) + 1e-5)
            scale, shift = (weights[f"blocks.{block}.norm.{name}"][:, None, None] for name in ("weight", "bias"))
            x = relu(parts.reshape(x.shape) * scale + shift)
            x = pool(x) if min(x.shape[1:]) >= 2 else x
        return linear(weights, "fc", x.reshape(-1))

    return run


def numpy_mlp(activation):
    def run(weights, x):
        x = x.reshape(-1)
        depth = len(weights) // 2
        for layer in range(depth):
            x = linear(weights, f"layers.{layer}", x)
            x = activation(x) if layer < depth - 1 else x
        return x

    return run


def numpy_lstm(layers):
    def run(weights, x):
        sequence = weights["embedding.weight"][x]
        for layer in range(layers):
            w_ih, w_hh, b_ih, b_hh = (
                weights[f"lstm.{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            size = w_hh.shape[1]
            h, c, out = np.zeros(size), np.zeros(size), []
            for value in sequence:
                gates = w_ih @ value + b_ih + w_hh @ h + b_hh
                i, f, g, o = (gates[k * size : (k + 1) * size] for k in range(4))
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
                out.append(h)
            sequence = np.stack(out)
        return linear(weights, "fc", sequence)

    return run


CASES = {
    "linear": (Linear(), (2, 3, 4), 5, lambda w, x: w["weight"] @ x.reshape(-1) + w["bias"]),
    "mlp": (Mlp(hidden=(7, 6)), (1, 4, 4), 3, numpy_mlp(relu)),
    "mlp-sigmoid": (Mlp(hidden=(7,), activation="sigmoid"), (9,), 3, numpy_mlp(sigmoid)),
    "mlp-tanh": (Mlp(hidden=(5, 5), activation="tanh"), (9,), 3, numpy_mlp(np.tanh)),
    "mlp-flat": (Mlp(hidden=()), (9,), 3, numpy_mlp(relu)),
    "cnn": (Cnn(), (3, 17, 20), 10, numpy_cnn(0)),
    "cnn-same": (Cnn(padding="same"), (1, 16, 18), 4, numpy_cnn(2)),
    "cnn-digits": (Cnn(), (1, 8, 8), 10, numpy_cnn(2)),
    "cnn4": (Cnn4(width=8, groups=4), (3, 33, 18), 10, numpy_cnn4(4)),
    "cnn4-digits": (Cnn4(width=6, groups=2), (1, 8, 8), 10, numpy_cnn4(2)),
    "lstm": (Lstm(embedding=3, hidden=5, layers=2), (11,), 7, numpy_lstm(2)),
    "lstm-deep": (Lstm(embedding=2, hidden=4, layers=3), (4,), 6, numpy_lstm(3)),
}


ALIKE = ("mlp-tanh", "mlp-flat", "cnn-same", "cnn-digits", "cnn4-digits", "lstm-deep")  # other sizes: in `make soak`


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in ALIKE else ()) for name in CASES]
)
def test_a_saved_model_is_the_network_that_pytorch_documents(name, tmp_path):
    spec, shape, outputs, oracle = CASES[name]
    random = np.random.default_rng(3)
    with jax.enable_x64(True):
        model = spec.build(shape, outputs, jax.random.key(1))
        # Random scales and shifts, so that no parameter has a value that hides a mistake.
        model = jax.tree.map(lambda a: a + 0.1 * random.normal(size=a.shape) if eqx.is_inexact_array(a) else a, model)
        (tmp_path / "model.safetensors").write_bytes(naming.encode(model))
        x = random.integers(0, outputs, shape) if name.startswith("lstm") else random.normal(size=shape)
        output = np.asarray(eqx.filter_jit(model)(jnp.asarray(x)))
    expected = oracle(safetensors.numpy.load_file(tmp_path / "model.safetensors"), x)
    assert output.shape == ((*shape, outputs) if name.startswith("lstm") else (outputs,))
    np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)


def count(spec, shape, outputs):
    tree = eqx.filter_eval_shape(spec.build, shape, outputs, jax.random.key(0))
    return sum(math.prod(leaf.shape) for _, leaf in naming.names(tree))


def test_the_cnn_has_the_published_number_of_parameters():
    assert count(Cnn(), (3, 32, 32), 10) == 878_538
    assert count(Cnn(padding="same"), (1, 28, 28), 10) == 1_663_370


def test_sizes_that_can_be_counted_on_paper():
    assert count(Linear(), (4, 5), 3) == 4 * 5 * 3 + 3
    assert count(Mlp(), (28, 28), 10) == 784 * 64 + 64 + 64 * 10 + 10
    assert count(Cnn4(), (3, 84, 84), 20) == (3 * 9 + 1) * 64 + 3 * (64 * 9 + 1) * 64 + 4 * 2 * 64 + 64 * 25 * 20 + 20
    assert count(Lstm(), (80,), 90) == 90 * 8 + 1024 * (8 + 256 + 2) + 1024 * (256 + 256 + 2) + 256 * 90 + 90


@pytest.mark.parametrize(
    "name", ["linear", "mlp", "cnn", *(pytest.param(name, marks=pytest.mark.soak) for name in ("cnn4", "lstm"))]
)
def test_parameters_are_those_of_the_key_and_within_the_bounds_of_their_layer(name):
    spec, shape, outputs, _ = CASES[name]
    first, same, other = (
        dict(naming.names(eqx.filter_jit(spec.build)(shape, outputs, jax.random.key(seed)))) for seed in (0, 0, 1)
    )
    for parameter, value in first.items():
        assert value.dtype == jnp.float32
        np.testing.assert_array_equal(value, same[parameter])
        if ".norm." in parameter:
            np.testing.assert_array_equal(value, np.full(value.shape, float(parameter.endswith("weight"))))
            continue
        assert not np.array_equal(value, other[parameter])
        if parameter.startswith("embedding"):
            continue
        fan_in = spec.hidden if parameter.startswith("lstm") else math.prod(_weight_of(first, parameter).shape[1:])
        assert float(jnp.abs(value).max()) <= 1 / math.sqrt(fan_in)
        if value.size > 200:  # the variance of U(-b, b) is b^2 / 3; the largest of so many draws nearly reaches b
            assert float(value.var()) * 3 * fan_in == pytest.approx(1, abs=0.3)


def _weight_of(parameters, name):
    return parameters[name.removesuffix("bias") + "weight" if name.endswith("bias") else name]


@pytest.mark.parametrize(
    "name", ["mlp", "cnn-digits", *(pytest.param(name, marks=pytest.mark.soak) for name in ("cnn4-digits", "lstm"))]
)
def test_mapped_over_clients_and_samples_it_is_the_same_model(name):
    spec, shape, outputs, _ = CASES[name]
    models = [spec.build(shape, outputs, jax.random.key(seed)) for seed in range(3)]
    arrays = [eqx.filter(model, eqx.is_array) for model in models]
    stacked = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), models[0])
    key = jax.random.key(9)
    if name == "lstm":
        x = jax.random.randint(key, (3, 4, *shape), 0, outputs)
    else:
        x = jax.random.normal(key, (3, 4, *shape))
    together = eqx.filter_jit(eqx.filter_vmap(lambda model, batch: jax.vmap(model)(batch)))(stacked, x)
    alone = eqx.filter_jit(lambda model, sample: model(sample))
    for client, model in enumerate(models):
        for sample in range(4):
            np.testing.assert_allclose(together[client, sample], alone(model, x[client, sample]), rtol=1e-4, atol=1e-5)


def test_dropout_follows_the_key_while_training_and_is_off_otherwise():
    model = Mlp(hidden=(400,), dropout=0.25).build((5,), 3, jax.random.key(0))
    x = jnp.arange(5.0)
    plain = eqx.nn.inference_mode(model)
    training = eqx.nn.inference_mode(plain, value=False)
    weights = dict(naming.names(model))
    hidden = relu(np.asarray(weights["layers.0.weight"] @ x + weights["layers.0.bias"]))
    expected = np.asarray(weights["layers.1.weight"]) @ hidden + np.asarray(weights["layers.1.bias"])
    np.testing.assert_allclose(plain(x), expected, rtol=1e-5, atol=1e-5)
    outputs = jax.vmap(lambda key: training(x, key=key))(jax.random.split(jax.random.key(1), 4000))
    np.testing.assert_array_equal(training(x, key=jax.random.key(5)), training(x, key=jax.random.key(5)))
    assert not np.array_equal(outputs[0], outputs[1])
    # Dropped with probability p and scaled by 1/(1-p): the mean stays, the variance is p/(1-p) sum (w h)^2.
    variance = 0.25 / 0.75 * ((np.asarray(weights["layers.1.weight"]) * hidden) ** 2).sum(1)
    np.testing.assert_allclose(outputs.mean(0), expected, atol=4 * np.sqrt(variance.max() / 4000))
    np.testing.assert_allclose(outputs.var(0), variance, rtol=0.15)


@pytest.mark.soak
def test_each_hidden_layer_drops_its_own_units():
    model = Mlp(hidden=(6, 6), dropout=0.5).build((6,), 1, jax.random.key(0))
    eye = jnp.eye(6)
    model = eqx.tree_at(
        lambda m: (m.layers[0].weight, m.layers[0].bias, m.layers[1].weight, m.layers[1].bias, m.layers[2].weight),
        model,
        (eye, jnp.zeros(6), eye, jnp.zeros(6), jnp.ones((1, 6))),
    )
    model = eqx.tree_at(lambda m: m.layers[2].bias, model, jnp.zeros(1))
    kept = jax.vmap(lambda key: model(jnp.ones(6), key=key))(jax.random.split(jax.random.key(2), 3000)) / 4
    # A unit survives two independent draws with probability 1/4; with one shared draw it would be 1/2.
    assert float(kept.mean()) == pytest.approx(6 / 4, abs=0.1)


def test_logistic_regression_has_half_the_gradient_of_two_rows():
    # With outputs (a, b) the loss depends on b - a only, so that the second row's gradient is that of one row.
    model = Logistic().build((3,), 2, jax.random.key(0))
    both = Linear().build((3,), 2, jax.random.key(0))
    both = eqx.tree_at(
        lambda m: (m.weight, m.bias),
        both,
        (jnp.stack([jnp.zeros(3), model.weight[0]]), jnp.array([0.0, model.bias[0]])),
    )
    x = jnp.array([0.5, -2.0, 1.0])
    loss = lambda m: -jax.nn.log_softmax(m(x))[1]  # noqa: E731
    one, two = eqx.filter_grad(loss)(model), eqx.filter_grad(loss)(both)
    np.testing.assert_allclose(one.weight[0], two.weight[1], rtol=1e-6)
    np.testing.assert_allclose(one.bias[0], two.bias[1], rtol=1e-6)
    odds = np.asarray(model.weight[0] @ x + model.bias[0])
    np.testing.assert_allclose(one.weight[0], (sigmoid(odds) - 1) * np.asarray(x), rtol=1e-5)
    with pytest.raises(CoterieError, match="for classes, not for numbers"):
        Logistic().build((3,), 1, jax.random.key(0))


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        (Cnn(), (64,), r"model cnn needs images .* shape \(64,\); choose linear or mlp"),
        (Cnn4(), (8, 8), r"model cnn4 needs images"),
        (Lstm(), (1, 8, 8), r"model lstm needs texts of shape \(length,\), not \(1, 8, 8\)"),
        (Cnn(padding="valid"), (1, 15, 30), r"at least 16x16 pixels, not 15x30, or padding = 'same'"),
        (Cnn(), (1, 3, 30), r"padding 'same' needs images of at least 4x4 pixels, not 3x30; linear and mlp"),
    ],
)
def test_samples_that_do_not_fit_are_refused_in_a_sentence(spec, shape, sentence):
    with pytest.raises(CoterieError, match=sentence):
        spec.build(shape, 10, jax.random.key(0))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Mlp(hidden=(64, 0)), r"hidden must hold layer sizes of at least 1, not \[64, 0\]"),
        (lambda: Mlp(dropout=1.0), r"dropout must be less than 1"),
        (lambda: Mlp(activation="rely"), r"did you mean relu\?"),
        (lambda: Cnn4(width=10), r"groups must divide width \(10\), not be 8"),
        (lambda: Lstm(layers=0), r"layers must be at least 1"),
        (lambda: Cnn(padding="full"), r"padding must be one of auto, valid, same"),
    ],
)
def test_settings_that_make_no_network_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make()


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row.name)
def test_every_registered_model_builds_and_documents_its_settings(row):
    spec = load("models", row.name)()
    shape = (80,) if row.name == "lstm" else (1, 28, 28)
    tree = eqx.filter_eval_shape(spec.build, shape, 10, jax.random.key(0))
    assert all(leaf.dtype == jnp.float32 for _, leaf in naming.names(tree))
    assert all(field.help for field in describe(type(spec)))


def test_the_package_lists_its_names_without_importing_them():
    assert coterie.models.Cnn is Cnn
    with pytest.raises(AttributeError, match="no attribute 'Resnet'"):
        _ = coterie.models.Resnet
    code = "import coterie.models, sys; assert 'jax' not in sys.modules; assert 'Cnn' in dir(coterie.models)"
    subprocess.run([sys.executable, "-c", code], check=True)
