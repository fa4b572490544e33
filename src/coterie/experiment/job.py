"""A job is a run that is ready to start: an experiment, with its data loaded and its task and graph built."""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from coterie import registry
from coterie.codecs.base import Codec
from coterie.data.clients import Federation
from coterie.data.partition import DataDefault
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import SECTIONS, Experiment, RunSettings
from coterie.experiment.in_world import check_world, lives_in_world
from coterie.experiment.memory import check_fit, parameters_of
from coterie.experiment.parts import Part
from coterie.graphs.graph import Graph, require_connected
from coterie.graphs.measured import MeasuredGraph
from coterie.graphs.mixing import LIMITS, laplacian, lazy_metropolis, metropolis, stabilised
from coterie.graphs.topologies import MethodDefault
from coterie.learning.task import Task
from coterie.methods.base import Method, Solved
from coterie.models.affine import affine_input
from coterie.models.start import starting_from
from coterie.peers.injection import Injection
from coterie.peers.local import Plan, Simulation
from coterie.peers.mesh import simulation
from coterie.peers.robust import MEDIANS
from coterie.spec import to_dict

__all__ = ["Job", "load_federation", "make_graph", "make_task", "measure_graph", "needs_data", "precision"]

MIXING: dict[str, Callable[[Graph], tuple[np.ndarray, np.ndarray]]] = {
    "metropolis": metropolis,
    "lazy-metropolis": lazy_metropolis,
    "laplacian": laplacian,
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One run, ready to execute: the experiment, and what was loaded and built for it.

    Attributes:
        experiment: what the config file says.
        federation: the clients and their data.
        task: what each client learns.
        graph: who hears whom (`Graph.empty` for methods without neighbours).
        weights: `[K, D]` mixing weights of the graph.
        measured_graph: the graph with what it cost to make, where it was made from the clients' data.
    """

    experiment: Experiment
    federation: Federation
    task: Task
    graph: Graph
    weights: np.ndarray
    measured_graph: MeasuredGraph | None = None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        federation: Federation | None = None,
        task: Task | None = None,
        clients: int | None = None,
        load: Callable[[Experiment], tuple[Experiment, Federation]] = Experiment.load,
    ) -> "Job":
        """Make a job of an experiment: load its data (unless given), build its model (unless given) and its graph.

        `clients` is the number of all clients, where `federation` has only those that live here; `load` loads the data,
        where several processes share a run those of this one's clients.
        """
        if federation is None:
            experiment, federation = load(experiment)
        elif experiment.partition is not None and isinstance(experiment.partition.spec, DataDefault):
            raise CoterieError("partition auto is decided by the data: use the experiment that Experiment.load returns")
        if clients is not None:
            federation = dataclasses.replace(federation, client_count=clients)
        task = task or make_task(experiment, federation)
        check_fit(task.size, len(federation), task.dtype)
        method = experiment.method.spec
        method.check(task, federation)
        measured = measure_graph(method, experiment.graph, federation, task) if clients is None else None
        graph, weights = make_graph(method, experiment.graph, clients or len(federation), measured)
        if isinstance(method, Solved) and _sends_coded(experiment):
            warnings.warn(
                f"codec {experiment.codec.name} changes nothing for {experiment.method.name}: what it sends is small "
                "and must be exact",
                CoterieWarning,
                stacklevel=2,
            )
        if isinstance(method, Solved) and (experiment.faults or experiment.run.robust):
            raise CoterieError(f"faults and run.robust are about rounds of messages, and {_name(method)} has none")
        check_world(experiment, _sends_coded(experiment))
        return cls(experiment, federation, task, graph, weights, measured)

    @property
    def method(self) -> Method:
        """How the clients cooperate."""
        return self.experiment.method.spec

    @property
    def codec(self) -> Codec | None:
        """How messages are encoded; None where they are sent as they are."""
        coded = _sends_coded(self.experiment) and not isinstance(self.method, Solved)
        return self.experiment.codec.spec if coded else None

    def with_fault_names(self, names: Sequence[str]) -> "Job":
        """Return the job with faults that name the clients, where they named the members of a federation, in order."""
        faults = self.experiment.faults.renamed(dict(zip(names, self.federation.names, strict=True)))
        return dataclasses.replace(self, experiment=dataclasses.replace(self.experiment, faults=faults))

    def injection(self, names: tuple[str, ...] | None = None) -> Injection | None:
        """Return what goes wrong among the clients of these names; default: those of the federation."""
        world = self.experiment.world if lives_in_world(self.method) else None
        names = names or self.federation.names
        return Injection.of(self.experiment.faults, names, self.codec is not None, world, self.settings.seed)

    def simulation(self, plan: Plan) -> Simulation:
        """Return the verbs of a simulation, with or without a hub as the settings say."""
        return simulation(plan, self.settings.hub is None, self.settings.all_to_all)

    @property
    def robust(self) -> float | None:
        """How far received values may be away, in medians; None: as far as they are."""
        return None if self.settings.robust is None else MEDIANS

    @property
    def settings(self) -> RunSettings:
        """How long and how the run goes."""
        return self.experiment.run

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The complete config file."""
        return self.experiment.to_dict()

    def with_seed(self, seed: int) -> "Job":
        """Return the same job with another seed of the training."""
        return dataclasses.replace(self, experiment=self.experiment.replace({"run": {"seed": seed}}))

    def with_graph(self, measured: MeasuredGraph) -> "Job":
        """Return the job on a graph that was made from the clients' data before, with weights by the same rule."""
        ours = self.measured_graph
        if ours is not None and np.array_equal(measured.edges, ours.edges):
            return dataclasses.replace(self, measured_graph=measured)
        graph, weights = make_graph(self.method, self.experiment.graph, len(self.federation), measured)
        return dataclasses.replace(self, measured_graph=measured, graph=graph, weights=weights)


def _sends_coded(experiment: Experiment) -> bool:
    return experiment.codec.name != SECTIONS["codec"].default and experiment.method.spec.topology != "none"


def load_federation(experiment: Experiment) -> Federation:
    """Load the data of an experiment and divide them among clients."""
    return experiment.load()[1]


def make_task(experiment: Experiment, federation: Federation) -> Task:
    """Build the task of an experiment."""
    model, common, augment = experiment.model.spec, experiment.model.common, experiment.augment
    shape, outputs = federation.sample_shape, federation.classes
    with precision(experiment.run.precision):
        if hasattr(model, "build"):
            alone = parameters_of(lambda key: model.build(shape, outputs, key))
            check_fit(common.members * alone, 1, _storage(experiment.run.precision))  # one, for the task's shapes
        return Task.of(
            federation,
            _prepared(federation, model, common),
            personal=common.personal,
            members=common.members,
            augment=augment if augment.crop or augment.flip else None,
            dtype=_storage(experiment.run.precision),
            bfloat16=experiment.run.precision == "bfloat16",
            metric=experiment.run.metric,
        )


def _prepared(federation: Federation, given: Any, common: Any) -> Any:
    """Return a model that starts from the weights of a file and has an affine layer before it, where asked for."""
    model = given
    if common.init is not None:
        shape, outputs = federation.sample_shape, federation.classes
        is_instance = isinstance(given, tuple | eqx.Module)
        build = (lambda key: given.build(shape, outputs, key)) if hasattr(given, "build") else given
        model = starting_from((lambda key: given) if is_instance else build, common.init)
    return _with_affine_input(federation, model) if common.input_affine else model


def _with_affine_input(federation: Federation, model: Any) -> Callable[[jax.Array], Any]:
    """Put an affine layer before a model spec, a module or a function of a key."""
    if federation.kind == "next-character":
        raise CoterieError("model.input_affine needs inputs that are numbers, not characters; leave it out")
    shape, outputs = federation.sample_shape, federation.classes
    if hasattr(model, "build"):
        return affine_input(lambda key: model.build(shape, outputs, key), shape)
    is_instance = isinstance(model, tuple | eqx.Module)
    return affine_input((lambda key: model) if is_instance else model, shape)


def needs_data(method: Method, part: Part) -> bool:
    """Whether a method needs a graph that is made from the clients' data."""
    return method.topology == "graph" and hasattr(_topology(method, part), "build_from")


def measure_graph(method: Method, part: Part, federation: Federation, task: Task) -> MeasuredGraph | None:
    """Make the graph of a method that needs one where it is made from the clients' data (`build_from`), else None."""
    if not needs_data(method, part):
        return None
    with precision(np.dtype(task.dtype).name):
        return _topology(method, part).build_from(federation, part.common.seed, task=method.adapt(task))


def _topology(method: Method, part: Part) -> Any:
    """Return what builds the graph, or a graph that was passed from Python; "auto" is what suits the method."""
    if not isinstance(part.spec, MethodDefault):
        return part.spec
    cls = registry.load("graphs", method.default_graph)
    known = {field.name for field in dataclasses.fields(cls)}
    given = {"connect": True} | to_dict(part.spec)  # a default that falls apart would only have to be repaired by hand
    return cls(**{key: value for key, value in given.items() if key in known})


def make_graph(
    method: Method, part: Part, clients: int, measured: MeasuredGraph | None = None
) -> tuple[Graph, np.ndarray]:
    """Build the graph a method needs, and its mixing weights; methods without neighbours get an empty one."""
    if method.topology != "graph":
        return Graph.empty(clients), np.zeros((clients, 0))
    topology = _topology(method, part)
    if measured is not None:
        graph = measured.graph
    else:
        graph = topology if isinstance(topology, Graph) else topology.build(clients, part.common.seed)
    if graph.clients != clients:
        raise CoterieError(f"the graph has {graph.clients} nodes but the federation {clients} clients")
    return graph, _weights(method, "auto" if part.common is None else part.common.weights, graph)


def _weights(method: Method, rule: str, graph: Graph) -> np.ndarray:
    """Return the mixing weights of a graph; refuse one that a method cannot run on."""
    name = _name(method)
    require_connected(graph, name)
    if method.mutual and not graph.symmetric:
        raise CoterieError(
            f"graph: {name} with these settings needs links in both directions between the same "
            "clients; choose such a graph, for example exponential"
        )
    if method.random_links:  # messages are weighted by their sender: any direction will do
        return np.zeros(graph.present.shape)
    if not graph.certain:
        raise CoterieError(
            f"graph: {name} needs links that are there in every step; choose another graph, such as "
            "exponential, or a method that pushes, such as sgp"
        )
    return _stable_weights(method, rule, graph)


def _stable_weights(method: Method, rule: str, graph: Graph) -> np.ndarray:
    """Return the weights of a rule, made lazy (with a warning) where the method would diverge with them."""
    weights = MIXING[method.default_weights if rule == "auto" else rule](graph)
    wanted = method.stability
    if wanted is None:
        return weights[0]
    stable, smallest = stabilised(weights[0], weights[1], graph, wanted)
    if stable[0] is not weights[0]:
        warnings.warn(
            f"graph.weights {rule} have the eigenvalue {smallest:.3g} on this graph, and {_name(method)} "
            f"diverges unless all are above {LIMITS[wanted][1]}: (I + W) / 2 is used instead; lazy-metropolis or "
            "laplacian weights need no such repair",
            CoterieWarning,
            stacklevel=2,
        )
    return stable[0]


def precision(name: str) -> contextlib.AbstractContextManager:
    """Return the scope in which arrays have this precision."""
    return jax.enable_x64(True) if name == "float64" else contextlib.nullcontext()


def _storage(name: str) -> np.dtype:
    """Return the type in which models are kept."""
    return np.dtype("float32" if name == "bfloat16" else name)


def _name(method: Method) -> str:
    return registry.name_of("methods", method) or type(method).__name__
