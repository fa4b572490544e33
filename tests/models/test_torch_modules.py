"""Conversion of PyTorch's layers: against PyTorch in benchmarks/from_torch.py, here with layers of the same names."""

import jax
import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.models import from_torch


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
