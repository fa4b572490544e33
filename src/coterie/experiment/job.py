"""A job is a run that is ready to start: data, task, method and graph as objects, and the config that says the same."""

import contextlib
import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from coterie import registry
from coterie.data.clients import Federation
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import FORMAT, SECTIONS, Experiment, ModelSettings, Part, RunSettings, _part
from coterie.experiment.folder import fingerprint
from coterie.graphs.graph import Graph, require_connected
from coterie.graphs.measured import MeasuredGraph
from coterie.graphs.mixing import laplacian, lazy_metropolis, metropolis, stabilised
from coterie.graphs.topologies import MethodDefault
from coterie.learning.task import Task
from coterie.methods.base import Method, Solved
from coterie.models.affine import affine_input
from coterie.models.augment import Augment
from coterie.spec import build, to_dict

__all__ = ["Job", "load_federation", "make_graph", "make_task", "measure_graph", "precision"]

MIXING: dict[str, Callable[[Graph], tuple[np.ndarray, np.ndarray]]] = {
    "metropolis": metropolis,
    "lazy-metropolis": lazy_metropolis,
    "laplacian": laplacian,
}


@dataclasses.dataclass
class Job:
    """One run, ready to execute: objects, and the config that describes them."""

    federation: Federation
    task: Task
    method: Method
    graph: Graph
    weights: np.ndarray
    settings: RunSettings
    config: dict[str, Any]
    measured: MeasuredGraph | None = None  # where the graph was made from the clients' data
    codec: Any = None  # how messages are squeezed, if they are

    @classmethod
    def of(cls, experiment: Experiment, federation: Federation | None = None, task: Task | None = None) -> "Job":
        """Make a job of an experiment: load its data (unless given), build its model and its graph."""
        federation = federation or load_federation(experiment)
        task = task or make_task(experiment, federation)
        experiment.method.spec.check(task, federation)
        method = experiment.method.spec
        measured = measure_graph(method, experiment.graph, federation, task)
        graph, weights = make_graph(method, experiment.graph, len(federation), measured)
        codec = _codec(experiment.codec.spec, method, experiment.codec.name)
        return cls(federation, task, method, graph, weights, experiment.run, experiment.to_dict(), measured, codec)

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
        augment: Augment | None = None,
        **settings: Any,
    ) -> "Job":
        """Make a job of what was passed from Python (the arguments are those of `coterie.run`)."""
        _refuse_misfits(federation, model, method)
        chosen = build(RunSettings, settings, "run")
        augment = augment or Augment()
        model_spec, method_spec = (
            _part(section, {"name": value}).spec if isinstance(value, str) else value
            for section, value in (("model", model), ("method", method))
        )
        part, coded = _graph_part(graph), _codec_part(codec)
        common = build(
            ModelSettings, {"personal": list(personal), "members": members, "input_affine": input_affine}, "model"
        )
        task = _task(federation, model_spec, common, augment, chosen)
        method_spec.check(task, federation)
        measured = measure_graph(method_spec, part, federation, task)
        table, weights = make_graph(method_spec, part, len(federation), measured)
        config = {
            "format": FORMAT,
            "data": {"name": "in-memory", "digest": fingerprint(federation)},
            "model": {"name": _name_of("model", model), **to_dict(common), **_settings_of(model_spec)},
            "method": {"name": _name_of("method", method), **_settings_of(method_spec)},
            "graph": _about_graph(part) if isinstance(part, Graph) else part.to_dict(),
            "codec": coded.to_dict(),
            "augment": to_dict(augment),
            "run": to_dict(chosen),
        }
        squeezed = _codec(coded.spec, method_spec, coded.name)
        return cls(federation, task, method_spec, table, weights, chosen, config, measured, squeezed)

    def on(self, measured: MeasuredGraph) -> "Job":
        """Return the job on a graph that was measured before, with weights by the same rule."""
        if self.measured is not None and np.array_equal(measured.edges, self.measured.edges):
            return dataclasses.replace(self, measured=measured)
        weights = _weights(self.method, self.config["graph"]["weights"], measured.graph)
        return dataclasses.replace(self, measured=measured, graph=measured.graph, weights=weights)


def load_federation(experiment: Experiment) -> Federation:
    """Load the data of an experiment and share them out."""
    common = experiment.partition.common
    return experiment.partition.spec(experiment.data.spec.load(), common.clients, common.seed)


def make_task(experiment: Experiment, federation: Federation) -> Task:
    """Build the task of an experiment."""
    part = experiment.model
    return _task(federation, part.spec, part.common, experiment.augment, experiment.run)


def _task(federation: Federation, model: Any, common: Any, augment: Augment, settings: RunSettings) -> Task:
    with precision(settings.precision):
        return Task.of(
            federation,
            _transformed(federation, model) if common.input_affine else model,
            personal=common.personal,
            members=common.members,
            augment=augment if augment.crop or augment.flip else None,
            dtype=np.dtype(settings.precision),
        )


def _transformed(federation: Federation, model: Any) -> Callable[[jax.Array], Any]:
    """Put an affine layer before a model spec, a module or a function of a key."""
    if federation.kind == "next-character":
        raise CoterieError("model.input_affine needs inputs that are numbers, not characters; leave it out")
    shape, outputs = federation.sample_shape, federation.classes
    if hasattr(model, "build"):
        return affine_input(lambda key: model.build(shape, outputs, key), shape)
    is_instance = isinstance(model, tuple | eqx.Module)
    return affine_input((lambda key: model) if is_instance else model, shape)


def measure_graph(method: Method, part: Any, federation: Federation, task: Task) -> MeasuredGraph | None:
    """Make the graph a method needs where it is made from the clients' data (`build_from`); None for any other."""
    if method.topology != "graph" or isinstance(part, Graph):
        return None
    suited = _suited(method, part)
    if not hasattr(suited, "build_from"):
        return None
    with precision(np.dtype(task.dtype).name):
        return suited.build_from(federation, part.common.seed, task=method.adapt(task))


def _suited(method: Method, part: Any) -> Any:
    """Return the spec of a graph; "auto" is what suits the method."""
    if not isinstance(part.spec, MethodDefault):
        return part.spec
    return registry.load("graphs", method.default_graph)()


def make_graph(
    method: Method, part: Any, clients: int, measured: MeasuredGraph | None = None
) -> tuple[Graph, np.ndarray]:
    """Build the graph a method needs, and its mixing weights; methods without neighbours get an empty one."""
    if method.topology != "graph":
        return Graph.empty(clients), np.zeros((clients, 0))
    if measured is not None:
        graph = measured.graph
    else:
        graph = part if isinstance(part, Graph) else _suited(method, part).build(clients, part.common.seed)
    if graph.clients != clients:
        raise CoterieError(f"the graph has {graph.clients} nodes but the federation {clients} clients")
    return graph, _weights(method, "auto" if isinstance(part, Graph) else part.common.weights, graph)


def _weights(method: Method, rule: str, graph: Graph) -> np.ndarray:
    """Return the mixing weights of a graph; refuse one that a method cannot run on."""
    name = _name_of("method", method)
    require_connected(graph, name)
    if method.mutual and not graph.symmetric:
        raise CoterieError(
            f"graph: {name} with these settings needs links in both directions between the same "
            "clients; choose such a graph, for example exponential"
        )
    if method.random_links:  # what is pushed is weighed by its sender: any direction will do
        return np.zeros(graph.present.shape)
    if not graph.certain:
        raise CoterieError(
            f"graph: {name} needs links that are there in every step; choose another graph, such as "
            "exponential, or a method that pushes, such as sgp"
        )
    return _stable(method, rule, graph)


def _stable(method: Method, rule: str, graph: Graph) -> np.ndarray:
    """Return the weights of a rule, made lazy (with a warning) where the method would diverge with them."""
    weights = MIXING[method.default_weights if rule == "auto" else rule](graph)
    wanted = method.stability
    if wanted is None:
        return weights[0]
    stable, smallest = stabilised(weights[0], weights[1], graph, wanted)
    if stable[0] is not weights[0]:
        name = _name_of("method", method)
        warnings.warn(
            f"graph.weights {rule} have the eigenvalue {smallest:.3g} on this graph, and {name} "
            "diverges unless all are above -1/3: (I + W) / 2 is used instead; lazy-metropolis or laplacian weights "
            "need no such repair",
            CoterieWarning,
            stacklevel=2,
        )
    return stable[0]


def precision(name: str) -> contextlib.AbstractContextManager:
    """Return the scope in which arrays keep the asked precision."""
    return jax.enable_x64(True) if name == "float64" else contextlib.nullcontext()


def _refuse_misfits(federation: Any, model: Any, method: Any) -> None:
    if not isinstance(federation, Federation):
        raise CoterieError(
            f"federation must come from coterie.load or coterie.federation, not {type(federation).__name__}"
        )
    fits = callable(model) or hasattr(model, "build") or isinstance(model, tuple | eqx.Module)
    if not isinstance(model, str) and (not fits or (isinstance(model, type) and hasattr(model, "build"))):
        raise CoterieError(f"model must be a name, a configured model, a module or a function of a key, not {model!r}")
    if not isinstance(method, str) and not isinstance(method, Method):
        raise CoterieError(f"method must be a name or a configured method such as Ditto(lr=0.1), not {method!r}")


def _graph_part(graph: Any) -> Any:
    """Return a `Graph` as it is, one of NetworkX as a `Graph`, and a name or a spec as a section of the config."""
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str):
        return _part("graph", {"name": graph})
    if hasattr(graph, "adjacency"):
        return Graph.from_networkx(graph)
    if hasattr(graph, "build"):
        return dataclasses.replace(_part("graph", {}), name=_name_of("graph", graph), spec=graph)
    raise CoterieError(f"graph must be a name, a topology, a Graph or a NetworkX graph, not {graph!r}")


def _codec_part(codec: Any) -> Part:
    """Return the section of the config that a codec stands for: a name, a table or a configured codec."""
    if isinstance(codec, str | Mapping):
        return _part("codec", {"name": codec} if isinstance(codec, str) else codec)
    if not hasattr(codec, "squeeze") or isinstance(codec, type):
        raise CoterieError(f"codec must be a name or a configured codec such as QSGD(bits=4), not {codec!r}")
    return Part(_name_of("codec", codec), codec)


def _codec(codec: Any, method: Method, name: str) -> Any:
    """Return the codec of a run; None where messages are sent as they are."""
    if name == SECTIONS["codec"][1] or method.topology == "none":
        return None
    if isinstance(method, Solved):
        solved = _name_of("method", method)
        warnings.warn(
            f"codec {name} changes nothing for {solved}: what it sends is small and must be exact",
            CoterieWarning,
            stacklevel=2,
        )
        return None
    return codec


def _about_graph(graph: Graph) -> dict[str, Any]:
    tables = (graph.neighbours, graph.present, graph.probability, graph.schedule, graph.strength)
    digest = hashlib.sha256(b"".join(table.tobytes() for table in tables if table is not None)).hexdigest()
    return {"name": "given", "edges": graph.edges(), "digest": digest[:16]}


def _name_of(section: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    cls = type(value)
    for row in registry.rows(SECTIONS[section][0]):
        if row.target == f"{cls.__module__}:{cls.__name__}":
            return row.name
    return getattr(value, "__name__", cls.__name__)


def _settings_of(value: Any) -> dict[str, Any]:
    """Return the settings of a spec; a module or a function of the user's own has none that we know."""
    is_spec = dataclasses.is_dataclass(value) and not isinstance(value, type | eqx.Module)
    return to_dict(value) if is_spec else {}
