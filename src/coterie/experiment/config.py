"""An experiment: everything that determines a run, from a TOML file or from Python objects.

    format = 1
    [data]       name = "digits"
    [partition]  name = "classes"   clients = 20   classes = 3
    [model]      name = "mlp"       personal = []    members = 1
    [method]     name = "ditto"     lr = 0.1
    [graph]      name = "exponential"
    [codec]      name = "none"      # or codec = "fused" in a line of its own, above the sections or in [method]
    [run]        rounds = 50        seed = 0
    [world]      participation = 0.5        # who takes part in a round of a simulation: see `peers/world.py`
    [faults]     drop = [{ rate = 0.2 }]    # what goes wrong on the network: see `peers/faults.py`

Every section and every key may be left out; an unknown key is an error that names the nearest one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from coterie import registry
from coterie.data.clients import Federation
from coterie.data.mapped import Mapped
from coterie.data.partition import DataDefault, divide
from coterie.errors import CoterieError
from coterie.experiment.fingerprint import fingerprint
from coterie.experiment.parts import SECTIONS, ModelSettings, Part, codec_part, graph_part, method_part, model_part
from coterie.peers import ALL_TO_ALL
from coterie.peers.faults import Faults
from coterie.peers.world import World
from coterie.spec import LARGEST_SEED, build, nearest, param, spec, to_dict
from coterie.storage.memory import in_bytes

__all__ = ["FORMAT", "SECTIONS", "Experiment", "RunSettings", "default_tables"]

FORMAT = 1

# What a first experiment without a file looks like, until the user says otherwise.
DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"partition": {"name": "classes", "clients": 20, "classes": 3}},
}


@spec
class RunSettings:
    """How long and how a run goes."""

    rounds: int = param(50, "communication rounds", at_least=1)
    seed: int = param(0, "everything random in training is drawn from it", at_least=0, at_most=LARGEST_SEED)
    evaluate_every: int = param(0, "rounds between two evaluations; 0 evaluates 20 times", at_least=0)
    patience: int = param(0, "evaluations without a better validation score before the run stops; 0: never", at_least=0)
    keep: Literal["best", "last"] | None = param(
        None,
        "best: the models of the evaluation with the lowest validation loss; last: the last evaluation's; default: "
        "last, but best in a comparison that tunes",
    )
    checkpoint_every: int = param(0, "evaluations between two checkpoints; 0 writes one every 10 seconds", at_least=0)
    metric: str | None = param(None, "the score, a name of learning/score.py; default: that of the kind of task")
    precision: Literal["float32", "float64", "bfloat16"] = param(
        "float32", "floating type of models and inputs; bfloat16: that of local training only, on weights of float32"
    )
    mode: Literal["auto", "exact", "fast"] = param("auto", "exact: client by client, bit-equal to peers; fast: batched")
    chunk: int = param(0, "clients batched at a time in fast mode; 0 takes as many as memory allows", at_least=0)
    memory: str | None = param(
        None,
        'most memory for data and batches on the device, such as "2 GB"; data beyond it are read from disk in groups',
        left_out=True,
    )
    hub: Literal["none"] | None = param(
        None, "none: what a hub would compute, every client computes for itself, from messages of the others"
    )
    all_to_all: int = param(
        ALL_TO_ALL,
        "clients up to which hub none sends from all to all; with more, means go from partner to partner",
        at_least=1,
        left_out=True,
    )
    # Of the run and not of the graph, since it holds at a hub, too.
    robust: Literal["clip"] | None = param(
        None, "clip: what others send counts only so far as it is near one's own, or at a hub near the middle"
    )

    def __post_init__(self) -> None:
        if self.memory is not None:
            in_bytes(self.memory, "memory")  # refused here, before a folder is made


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that determines a run. Data from Python have no partition: they are divided already."""

    data: Part
    partition: Part | None
    model: Part
    method: Part
    graph: Part
    codec: Part
    augment: Any
    run: RunSettings
    faults: Faults = Faults.NONE
    world: World = World()  # noqa: RUF009

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "Experiment":
        """Check and complete a parsed config file."""
        tables = _checked(tables)
        for section, usual in default_tables(tables.get("data", {}).get("name")).items():
            table = tables.get(section, {})
            if table.get("name", usual["name"]) == usual["name"]:
                tables[section] = {**usual, **table}  # `clients = 10` alone changes nothing else
        parts = {name: Part.from_table(name, tables.get(name, {})) for name in _fields() if name in SECTIONS}
        return cls(
            **parts,
            augment=_augment(tables.get("augment", {})),
            run=build(RunSettings, tables.get("run", {}), "run"),
            faults=Faults.from_dict(tables.get("faults", {})),
            world=build(World, tables.get("world", {}), "world"),
        )

    @classmethod
    def from_objects(
        cls,
        federation: Federation,
        model: Any = "mlp",
        method: Any = "fedavg",
        *,
        graph: Any = "auto",
        codec: Any = "none",
        personal: tuple[str, ...] = (),
        members: int = 1,
        input_affine: bool = False,
        init: Any = None,
        augment: Any = None,
        faults: Faults | Mapping[str, Any] | str | Path | None = None,
        world: World | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "Experiment":
        """Describe a run of Python objects; the arguments are those of `coterie.run`."""
        if not isinstance(federation, Federation):
            what = type(federation).__name__
            raise CoterieError(f"federation must come from coterie.load or coterie.federation, not {what}")
        common = {"personal": personal, "members": members, "input_affine": input_affine}
        common |= {} if init is None else {"init": str(init)}
        return cls(
            data=Part("in-memory", None, about={"digest": fingerprint(federation)}),
            partition=None,
            model=model_part(model, build(ModelSettings, common, "model")),
            method=method_part(method),
            graph=graph_part(graph),
            codec=codec_part(codec),
            augment=augment or _augment({}),
            run=build(RunSettings, _for_run(settings, method), "run"),
            faults=Faults.given(faults),
            world=world if isinstance(world, World) else build(World, world or {}, "world"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the complete config file; reading it back gives an equal experiment."""
        parts = {name: getattr(self, name) for name in _fields()}
        faults, world = parts.pop("faults"), parts.pop("world")
        tables = {k: v.to_dict() if isinstance(v, Part) else to_dict(v) for k, v in parts.items() if v is not None}
        if world:  # in a world where everybody always takes part, the file is as it was before there were worlds
            tables["world"] = to_dict(world)
        return {"format": FORMAT, **tables, **({"faults": faults.to_dict()} if faults else {})}

    def replace(self, changes: Mapping[str, Mapping[str, Any]]) -> "Experiment":
        """Return the experiment with some keys of some sections changed; only these sections are read anew."""
        parts: dict[str, Any] = {}
        for section, values in _checked(changes).items():
            part = getattr(self, section)
            if section in SECTIONS:
                parts[section] = part.replace(section, values)
            elif section == "faults":
                parts[section] = Faults.from_dict({**part.to_dict(), **values})
            else:
                parts[section] = build(type(part), {**to_dict(part), **values}, section)
        return dataclasses.replace(self, **parts)

    def load(self, here: Callable[[int], slice] | None = None) -> tuple["Experiment", Federation]:
        """Load the data and divide them; in the experiment returned, the data have decided what partition "auto" is.

        `here` says of how many clients which are read in this process, where several share a run and files allow it.
        """
        spec, part = self.data.spec, self.partition
        assert part is not None  # data from Python have none, and cannot be loaded
        samples = spec.load(here) if isinstance(spec, Mapped) else spec.load()
        if isinstance(samples, Federation):  # its clients are divided already
            if not isinstance(part.spec, DataDefault) or part.common.clients is not None:
                raise CoterieError("the clients of these data are divided already: leave out the section [partition]")
            return self, samples
        if isinstance(part.spec, DataDefault):
            part = Part.from_object("partition", part.spec.chosen(samples), part.common)
        return dataclasses.replace(self, partition=part), divide(
            part.spec, samples, part.common.clients, part.common.seed
        )


def default_tables(data: str | None) -> dict[str, dict[str, Any]]:
    """Return what is chosen for a data set by default, besides the defaults of every setting."""
    name = SECTIONS["data"].default if data is None else data
    return DEFAULTS.get(name, {}) if isinstance(name, str) else {}  # what is no text is refused with its section


def _fields() -> list[str]:
    return [field.name for field in dataclasses.fields(Experiment)]


def _for_run(settings: Mapping[str, Any], method: Any) -> Mapping[str, Any]:
    """Return the settings of a run; say where a setting of the method belongs."""
    spec = SECTIONS["method"]
    chosen = registry.load(spec.name, method) if isinstance(method, str) else type(method)
    own = {field.name for field in dataclasses.fields(chosen)} if dataclasses.is_dataclass(chosen) else set()
    for key in settings:
        if key in World.__dataclass_fields__:
            raise CoterieError(f"{key} is a setting of the world: write world={{{key!r}: ...}}")
        if key in own and key not in RunSettings.__dataclass_fields__:
            raise CoterieError(
                f"{key} is a setting of the method, not of the run: write method={chosen.__name__}({key}=...) with "
                f"coterie.methods.{chosen.__name__}"
            )
    return settings


def _augment(table: Mapping[str, Any]) -> Any:
    from coterie.models.augment import Augment

    return build(Augment, table, "augment")


def _checked(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse unknown sections and formats; make a section of a codec that is only named, maybe by the method."""
    checked = dict(tables)
    method = checked.get("method")
    if isinstance(method, Mapping) and "codec" in method:
        checked["method"] = {key: value for key, value in method.items() if key != "codec"}
        checked["codec"] = method["codec"]
    if isinstance(checked.get("codec"), str):
        checked["codec"] = {"name": checked["codec"]}
    known = ["format", *_fields()]
    for key, table in checked.items():
        if key not in known:
            raise CoterieError(f"unknown section [{key}]{nearest(key, known) or '; known: ' + ', '.join(known)}")
        if key != "format" and not isinstance(table, Mapping):
            raise CoterieError(f"{key} must be a section: write [{key}] and its keys below it")
    version = checked.pop("format", FORMAT)
    if version != FORMAT:
        raise CoterieError(f"format must be {FORMAT}, not {version!r}: this file is for another version")
    return checked
