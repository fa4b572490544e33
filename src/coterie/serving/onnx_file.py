"""The ONNX file of a model: a few operators and the protobuf encoding of ONNX, by hand, so that nothing is installed.

The input is a batch of what the model reads (for tables the numbers that predict.py and `coterie` make of the columns,
for images the bytes); the output is the probability of each class, or the number in the target's unit.
The numbers of the fields are those of onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.serving.layers import Layer

__all__ = ["onnx_bytes"]

OPSET = 13
IR_VERSION = 8
TYPES = {"float32": 1, "uint8": 2, "int64": 7, "float64": 11}  # TensorProto.DataType


def onnx_bytes(
    members: Sequence[Sequence[Layer]],
    weights: Sequence[float],
    parameters: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
) -> bytes:
    """Return the content of the file.

    Args:
        members: the layers of each member (see `members_of`).
        weights: of the members.
        parameters: by name, in PyTorch's layouts.
        about: what inputs and targets are (clients.json).
    """
    graph = _Graph(np.result_type(*(array.dtype for array in parameters.values())))
    for name, array in parameters.items():
        graph.constant(name, array)
    value = _prepared(graph, about)
    classes = about["kind"] != "regression"
    outputs = []
    for layers, weight in zip(members, weights, strict=True):
        output = value
        for layer in layers:
            output = graph.layer(layer, output)
        output = graph.node("Softmax", [output], axis=-1) if classes else output
        outputs.append(graph.node("Mul", [output, graph.number(weight)]) if len(members) > 1 else output)
    total = graph.node("Sum", outputs) if len(outputs) > 1 else outputs[0]
    if not classes:
        scaled = graph.node("Mul", [total, graph.number(about.get("target_std", 1.0))])
        total = graph.node("Add", [scaled, graph.number(about.get("target_mean", 0.0))])
    result = "probabilities" if classes else "prediction"
    graph.node("Identity", [total], result)
    stored = "uint8" if about["dtype"] == "uint8" else graph.dtype.name
    return graph.model(("x", stored, about["sample_shape"]), (result, graph.dtype.name, [about["classes"]]))


def _prepared(graph: "_Graph", about: Mapping[str, Any]) -> str:
    """Normalise images of bytes as the model reads them; other inputs are taken as they are."""
    if about["dtype"] != "uint8":
        return "x"
    shape = (-1,) + (1,) * (len(about["sample_shape"]) - 1)
    mean, std = (np.asarray(about.get(key, (first,))).reshape(shape) for key, first in (("mean", 0.0), ("std", 1.0)))
    value = graph.node("Div", [graph.node("Cast", ["x"], to=TYPES[graph.dtype.name]), graph.number(255.0)])
    value = graph.node("Sub", [value, graph.constant("mean", mean)])
    return graph.node("Div", [value, graph.constant("std", std)])


class _Graph:
    """Nodes and constants, encoded as they are added."""

    def __init__(self, dtype: Any):
        self.dtype, self.count = np.dtype(dtype), 0
        self.nodes: list[bytes] = []
        self.constants: list[bytes] = []

    def constant(self, name: str, array: Any) -> str:
        """Add a tensor."""
        array = np.ascontiguousarray(array, self.dtype)
        dims = b"".join(_field(1, size) for size in array.shape)
        head = dims + _field(2, TYPES[self.dtype.name]) + _field(8, name)
        self.constants.append(_field(5, head + _field(9, array.astype(array.dtype.newbyteorder("<")).tobytes())))
        return name

    def number(self, value: float) -> str:
        """Add a single number."""
        self.count += 1
        return self.constant(f"number{self.count}", np.array(value))

    def node(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add an operator; returns the name of its output."""
        self.count += 1
        output = output or f"value{self.count}"
        body = b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, op)
        for name, value in attributes.items():
            if isinstance(value, int):
                body += _field(5, _field(1, name) + _field(3, value) + _field(20, 2))  # type INT
            else:
                body += _field(5, _field(1, name) + b"".join(_field(8, i) for i in value) + _field(20, 7))  # INTS
        self.nodes.append(_field(1, body))
        return output

    def layer(self, layer: Layer, value: str) -> str:
        """Add a layer of ours."""
        weight, bias = (f"{layer.get('name', '')}{part}" for part in ("weight", "bias"))
        match layer["op"]:
            case "flatten":
                return self.node("Flatten", [value], axis=1)
            case "linear":
                return self.node("Gemm", [value, weight, bias], transB=1)
            case "conv":
                return self.node("Conv", [value, weight, bias], pads=[layer["pad"]] * 4)
            case "pool":
                return self.node("MaxPool", [value], kernel_shape=[2, 2], strides=[2, 2])
            case "affine":
                turned = self.node("Transpose", [weight], perm=[1, 0])
                return self.node("Add", [self.node("MatMul", [value, turned]), bias])
            case activation:
                return self.node(str(activation).capitalize(), [value])  # Relu, Sigmoid, Tanh

    def model(self, *ends: tuple[str, str, Sequence[int]]) -> bytes:
        """Return the file, with one input and one output: name, type, shape of a row."""
        described = []
        for field, (name, dtype, shape) in zip((11, 12), ends, strict=True):
            dims = _field(1, _field(2, "rows")) + b"".join(_field(1, _field(1, int(size))) for size in shape)
            tensor = _field(1, TYPES[dtype]) + _field(2, dims)
            described.append(_field(field, _field(1, name) + _field(2, _field(1, tensor))))
        graph = b"".join([*self.nodes, _field(2, "coterie"), *self.constants, *described])
        opset = _field(8, _field(1, "") + _field(2, OPSET))
        return _field(1, IR_VERSION) + _field(2, "coterie") + _field(7, graph) + opset


def _field(number: int, value: int | str | bytes) -> bytes:
    """Encode one field of a protobuf message: a whole number, or text, bytes and messages with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Encode a whole number in groups of seven bits, the lowest first; negative ones as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
