"""The task of a run from its folder alone: from config.toml and clients.json, without any data."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import load_federation, make_task
from coterie.experiment.parts import ModelSettings, Part, model_part
from coterie.experiment.prediction import stand_in
from coterie.learning.task import Task
from coterie.methods.base import Method
from coterie.registry import names_from, rows
from coterie.spec import build

__all__ = ["experiment_of", "method_of", "task_of", "task_of_run"]

NEEDED = ("augment", "run")  # sections besides model and method that decide what a client learns


def task_of_run(config: Mapping[str, Any], folder: Path, trust_code: bool = False) -> Task:
    """Return what each client of a complete run learned; only folders of coterie 0.1 need the data for it."""
    about = RunFolder(folder).clients()
    if "sample_shape" in about:
        return task_of(config, about, folder, trust_code=trust_code)
    if config["data"]["name"] == "in-memory":
        raise CoterieError(
            f"{folder} was started with data from Python: call coterie.run with the same data and "
            f"out={str(folder)!r} to load its models"
        )
    with names_from(folder / "config.toml", trust_code):
        experiment = Experiment.from_dict(config)
    return experiment.method.spec.adapt(make_task(experiment, load_federation(experiment)))


def task_of(
    config: Mapping[str, Any], about: Mapping[str, Any], path: Any, model: Any = None, trust_code: bool = False
) -> Task:
    """Return what each client of a run learned.

    Args:
        config: the run's config.
        about: its clients.json.
        path: its folder, for messages.
        model: the model, where it is one of the user's own that the config cannot name.
        trust_code: whether code that the config names may run.
    """
    experiment = experiment_of(config, path, model, trust_code)
    method = method_of(config, path, trust_code)
    task = make_task(experiment, stand_in(about, path))
    return task if method is None else method.adapt(task)


def experiment_of(config: Mapping[str, Any], path: Any, model: Any = None, trust_code: bool = False) -> Experiment:
    """Return the experiment of a run as far as models need it: with its model, on no data."""
    table = {key: value for key, value in config["model"].items() if key != "init"}  # the weights are in the folder
    experiment = Experiment.from_dict({name: config[name] for name in NEEDED if name in config})
    common = {field.name: table[field.name] for field in dataclasses.fields(ModelSettings) if field.name in table}
    settings = build(ModelSettings, common, "model")
    if model is not None:
        return dataclasses.replace(experiment, model=model_part(model, settings))
    if _has_name("models", table):
        with names_from(_named_in(path), trust_code):
            return dataclasses.replace(experiment, model=Part.from_table("model", table))
    raise CoterieError(
        f"the model of {path} is one of your own, {table['name']!r}: pass it, coterie.open({str(path)!r}, model=...)"
    )


def method_of(config: Mapping[str, Any], path: Any, trust_code: bool = False) -> Method | None:
    """Return the method of a run; None for a class of the user's own that the config cannot name."""
    if not _has_name("methods", config["method"]):
        return None
    with names_from(_named_in(path), trust_code):
        return Part.from_table("method", config["method"]).spec


def _has_name(kind: str, table: Mapping[str, Any]) -> bool:
    """Whether a section names something that can be found; an object from Python is only known by its class."""
    name = table.get("name")
    return not isinstance(name, str) or ":" in name or any(row.name == name for row in rows(kind))


def _named_in(path: Any) -> Path:
    """Return the file of a folder that names the model and the method: of a run, or of one client's model."""
    files = (Path(path) / name for name in ("config.toml", "model.json"))
    return next((file for file in files if file.is_file()), Path(path))
