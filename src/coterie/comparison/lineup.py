"""Which methods a comparison runs, with which settings, and the TOML file that says so. No JAX here.

[method]             # what holds for every method that has such a setting
lr = 0.1
[compare]
methods = ["local", "ditto", "ditto-strong"]
seeds = 3
[methods.ditto]      # for one method
tie = 0.1
[methods.ditto-strong]
name = "ditto"       # the same method once more, under another label
tie = 1.0
codec = "qsgd"       # with its own codec; or { name = "qsgd", bits = 2 }
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie import registry
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.spec import build, param, spec, to_dict

__all__ = [
    "DEFAULT_METHODS",
    "FIRST",
    "SHARED",
    "Entry",
    "Lineup",
    "entry_of",
    "label_of",
    "not_default",
    "variant",
]

DEFAULT_METHODS = ("local", "fedavg", "fedavg-finetuned", "fedprox", "ditto", "gossip-sgd", "pooled")
SHARED = (  # fair only when equal for all methods
    "lr",
    "momentum",
    "weight_decay",
    "batch_size",
    "epochs",
    "steps",
    "decay",
    "decay_after",
    "decay_every",
)

# The comparison without a file. Chosen on validation accuracy: twice the rounds change no method's by more than 0.012.
FIRST: dict[str, Any] = {
    "data": {"name": "digits"},
    "method": {"lr": 0.1},
    "run": {"rounds": 200},
    "compare": {"seeds": 3},
}


@spec
class CompareSettings:
    """The `[compare]` section."""

    methods: tuple[str, ...] = param(DEFAULT_METHODS, "the methods to compare, by name or as FILE.py:CLASS")
    seeds: int = param(1, "runs of each method, with seeds that count up from run.seed", at_least=1)
    command: str = param("", "the command that repeats the comparison (written, not read)")


class Entry(NamedTuple):
    """One line of the leaderboard: its label, the method's name and the settings that were asked for."""

    label: str
    name: str
    settings: dict[str, Any]


def entry_of(method: Any) -> Entry:
    """Read a method that was asked for: a name, a pair of label and settings, or a configured method."""
    if isinstance(method, str):
        return Entry(label_of(method), method, {})
    if isinstance(method, tuple):
        label, settings = method
        own = {key: value for key, value in settings.items() if key != "name"}
        return Entry(label_of(label), settings.get("name", label), own)
    name = registry.name_of("methods", method) or f"{type(method).__module__}:{type(method).__name__}"
    return Entry(label_of(name), name, to_dict(method))


def label_of(name: str) -> str:
    """Return a method's name, or its class where that is how it is named: it is a folder's name, too."""
    label = name.rpartition(":")[2]
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", label):
        raise CoterieError(f"methods: {label!r} cannot be a method's label; use letters, digits, '-', '_' and '.'")
    return label


def variant(experiment: Experiment, entry: Entry) -> Experiment:
    """Return the experiment with another method, under the settings of local training that hold for all."""
    cls = registry.load("methods", entry.name)
    fields = {field.name for field in dataclasses.fields(cls)}
    chosen = not_default(experiment.method.spec)
    shared = {key: chosen[key] for key in SHARED if key in chosen and key in fields}
    try:
        return experiment.replace({"method": {"name": entry.name, **shared, **entry.settings}})
    except CoterieError as error:
        raise CoterieError(f"{entry.label}: {error}") from None


def not_default(settings: Any) -> dict[str, Any]:
    """Return the settings that are not at their default."""
    fields = [f for f in dataclasses.fields(settings) if f.init and getattr(settings, f.name) != f.default]
    return {key: value for key, value in to_dict(settings).items() if key in {f.name for f in fields}}


@dataclasses.dataclass(frozen=True)
class Lineup:
    """A comparison as it was asked for: what holds for all runs, the methods, and the number of seeds."""

    experiment: Experiment
    methods: list[tuple[str, dict[str, Any]]]
    seeds: int

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "Lineup":
        """Check a parsed config file that may have the sections `[compare]` and `[methods.NAME]`."""
        rest = {key: value for key, value in tables.items() if key not in ("compare", "methods")}
        held = {key: tables.get(key, {}) for key in ("compare", "methods")}
        for key, table in held.items():
            if not isinstance(table, Mapping):
                raise CoterieError(f"{key} must be a section: write [{key}] and its keys below it")
        settings = build(CompareSettings, held["compare"], "compare")
        own = {name: _own_table(name, table, settings.methods) for name, table in held["methods"].items()}
        method = rest.get("method", {})
        if isinstance(method, Mapping) and "name" not in method:
            for key in method:
                if key not in SHARED:
                    raise CoterieError(
                        f"method.{key} is not for every method, as {', '.join(SHARED)} are; write methods.NAME.{key}"
                    )
        experiment = Experiment.from_dict(rest)
        asked = {key: value for key, value in method.items() if key in SHARED}
        methods = []
        for name in settings.methods:
            table = own.get(name, {}) | (own.get(label_of(name), {}) if ":" in name else {})
            fields = {field.name for field in dataclasses.fields(registry.load("methods", table.get("name", name)))}
            fair = {key: value for key, value in asked.items() if key in fields}
            methods.append((name, {**fair, "name": name, **table}))
        return cls(experiment, methods, settings.seeds)


def _own_table(name: str, table: Any, asked: Sequence[str]) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise CoterieError(f"methods.{name} must be a section: write [methods.{name}] and its keys below it")
    if "name" not in table and name not in asked and name not in map(label_of, asked):
        registry.find("methods", name)  # a table for a method that is not run is fine, one for no method is a mistake
    return dict(table)
