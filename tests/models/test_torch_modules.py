"""Conversion of PyTorch's layers: against PyTorch in benchmarks/from_torch.py, here with layers of the same names."""

import jax
import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.models import from_torch
from coterie.models.naming import names


class Tensor:
    """What the conversion uses of a tensor."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.values


def layer(kind, **attributes):
    return type(kind, (), attributes)()


def sequential(*layers):
    return layer("Sequential", named_children=lambda self: [(str(i), part) for i, part in enumerate(layers)])


def test_nested_layers_keep_their_order_and_weights():
    random = np.random.default_rng(0)
    w1, b1, w2 = random.normal(size=(4, 6)), random.normal(size=4), random.normal(size=(3, 4))
    module = sequential(
        layer("Flatten"),
        sequential(layer("Linear", weight=Tensor(w1), bias=Tensor(b1)), layer("Tanh")),
        layer("LayerNorm", weight=None, bias=None, normalized_shape=(4,), eps=1e-5),
        layer("Linear", weight=Tensor(w2), bias=None),
    )
    x = random.normal(size=(2, 3)).astype(np.float32)
    hidden = np.tanh(w1 @ x.ravel() + b1)
    hidden = (hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-5)
    converted = from_torch(module)
    np.testing.assert_allclose(converted(x), w2 @ hidden, rtol=1e-5)
    assert [leaf.shape for leaf in jax.tree.leaves(converted)] == [(4, 6), (4,), (3, 4)]


def test_an_unknown_layer_is_refused_by_name():
    with pytest.raises(CoterieError, match=r"layer 0\.1 is a Transformer, which is not converted"):
        from_torch(sequential(sequential(layer("ReLU"), layer("Transformer"))))
    with pytest.raises(CoterieError, match=r"layer itself is a Net, which is not converted"):
        from_torch(layer("Net"))
    with pytest.raises(CoterieError, match="only with ceil_mode=False"):
        from_torch(sequential(layer("AvgPool2d", kernel_size=2, stride=2, padding=0, ceil_mode=True)))
    with pytest.raises(CoterieError, match="only where its output is one pixel"):
        from_torch(sequential(layer("AdaptiveAvgPool2d", output_size=(2, 2))))


# -- LSTM ----------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_by_hand(x, weights, ends):
    """Outputs of one layer as PyTorch's documentation defines them, step by step; gates i, f, g, o."""
    w_ih, w_hh, b_ih, b_hh = (
        weights.get(f"{part}_{ends}", 0) for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = c = np.zeros(w_hh.shape[1])
    outputs = []
    for row in x:
        i, f, g, o = np.split(w_ih @ row + b_ih + w_hh @ h + b_hh, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def lstm(inputs, hidden, layers=1, both_ways=False, bias=True, batch_first=True, dropout=0.0, seed=1):
    """Return an LSTM layer as PyTorch has it, and its weights."""
    random, weights = np.random.default_rng(seed), {}
    for number in range(layers):
        for end in ("", "_reverse")[: 1 + both_ways]:
            size = inputs if number == 0 else hidden * (1 + both_ways)
            shapes = {"weight_ih": (4 * hidden, size), "weight_hh": (4 * hidden, hidden)}
            shapes |= {"bias_ih": (4 * hidden,), "bias_hh": (4 * hidden,)} if bias else {}
            weights |= {f"{part}_l{number}{end}": random.normal(size=shape) for part, shape in shapes.items()}
    settings = {"num_layers": layers, "bidirectional": both_ways, "bias": bias, "batch_first": batch_first}
    settings |= {"hidden_size": hidden, "dropout": dropout, "proj_size": 0}
    return layer("LSTM", **settings, **{name: Tensor(value) for name, value in weights.items()}), weights


def taking(forward):
    """A module of the user's own after an LSTM."""
    return layer("Mine", forward=lambda self, returned: forward(*returned))


def test_stacked_lstm_layers_are_pytorchs():
    torch_layer, weights = lstm(3, 4, layers=2)
    table, last = np.random.default_rng(2).normal(size=(6, 3)), np.random.default_rng(3).normal(size=(2, 4))
    module = sequential(
        layer("Embedding", weight=Tensor(table)),
        sequential(torch_layer, taking(lambda outputs, states: outputs[:, -1, :])),
        layer("Linear", weight=Tensor(last), bias=None),
    )
    x = np.array([5, 0, 2, 2, 1])
    hidden = lstm_by_hand(lstm_by_hand(table[x], weights, "l0"), weights, "l1")
    converted = from_torch(module)
    np.testing.assert_allclose(converted(x), last @ hidden[-1], rtol=2e-5)
    assert [name for name, _ in names(converted)][1] == "layers.1.lstm.bias_hh_l0"


def test_an_lstm_reads_both_ways():
    torch_layer, weights = lstm(3, 2, both_ways=True, bias=False)
    x = np.random.default_rng(4).normal(size=(5, 3)).astype(np.float32)
    forwards, backwards = lstm_by_hand(x, weights, "l0"), lstm_by_hand(x[::-1], weights, "l0_reverse")[::-1]
    converted = from_torch(sequential(torch_layer, taking(lambda outputs, states: outputs)))
    np.testing.assert_allclose(converted(x), np.hstack([forwards, backwards]), rtol=2e-5)


def test_what_follows_an_lstm_is_tried_out():
    x = np.ones((3, 2), np.float32)
    ways = [
        (True, lambda outputs, states: outputs[:, -1], (4,)),
        (True, lambda outputs, states: states[0][-1], (4,)),
        (True, lambda outputs, states: outputs, (3, 4)),
        (False, lambda outputs, states: outputs[-1], (4,)),
    ]
    for batch_first, forward, shape in ways:
        assert from_torch(sequential(lstm(2, 4, batch_first=batch_first)[0], taking(forward)))(x).shape == shape


@pytest.mark.parametrize(
    ("after", "settings"),
    [
        ([], {}),
        ([layer("Linear", weight=Tensor(np.ones((1, 4))), bias=None)], {}),
        ([taking(lambda outputs, states: outputs[:, 0])], {}),  # the first step
        ([taking(lambda outputs, states: outputs.mean(1))], {}),
        ([taking(lambda outputs, states: outputs[-1])], {}),  # the last sample
        ([taking(lambda outputs, states: states[0][-1])], {"both_ways": True}),  # one of two directions
    ],
)
def test_an_lstm_needs_a_module_that_takes_its_outputs(after, settings):
    with pytest.raises(CoterieError, match=r"layer 0 is an LSTM, which returns a pair: put a module after it"):
        from_torch(sequential(lstm(2, 4, **settings)[0], *after))
