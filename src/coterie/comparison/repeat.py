"""The shortest command that repeats a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from coterie.comparison.config import (
    COMMON_SETTINGS,
    DEFAULT_TABLES,
    MethodChoice,
    label_of,
    not_default,
    with_method,
)
from coterie.experiment.config import SECTIONS, Experiment, RunSettings, default_tables
from coterie.experiment.parts import Part
from coterie.spec import to_dict
from coterie.storage.commands import command, is_command
from coterie.storage.toml import toml_value

__all__ = ["IN_PYTHON", "known_command", "repeat_command"]

IN_PYTHON = "coterie.compare(...) in Python, with the same data"


def repeat_command(
    experiment: Experiment,
    choices: Sequence[MethodChoice],
    seeds: int,
    splits: int | None = None,
    tune: bool | Literal["score"] = True,
) -> str:
    """Return the command that repeats a comparison; it leaves out what `coterie compare` assumes anyway."""
    is_default = experiment.data.name == DEFAULT_TABLES["data"]["name"]
    assumed = DEFAULT_TABLES if is_default else {}
    words = ["compare", "--methods", ",".join(c.name if ":" in c.name else c.label for c in choices)]
    words += ["--seeds", str(seeds)] + ([] if is_default else ["--data", experiment.data.name])
    words += ([] if splits is None else ["--splits", str(splits)]) + ([] if tune else ["--no-tune"])
    words += ["--set", "compare.tune=score"] if tune == "score" else []
    for section, values in _common_sections(experiment, assumed).items():
        words += _set(section, values)
    variants = [with_method(experiment, choice) for choice in choices]
    settings = [_named_settings(each.method.spec, assumed.get("method", {})) for each in variants]
    if tune:  # what was given is not tuned, even if it is the default
        for own, each, choice in zip(settings, variants, choices, strict=True):
            method = each.method.spec
            own |= {key: getattr(method, key) for key in ("lr", *method.tunes) if key in choice.given}
            own |= {key: list(values) for key, values in choice.candidates.items()}
    common = _equal_settings([each.method.spec for each in variants], settings)
    words += _set("method", common)
    for choice, own, each in zip(choices, settings, variants, strict=True):
        words += _set(f"methods.{choice.label}", _own_settings(choice, own, (each, experiment), common))
    return command(*words)


def known_command(written: str, folder: Path) -> str:
    """Return the command that a comparison's folder names, or one that reads that folder if it would do anything else.

    Readers are invited to paste it, and the folder may come from somebody else.
    """
    return written if written == IN_PYTHON or is_command(written) else command("compare", folder / "comparison.toml")


def _common_sections(experiment: Experiment, assumed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what must be set for all methods: what is not at its default, or not what the command starts with."""
    start = default_tables(experiment.data.name)
    sections = {"data": not_default(experiment.data.spec)}
    for section in ("partition", "model", "graph"):
        table = {**start.get(section, {}), **assumed.get(section, {})}
        ours, theirs = getattr(experiment, section), Part.from_table(section, table)
        same = ours.name == theirs.name
        named = {} if same else {"name": ours.name}
        kept = {key: value for key, value in ours.to_dict().items() if key in table and key != "name"}
        changed = _differing(ours.to_dict(), theirs.to_dict()) if same else kept
        sections[section] = named | not_default(ours.common) | not_default(ours.spec) | changed
    sections["augment"] = not_default(experiment.augment)
    sections["world"] = not_default(experiment.world)
    start_run = to_dict(RunSettings()) | dict(assumed.get("run", {}))
    sections["run"] = not_default(experiment.run) | _differing(to_dict(experiment.run), start_run)
    return sections


def _named_settings(method: Any, assumed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method that the command must name: `compare` would assume something else."""
    return not_default(method) | {key: getattr(method, key) for key in assumed if hasattr(method, key)}


def _equal_settings(methods: Sequence[Any], named: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the named common settings that are equal for all methods that have them: they are written once."""
    equal = {}
    for key in COMMON_SETTINGS:
        values = [getattr(method, key) for method in methods if hasattr(method, key)]
        given = [key in each for method, each in zip(methods, named, strict=True) if hasattr(method, key)]
        if given and all(given) and all(value == values[0] for value in values):
            equal[key] = values[0]
    return equal


def _own_settings(
    choice: MethodChoice,
    named: Mapping[str, Any],
    experiments: tuple[Experiment, Experiment],
    common: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what is set for one method only: its name under another label, its settings, codec, graph and rounds.

    `experiments` are the method's and the one that all share.
    """
    experiment, shared = experiments
    own: dict[str, Any] = {"name": choice.name} if choice.label != label_of(choice.name) else {}
    own |= {key: value for key, value in named.items() if key not in common or key in choice.candidates}
    if experiment.codec.name != SECTIONS["codec"].default:
        settings = not_default(experiment.codec.spec)
        own["codec"] = {"name": experiment.codec.name, **settings} if settings else experiment.codec.name
    if experiment.graph != shared.graph:
        settings = not_default(experiment.graph.common) | not_default(experiment.graph.spec)
        own["graph"] = {"name": experiment.graph.name, **settings} if settings else experiment.graph.name
    return own | ({} if experiment.run.rounds == shared.run.rounds else {"rounds": experiment.run.rounds})


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in ours.items() if theirs.get(key) != value}


def _set(section: str, values: Mapping[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{section}.{key}={toml_value(value)}")]
