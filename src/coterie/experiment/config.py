"""An experiment as a TOML file: typed, complete, re-runnable; an unknown key is an error that names the nearest one.

    format = 1
    [data]       name = "digits"
    [partition]  name = "classes"   clients = 20   classes = 3
    [model]      name = "mlp"       personal = []    members = 1
    [method]     name = "ditto"     lr = 0.1
    [graph]      name = "exponential"
    [codec]      name = "none"      # or codec = "fused" in a line of its own, above the sections or in [method]
    [run]        rounds = 50        seed = 0

Every section and every key may be left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from coterie import registry
from coterie.errors import CoterieError
from coterie.spec import build, nearest, param, spec, to_dict

__all__ = ["FORMAT", "Experiment", "RunSettings"]

FORMAT = 1


@spec
class RunSettings:
    """How long and how a run goes."""

    rounds: int = param(50, "communication rounds", at_least=1)
    seed: int = param(0, "everything random in training is drawn from it", at_least=0)
    evaluate_every: int = param(0, "rounds between two evaluations; 0 evaluates 20 times", at_least=0)
    patience: int = param(0, "evaluations without a better validation score before the run stops; 0: never", at_least=0)
    checkpoint_every: int = param(0, "evaluations between two checkpoints; 0 writes one every 10 seconds", at_least=0)
    precision: Literal["float32", "float64"] = param("float32", "floating type of models and inputs")
    mode: Literal["auto", "exact", "fast"] = param("auto", "exact: client by client, bit-equal to peers; fast: batched")
    chunk: int = param(0, "clients batched at a time in fast mode; 0 takes as many as memory allows", at_least=0)


@spec
class GraphSettings:
    """Settings of the graph section that hold for every topology."""

    weights: Literal["auto", "metropolis", "lazy-metropolis", "laplacian"] = param(
        "auto", "how neighbours are weighted; auto: lazy-metropolis for methods that correct gossip, else metropolis"
    )
    seed: int = param(0, "the seed of a random graph", at_least=0)


@spec
class PartitionSettings:
    """Settings of the partition section that hold for every partition."""

    clients: int | None = param(None, "number of clients", at_least=1)
    seed: int = param(0, "the seed of the partition", at_least=0)


@spec
class ModelSettings:
    """Settings of the model section that hold for every model."""

    personal: tuple[str, ...] = param((), "parts that stay with the client, by the names `coterie show MODEL` prints")
    members: int = param(1, "models of each client, whose predictions are averaged", at_least=1)
    input_affine: bool = param(False, "an affine layer called input before the model, begun as identity")


@dataclasses.dataclass(frozen=True)
class Part:
    """A named thing with its settings: `name` is its registry name, `common` what holds for all of its kind."""

    name: str
    spec: Any
    common: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Return the section of the config file."""
        common = {} if self.common is None else to_dict(self.common)
        return {"name": self.name} | common | to_dict(self.spec)


# section: (registry list, default name, settings for all of its kind)
SECTIONS: dict[str, tuple[str, str, Any]] = {
    "data": ("datasets", "digits", None),
    "partition": ("partitions", "classes", PartitionSettings),
    "model": ("models", "mlp", ModelSettings),
    "method": ("methods", "fedavg", None),
    "graph": ("graphs", "auto", GraphSettings),
    "codec": ("codecs", "none", None),
}

# What a first experiment without a file looks like, until the user says otherwise.
DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"partition": {"name": "classes", "clients": 20, "classes": 3}},
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that determines a run."""

    data: Part
    partition: Part
    model: Part
    method: Part
    graph: Part
    codec: Part
    augment: Any
    run: RunSettings

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "Experiment":
        """Check and complete a parsed config file."""
        known = ["format", *SECTIONS, "augment", "run"]
        tables = _codec_apart(tables)
        for key, table in tables.items():
            if key not in known:
                raise CoterieError(f"unknown section [{key}]{nearest(key, known) or '; known: ' + ', '.join(known)}")
            if key != "format" and not isinstance(table, Mapping):
                raise CoterieError(f"{key} must be a section: write [{key}] and its keys below it")
        if tables.get("format", FORMAT) != FORMAT:
            raise CoterieError(f"format must be {FORMAT}, not {tables['format']!r}: this file is for another version")
        data_name = tables.get("data", {}).get("name", SECTIONS["data"][1])
        usual = DEFAULTS.get(data_name) or _natural_partition(data_name)
        completed = {**usual, **tables}
        for section, table in usual.items():
            if section in tables and tables[section].get("name", table["name"]) == table["name"]:
                completed[section] = {**table, **tables[section]}  # `clients = 10` alone changes nothing else
        parts = {section: _part(section, completed.get(section, {})) for section in SECTIONS}
        from coterie.models.augment import Augment

        return cls(
            **parts,
            augment=build(Augment, tables.get("augment", {}), "augment"),
            run=build(RunSettings, tables.get("run", {}), "run"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the complete config file; reading it back gives an equal experiment."""
        sections = {section: getattr(self, section).to_dict() for section in SECTIONS}
        return {"format": FORMAT, **sections, "augment": to_dict(self.augment), "run": to_dict(self.run)}

    def replace(self, changes: Mapping[str, Mapping[str, Any]]) -> "Experiment":
        """Return the experiment with some keys of some sections changed."""
        tables = self.to_dict()
        for section, values in _codec_apart(changes).items():
            same = "name" not in values or tables.get(section, {}).get("name") == values["name"]
            tables[section] = {**(tables.get(section, {}) if same else {}), **values}
        return Experiment.from_dict(tables)


def _codec_apart(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Make a section of a codec that is only named, at the top or by the method."""
    found = dict(tables)
    method = found.get("method")
    if isinstance(method, Mapping) and "codec" in method:
        found["method"] = {key: value for key, value in method.items() if key != "codec"}
        found["codec"] = method["codec"]
    if isinstance(found.get("codec"), str):
        found["codec"] = {"name": found["codec"]}
    return found


def _natural_partition(data: str) -> dict[str, Any]:
    """Data that say whose sample it is are taken as they are, unless a partition is asked for."""
    target = registry.find("datasets", data).target
    owned = ("synthetic:", "files:Csv", "files:Parquet", ":Shakespeare", "studies:", ":Covtype", ":A9a", "activity:")
    return {"partition": {"name": "natural"}} if any(mark in target for mark in owned) else {}


def _part(section: str, table: Mapping[str, Any]) -> Part:
    kind, default, common_class = SECTIONS[section]
    name = table.get("name", default)
    if not isinstance(name, str):
        raise CoterieError(f"{section}.name must be text, not {name!r}")
    cls = registry.load(kind, name)
    common_fields = {f.name for f in dataclasses.fields(common_class)} if common_class else set()
    own_fields = {f.name for f in dataclasses.fields(cls)}
    common = {key: value for key, value in table.items() if key in common_fields}
    own = {key: value for key, value in table.items() if key not in common_fields and key != "name"}
    for key in own:
        if key not in own_fields:
            everything = sorted(own_fields | common_fields)
            guess = nearest(key, everything) or f"; known: {', '.join(everything)}"
            raise CoterieError(f"unknown key {section}.{key} for {name}{guess}")
    return Part(name, build(cls, own, section), build(common_class, common, section) if common_class else None)
