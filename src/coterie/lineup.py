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
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie import registry
from coterie.checkpoint import durable_write, storage_errors
from coterie.config import FORMAT, SECTIONS, Experiment, _toml_value, dump_toml, read_toml
from coterie.errors import CoterieError
from coterie.result import Result
from coterie.spec import build, param, spec, to_dict
from coterie.storage import REMEDY, RunFolder, difference

__all__ = [
    "DEFAULT_METHODS",
    "FIRST",
    "SHARED",
    "ComparisonFolder",
    "Entry",
    "Lineup",
    "entry_of",
    "repeat_command",
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
FILE = "comparison.toml"

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
        return Entry(_label(method), method, {})
    if isinstance(method, tuple):
        label, settings = method
        own = {key: value for key, value in settings.items() if key != "name"}
        return Entry(_label(label), settings.get("name", label), own)
    target = f"{type(method).__module__}:{type(method).__name__}"
    names = [row.name for row in registry.rows("methods") if row.target == target]
    name = names[0] if names else target
    return Entry(_label(name), name, to_dict(method))


def _label(name: str) -> str:
    """Return a method's name, or its class where that is how it is named: it is a folder's name, too."""
    label = name.rpartition(":")[2]
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", label):
        raise CoterieError(f"methods: {label!r} cannot be a method's label; use letters, digits, '-', '_' and '.'")
    return label


def variant(experiment: Experiment, entry: Entry) -> Experiment:
    """Return the experiment with another method, under the settings of local training that hold for all."""
    cls = registry.load("methods", entry.name)
    fields = {field.name for field in dataclasses.fields(cls)}
    chosen = _changed(experiment.method.spec)
    shared = {key: chosen[key] for key in SHARED if key in chosen and key in fields}
    try:
        return experiment.replace({"method": {"name": entry.name, **shared, **entry.settings}})
    except CoterieError as error:
        raise CoterieError(f"{entry.label}: {error}") from None


def _changed(settings: Any) -> dict[str, Any]:
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
            table = own.get(name, {}) | (own.get(_label(name), {}) if ":" in name else {})
            fields = {field.name for field in dataclasses.fields(registry.load("methods", table.get("name", name)))}
            fair = {key: value for key, value in asked.items() if key in fields}
            methods.append((name, {**fair, "name": name, **table}))
        return cls(experiment, methods, settings.seeds)


def _own_table(name: str, table: Any, asked: Sequence[str]) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise CoterieError(f"methods.{name} must be a section: write [methods.{name}] and its keys below it")
    if "name" not in table and name not in asked and name not in map(_label, asked):
        registry.find("methods", name)  # a table for a method that is not run is fine, one for no method is a mistake
    return dict(table)


def repeat_command(experiment: Experiment, entries: Sequence[Entry], seeds: int) -> str:
    """Return the command that repeats a comparison: it names all but defaults that `compare` begins with, too."""
    start = FIRST if experiment.data.name == FIRST["data"]["name"] else {}
    assumed = Experiment.from_dict({"data": experiment.data.to_dict(), "run": start.get("run", {})})
    words = ["coterie", "compare", "--methods", ",".join(e.name if ":" in e.name else e.label for e in entries)]
    words += ["--seeds", str(seeds)] + ([] if start else ["--data", experiment.data.name])
    words += _set("data", _changed(experiment.data.spec))
    for section in ("partition", "model", "graph"):
        ours, theirs = (getattr(each, section) for each in (experiment, assumed))
        chosen = {} if ours.name == theirs.name == SECTIONS[section][1] else {"name": ours.name}
        chosen |= _changed(ours.common) | _changed(ours.spec)
        words += _set(section, chosen | (_other(ours.to_dict(), theirs.to_dict()) if ours.name == theirs.name else {}))
    words += _set("augment", _changed(experiment.augment))
    words += _set("run", _changed(experiment.run) | _other(to_dict(experiment.run), to_dict(assumed.run)))
    variants = [variant(experiment, entry) for entry in entries]
    settings = [each.method.spec for each in variants]
    begun = start.get("method", {})
    held = {key: [getattr(each, key) for each in settings if hasattr(each, key)] for key in SHARED}
    told = [_changed(each) | {k: getattr(each, k) for k in begun if hasattr(each, k)} for each in settings]
    shared = {k: v[0] for k, v in held.items() if all(x == v[0] for x in v) and any(k in each for each in told)}
    words += _set("method", shared)
    for entry, chosen, each in zip(entries, told, variants, strict=True):
        renamed = {"name": entry.name} if entry.label != _label(entry.name) else {}
        coded = {} if each.codec.name == SECTIONS["codec"][1] else {"codec": _codec_table(each.codec)}
        own = {k: v for k, v in chosen.items() if k not in shared}
        words += _set(f"methods.{entry.label}", renamed | own | coded)
    return shlex.join(words)


def _codec_table(codec: Any) -> Any:
    """Return a codec's name, and its settings where they are not the usual ones."""
    chosen = _changed(codec.spec)
    return {"name": codec.name, **chosen} if chosen else codec.name


def _other(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in ours.items() if theirs.get(key) != value}


def _set(section: str, values: Mapping[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{section}.{key}={_toml_value(value)}")]


class ComparisonFolder:
    """The folder of a comparison: `comparison.toml`, which `coterie compare` reads too, and a folder a method."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def exists(self) -> bool:
        """Whether this is the folder of a comparison."""
        return (self.path / FILE).is_file()

    def run(self, label: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.path / label / f"seed-{seed}"

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else, or a comparison under other settings than this run's config."""
        if self.exists():
            held = {key: table for key, table in self.read().items() if key in _common(config)}
            changed = difference(held, _common(config))
            if changed:
                raise CoterieError(f"{self.path} holds another comparison: {changed}; {REMEDY}")
        elif self.path.exists() and (not self.path.is_dir() or any(f.suffix != ".tmp" for f in self.path.iterdir())):
            raise CoterieError(f"{self.path} exists and is not the folder of a comparison; choose another --out")

    def write(
        self, config: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]], seeds: int, command: str
    ) -> None:
        """Write down what is compared.

        Args:
            config: what holds for all runs (the config of the first; its method does not count).
            methods: each label's complete settings.
            seeds: runs of each method.
            command: what repeats the comparison.
        """
        tables: dict[str, Any] = {"format": FORMAT, **_common(config)}
        tables["compare"] = {"methods": list(methods), "seeds": seeds, "command": command}
        tables |= {f"methods.{_toml_value(label)}": dict(table) for label, table in methods.items()}
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        durable_write(self.path / FILE, dump_toml(tables).encode())

    def read(self) -> dict[str, Any]:
        """Return the tables of the file."""
        return read_toml(self.path / FILE)

    def results(self) -> list[tuple[str, Result]]:
        """Return every run with its label, in the order they were asked for."""
        tables = self.read()
        first = tables["run"]["seed"]
        places = [
            (label, self.run(label, seed))
            for label in tables["compare"]["methods"]
            for seed in range(first, first + tables["compare"]["seeds"])
        ]
        for _, place in places:
            if not RunFolder(place).complete:
                raise CoterieError(f"{self.path} is not complete; continue it with `coterie resume {self.path}`")
        return [(label, Result.read(place)) for label, place in places]


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    own = ("format", "method", "codec")  # the format, and what each method has of its own
    return {section: dict(table) for section, table in config.items() if section not in own}
