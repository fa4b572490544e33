"""A comparison as a TOML file: which methods it runs, and with which settings. No JAX here.

[method]             # for every method that has such a setting
lr = 0.1
[compare]
methods = ["local", "ditto", "ditto-strong"]
seeds = 3            # runs of each method
splits = 5           # draws of train, validation and test samples that the runs take in turn
tune = true          # choose lr (and tie, ...) of every method on validation samples, except what is given here
[methods.ditto]      # for one method
tie = 0.1
[methods.ditto-strong]
name = "ditto"       # the same method once more, under another label
tie = 1.0
codec = "qsgd"       # with its own codec; or { name = "qsgd", bits = 2 }
graph = "ring"       # on its own graph; or { name = "k-regular", k = 4 }
rounds = 500         # for another number of rounds than run.rounds
lr = [0.01, 0.05]    # tune = true chooses among these values
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from coterie import registry
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.spec import build, param, spec, to_dict

__all__ = [
    "COMMON_SETTINGS",
    "DEFAULT_METHODS",
    "DEFAULT_TABLES",
    "MOST_CLIENTS",
    "MOST_RUNS",
    "OWN_SECTIONS",
    "CompareSettings",
    "ComparisonConfig",
    "MethodChoice",
    "apart_from_method",
    "choice_of",
    "label_of",
    "not_default",
    "with_method",
]

DEFAULT_METHODS = ("guess", "local", "fedavg-finetuned", "ditto", "scool-sbm", "network-lasso", "pooled")
MOST_RUNS = 10_000  # of a method: a limit against slips of the keyboard
MOST_CLIENTS = 300  # up to which everyone hears everyone by default: messages and time grow with the square
# Settings of local training: a comparison is fair only if they are equal for all methods.
COMMON_SETTINGS = (
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

# What a method may have for itself besides its own settings; `rounds` are those of the run.
OWN_SECTIONS = ("codec", "graph", "rounds")

# The comparison without a file: real images at sites that belong to hidden groups.
DEFAULT_TABLES: dict[str, Any] = {
    "data": {"name": "digit-scanners"},
    "partition": {"validation": 0.15, "test": 0.4},
    "method": {"epochs": 2},
    "run": {"rounds": 40},
    "compare": {
        "methods": ["guess", "local", "fedavg-finetuned", "ditto", "scool-sbm", "network-lasso", "pooled"],
        "splits": 3,
    },
    "methods": {"network-lasso": {"steps": 0}},  # whole epochs, as the others
}


@spec
class CompareSettings:
    """The `[compare]` section."""

    methods: tuple[str, ...] = param((), "the methods to compare, by name or as FILE.py:CLASS; default: a usual choice")
    seeds: int = param(1, "runs of each method, with seeds that count up from run.seed", at_least=1, at_most=MOST_RUNS)
    splits: int | None = param(
        None,
        "draws of train, validation and test samples that the runs take in turn, with seeds that count up from "
        "partition.seed; default: 5 where clients have few test samples of their own, else 1",
        at_least=1,
        at_most=MOST_RUNS,
    )
    tune: bool | Literal["score"] = param(
        True,
        "choose lr and a method's main own setting on validation samples, except those given; true: by their loss "
        "after short trainings; score: by their score after all rounds",
    )
    command: str = param("", "the command that repeats the comparison (written, not read)")


class MethodChoice(NamedTuple):
    """One line of the leaderboard.

    Attributes:
        label: its name in the table and in the folder.
        name: the method's.
        settings: of the method, with its own codec, graph and rounds.
        given: which of the settings were given.
        candidates: for settings that were given as a list, the values to choose from; `settings` has the first.
    """

    label: str
    name: str
    settings: dict[str, Any]
    given: frozenset[str] = frozenset()
    candidates: dict[str, tuple[float, ...]] = {}  # noqa: RUF012


def choice_of(method: Any) -> MethodChoice:
    """Read a method as it may be given: a name, a pair of label and settings, or a configured method."""
    if isinstance(method, str):
        return MethodChoice(label_of(method), method, {})
    if isinstance(method, tuple):
        label, settings = method
        own = {key: value for key, value in settings.items() if key != "name"}
        name = settings.get("name", label)
        lists = _lists_of_numbers(name, own)
        firsts = {key: values[0] for key, values in lists.items()}
        several = {key: values for key, values in lists.items() if len(values) > 1}
        return MethodChoice(label_of(label), name, own | firsts, frozenset(own), several)
    name = registry.name_of("methods", method) or f"{type(method).__module__}:{type(method).__name__}"
    return MethodChoice(label_of(name), name, to_dict(method), frozenset(not_default(method)))


def _lists_of_numbers(name: str, settings: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return the settings that are lists although the method wants a real number: values to choose from."""
    lists = {key: value for key, value in settings.items() if isinstance(value, list | tuple) and value}
    if not lists:
        return {}
    fields = {field.name: field.default for field in dataclasses.fields(registry.load("methods", name))}
    return {key: tuple(values) for key, values in lists.items() if isinstance(fields.get(key), float)}


def apart_from_method(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of an experiment that a method has for itself: its codec, its graph, its rounds."""
    named = {key: settings[key] for key in ("codec", "graph") if key in settings}
    sections = {key: {"name": value} if isinstance(value, str) else value for key, value in named.items()}
    return sections | ({"run": {"rounds": settings["rounds"]}} if "rounds" in settings else {})


def label_of(name: str) -> str:
    """Return a method's name, or its class if it is given as FILE.py:CLASS; folders get this name, too."""
    label = name.rpartition(":")[2]
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", label):
        raise CoterieError(f"methods: {label!r} cannot be a method's label; use letters, digits, '-', '_' and '.'")
    return label


def with_method(experiment: Experiment, choice: MethodChoice) -> Experiment:
    """Return the experiment with another method, which takes over the common settings of local training."""
    cls = registry.load("methods", choice.name)
    fields = {field.name for field in dataclasses.fields(cls)}
    given = not_default(experiment.method.spec)
    common = {key: given[key] for key in COMMON_SETTINGS if key in given and key in fields}
    own = {key: value for key, value in choice.settings.items() if key not in OWN_SECTIONS}
    sections, method = apart_from_method(choice.settings), {"name": choice.name, **common, **own}
    try:
        for key, values in choice.candidates.items():
            for value in values[1:]:
                experiment.replace({"method": method | {key: value}})  # every one of them must be possible
        return experiment.replace({"method": method, **sections})
    except CoterieError as error:
        raise CoterieError(f"{choice.label}: {error}") from None


def not_default(settings: Any) -> dict[str, Any]:
    """Return the settings that are not at their default."""
    fields = [f for f in dataclasses.fields(settings) if f.init and getattr(settings, f.name) != f.default]
    return {key: value for key, value in to_dict(settings).items() if key in {f.name for f in fields}}


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """A comparison: the experiment that all runs have in common, the methods, seeds and splits, and whether to tune.

    `usual` says that nobody named the methods: what cannot be used with these clients is left out.
    """

    experiment: Experiment
    methods: list[tuple[str, dict[str, Any]]]
    seeds: int
    splits: int | None = None
    tune: bool | Literal["score"] = True
    usual: bool = False

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "ComparisonConfig":
        """Check a parsed config file that may have the sections `[compare]` and `[methods.NAME]`."""
        rest = {key: value for key, value in tables.items() if key not in ("compare", "methods")}
        sections = {key: tables.get(key, {}) for key in ("compare", "methods")}
        for key, table in sections.items():
            if not isinstance(table, Mapping):
                raise CoterieError(f"{key} must be a section: write [{key}] and its keys below it")
        settings = build(CompareSettings, sections["compare"], "compare")
        if "methods" in sections["compare"] and not settings.methods:
            raise CoterieError(f"methods is empty; name at least one, for example {DEFAULT_METHODS[1]}")
        names = settings.methods or DEFAULT_METHODS
        own = {name: _own_table(name, table, names) for name, table in sections["methods"].items()}
        method = rest.get("method", {})
        if isinstance(method, Mapping) and "name" not in method:
            for key in method:
                if key not in COMMON_SETTINGS:
                    raise CoterieError(
                        f"method.{key} is not for every method, as {', '.join(COMMON_SETTINGS)} are; "
                        f"write methods.NAME.{key}"
                    )
        experiment = Experiment.from_dict(rest)
        given = {key: value for key, value in method.items() if key in COMMON_SETTINGS}
        methods = []
        for name in names:
            table = own.get(name, {}) | (own.get(label_of(name), {}) if ":" in name else {})
            fields = {field.name for field in dataclasses.fields(registry.load("methods", table.get("name", name)))}
            common = {key: value for key, value in given.items() if key in fields}
            methods.append((name, {**common, "name": name, **table}))
        return cls(experiment, methods, settings.seeds, settings.splits, settings.tune, not settings.methods)


def _own_table(name: str, table: Any, methods: Sequence[str]) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise CoterieError(f"methods.{name} must be a section: write [methods.{name}] and its keys below it")
    if "name" not in table and name not in methods and name not in map(label_of, methods):
        registry.find("methods", name)  # a table for a method that is not run is fine, one for no method is a mistake
    return dict(table)
