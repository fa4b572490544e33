"""A PyTorch `Sequential` as an Equinox module with the same weights, to train it here.

    model = coterie.models.from_torch(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), ...))
    coterie.run(federation, model=model)

PyTorch is not imported: layers are known by the names of their classes, and their arrays are read from them. A module
of a class of one's own has a `forward` that cannot be read off it; write that one with Equinox, and start from its
weights (`init`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coterie.errors import CoterieError
from coterie.models.layers import Conv2d, rows_of
from coterie.models.torch_recurrent import convert_lstm

__all__ = ["Chain", "from_torch"]

SETTLED = 1_000_000  # batches after which the running statistics of batch norm count as they are


class Dense(eqx.Module):
    """A linear layer on the last axis, as PyTorch's."""

    weight: Array
    bias: Array | None

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return the outputs."""
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Lookup(eqx.Module):
    """An embedding of whole numbers, of any shape."""

    weight: Array

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return the rows of the numbers."""
        return rows_of(self.weight, x.astype(jnp.int32))


class Norm(eqx.Module):
    """Normalisation of one sample, over its last axes (layer norm) or over groups of channels."""

    weight: Array | None
    bias: Array | None
    groups: int = eqx.field(static=True)  # 0: over the last `axes` axes
    axes: int = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return the normalised sample, scaled and shifted."""
        kind, x = x.dtype, x.astype(jnp.promote_types(x.dtype, jnp.float32))  # bfloat16 is too short for a variance
        grouped = x.reshape(self.groups, -1) if self.groups else x
        over = (1,) if self.groups else tuple(range(x.ndim - self.axes, x.ndim))
        mean, variance = grouped.mean(over, keepdims=True), grouped.var(over, keepdims=True)
        normal = ((grouped - mean) / jnp.sqrt(variance + self.eps)).reshape(x.shape)
        shape = (-1,) + (1,) * (x.ndim - 1) if self.groups else x.shape[x.ndim - self.axes :]
        normal = normal if self.weight is None else normal * self.weight.reshape(shape)
        return (normal if self.bias is None else normal + self.bias.reshape(shape)).astype(kind)


class Step(eqx.Module):
    """A function without parameters."""

    function: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return the function's value."""
        return self.function(x)


class Chain(eqx.Module):
    """Layers one after another; their parameters are called `layers.0.weight`, ... with PyTorch's numbers."""

    layers: tuple[Any, ...]

    def __call__(self, x: Array, *state: Any, key: Array | None = None) -> Any:
        """Return the outputs for one sample, and the statistics where a layer has some."""
        for number, layer in enumerate(self.layers):
            if isinstance(layer, eqx.nn.BatchNorm):
                x, *state = layer(x, *state)  # type: ignore[assignment]
            elif isinstance(layer, Chain):
                x = layer(x, key=key)
            else:
                x = layer(x, key=None if key is None else jax.random.fold_in(key, number))
        return (x, *state) if state else x


def from_torch(module: Any) -> Any:
    """Return an Equinox module with the layers and the weights of a PyTorch `Sequential`.

    Args:
        module: linear, convolution (2d), pooling, activation, normalisation, embedding, LSTM, dropout and flatten
            layers, in any nesting of `Sequential`. After an LSTM comes a module that takes its outputs
            (`torch_recurrent.py`). A layer that is not known is refused by name.

    Returns:
        The module, or with batch norm the pair of module and statistics that `coterie.run` takes, too. It computes on
        one sample, without PyTorch's batch axis.
    """
    flat = _flat(module, "")
    if not flat:
        raise CoterieError("from_torch: the module has no layers")
    chain = Chain(tuple(_layers(flat)))
    if any(isinstance(layer, eqx.nn.BatchNorm) for layer in chain.layers):
        return eqx.nn.make_with_state(lambda: chain)()
    return chain


def _flat(module: Any, name: str) -> list[tuple[str, Any]]:
    """Return the layers of nested `Sequential`s in order, with their names."""
    if type(module).__name__ != "Sequential":
        return [(name, module)]
    return [part for key, child in module.named_children() for part in _flat(child, f"{name}.{key}".lstrip("."))]


def _layers(flat: list[tuple[str, Any]]) -> Iterator[Any]:
    """Convert layers in order; what follows an LSTM is a part of it."""
    rest = iter(flat)
    for name, layer in rest:
        if type(layer).__name__ == "LSTM":
            yield convert_lstm(layer, next(rest, (None, None))[1], name or "itself", _array)
        else:
            yield _converted(layer, name)


def _array(tensor: Any) -> Any:
    return None if tensor is None else jnp.asarray(np.array(tensor.detach().cpu().numpy()))


def _converted(layer: Any, name: str) -> Any:
    kind = type(layer).__name__
    if kind in ACTIVATIONS:
        return Step(ACTIVATIONS[kind])
    if kind not in LAYERS:
        known = ", ".join(sorted((*LAYERS, *ACTIVATIONS, "LSTM")))
        raise CoterieError(
            f"from_torch: layer {name or 'itself'} is a {kind}, which is not converted; write it with Equinox, or use "
            f"a Sequential of {known}"
        )
    return LAYERS[kind](layer)


def _convolution(layer: Any) -> Conv2d:
    padding = layer.padding if isinstance(layer.padding, str) else tuple((p, p) for p in layer.padding)
    return Conv2d(
        _array(layer.weight),
        _array(layer.bias),
        stride=tuple(layer.stride),
        padding=padding.upper() if isinstance(padding, str) else padding,
        dilation=tuple(layer.dilation),
        groups=layer.groups,
        padding_mode=layer.padding_mode,
    )


def _pool(cls: Any) -> Callable[[Any], Any]:
    def make(layer: Any) -> Any:
        if cls is eqx.nn.AvgPool2d and layer.ceil_mode:  # Equinox divides a window at the border by its full size
            raise CoterieError("from_torch: AvgPool2d is converted only with ceil_mode=False")
        window = {"kernel_size": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
        return cls(**window, use_ceil=layer.ceil_mode)

    return make


def _mean_of_image(layer: Any) -> Step:
    if tuple(np.broadcast_to(layer.output_size, 2)) != (1, 1):
        raise CoterieError("from_torch: AdaptiveAvgPool2d is converted only where its output is one pixel")
    return Step(lambda x: x.mean((1, 2), keepdims=True))


def _batch_norm(layer: Any) -> eqx.nn.BatchNorm:
    momentum = 0.1 if layer.momentum is None else layer.momentum
    norm = eqx.nn.BatchNorm(layer.num_features, "batch", layer.eps, layer.affine, 1 - momentum, mode="batch")
    running = (_array(layer.running_mean), _array(layer.running_var))
    statistics = eqx.nn.StateIndex(running), eqx.nn.StateIndex(jnp.asarray(SETTLED))
    norm = eqx.tree_at(lambda n: (n.batch_state_index, n.batch_counter), norm, statistics)
    parts = (_array(layer.weight), _array(layer.bias))
    return eqx.tree_at(lambda n: (n.weight, n.bias), norm, parts) if layer.affine else norm


def _group_norm(layer: Any) -> Norm:
    return Norm(_array(layer.weight), _array(layer.bias), layer.num_groups, 0, layer.eps)


def _layer_norm(layer: Any) -> Norm:
    return Norm(_array(layer.weight), _array(layer.bias), 0, len(layer.normalized_shape), layer.eps)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "ReLU": jax.nn.relu,
    "Tanh": jnp.tanh,
    "Sigmoid": jax.nn.sigmoid,
    "SiLU": jax.nn.silu,
    "GELU": lambda x: jax.nn.gelu(x, approximate=False),
    "Identity": lambda x: x,
    "Flatten": lambda x: x.reshape(-1),
}
LAYERS: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda layer: Dense(_array(layer.weight), _array(layer.bias)),
    "Conv2d": _convolution,
    "MaxPool2d": _pool(eqx.nn.MaxPool2d),
    "AvgPool2d": _pool(eqx.nn.AvgPool2d),
    "AdaptiveAvgPool2d": _mean_of_image,
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "GroupNorm": _group_norm,
    "LayerNorm": _layer_norm,
    "Dropout": lambda layer: eqx.nn.Dropout(layer.p),
    "ELU": lambda layer: Step(lambda x: jax.nn.elu(x, layer.alpha)),
    "LeakyReLU": lambda layer: Step(lambda x: jax.nn.leaky_relu(x, layer.negative_slope)),
    "Embedding": lambda layer: Lookup(_array(layer.weight)),
}
