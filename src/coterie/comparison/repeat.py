"""The shortest command that repeats a comparison."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.comparison.lineup import FIRST, SHARED, Entry, label_of, not_default, variant
from coterie.experiment.config import SECTIONS, Experiment, RunSettings, default_tables
from coterie.experiment.parts import Part
from coterie.spec import to_dict
from coterie.storage.toml import toml_value

__all__ = ["repeat_command"]


def repeat_command(experiment: Experiment, entries: Sequence[Entry], seeds: int) -> str:
    """Return the command that repeats a comparison: it names all but defaults that `compare` begins with, too."""
    start = FIRST if experiment.data.name == FIRST["data"]["name"] else {}
    usual = default_tables(experiment.data.name)
    words = ["coterie", "compare", "--methods", ",".join(e.name if ":" in e.name else e.label for e in entries)]
    words += ["--seeds", str(seeds)] + ([] if start else ["--data", experiment.data.name])
    words += _set("data", not_default(experiment.data.spec))
    for section in ("partition", "model", "graph"):
        ours, theirs = getattr(experiment, section), Part.from_table(section, usual.get(section, {}))
        chosen = {} if ours.name == theirs.name else {"name": ours.name}
        chosen |= not_default(ours.common) | not_default(ours.spec)
        words += _set(section, chosen | (_other(ours.to_dict(), theirs.to_dict()) if ours.name == theirs.name else {}))
    words += _set("augment", not_default(experiment.augment))
    usual_run = to_dict(RunSettings()) | start.get("run", {})
    words += _set("run", not_default(experiment.run) | _other(to_dict(experiment.run), usual_run))
    variants = [variant(experiment, entry) for entry in entries]
    settings = [each.method.spec for each in variants]
    begun = start.get("method", {})
    held = {key: [getattr(each, key) for each in settings if hasattr(each, key)] for key in SHARED}
    told = [not_default(each) | {k: getattr(each, k) for k in begun if hasattr(each, k)} for each in settings]
    shared = {k: v[0] for k, v in held.items() if all(x == v[0] for x in v) and any(k in each for each in told)}
    words += _set("method", shared)
    for entry, chosen, each in zip(entries, told, variants, strict=True):
        renamed = {"name": entry.name} if entry.label != label_of(entry.name) else {}
        coded = {} if each.codec.name == SECTIONS["codec"].default else {"codec": _codec_table(each.codec)}
        own = {k: v for k, v in chosen.items() if k not in shared}
        words += _set(f"methods.{entry.label}", renamed | own | coded)
    return shlex.join(words)


def _codec_table(codec: Any) -> Any:
    """Return a codec's name, and its settings where they are not the usual ones."""
    chosen = not_default(codec.spec)
    return {"name": codec.name, **chosen} if chosen else codec.name


def _other(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in ours.items() if theirs.get(key) != value}


def _set(section: str, values: Mapping[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{section}.{key}={toml_value(value)}")]
