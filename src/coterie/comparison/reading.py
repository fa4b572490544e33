"""Runs and comparisons read from their folders, brought together under one label for each method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.comparison.config import label_of
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.pairing import split_of
from coterie.errors import CoterieError
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result
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
            commands.append(folder.read()["compare"]["command"])
            failures |= folder.failures()
            tuning |= folder.tuning()
        else:
            result = Result.read(path)
            every.append(_Runs(label_of(result.config["method"]["name"]), _settings(result), [result]))
            commands.append(f"coterie run {path / 'config.toml'}")
    if not every and not failures:
        raise CoterieError("there is nothing to compare: name at least one folder of a run or a comparison")
    _check_same_clients([result for runs in every for result in runs.results])
    clients = _clients(every[0].results[0]) if every else {"names": []}
    return Contents(_told_apart(_merged(every)), clients, commands, failures, tuning)


def _clients(result: Result) -> dict[str, Any]:
    return {key: value for key, value in RunFolder(result.folder or "").clients().items() if key != "digest"}


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


def _check_same_clients(results: Sequence[Result]) -> None:
    """Refuse runs on other data, by the fingerprints in their folders; the message names the setting that differs.

    Runs with different seeds may have different splits of the same clients.
    """
    by_seed: dict[Any, tuple[Result, Any]] = {}
    for result in results:
        about = RunFolder(result.folder or "").clients()
        seed = result.config["run"]["seed"]
        first, digest = by_seed.setdefault(seed, (result, about.get("digest")))
        if digest == about.get("digest") and result.names == results[0].names:
            continue
        other = first if digest != about.get("digest") else results[0]
        here, there = ({s: t for s, t in r.config.items() if s in ("data", "partition")} for r in (other, result))
        why = difference(there, here) or "the data have changed between the two"
        raise CoterieError(
            f"{result.folder} has other clients than {other.folder}: {why}; only the same can be compared"
        )
    _check_same_splits(list(by_seed.values()))


def _check_same_splits(of_seeds: Sequence[tuple[Result, Any]]) -> None:
    """Refuse runs with different seeds whose data differ though the split is the same, or in more than the split."""
    first, digest = of_seeds[0] if of_seeds else (None, None)
    for result, other in of_seeds[1:]:
        assert first is not None
        here, there = (_but_split(run) for run in (first, result))
        why = difference(there, here)
        if why is None and digest != other and _split(first) == _split(result):
            why = "the data have changed between the two"
        if why:
            raise CoterieError(
                f"{result.folder} has other clients than {first.folder}: {why}; only the same can be compared"
            )


def _but_split(result: Result) -> dict[str, Any]:
    tables = {section: dict(table) for section, table in result.config.items() if section in ("data", "partition")}
    tables.get("partition", {}).pop("seed", None)
    if "partition" not in tables:
        tables.get("data", {}).pop("digest", None)  # data from Python are known by what they are after the split
    return tables


def _split(result: Result) -> Any:
    return split_of(result)


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
