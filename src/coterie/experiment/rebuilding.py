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
from coterie.spec import build

__all__ = ["experiment_of", "method_of", "task_of", "task_of_run"]

NEEDED = ("augment", "run")  # sections besides model and method that decide what a client learns


def task_of_run(config: Mapping[str, Any], folder: Path) -> Task:
    """Return what each client of a complete run learned; only folders of coterie 0.1 need the data for it."""
    about = RunFolder(folder).clients()
    if "sample_shape" in about:
        return task_of(config, about, folder)
    if config["data"]["name"] == "in-memory":
        raise CoterieError(
            f"{folder} was started with data from Python: call coterie.run with the same data and "
            f"out={str(folder)!r} to load its models"
        )
    experiment = Experiment.from_dict(config)
    return experiment.method.spec.adapt(make_task(experiment, load_federation(experiment)))


def task_of(config: Mapping[str, Any], about: Mapping[str, Any], path: Any, model: Any = None) -> Task:
    """Return what each client of a run learned.

    Args:
        config: the run's config.
        about: its clients.json.
        path: its folder, for messages.
        model: the model, where it is one of the user's own that the config cannot name.
    """
    experiment = experiment_of(config, path, model)
    task = make_task(experiment, stand_in(about, path))
    method = method_of(config)
    return task if method is None else method.adapt(task)


def experiment_of(config: Mapping[str, Any], path: Any, model: Any = None) -> Experiment:
    """Return the experiment of a run as far as models need it: with its model, on no data."""
    table = dict(config["model"])
    experiment = Experiment.from_dict({name: config[name] for name in NEEDED if name in config})
    common = {field.name: table[field.name] for field in dataclasses.fields(ModelSettings) if field.name in table}
    settings = build(ModelSettings, common, "model")
    if model is not None:
        return dataclasses.replace(experiment, model=model_part(model, settings))
    try:
        part = Part.from_table("model", table)
    except CoterieError as error:
        raise CoterieError(
            f"the model of {path} is one of your own, {table['name']!r}: pass it, coterie.open({str(path)!r}, "
            "model=...)"
        ) from error
    return dataclasses.replace(experiment, model=part)


def method_of(config: Mapping[str, Any]) -> Method | None:
    """Return the method of a run; None for a class of the user's own that the config cannot name."""
    try:
        return Part.from_table("method", config["method"]).spec
    except CoterieError:
        return None
