"""From rows to predictions: what a run keeps so that its models can be used without any of the data.

`Answers` turns rows (a table as people have it, or arrays) into inputs, and outputs into a table: the class with its
probability, or a number in the target's unit with an interval. No JAX until a model runs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.clients import Federation, Split
from coterie.data.labels import plain
from coterie.errors import CoterieError
from coterie.experiment.intervals import half_width_of
from coterie.experiment.schemas import read_intervals, read_preparation

__all__ = ["Answers", "route", "run_model", "stand_in"]

ROWS = 1024  # rows at a time, so that memory does not grow with the table
LEVEL = 0.9  # of intervals, unless asked otherwise
MISSING = "(missing)"  # the level of words that stands for no value
UNUSABLE = "no prediction: the numbers are too large for the model"


@dataclasses.dataclass
class Answers:
    """How rows become inputs and outputs become predictions.

    Attributes:
        about: the entries of clients.json that describe inputs and targets.
        preparation: how rows of a table become inputs (`data.tables.preparation`); None for arrays.
        intervals: the half-widths of `intervals.json`; None for classes, or without validation rows.
        client: the column that says whose row it is, if one is known.
    """

    about: Mapping[str, Any]
    preparation: Any = None
    intervals: Mapping[str, Any] | None = None
    client: str | None = None

    @classmethod
    def of(cls, federation: Federation, config: Mapping[str, Any], intervals: Mapping[str, Any] | None) -> "Answers":
        """Make it from the federation that was trained on."""
        about = {
            "kind": federation.kind,
            "classes": federation.classes,
            "class_names": list(federation.class_names),
            "sample_shape": list(federation.sample_shape),
            "target_mean": federation.target_mean,
            "target_std": federation.target_std,
            "dtype": str(federation.dtype),
        }
        return cls(about, federation.preparation, intervals, _client_column(config, federation.preparation))

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any], config: Mapping[str, Any]) -> "Answers":
        """Make it from the files of a run."""
        preparation = read_preparation(folder, about)
        return cls(about, preparation, read_intervals(folder), _client_column(config, preparation))

    @property
    def class_names(self) -> list[str]:
        """What the classes are called; their numbers where no names are known."""
        return list(self.about.get("class_names") or map(str, range(self.about["classes"])))

    # -- rows to inputs -------------------------------------------------------------------------------------------

    def inputs(self, rows: Any, client: str | None) -> tuple[np.ndarray, list[str]]:
        """Return the inputs `[n, ...]` of one client's rows, and a note for each row (empty: nothing to say)."""
        if hasattr(rows, "columns"):
            if self.preparation is not None:
                frame, absent = self._completed(rows)  # what is still absent is refused by the preparation
                x, notes = self.preparation.transform(frame, client)
                return np.asarray(x), [_with_columns(note, absent) for note in notes]
            rows = self._numbers(rows)
        return self._array(plain(rows, "the rows")), [""] * len(rows)

    def with_client(self, client: str, rows: Any) -> "Answers":
        """Return it for a new client too, with statistics of its rows where each client has its own."""
        if self.preparation is None or not hasattr(rows, "columns"):
            return self
        return dataclasses.replace(self, preparation=self.preparation.with_client(client, self._completed(rows)[0]))

    def targets(self, frame: Any) -> np.ndarray:
        """Return the targets of labelled rows, as models are trained on them."""
        if self.preparation is None:
            raise CoterieError("these models were trained on arrays: give the rows as a pair (x, y)")
        y = np.asarray(self.preparation.targets(frame))
        return y.astype(np.float32 if self.about["kind"] == "regression" else np.int32)

    def _completed(self, frame: Any) -> tuple[Any, list[str]]:
        """Add columns that may be missing as missing; a column that never was is needed, and refused if it is absent.

        A column may be missing if some of its values were in training: then the models have an input that says so.
        """
        absent = [c for c in self.preparation.columns if c.used and c.name not in map(str, frame.columns)]
        names = [c.name for c in absent if c.indicator or MISSING in c.levels]
        return frame.assign(**dict.fromkeys(names, np.nan)), names

    def _numbers(self, frame: Any) -> np.ndarray:
        """Return the numbers of a frame for models that were trained on arrays."""
        try:
            return frame.to_numpy(np.float32)
        except (TypeError, ValueError):
            raise CoterieError(
                "these models were trained on arrays, and the rows have words: give numbers in the same columns"
            ) from None

    def _array(self, x: np.ndarray) -> np.ndarray:
        shape = tuple(self.about["sample_shape"])
        if x.shape[1:] != shape:
            raise CoterieError(f"the models take samples of shape {shape}, and the rows have shape {x.shape[1:]}")
        trained = np.dtype(self.about.get("dtype", "float32"))
        if trained == np.uint8 and x.dtype != np.uint8:
            raise CoterieError(f"the models were trained on images of bytes (uint8, 0 to 255), not {x.dtype}")
        if trained.kind == "f":
            x = x.astype(np.float32) if x.dtype != np.uint8 else x
            bad = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))
            if bad.size:
                raise CoterieError(f"row {bad[0] + 1} has a value that is not a finite number; replace it")
        return x

    # -- outputs to predictions -----------------------------------------------------------------------------------

    def table(self, outputs: np.ndarray, clients: Sequence[str], notes: Sequence[str], level: float = LEVEL) -> Any:
        """Return the predictions as a DataFrame: client, prediction, probabilities or interval, note."""
        import pandas as pd

        columns: dict[str, Any] = {"client": list(clients)}
        outputs = outputs.reshape(len(outputs), -1).astype(np.float64)
        usable = np.isfinite(outputs).all(1)  # numbers far outside of what was trained on can be too large for a model
        if self.about["kind"] == "classification":
            logits = np.where(usable[:, None], outputs, 0.0)
            odds = np.exp(logits - logits.max(1, keepdims=True))
            probability = odds / odds.sum(1, keepdims=True)
            names = np.array(self.class_names, dtype=object)
            columns["prediction"] = np.where(usable, names[probability.argmax(1)], None)
            shares = np.where(usable[:, None], probability, np.nan)
            columns |= {f"probability {name}": shares[:, k] for k, name in enumerate(names)}
        elif self.about["kind"] == "regression":
            columns |= self._regression(np.where(usable[:, None], outputs, np.nan), clients, level)
        else:
            raise CoterieError("predict is for classes and numbers; call the model for the logits of a text")
        said = ["; ".join(filter(None, (note, "" if ok else UNUSABLE))) for note, ok in zip(notes, usable, strict=True)]
        return pd.DataFrame(columns | {"note": said})

    def _regression(self, outputs: np.ndarray, clients: Sequence[str], level: float) -> dict[str, np.ndarray]:
        mean, std = self.about.get("target_mean", 0.0), self.about.get("target_std", 1.0)
        values = outputs * std + mean
        half = np.full(values.shape, np.nan)
        if self.intervals is not None:
            widths = {name: half_width_of(self.intervals, name, level)[0] for name in set(clients)}
            rows = [[np.inf if width is None else width for width in widths[name]] for name in clients]
            half = np.array(rows, np.float64).reshape(values.shape)
        columns = {}
        for k in range(values.shape[1]):
            end = "" if values.shape[1] == 1 else f" {k + 1}"
            columns[f"prediction{end}"] = values[:, k]
            columns[f"low{end}"], columns[f"high{end}"] = values[:, k] - half[:, k], values[:, k] + half[:, k]
        return columns


def run_model(task: Any, variables: Any, x: np.ndarray) -> np.ndarray:
    """Return a model's outputs for any number of rows, with few compiled shapes."""
    import jax.numpy as jnp

    from coterie.experiment.job import precision

    size = min(ROWS, 1 << max(0, len(x) - 1).bit_length()) if len(x) else 1
    parts = []
    with precision(np.dtype(task.dtype).name):
        for first in range(0, max(len(x), 1), size):
            part = x[first : first + size]
            padded = np.concatenate([part, np.zeros((size - len(part), *x.shape[1:]), x.dtype)])
            parts.append(np.asarray(task.forward(variables, jnp.asarray(padded)))[: len(part)])
    return np.concatenate(parts)


def route(answers: Answers, frame: Any, predict: Callable[[str, Any], Any], names: Sequence[str]) -> Any:
    """Predict every row of a frame with the model of its client; the order of the rows is kept.

    Args:
        answers: which column says whose row it is.
        frame: rows of several clients.
        predict: a client's name and its rows to a DataFrame.
        names: the clients; with a single one no column is needed.
    """
    import pandas as pd

    column = answers.client
    if not hasattr(frame, "columns"):
        raise CoterieError("arrays do not say whose rows they are: use .model(client).predict(x)")
    if column is None or column not in frame.columns:
        if len(names) == 1:
            return predict(names[0], frame)
        named = f"column {column!r}" if column else "column that names the client"
        raise CoterieError(f"the rows have no {named}; add it, or say whose rows they are: --client NAME, .model(name)")
    owner = np.array([_name_of(value) for value in frame[column]], dtype=object)
    parts, places = [], {name: np.flatnonzero(owner == name) for name in dict.fromkeys(owner)}
    known = [name for name in places if name in names]
    for name in known or places:  # if there is no model for anybody, the first name is refused
        parts.append(predict(name, frame.iloc[places[name]]).set_axis(places[name]))
    for name in places.keys() - set(known):
        note = "this client took no part in training: predict its rows as those of a new client"
        parts.append(pd.DataFrame({"client": name, "note": note}, index=places[name]))
    table = pd.concat(parts).sort_index() if parts else predict(names[0], frame)
    return table.set_axis(frame.index)


def stand_in(about: Mapping[str, Any], path: Any) -> Federation:
    """Return a federation of one made-up sample, of the shapes and types of a run's data, to build its task from."""
    if "sample_shape" not in about:
        raise CoterieError(
            f"{path} was written by coterie 0.1, which did not keep the shape of the inputs: train again to predict"
        )
    shape, classes, kind = tuple(about["sample_shape"]), about["classes"], about["kind"]
    x = np.zeros((1, 2, *shape), about["dtype"])
    y = np.zeros((1, 2), np.int32)
    if kind == "regression":
        y = np.zeros((1, 2) if classes == 1 else (1, 2, classes), np.float32)
    elif kind == "next-character":
        y = np.zeros((1, 2, *shape), np.int32)
    one, none = np.ones(1, np.int32), np.zeros(1, np.int32)  # fewer than fit: clients may be of any size
    return Federation(
        names=("any",),
        train=Split(x, y, one),
        validation=Split(x[:, :1], y[:, :1], none),
        test=Split(x, y, one),
        kind=kind,
        classes=classes,
        mean=tuple(about.get("mean", (0.0,))),
        std=tuple(about.get("std", (1.0,))),
    )


def _client_column(config: Mapping[str, Any], preparation: Any) -> str | None:
    """Return the column that says whose row it is: as the preparation or the config names it."""
    return getattr(preparation, "client", None) or config.get("data", {}).get("client")


def _name_of(value: Any) -> str:
    """Return a client's name as training wrote it: a whole number that pandas read as 3.0 is 3."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _with_columns(note: str, absent: list[str]) -> str:
    """Say once, and not column by column, that columns are absent."""
    if not absent:
        return note
    empty = {f"no value in {name!r}" for name in absent}
    said = [part for part in note.split("; ") if part and part not in empty]
    return "; ".join([f"no column {', '.join(map(repr, absent))}: taken as missing", *said])
