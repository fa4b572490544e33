"""What a sweep is going to run: the experiment of every candidate and seed, checked before anything is trained.

Runs that differ only in real-valued settings of the method and in the seed of training are of one program
(`Run.program`); they can be trained together.
"""

import dataclasses
import functools
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from coterie.comparison.config import MOST_RUNS, choice_of, with_method
from coterie.comparison.sweeps.axes import SEED, TOGETHER, Axis, combinations, read_axes
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment

__all__ = ["Run", "SweepConfig", "by_key", "words_of"]

# Of the run, but not of what is compiled for a federation: programs have these as arguments, or ask for them by name.
BESIDES = ("rounds", "seed", "evaluate_every", "patience", "keep", "checkpoint_every")
OTHERS = ("compare", "methods", "sweep")  # sections that are not of an experiment


class Run(NamedTuple):
    """One candidate with one seed.

    Attributes:
        candidate: its number, from 1; runs that differ in their seed only have the same.
        settings: what the sweep sets, by SECTION.KEY, without the seed.
        experiment: everything that determines it.
    """

    candidate: int
    settings: dict[str, Any]
    experiment: Experiment

    @property
    def seed(self) -> int:
        """The seed of training."""
        return self.experiment.run.seed

    @property
    def label(self) -> str:
        """Its folder among those of the sweep."""
        return f"candidate-{self.candidate:03d}"

    @property
    def data(self) -> Hashable:
        """What runs on the same clients have in common."""
        return _frozen(self.experiment, ("data", "partition"))

    @property
    def engine(self) -> Hashable:
        """What runs have in common whose programs can be compiled for the same federation on a device."""
        sections = [name for name in self.experiment.to_dict() if name not in ("method", "graph", "codec")]
        return _frozen(self.experiment, sections, BESIDES)

    @property
    def program(self) -> Hashable:
        """What runs of one program have in common: all but real numbers of the method, and the seed.

        Where clients come and go (`[world]`), that is drawn from the seed, which then is the same for all, too.
        """
        import jax

        sections = [name for name in self.experiment.to_dict() if name != "method"]
        method = self.experiment.method
        besides = () if self.experiment.world else ("seed",)
        return _frozen(self.experiment, sections, besides), method.name, jax.tree.structure(method.spec)


def _frozen(experiment: Experiment, sections: Sequence[str], besides: Sequence[str] = ()) -> str:
    tables = {name: table for name, table in experiment.to_dict().items() if name in sections}
    if "run" in tables:
        tables["run"] = {key: value for key, value in tables["run"].items() if key not in besides}
    return json.dumps(tables, sort_keys=True, default=str)


def by_key(runs: Sequence[Run], kind: str) -> list[list[Run]]:
    """Return the runs in groups that are equal in `data`, `engine` or `program`, in the order of their first."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        groups.setdefault(getattr(run, kind), []).append(run)
    return list(groups.values())


def words_of(settings: Mapping[str, Any]) -> str:
    """Write settings in a line: method.lr=0.1 model.hidden=[32]."""
    return " ".join(f"{key.removesuffix('.name')}={_word(value)}" for key, value in settings.items())


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A sweep: an experiment, what varies in it, and settings of methods that the sweep may name.

    Attributes:
        experiment: what all candidates start from.
        axes: what varies.
        methods: the sections `[methods.NAME]`, for candidates with another method than the experiment's.
    """

    experiment: Experiment
    axes: tuple[Axis, ...]
    methods: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "SweepConfig":
        """Check a parsed config file with the section `[sweep]`."""
        if "sweep" not in tables:
            raise CoterieError(
                "there is no section [sweep], which says what varies; write for example [sweep] and below it "
                "method.lr = [0.01, 0.1]"
            )
        rest = {key: value for key, value in tables.items() if key not in OTHERS}
        config = cls(Experiment.from_dict(rest), read_axes(tables["sweep"]), _methods(tables.get("methods", {})))
        _ = config.runs  # every candidate must be possible
        return config

    @classmethod
    def of(cls, experiment: Experiment, sweep: Any) -> "SweepConfig":
        """Describe a sweep from Python."""
        config = cls(experiment, read_axes(sweep))
        _ = config.runs
        return config

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """The settings that vary, but for the seed."""
        return tuple(key for axis in self.axes for key in axis.keys if key != SEED)

    @functools.cached_property
    def runs(self) -> tuple[Run, ...]:
        """Every candidate with every seed, in the order of the file."""
        numbers: dict[str, int] = {}
        runs = []
        for values in combinations(self.axes, MOST_RUNS):
            settings = {key: value for key, value in values.items() if key != SEED}
            number = numbers.setdefault(json.dumps(settings, sort_keys=True, default=str), len(numbers) + 1)
            runs.append(Run(number, settings, self._experiment(values)))
        return tuple(runs)

    def _experiment(self, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment with some settings changed; another method takes over those of local training."""
        changes: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            changes.setdefault(section, {})[name] = value
        experiment, method = self.experiment, changes.get("method", {}).get("name")
        try:
            if isinstance(method, str) and method != experiment.method.name:
                own = {**self.methods.get(method, {}), "name": method}
                experiment = with_method(experiment, choice_of((method, own)))
            if experiment.partition is None and changes.keys() & {"data", "partition"}:
                raise CoterieError(
                    "data and partition cannot vary: these data come from Python and are divided already"
                )
            return experiment.replace(changes)
        except CoterieError as error:
            guess = "" if "did you mean" in str(error) else _elsewhere(experiment, values)
            raise CoterieError(f"sweep: {str(error).removesuffix('; known: ')}{guess}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the sections of the file; reading them back gives the same candidates."""
        sweep: dict[str, Any] = {axis.keys[0]: [s[0] for s in axis.steps] for axis in self.axes if len(axis.keys) == 1}
        bundles = [
            {key: [step[i] for step in axis.steps] for i, key in enumerate(axis.keys)}
            for axis in self.axes
            if len(axis.keys) > 1
        ]
        tables = self.experiment.to_dict() | {"sweep": sweep | ({TOGETHER: bundles} if bundles else {})}
        return tables | {f"methods.{json.dumps(name)}": dict(table) for name, table in self.methods.items()}


def _methods(tables: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise CoterieError("methods must be sections: write [methods.NAME] and the settings of that method below it")
    return {str(name): dict(table) for name, table in tables.items()}


def _elsewhere(experiment: Experiment, values: Mapping[str, Any]) -> str:
    """Return in which other section a setting is, where its own does not have it: alpha is of the partition."""
    tables = {section: table for section, table in experiment.to_dict().items() if isinstance(table, Mapping)}
    for section, _, key in (key.partition(".") for key in values):
        if key not in tables.get(section, {}):
            return next((f"; did you mean {home}.{key}?" for home, table in tables.items() if key in table), "")
    return ""
