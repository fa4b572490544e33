"""Predict with the model in this folder: the same numbers as coterie, with NumPy alone.

    python predict.py new.csv > predictions.csv

In Python: `predict(inputs(rows))` for rows of a table (dictionaries of text), `predict(x)` for arrays.
"""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["inputs", "load", "predict"]

HERE = Path(__file__).parent
LARGEST = float(np.finfo(np.float32).max)
TYPES = {"F32": "<f4", "F64": "<f8"}
EMPTY = {"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "NaT"}


def load(folder: Any = HERE) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what model.json says, and the parameters of model.safetensors by name."""
    data = (Path(folder) / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entries = {name: entry for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}
    arrays = {
        name: np.frombuffer(data[start:][slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries.items()
    }
    return json.loads((Path(folder) / "model.json").read_text()), arrays


def predict(x: Any, folder: Any = HERE) -> np.ndarray:
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
    weight, bias = (parameters.get(layer.get("name", "") + part, np.zeros(0)) for part in ("weight", "bias"))
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
            around = ((0, 0), (0, 0), (layer["pad"],) * 2, (layer["pad"],) * 2)
            windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), weight.shape[2:], axis=(2, 3))
            return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True) + bias[:, None, None]


def inputs(rows: list[dict[str, str]], folder: Any = HERE) -> np.ndarray:
    """Return the inputs `[n, features]` of rows of a table: column to text, as the csv module reads them."""
    prep = json.loads((Path(folder) / "preparation.json").read_text())
    client, empty = load(folder)[0]["about"]["names"][0], EMPTY | set(prep["na"])
    numbers, levels, flagged = [np.zeros((len(rows), 0))], [], []
    for column in prep["columns"]:
        if column["kind"] not in ("number", "date", "words"):
            continue
        if rows and column["name"] not in rows[0] and not (column["indicator"] or "(missing)" in column["levels"]):
            raise SystemExit(f"the table lacks the column {column['name']!r}")
        cells = [(row.get(column["name"]) or "").strip() for row in rows]
        cells = ["" if cell in empty else cell for cell in cells]
        if column["kind"] == "words":
            known = {level: place for place, level in enumerate(column["levels"])}
            table = np.zeros((len(rows), len(known) + bool(column["other"])))
            for row, cell in enumerate(cells):
                place = known.get(cell or "(missing)", len(known))
                table[row, place : place + 1] = 1  # a level that was never seen: nothing, or the input of rare ones
            levels.append(table)
            continue
        read = _number if column["kind"] == "number" else _date
        flagged += [sum(part.shape[1] for part in numbers)] * column["indicator"]
        numbers.append(np.array([read(cell, column) for cell in cells], float).reshape(len(rows), -1))
    values = np.concatenate(numbers, axis=1)
    own = prep["statistics"].get("") or prep["statistics"][client]
    with np.errstate(over="ignore"):  # what is too large for 32 bits counts as missing
        values[np.abs((values - own["mean"]) / own["scale"]) > LARGEST] = np.nan
    scaled = (np.where(np.isnan(values), own["fill"], values) - own["mean"]) / own["scale"]
    return np.concatenate([scaled, np.isnan(values[:, flagged]), *levels], axis=1).astype(np.float32)


def _number(cell: str, column: dict[str, Any]) -> list[float]:
    plain = cell.replace(".", "").replace(",", ".") if column["decimal"] == "," and "," in cell else cell
    try:
        return [float(plain.replace(",", ""))]
    except ValueError:
        return [np.nan]


def _date(cell: str, column: dict[str, Any]) -> list[float]:
    try:
        iso = column["date_format"] in ("", "ISO8601")
        time = datetime.fromisoformat(cell) if iso else datetime.strptime(cell, column["date_format"])
    except ValueError:
        return [np.nan] * len(column["parts"])
    time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    days = (time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86400
    parts = {"time": days, "month": time.month, "weekday": time.weekday(), "hour": days % 1 * 24}
    return [float(parts[part]) for part in column["parts"]]


if __name__ == "__main__":
    with open(sys.argv[1], newline="") as stream:
        answers = predict(inputs(list(csv.DictReader(stream))))
    kept = load()[0]["about"]
    names = kept["class_names"] if kept["kind"] == "classification" else ["prediction"]
    print(",".join(["prediction", *(f"probability {name}" for name in names)] if len(names) > 1 else names))
    for answer in answers:
        best = [names[int(answer.argmax())] if np.isfinite(answer).all() else ""] if len(names) > 1 else []
        print(",".join(map(str, [*best, *answer])))
