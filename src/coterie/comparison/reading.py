"""Runs and comparisons read from their folders, brought together under one label for each method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.comparison.config import label_of
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.pairing import split_of
from coterie.comparison.repeat import known_command
from coterie.errors import CoterieError
from coterie.experiment.fingerprint import is_earlier
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result
from coterie.storage.commands import command
from coterie.storage.owned import holds
from coterie.storage.toml import difference

__all__ = ["Contents", "read_folders"]


class Contents(NamedTuple):
    """What folders hold: the runs of each method, the clients, commands, failures and tuning."""

    results: dict[str, list[Result]]
    clients: dict[str, Any]
    commands: list[str]
    failures: dict[str, str]
    tuning: dict[str, list[dict[str, Any]]]


class _Runs(NamedTuple):
    """Runs of one method under the same settings."""

    label: str
    settings: dict[str, Any]
    results: list[Result]


def read_folders(folders: Sequence[str | Path]) -> Contents:
    """Read complete runs and comparisons; all must be of the same clients."""
    every: list[_Runs] = []
    commands: list[str] = []
    failures: dict[str, str] = {}
    tuning: dict[str, list[dict[str, Any]]] = {}
    for path in map(Path, folders):
        folder = ComparisonFolder(path)
        if folder.exists():
            for label, results in folder.results().items():
                every.append(_Runs(label, _settings(results[0]), results))
            commands.append(known_command(folder.read()["compare"]["command"], path))
            failures |= folder.failures()
            tuning |= folder.tuning()
        elif holds(path, "sweep.toml"):
            raise CoterieError(
                f"{path} is the folder of a sweep, whose table is {path / 'results.csv'}; name the runs in it to "
                f"compare them, for example {path / 'candidate-001' / 'seed-0'}"
            )
        else:
            result = Result.read(path)
            every.append(_Runs(label_of(result.config["method"]["name"]), _settings(result), [result]))
            commands.append(command("run", path / "config.toml"))
    if not every and not failures:
        raise CoterieError("there is nothing to compare: name at least one folder of a run or a comparison")
    _check_same_clients(every)
    about = _about(every[0].results[0]) if every else {"names": []}
    clients = {key: value for key, value in about.items() if key != "digest"}
    return Contents(_told_apart(_merged(every)), clients, commands, failures, tuning)


def _about(result: Result) -> dict[str, Any]:
    return RunFolder(result.folder or "").clients()


def _settings(result: Result) -> dict[str, Any]:
    """Return what tells methods apart: everything but data, split and seed."""
    tables = {s: table for s, table in result.config.items() if s not in ("format", "data", "partition")}
    return tables | {"run": {key: value for key, value in tables["run"].items() if key != "seed"}}


def _merged(every: Sequence[_Runs]) -> list[_Runs]:
    """Bring runs of the same method and settings together."""
    merged: list[_Runs] = []
    for more in every:
        same = next((runs for runs in merged if runs.label == more.label and runs.settings == more.settings), None)
        if same is None:
            merged.append(more._replace(results=list(more.results)))
            continue
        for result in more.results:
            if result.config["run"]["seed"] in [earlier.config["run"]["seed"] for earlier in same.results]:
                raise CoterieError(f"{result.folder} is given twice, or repeats the seed of another run; leave one out")
            same.results.append(result)
    return merged


def _check_same_clients(every: Sequence[_Runs]) -> None:
    """Refuse runs on other data, by the fingerprints in their folders; the message names the setting that differs.

    Runs with the same seed must have the same data. The runs of a comparison may have several splits, each with seeds
    of its own; runs without a seed in common must agree in all but the split.
    """
    by_seed: dict[Any, Result] = {}
    for runs in every:
        own = {run.config["run"]["seed"]: run for run in runs.results}
        common = own.keys() & by_seed.keys()
        for seed in common:
            first, other = by_seed[seed], own[seed]
            if _differ(_about(first), _about(other)):
                _refuse(first, other, _data(first), _data(other))
        if by_seed and not common:
            first, other = next(iter(by_seed.values())), next(iter(own.values()))
            changed = split_of(first) == split_of(other) and _differ(_about(first), _about(other))
            if changed or first.names != other.names or _data(first, False) != _data(other, False):
                _refuse(first, other, _data(first, False), _data(other, False))
        by_seed = own | by_seed


def _differ(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs have other data; where an earlier version wrote one fingerprint, by all else that is known."""
    here, there = str(first.get("digest")), str(other.get("digest"))
    if is_earlier(here) == is_earlier(there):
        return here != there
    return any(first[key] != other[key] for key in first.keys() & other.keys() - {"digest"})


def _refuse(first: Result, other: Result, here: dict[str, Any], there: dict[str, Any]) -> None:
    why = difference(there, here) or "the data have changed between the two"
    raise CoterieError(f"{other.folder} has other clients than {first.folder}: {why}; only the same can be compared")


def _data(result: Result, with_split: bool = True) -> dict[str, Any]:
    """Return the settings that make the clients, with or without the seed of their split."""
    tables = {section: dict(table) for section, table in result.config.items() if section in ("data", "partition")}
    if not with_split:
        for key in ("seed", "owners_seed"):
            tables.get("partition", {}).pop(key, None)
        if "partition" not in tables:
            tables.get("data", {}).pop("digest", None)  # data from Python are known by what they are after the split
    return tables


def _told_apart(every: Sequence[_Runs]) -> dict[str, list[Result]]:
    """Label the runs of methods that occur several times by the settings in which they differ."""
    results = {}
    for label in dict.fromkeys(runs.label for runs in every):
        group = [runs for runs in every if runs.label == label]
        flat = [{(s, k): value for s, table in runs.settings.items() for k, value in table.items()} for runs in group]
        keys = dict.fromkeys(key for settings in flat for key in settings)
        varying = [key for key in keys if any(settings.get(key) != flat[0].get(key) for settings in flat)]
        for settings, runs in zip(flat, group, strict=True):
            words = ", ".join(f"{key[1]}={settings.get(key)}" for key in varying)
            results[f"{label} ({words})" if varying else label] = runs.results
    return results
