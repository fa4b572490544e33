"""A client's own share of a run: its model and what it takes to use it, and nothing of anybody else.

model.json         what inputs, outputs and layers are
model.safetensors  the parameters, with PyTorch's names and layouts
preparation.json   how the columns of a table become inputs
intervals.json     of a regression: how far predictions may be off
predict.py         the same predictions with NumPy alone
model.onnx         the same for other programs
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.serving.opening import FORMAT, MODEL_FILE, RECORD_FILE, TrainedRun, open, read_model_record
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.owned import OwnedFolder, inside

__all__ = ["export", "slug", "write_model"]

OF_CLIENT = ("kind", "classes", "class_names", "sample_shape", "mean", "std", "target_mean", "target_std", "dtype")
SECTIONS = ("format", "model", "method", "augment", "run")  # nothing of the data


def export(run: TrainedRun | str | Path, client: str, out: str | Path | None = None) -> tuple[Path, str]:
    """Write a client's model into a folder of its own, which `coterie.open` and NumPy can use.

    Args:
        run: a trained run, or its folder.
        client: whose model.
        out: the folder; default: `client` in `exports/` of the run's folder.

    Returns:
        The folder, and why there is no predict.py and model.onnx (empty where there are).
    """
    run = run if isinstance(run, TrainedRun) else open(run)
    folder = Path(out) if out is not None else inside(run.path, "exports", slug(client))
    write_model(run, client, folder)
    try:
        _write_portable(run, client, folder)
    except CoterieError as error:
        return folder, str(error)
    return folder, ""


def write_model(run: TrainedRun, client: str, out: str | Path) -> TrainedRun:
    """Write a client's model and what it takes to use it; returns the folder, opened."""
    from coterie.experiment.personal_model import by_name
    from coterie.models.naming import encode

    folder = Path(out)
    if not _may_write(folder):
        raise CoterieError(f"{folder} exists and is not the folder of a model; choose another --out")
    variables = run.model(client).variables
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not _may_write(folder):  # nowhere/../theirs is there once `nowhere` is made
        raise CoterieError(f"{folder} exists and is not the folder of a model; choose another --out")
    place = run.clients.index(client)
    about = {key: run.about[key] for key in OF_CLIENT if key in run.about}
    about |= {"names": [client], "sizes": {part: [sizes[place]] for part, sizes in run.about["sizes"].items()}}
    record = {
        "format": FORMAT,
        "about": about,
        "config": {section: run.config[section] for section in SECTIONS if section in run.config},
        "client_column": run.answers.client,
        **({} if run.joined is None else {"joined": run.joined}),
    }
    metadata = {"client": client, "method": run.config["method"]["name"]}
    durable_write(folder / MODEL_FILE, encode(by_name(variables), metadata))
    if run.answers.preparation is not None:
        _write_json(folder / "preparation.json", run.answers.preparation.only(client).to_dict())
    if run.answers.intervals is not None:
        own = {name: entry for name, entry in run.answers.intervals["clients"].items() if name == client}
        _write_json(folder / "intervals.json", {**run.answers.intervals, "clients": own})
    _write_json(folder / RECORD_FILE, record)
    return open(folder, model=run._model, trust_code=run.trust_code)


def _write_portable(run: TrainedRun, client: str, folder: Path) -> None:
    """Write predict.py and model.onnx, and the layers into model.json."""
    from coterie.experiment.personal_model import by_name
    from coterie.serving import numpy_model
    from coterie.serving.layers import members_of
    from coterie.serving.onnx_file import onnx_bytes

    variables = run.model(client).variables
    layers, weights = members_of(run.task, variables, run.config["model"]["name"])
    record = read_model_record(folder)
    _write_json(folder / RECORD_FILE, {**record, "layers": layers, "layer_weights": weights})
    parameters = {name: np.asarray(array) for name, array in by_name(variables).items()}
    durable_write(folder / "model.onnx", onnx_bytes(layers, weights, parameters, run.about))
    durable_write(folder / "predict.py", Path(numpy_model.__file__).read_bytes())


def _may_write(folder: Path) -> bool:
    """Whether a folder is new, empty, or has the model of a client already."""
    if OwnedFolder(folder, "model").fresh:
        return True
    try:
        return bool(read_model_record(folder))
    except CoterieError:
        return False


def _write_json(path: Path, record: dict[str, Any]) -> None:
    durable_write(path, json.dumps(record, indent=1).encode())


def slug(name: str) -> str:
    """Return a folder name for a client, safe whatever it is called."""
    from coterie.experiment.folder import model_file

    return model_file(0, name).removeprefix("00000-").removesuffix(".safetensors")
