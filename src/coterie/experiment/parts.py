"""The parts of an experiment, each a thing with its settings: read from a section of a file, or made of an object."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from coterie import registry
from coterie.errors import CoterieError, shown
from coterie.graphs.graph import Graph
from coterie.spec import LARGEST_SEED, build, nearest, param, spec, to_dict

__all__ = [
    "SECTIONS",
    "GraphSettings",
    "ModelSettings",
    "Part",
    "PartitionSettings",
    "codec_part",
    "graph_part",
    "method_part",
    "model_part",
]

SECTIONS = {kind.section: kind for kind in registry.KINDS.values()}


@spec
class GraphSettings:
    """Settings of the graph section that hold for every topology."""

    weights: Literal["auto", "metropolis", "lazy-metropolis", "laplacian"] = param(
        "auto", "how neighbours are weighted; auto: lazy-metropolis for methods that correct gossip, else metropolis"
    )
    seed: int = param(0, "the seed of a random graph", at_least=0, at_most=LARGEST_SEED)


@spec
class PartitionSettings:
    """Settings of the partition section that hold for every partition."""

    clients: int | None = param(None, "number of clients", at_least=1, at_most=10_000_000)
    seed: int = param(0, "the seed of the partition", at_least=0, at_most=LARGEST_SEED)


@spec
class ModelSettings:
    """Settings of the model section that hold for every model."""

    personal: tuple[str, ...] = param((), "parts that stay with the client, by the names `coterie show MODEL` prints")
    members: int = param(1, "models of each client, whose predictions are averaged", at_least=1, at_most=1000)
    input_affine: bool = param(False, "an affine layer called input before the model, the identity at first")
    init: str | None = param(
        None, "safetensors file with the weights to start from: ours, or a PyTorch state dict; none: random ones"
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """A named thing with its settings.

    Attributes:
        name: its name in the registry; of a class of your own, the class's name.
        spec: the configured thing; from Python also a graph, a module or a function of a key.
        common: the settings that everything of its kind has.
        about: what the file says of something without settings that we know; None: the settings of `spec`.
    """

    name: str
    spec: Any
    common: Any = None
    about: dict[str, Any] | None = None

    @classmethod
    def from_table(cls, section: str, table: Mapping[str, Any]) -> "Part":
        """Check a section of the config file and complete it."""
        kind = SECTIONS[section]
        name = table.get("name", kind.default)
        chosen = registry.load(kind.name, name)
        common = registry.imported(kind.common, section) if kind.common else None
        shared = {field.name for field in dataclasses.fields(common)} if common else set()
        known = shared | {field.name for field in dataclasses.fields(chosen)}
        own = {key: value for key, value in table.items() if key not in shared and key != "name"}
        for key in own:
            if key not in known:
                guess = nearest(key, sorted(known)) or f"; known: {', '.join(sorted(known))}"
                raise CoterieError(f"unknown key {section}.{key} for {name}{guess}")
        given = {key: value for key, value in table.items() if key in shared}
        return cls(name, build(chosen, own, section), build(common, given, section) if common else None)

    @classmethod
    def from_object(cls, section: str, value: Any, common: Any = None) -> "Part":
        """Describe an object from Python; a name stands for the thing with its default settings."""
        if isinstance(value, str):
            part = cls.from_table(section, {"name": value})
            return part if common is None else dataclasses.replace(part, common=common)
        own_name: str = getattr(value, "__name__", type(value).__name__)
        name = registry.name_of(SECTIONS[section].name, value) or own_name
        return cls(name, value, common, None if _has_settings(value) else {})

    def to_dict(self) -> dict[str, Any]:
        """Return the section of the config file."""
        common = {} if self.common is None else to_dict(self.common)
        return {"name": self.name} | common | (to_dict(self.spec) if self.about is None else self.about)

    def replace(self, section: str, values: Mapping[str, Any]) -> "Part":
        """Return the part with some keys changed; another name starts from the defaults."""
        same = values.get("name", self.name) == self.name
        if same and self.about is None and values.keys() <= {"name", *(f.name for f in dataclasses.fields(self.spec))}:
            own = {key: value for key, value in values.items() if key != "name"}  # it need not be looked up again
            return dataclasses.replace(self, spec=build(type(self.spec), {**to_dict(self.spec), **own}, section))
        return Part.from_table(section, {**(self.to_dict() if same else {}), **values})


def _has_settings(value: Any) -> bool:
    import equinox as eqx

    return dataclasses.is_dataclass(value) and not isinstance(value, type | eqx.Module)


TORCH = "torch.nn.modules.module.Module"  # named, not imported


def _bases(model: Any) -> tuple[type, ...]:
    return model.__mro__ if isinstance(model, type) else ()


def model_part(model: Any, common: ModelSettings) -> Part:
    """Describe a model: a name, a configured model, a module or a function of a key."""
    import equinox as eqx

    if any(f"{base.__module__}.{base.__name__}" == TORCH for base in (*type(model).__mro__, *_bases(model))):
        raise CoterieError(
            "model is a PyTorch module, and coterie trains Equinox modules (JAX): give "
            "coterie.models.from_torch(model) for a Sequential; else write its layers with equinox.nn, whose names and "
            "layouts are PyTorch's, and start from its weights with init = a safetensors file of its state dict "
            "(docs/extend/model.md)"
        )
    is_class = isinstance(model, type) and hasattr(model, "build")
    if is_class or not (isinstance(model, str | tuple | eqx.Module) or callable(model) or hasattr(model, "build")):
        raise CoterieError(f"model must be a name, a configured model, a module or a function of a key, not {model!r}")
    return Part.from_object("model", model, common)


def method_part(method: Any) -> Part:
    """Describe a method: a name or a configured one."""
    from coterie.methods.base import Method, require_method

    if isinstance(method, type) and issubclass(method, Method):
        raise CoterieError(f"method must be configured: write {method.__name__}(), with its settings in the brackets")
    if not isinstance(method, str | Method):
        raise CoterieError(f"method must be a name or a configured method such as Ditto(lr=0.1), not {shown(method)}")
    part = Part.from_object("method", method)
    require_method(type(part.spec))
    return part


def graph_part(graph: Any) -> Part:
    """Describe a graph: a name, a topology, a `Graph` or one of NetworkX."""
    if hasattr(graph, "adjacency"):
        graph = Graph.from_networkx(graph)
    if isinstance(graph, Graph):
        tables = (graph.neighbours, graph.present, graph.probability, graph.schedule, graph.strength)
        digest = hashlib.sha256(b"".join(table.tobytes() for table in tables if table is not None)).hexdigest()
        return Part("given", graph, None, {"edges": graph.edges(), "digest": digest[:16]})
    if not isinstance(graph, str) and not hasattr(graph, "build"):
        raise CoterieError(f"graph must be a name, a topology, a Graph or a NetworkX graph, not {graph!r}")
    return Part.from_object("graph", graph, GraphSettings())


def codec_part(codec: Any) -> Part:
    """Describe a codec: a name, a table or a configured one."""
    if isinstance(codec, Mapping):
        return Part.from_table("codec", codec)
    if not isinstance(codec, str) and (not hasattr(codec, "reduce") or isinstance(codec, type)):
        raise CoterieError(f"codec must be a name or a configured codec such as QSGD(bits=4), not {codec!r}")
    return Part.from_object("codec", codec)
