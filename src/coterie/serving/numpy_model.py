"""Predict with the model in this folder: the same numbers as coterie, with NumPy alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["load", "predict"]

TYPES = {"F32": "<f4", "F64": "<f8"}


def load(folder: Any = Path(__file__).parent) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what model.json says, and the parameters of model.safetensors by name."""
    data = (Path(folder) / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entries = {name: entry for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}
    arrays = {
        name: np.frombuffer(data[start:][slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries.items()
    }
    return json.loads((Path(folder) / "model.json").read_text()), arrays


def predict(x: Any, folder: Any = Path(__file__).parent) -> np.ndarray:
    """Return the probability of each class `[n, classes]`, or the numbers `[n, outputs]`, for inputs `x [n, ...]`."""
    record, parameters = load(folder)
    about, x = record["about"], np.asarray(x)
    if x.dtype == np.uint8:  # images of bytes
        shape = (-1,) + (1,) * (x.ndim - 2)
        x = (x / 255 - np.reshape(about["mean"], shape)) / np.reshape(about["std"], shape)
    total: Any = 0
    for layers, weight in zip(record["layers"], record["layer_weights"], strict=True):
        value = x
        for layer in layers:
            value = _layer(value, layer, parameters)
        if about["kind"] == "classification":
            odds = np.exp(value - value.max(1, keepdims=True))
            value = odds / odds.sum(1, keepdims=True)
        total = total + weight * value
    return total if about["kind"] == "classification" else total * about["target_std"] + about["target_mean"]


def _layer(x: np.ndarray, layer: dict[str, Any], parameters: dict[str, np.ndarray]) -> np.ndarray:
    weight, bias = (parameters.get(layer.get("name", "") + part) for part in ("weight", "bias"))
    match layer["op"]:
        case "flatten":
            return x.reshape(len(x), -1)
        case "linear" | "affine":
            return x @ weight.T + bias
        case "relu":
            return np.maximum(x, 0)
        case "sigmoid":
            return 1 / (1 + np.exp(-x))
        case "tanh":
            return np.tanh(x)
        case "pool":
            x = x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2]
            return x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).max((3, 5))
        case _:  # conv
            pad = layer["pad"]
            windows = np.lib.stride_tricks.sliding_window_view(
                np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), weight.shape[2:], axis=(2, 3)
            )
            return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True) + bias[:, None, None]
