"""The similarity network: clients whose data are alike become neighbours (P2, section "similarity network").

The draft leaves open how alike clients are found. Here each client sends one summary of its training data to a hub,
once, before the first round; the hub takes the distances between summaries, joins everybody with its k nearest, and
tells each client its neighbours. Three spaces to be alike in:

- data: the mean of random Fourier features of the samples; the distance is the maximum mean discrepancy (MMD).
- features: the covariance of the samples, on a few common axes; the distance is Frobenius' or the log-Euclidean one.
- model: a model trained alone for a little while; the distance is L2, or 1 - cosine between displacements.

Neighbour lists are one-sided, so an edge is there if one of its ends asks for it; a pair that asks for each other is
one edge, not two (the printed edge set counts it twice). `build_from` returns the network and what it cost to get it.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.codecs.frame import frame_bytes
from coterie.data.clients import Federation
from coterie.errors import CoterieError, CoterieWarning
from coterie.graphs import summaries
from coterie.graphs.graph import Graph
from coterie.graphs.measured import HubTraffic, MeasuredGraph, graph_of
from coterie.graphs.proximity import (
    Points,
    both_ways,
    covariance_points,
    direction_points,
    edge_weights,
    log_covariance_points,
    nearest,
    parts,
    shortest_bridges,
)
from coterie.spec import param, spec

__all__ = ["MeasuredGraph", "Similarity", "Told", "local_models"]

WIDTH = 0.5  # of the kernel, as a part of the median distance of samples; the usual 1 tells alike clients less well
METRICS = {"data": ("mmd",), "features": ("log-euclidean", "frobenius"), "model": ("cosine", "l2")}


class Told(NamedTuple):
    """All that the hub knows of the clients when it makes the network."""

    summaries: np.ndarray  # [K, m] float32
    counts: np.ndarray  # [K] int32, how many samples are behind each


@spec
class Similarity:
    """Clients whose data are alike hear each other: k nearest neighbours of small summaries, sent once.

    What leaves a client: its summary (1,024 numbers in data space, as many as a covariance or a model has in the
    others), the number of its samples, and for an automatic bandwidth its own median distance. Only training samples
    are looked at. With `targets` alike means that the same inputs have the same targets; without, that the inputs are.
    """

    space: Literal["data", "features", "model"] = param("data", "what is compared: samples, covariances, local models")
    k: int = param(5, "nearest neighbours that each client asks for", at_least=1)
    metric: Literal["auto", "mmd", "log-euclidean", "frobenius", "cosine", "l2"] = param(
        "auto", "mmd; log-euclidean or frobenius for features; cosine or l2 for models; auto: the first of these"
    )
    targets: bool = param(True, "data and features: compare labels or targets together with the inputs")
    features: int = param(1024, "data: numbers in a summary (random Fourier features)", at_least=2)
    bandwidth: float = param(0.0, "width of the kernel in the inputs; 0: half their typical distance", at_least=0)
    target_bandwidth: float = param(0.0, "the same for the targets of a regression", at_least=0)
    components: int = param(32, "features: random axes that more inputs than these are projected on", at_least=1)
    shrinkage: float = param(5.0, "features, log-euclidean: samples that the pooled covariance counts for", above=0)
    lr: float = param(0.05, "model: step size of the local training", above=0)
    batch_size: int = param(10, "model: samples in a minibatch; 0 takes all of the client's data", at_least=0)
    epochs: int = param(3, "model: passes over the client's data", at_least=1)
    edge_weights: Literal["equal", "gaussian"] = param("equal", "equal, or smaller for a longer edge (network lasso)")
    connect: bool = param(False, "join the parts of a network that falls apart by their shortest edges")

    def __post_init__(self) -> None:
        if self.metric not in ("auto", *METRICS[self.space]):
            choices = " or ".join(METRICS[self.space])
            raise CoterieError(f"metric must be {choices} where space = '{self.space}', not '{self.metric}'")
        if self.features % 2:
            raise CoterieError(f"features must be even (a cosine and a sine each), not {self.features}")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Say that the number of clients is not enough to make this graph of."""
        raise CoterieError("the graph similarity is made from the clients' data: it needs a federation (build_from)")

    def build_from(self, federation: Federation, seed: int = 0, *, task: Any = None) -> MeasuredGraph:
        """Ask every client for its summary and make the network.

        Args:
            federation: the clients; only their training samples are looked at.
            seed: of the random features, axes and first model, which everybody draws alike.
            task: what each client learns, for space = "model".
        """
        clients = len(federation)
        if clients < 2:
            raise CoterieError("the graph similarity needs at least 2 clients: one alone is like nobody")
        if self.k >= clients:
            raise CoterieError(f"graph.k must be less than the number of clients, {clients}, not {self.k}")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below, with the client's name
            told, up, down = self.ask(federation, seed, task)
        fix = "lower graph.lr" if self.space == "model" else "scale its inputs down, or raise graph.bandwidth"
        for client in np.flatnonzero(~np.isfinite(told.summaries).all(1))[:1]:
            raise CoterieError(f"the summary of client {federation.names[client]!r} contains NaN or infinity; {fix}")
        edges, lengths = self.connect_alike(told)
        weights = edge_weights(lengths, self.edge_weights)
        graph = graph_of(edges, clients, weights)
        # The last answer: each client's neighbours, and the weights of their edges where these differ.
        kinds = [np.int32] + ([np.float32] if self.edge_weights == "gaussian" else [])
        lists = [frame_bytes([np.zeros(degree, kind) for kind in kinds]) for degree in graph.degree]
        sent = HubTraffic(
            np.full(clients, len(up)),
            np.full(clients, sum(map(frame_bytes, up))),
            np.full(clients, len(down) + 1),
            sum(map(frame_bytes, down)) + np.array(lists),
        )
        return MeasuredGraph(graph, edges, weights, lengths, sent)

    # -- at the clients -----------------------------------------------------------------------------------------

    def ask(self, federation: Federation, seed: int = 0, task: Any = None) -> tuple[Told, list, list]:
        """Let every client compute its summary; returns what the hub is told, and one client's frames up and down."""
        counts = np.asarray(federation.train.count, np.int32)
        empty = np.flatnonzero(counts == 0)
        if empty.size:
            raise CoterieError(f"client {federation.names[empty[0]]!r} has no training sample, so it is like nobody")
        up: list[list[np.ndarray]] = []
        down: list[list[np.ndarray]] = []
        if self.space == "model":
            told = Told(local_models(federation, task, seed, self.lr, self.batch_size, self.epochs), counts)
        else:
            widths, own = self._widths(federation)
            if own.size:  # a first message each way, to agree on the width of the kernel
                up.append([own[0]])
                down.append([own[0]])
            told = Told(self._summaries(federation, seed, *widths), counts)
        return told, [*up, [told.summaries[0], told.counts[:1]]], down

    def _widths(self, federation: Federation) -> tuple[tuple[float, float], np.ndarray]:
        """Return the widths in inputs and targets, and what each client told for it, `[K, 0]`, `[K, 1]` or `[K, 2]`."""
        widths = {"bandwidth": self.bandwidth, "target_bandwidth": self.target_bandwidth or 1.0}
        asked = [] if self.bandwidth else [("bandwidth", "inputs")]
        if self.targets and federation.kind == "regression" and self.target_bandwidth == 0:
            asked.append(("target_bandwidth", "targets"))
        clients = summaries.own_training_data(federation, self.targets) if asked else ()
        medians = [[summaries.own_scale(getattr(own, what)) for _, what in asked] for own in clients]
        told = np.array(medians, np.float32).reshape(len(federation), len(asked))
        for (name, what), own in zip(asked, told.T, strict=True):
            if not own.any():
                raise CoterieError(f"graph.{name}: no client has two different {what} to take it from; give a number")
            mean = own[own > 0].mean(dtype=np.float64)  # who has no two different ones told 0, and does not count
            widths[name] = WIDTH * float(np.float32(mean))
        return (widths["bandwidth"], widths["target_bandwidth"]), told

    def _summaries(self, federation: Federation, seed: int, width: float, target_width: float) -> np.ndarray:
        clients = summaries.own_training_data(federation, self.targets)
        inputs = federation.classes if federation.kind == "next-character" else int(np.prod(federation.sample_shape))
        if self.space == "features":
            units = (width / WIDTH, target_width / WIDTH)  # a typical distance is 1, as that of two labels is
            axes = summaries.draw_axes(seed, self.components, inputs, *units)
            return np.stack([summaries.covariance(own, axes, federation.classes) for own in clients])
        kinds = {"classification": {"labels": federation.classes}, "regression": {"outputs": _outputs(federation)}}
        known: dict[str, int] = kinds.get(federation.kind, {}) if self.targets else {}
        waves = summaries.draw_waves(seed, self.features, inputs, width, target_scale=target_width, **known)
        return np.stack([summaries.embedding(own, waves) for own in clients])

    # -- at the hub ---------------------------------------------------------------------------------------------

    def connect_alike(self, told: Told) -> tuple[np.ndarray, np.ndarray]:
        """Make the edges `[m, 2]` and their lengths `[m]` of what the clients told, and of nothing else."""
        metric = METRICS[self.space][0] if self.metric == "auto" else self.metric
        if metric == "log-euclidean":
            vectors = log_covariance_points(*told, self.shrinkage)
        elif metric == "frobenius":
            vectors = covariance_points(told.summaries)
        elif metric == "cosine":
            vectors = direction_points(told.summaries)
        else:
            vectors = told.summaries
        points = Points(vectors)
        if points.largest == 0:
            raise CoterieError(
                f"graph similarity: all {len(points)} clients have the same summary, so that nobody is nearer than "
                "another; choose another graph, such as ring"
            )
        edges = both_ways(nearest(points, self.k))
        part = parts(edges, len(points))
        count = int(part.max()) + 1
        if count > 1:
            what = f"the similarity network of {len(points)} clients with k = {self.k} falls into {count} parts"
            if not self.connect:
                raise CoterieError(
                    f"{what}; raise graph.k, or set graph.connect = true, which joins them by their shortest edges"
                )
            edges = np.unique(np.concatenate([edges, shortest_bridges(points, part)]), axis=0)
            warnings.warn(
                f"{what}: the {count - 1} shortest edges between them were added; a larger graph.k may need none",
                CoterieWarning,
                stacklevel=2,
            )
        lengths = points.distances(edges)
        return edges, lengths**2 / 2 if metric == "cosine" else lengths


def _outputs(federation: Federation) -> int:
    return int(np.prod(federation.train.y.shape[2:], dtype=int))


def local_models(federation: Federation, task: Any, seed: int, lr: float, batch_size: int, epochs: int) -> np.ndarray:
    """Train every client alone from one common model; returns how far the parts that may travel moved, `[K, d]`."""
    if task is None:
        raise CoterieError(
            "graph.space = 'model' compares local models, so that it needs a model: give build_from a task"
        )
    import jax
    import jax.numpy as jnp

    from coterie.learning.local_sgd import LocalSGD

    sgd = LocalSGD(lr=lr, batch_size=batch_size, epochs=epochs)
    init_key, train_key = jax.random.split(jax.random.key(seed))
    start = task.init(init_key)

    def train(client: tuple) -> Any:
        number, data = client
        trained = sgd.train(task, start, data, jax.random.fold_in(train_key, number)).variables.params
        return jax.tree.map(lambda a, b: a - b, task.shared(trained), task.shared(start.params))

    # One client after another on a CPU, all at once on an accelerator: the faster way there.
    one_by_one = jax.default_backend() == "cpu"
    run = jax.jit(lambda clients: jax.lax.map(train, clients) if one_by_one else jax.vmap(train)(clients))
    data = jax.tree.map(jnp.asarray, federation.arrays().train)
    moved: Sequence[np.ndarray] = jax.device_get(jax.tree.leaves(run((jnp.arange(len(federation)), data))))
    if not moved:
        raise CoterieError("graph.space = 'model': every part of the model is personal, so that nothing may leave")
    return np.concatenate([leaf.reshape(len(federation), -1) for leaf in moved], 1).astype(np.float32)
