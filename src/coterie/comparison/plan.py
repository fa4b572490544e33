"""What a comparison is going to run: methods with their settings, splits of the data, and what is tuned.

Everything that can be refused without training is refused here, before anything is written.
"""

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from coterie import registry
from coterie.comparison.config import (
    COMMON_SETTINGS,
    DEFAULT_METHODS,
    DEFAULT_TABLES,
    MOST_CLIENTS,
    MOST_RUNS,
    OWN_SECTIONS,
    ComparisonConfig,
    MethodChoice,
    apart_from_method,
    choice_of,
    not_default,
    with_method,
)
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.repeat import IN_PYTHON, repeat_command
from coterie.comparison.splits import draw_splits, number_of_splits, same_programs, with_split
from coterie.comparison.tuning import Tuned, tuned_values
from coterie.data.clients import Federation
from coterie.errors import CoterieError, CoterieWarning, shown
from coterie.experiment.config import SECTIONS, Experiment
from coterie.experiment.folder import REMEDY
from coterie.spec import LARGEST_SEED, build
from coterie.storage.toml import difference

__all__ = ["Asked", "Plan"]

LEARNS_FROM_NUMBERS = "pfedgraph"  # takes the place of SCooL, which needs classes, among the usual methods


class Asked(NamedTuple):
    """What was asked for: the experiment or the federation, its options, methods, and the `[compare]` section.

    `trust_code` says that code may run that the folder of the comparison names.
    """

    subject: Experiment | Federation
    options: Mapping[str, Any]
    choices: list[MethodChoice]
    seeds: int
    splits: int | None
    tune: bool | Literal["score"]
    usual: bool
    trust_code: bool = False

    @classmethod
    def of(cls, subject: Any, methods: Any, seeds: int, splits: int | None, tune: Any, options: dict) -> "Asked":
        """Check what `compare` was called with."""
        usual = methods is None
        if isinstance(subject, ComparisonConfig):
            planned, subject = subject, subject.experiment
            methods, usual = planned.methods, planned.usual
            seeds, splits, tune = planned.seeds, planned.splits, planned.tune
        for name, value in (("seeds", seeds), ("splits", splits)):
            if isinstance(value, bool) or not isinstance(value, int | None) or (value is not None and value < 1):
                raise CoterieError(f"{name} must be an integer of at least 1, not {value!r}")
            if value is not None and value > MOST_RUNS:
                raise CoterieError(f"{name} must be at most {MOST_RUNS:,}, not {shown(value)}")
        if not isinstance(seeds, int):
            raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
        if subject is None:
            subject = ComparisonConfig.from_dict(DEFAULT_TABLES).experiment
        if options and not isinstance(subject, Federation):
            raise CoterieError(
                f"{next(iter(options))} belongs to the experiment: set it there (only a federation takes it)"
            )
        choices = _unique([choice_of(method) for method in (DEFAULT_METHODS if methods is None else methods)])
        for choice in choices:
            if choice.candidates and not tune:
                key = next(iter(choice.candidates))
                raise CoterieError(f"{choice.label}: {key} is a list to choose from, and tune is off; give one value")
        return cls(subject, options, choices, seeds, splits, tune, usual)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A comparison that is ready to start.

    Attributes:
        common: what all methods share, on the first split; its method, codec, graph and rounds hold where a method
            has no others.
        variants: each label's experiment, untuned, on the first split: the methods that the folder has already, then
            the new ones.
        federations: the clients' data, one federation per split.
        values: for each label, what is tuned and the values to try.
        candidates: for each label, those of them that were given.
        seeds, tune: as asked, and not less than what the folder has.
        command: repeats the comparison.
    """

    common: Experiment
    variants: dict[str, Experiment]
    federations: list[Federation]
    values: dict[str, Tuned]
    candidates: dict[str, Tuned]
    seeds: int
    tune: bool | Literal["score"]
    command: str

    @classmethod
    def of(cls, asked: Asked, folder: ComparisonFolder | None) -> "Plan":
        """Load the data, divide them, and settle every method's settings; nothing is written."""
        there = folder.read() if folder is not None and folder.exists() else None
        experiment, federation = _loaded(asked)
        choices = _usual(asked.choices, federation) if asked.usual else asked.choices
        earlier, new = _earlier(there), {choice.label: choice for choice in choices}
        choices = list({**earlier, **new}.values())  # in the order of the folder, with the settings asked for
        splits = asked.splits if asked.splits is not None or there is None else there["compare"]["splits"]
        federations = draw_splits(federation, number_of_splits(federation, splits))
        variants = {c.label: _variant(experiment, asked, c) for c in choices if c.label in new}
        if folder is not None and there is not None:
            with registry.names_from(folder.path / "comparison.toml", asked.trust_code):
                added = {c.label: _variant(experiment, asked, c) for c in choices if c.label not in new}
            variants = {c.label: (variants | added)[c.label] for c in choices}
        values: dict[str, Tuned] = {label: {} for label in variants}
        if asked.tune and _can_tune(federations):
            variants = {label: _keeping_best(each) for label, each in variants.items()}
            values = _values(variants, choices, asked)
            experiment = _keeping_best(experiment)
        seeds = asked.seeds if there is None else max(asked.seeds, there["compare"]["seeds"])
        command = IN_PYTHON
        if not isinstance(asked.subject, Federation):
            command = repeat_command(experiment, choices, seeds, len(federations), asked.tune)
        candidates = {choice.label: dict(choice.candidates) for choice in choices}
        plan = cls(experiment, variants, federations, values, candidates, seeds, asked.tune, command)
        if plan.first_seed + max(plan.runs) > LARGEST_SEED:
            raise CoterieError(f"run.seed + seeds must stay below {LARGEST_SEED:,}: choose a smaller run.seed")
        if folder is not None:
            plan._check_folder(folder)
        return plan

    @property
    def splits(self) -> int:
        """How often the clients' samples are divided."""
        return len(self.federations)

    @property
    def runs(self) -> range:
        """The runs of every method: run r has seed `run.seed + r` and split r modulo the number of splits."""
        return range(max(self.seeds, self.splits))

    @property
    def first_seed(self) -> int:
        """The seed of run 0."""
        return next(iter(self.variants.values())).run.seed

    def about(self) -> dict[str, Any]:
        """Return the `[compare]` section, without the methods."""
        return {"seeds": self.seeds, "splits": self.splits, "tune": self.tune, "command": self.command}

    def table(self, label: str) -> dict[str, Any]:
        """Return the settings of a method without those that are tuned, and its own codec, graph and rounds."""
        config, common = self.variants[label].to_dict(), self.common.to_dict()
        codec, rounds = config["codec"], config["run"]["rounds"]
        own = {key: value for key, value in config["method"].items() if key not in self.values[label]}
        own |= {name: list(values) for name, values in self.candidates[label].items()}
        own |= {} if codec["name"] == SECTIONS["codec"].default else {"codec": codec}
        own |= {} if config["graph"] == common["graph"] else {"graph": config["graph"]}
        return own | ({} if rounds == common["run"]["rounds"] else {"rounds": rounds})

    def experiment(self, label: str, split: int) -> Experiment:
        """Return a method's experiment on a split."""
        return with_split(self.variants[label], self.federations[split], split)

    @functools.cached_property
    def tasks(self) -> list[Any]:
        """What each client learns, for every split; the same object where the same programs will do."""
        from coterie.experiment.job import make_task

        any_of_them = next(iter(self.variants.values()))
        tasks = [make_task(any_of_them, self.federations[0])]
        for other in self.federations[1:]:
            same = same_programs(self.federations[0], other)
            tasks.append(tasks[0] if same else make_task(any_of_them, other))
        return tasks

    def write(self, folder: ComparisonFolder) -> None:
        """Write down what is compared."""
        folder.write(self.common.to_dict(), {label: self.table(label) for label in self.variants}, self.about())

    def _check_folder(self, folder: ComparisonFolder) -> None:
        """Refuse a folder with something else in it, and methods under a label that has other settings there."""
        folder.check(self.common.to_dict(), {"splits": self.splits, "tune": self.tune})
        there = folder.read().get("methods", {}) if folder.exists() else {}
        for label in there.keys() & self.variants.keys():
            if folder.failure(label) is not None:
                continue  # it has no result: it may be tried with other settings
            changed = difference({"method": there[label]}, {"method": self.table(label)})
            if changed:
                raise CoterieError(f"{folder.path / label} holds another experiment: {changed}; {REMEDY}")


def _loaded(asked: Asked) -> tuple[Experiment, Federation]:
    """Return the experiment, whose method is one of those asked for, and its data."""
    if isinstance(asked.subject, Federation):
        method = _built(asked.choices[0])
        return Experiment.from_objects(asked.subject, method=method, **asked.options), asked.subject
    for choice in asked.choices:
        with_method(asked.subject, choice)  # a misspelt name is refused before data are loaded
    return asked.subject.load()


def _earlier(there: Mapping[str, Any] | None) -> dict[str, MethodChoice]:
    """Return the methods that a folder has already, by label."""
    if there is None:
        return {}
    tables = there.get("methods", {})
    return {label: choice_of((label, tables[label])) for label in there["compare"]["methods"]}


def _variant(experiment: Experiment, asked: Asked, choice: MethodChoice) -> Experiment:
    """Return the experiment of one method."""
    if not isinstance(asked.subject, Federation):
        common = dataclasses.replace(experiment, method=asked.subject.method)
        return with_method(common, choice)
    from coterie.experiment.parts import codec_part, method_part

    own = apart_from_method(choice.settings)
    codec = codec_part(own.pop("codec", asked.options.get("codec", "none")))
    with_own = experiment.replace(own)
    return dataclasses.replace(with_own, method=method_part(_built(choice)), codec=codec)


def _built(choice: MethodChoice) -> Any:
    own = {key: value for key, value in choice.settings.items() if key not in OWN_SECTIONS}
    return build(registry.load("methods", choice.name), own, choice.label)


def _values(variants: Mapping[str, Experiment], choices: Sequence[MethodChoice], asked: Asked) -> dict[str, Tuned]:
    """Return what is tuned for every label."""
    given: frozenset[str] = frozenset()
    if not isinstance(asked.subject, Federation):
        given = frozenset(not_default(asked.subject.method.spec)) & frozenset(COMMON_SETTINGS)
    return {c.label: tuned_values(variants[c.label].method.spec, c, given) for c in choices}


def _keeping_best(experiment: Experiment) -> Experiment:
    """Return the experiment with early stopping: the models of the best evaluation are kept, as in the tuning."""
    if experiment.run.keep is not None or experiment.run.patience:
        return experiment
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, keep="best"))


def _can_tune(federations: Sequence[Federation]) -> bool:
    """Whether there are validation samples to tune on; warn if not."""
    enough = all((federation.validation.count > 0).any() for federation in federations)
    if not enough:
        warnings.warn(
            "nothing is tuned, since no client has validation samples; raise partition.validation",
            CoterieWarning,
            stacklevel=2,
        )
    return enough


def _usual(choices: list[MethodChoice], federation: Federation) -> list[MethodChoice]:
    """Return the usual methods that suit these clients; a warning says what is left out."""
    if federation.kind == "regression":
        swapped = [c.name.startswith("scool-") for c in choices]
        choices = [choice_of(LEARNS_FROM_NUMBERS) if swap else c for c, swap in zip(choices, swapped, strict=True)]
    if len(federation) <= MOST_CLIENTS:
        return choices
    wide = [c for c in choices if registry.load("methods", c.name).default_graph == "complete"]
    wide = [c for c in wide if registry.load("methods", c.name).topology == "graph"]
    for choice in wide:
        warnings.warn(
            f"{choice.label} is left out: with {len(federation):,} clients, of whom everyone would hear everyone, it "
            "would take very long; name it in --methods to run it all the same",
            CoterieWarning,
            stacklevel=2,
        )
    return [choice for choice in choices if choice not in wide]


def _unique(choices: list[MethodChoice]) -> list[MethodChoice]:
    labels = [choice.label for choice in choices]
    if not choices:
        raise CoterieError(f"methods is empty; name at least one, for example {DEFAULT_METHODS[1]}")
    for label in labels:
        if labels.count(label) > 1:
            raise CoterieError(
                f"methods names {label} twice; give one of them a label: [methods.LABEL] with a name in it"
            )
    return choices
