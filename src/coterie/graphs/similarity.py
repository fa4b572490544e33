"""The similarity network: clients with similar data become neighbours (Zhao et al., section "similarity network").

The draft leaves open how similar clients are found. Here each client sends one summary of its training data to a hub,
once, before the first round; the hub computes the distances between summaries, joins each client with its k nearest,
and sends it the list of its neighbours. Three spaces in which clients are compared:

- data: the mean of random Fourier features of the samples; the distance is the maximum mean discrepancy (MMD).
- features: the covariance of the samples, on a few common axes; the distance is Frobenius or log-Euclidean.
- model: a model trained alone for a few epochs; the distance is L2, or 1 - cosine between displacements.

Neighbour lists are one-sided, so an edge exists if one of its ends asks for it; a pair that asks for each other is one
edge, not two (the printed edge set counts it twice). `build_from` returns the network and the messages it took.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.codecs.frame import frame_bytes
from coterie.data.clients import Federation
from coterie.errors import CoterieError, CoterieWarning
from coterie.graphs import summaries
from coterie.graphs.forest import forest_bridges, forest_neighbours
from coterie.graphs.graph import Graph
from coterie.graphs.measured import HubTraffic, MeasuredGraph, graph_of
from coterie.graphs.proximity import (
    Points,
    at_most,
    both_ways,
    covariance_points,
    direction_points,
    edge_weights,
    log_covariance_points,
    nearest,
    shortest_bridges,
)
from coterie.numerics.components import connected_components
from coterie.spec import param, spec

__all__ = ["ClientSummaries", "MeasuredGraph", "Similarity", "local_models"]

WIDTH = 0.5  # of the kernel, relative to the median distance of samples; the usual 1 separates clients less well
NEIGHBOURS = 5  # nearest neighbours by default
ALL_PAIRS = 4096  # clients up to which all pairs are compared
METRICS = {"data": ("mmd",), "features": ("log-euclidean", "frobenius"), "model": ("cosine", "l2")}


class ClientSummaries(NamedTuple):
    """All that the hub knows about the clients when it builds the network."""

    summaries: np.ndarray  # [K, m] float32
    counts: np.ndarray  # [K] int32, how many samples each was computed from


@spec
class Similarity:
    """Clients with similar data hear each other: k nearest neighbours of small summaries, sent once.

    A client sends its summary (1,024 numbers in data space; a covariance or a model in the other two), the number of
    its samples, and for an automatic bandwidth its own median distance. Only training samples are used. With `targets`,
    clients are similar if the same inputs have the same targets; without, if their inputs are similar.
    """

    space: Literal["data", "features", "model"] = param("data", "what is compared: samples, covariances, local models")
    k: int | None = param(
        None, "nearest neighbours that each client asks for; default 5, or all others where there are fewer", at_least=1
    )
    most: int | None = param(
        None,
        "most neighbours of a client, the nearest of those it asks for and that ask for it; default: all",
        at_least=1,
    )
    metric: Literal["auto", "mmd", "log-euclidean", "frobenius", "cosine", "l2"] = param(
        "auto", "mmd; log-euclidean or frobenius for features; cosine or l2 for models; auto: the first of these"
    )
    targets: bool = param(True, "data and features: compare labels or targets together with the inputs")
    features: int = param(1024, "data: numbers in a summary (random Fourier features)", at_least=2, at_most=1_000_000)
    bandwidth: float = param(0.0, "width of the kernel in the inputs; 0: half their typical distance", at_least=0)
    target_bandwidth: float = param(0.0, "the same for the targets of a regression", at_least=0)
    components: int = param(32, "features: random axes that more inputs than these are projected on", at_least=1)
    shrinkage: float = param(5.0, "features, log-euclidean: samples that the pooled covariance counts for", above=0)
    lr: float = param(0.05, "model: step size of the local training", above=0)
    batch_size: int = param(10, "model: samples in a minibatch; 0 takes all of the client's data", at_least=0)
    epochs: int = param(3, "model: passes over the client's data", at_least=1)
    edge_weights: Literal["equal", "gaussian"] = param("equal", "equal, or smaller for a longer edge (network lasso)")
    search: Literal["auto", "exact", "forest"] = param(
        "auto",
        "compare all pairs of summaries, or nearly all near ones (a forest of trees); auto: all up to 4,096 clients",
    )
    connect: bool = param(False, "join the parts of a network that falls apart by their shortest edges")

    def __post_init__(self) -> None:
        if self.metric not in ("auto", *METRICS[self.space]):
            choices = " or ".join(METRICS[self.space])
            raise CoterieError(f"metric must be {choices} where space = '{self.space}', not '{self.metric}'")
        if self.features % 2:
            raise CoterieError(f"features must be even (a cosine and a sine each), not {self.features}")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Refuse: the number of clients is not enough to build this graph."""
        raise CoterieError("the graph similarity is made from the clients' data: it needs a federation (build_from)")

    def build_from(self, federation: Federation, seed: int = 0, *, task: Any = None) -> MeasuredGraph:
        """Collect every client's summary and build the network.

        Args:
            federation: the clients; only their training samples are used.
            seed: of the random features, axes and initial model, which are the same for all clients.
            task: the learning task, for space = "model".
        """
        clients = len(federation)
        if clients < 2:
            raise CoterieError("the graph similarity needs at least 2 clients")
        if self.k is not None and self.k >= clients:
            raise CoterieError(f"graph.k must be less than the number of clients, {clients}, not {self.k}")
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused below, with the client's name
            received, up, down = self.collect(federation, seed, task)
        fix = "lower graph.lr" if self.space == "model" else "scale its inputs down, or raise graph.bandwidth"
        for client in np.flatnonzero(~np.isfinite(received.summaries).all(1))[:1]:
            raise CoterieError(f"the summary of client {federation.names[client]!r} contains NaN or infinity; {fix}")
        edges, lengths = self.connect_nearest(received)
        weights = edge_weights(lengths, self.edge_weights)
        graph = graph_of(edges, clients, weights)
        # The hub's last message: each client's neighbours, and the weights of their edges where these differ.
        kinds = [np.int32] + ([np.float32] if self.edge_weights == "gaussian" else [])
        degrees, which = np.unique(graph.degree, return_inverse=True)
        lists = np.array([frame_bytes([np.zeros(degree, kind) for kind in kinds]) for degree in degrees])[which]
        sent = HubTraffic(
            np.full(clients, len(up)),
            np.full(clients, sum(map(frame_bytes, up))),
            np.full(clients, len(down) + 1),
            sum(map(frame_bytes, down)) + lists,
        )
        return MeasuredGraph(graph, edges, weights, lengths, sent)

    # -- at the clients -----------------------------------------------------------------------------------------

    def collect(self, federation: Federation, seed: int = 0, task: Any = None) -> tuple[ClientSummaries, list, list]:
        """Compute every client's summary; return what the hub receives, and one client's frames up and down."""
        counts = np.asarray(federation.train.count, np.int32)
        empty = np.flatnonzero(counts == 0)
        if empty.size:
            raise CoterieError(f"client {federation.names[empty[0]]!r} has no training sample, so it has no summary")
        up: list[list[np.ndarray]] = []
        down: list[list[np.ndarray]] = []
        if self.space == "model":
            vectors = local_models(federation, task, seed, self.lr, self.batch_size, self.epochs)
        else:
            widths, medians = self._widths(federation)
            if medians.size:  # a first message each way, to agree on the width of the kernel
                up.append([medians[0]])
                down.append([medians[0]])
            vectors = self._summaries(federation, seed, *widths)
        return ClientSummaries(vectors, counts), [*up, [vectors[0], counts[:1]]], down

    def _widths(self, federation: Federation) -> tuple[tuple[float, float], np.ndarray]:
        """Return the widths in inputs and targets, and the medians that clients send, `[K, 0]` to `[K, 2]`."""
        widths = {"bandwidth": self.bandwidth, "target_bandwidth": self.target_bandwidth or 1.0}
        needed = [] if self.bandwidth else [("bandwidth", "inputs")]
        if self.targets and federation.kind == "regression" and self.target_bandwidth == 0:
            needed.append(("target_bandwidth", "targets"))
        clients = summaries.training_samples(federation, self.targets) if needed else ()
        rows = [[summaries.median_distance(getattr(own, what)) for _, what in needed] for own in clients]
        medians = np.array(rows, np.float32).reshape(len(federation), len(needed))
        for (name, what), median in zip(needed, medians.T, strict=True):
            if not median.any():
                raise CoterieError(f"graph.{name}: no client has two different {what} to take it from; give a number")
            mean = median[median > 0].mean(dtype=np.float64)  # a client without two different samples sends 0
            widths[name] = WIDTH * float(np.float32(mean))
        return (widths["bandwidth"], widths["target_bandwidth"]), medians

    def _summaries(self, federation: Federation, seed: int, width: float, target_width: float) -> np.ndarray:
        clients = summaries.training_samples(federation, self.targets)
        inputs = federation.classes if federation.kind == "next-character" else int(np.prod(federation.sample_shape))
        if self.space == "features":
            units = (width / WIDTH, target_width / WIDTH)  # a typical distance is 1, as between two labels
            axes = summaries.draw_axes(seed, self.components, inputs, *units)
            return np.stack([summaries.covariance(own, axes, federation.classes) for own in clients])
        kinds = {"classification": {"labels": federation.classes}, "regression": {"outputs": _outputs(federation)}}
        known: dict[str, int] = kinds.get(federation.kind, {}) if self.targets else {}
        features = summaries.draw_features(seed, self.features, inputs, width, target_scale=target_width, **known)
        return np.stack([summaries.embedding(own, features) for own in clients])

    # -- at the hub ---------------------------------------------------------------------------------------------

    def connect_nearest(self, received: ClientSummaries) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges `[m, 2]` and their lengths `[m]`, from the received summaries alone."""
        metric = METRICS[self.space][0] if self.metric == "auto" else self.metric
        if metric == "log-euclidean":
            vectors = log_covariance_points(*received, self.shrinkage)
        elif metric == "frobenius":
            vectors = covariance_points(received.summaries)
        elif metric == "cosine":
            vectors = direction_points(received.summaries)
        else:
            vectors = received.summaries
        points = Points(vectors)
        if points.largest == 0:
            raise CoterieError(
                f"graph similarity: all {len(points)} clients have the same summary, so that none is nearer than "
                "another; choose another graph, such as ring"
            )
        k = min(NEIGHBOURS, len(points) - 1) if self.k is None else self.k
        forest = self.search == "forest" or (self.search == "auto" and len(points) > ALL_PAIRS)
        edges = both_ways(forest_neighbours(points.vectors, k) if forest else nearest(points, k))
        if self.most is not None:
            edges = at_most(edges, points.distances(edges), self.most)
        component = connected_components(edges[:, 0], edges[:, 1], len(points))
        count = int(component.max()) + 1
        if count > 1:
            what = f"the similarity network of {len(points)} clients with k = {k} falls into {count} parts"
            if not self.connect:
                raise CoterieError(
                    f"{what}; raise graph.k, or set graph.connect = true, which joins them by their shortest edges"
                )
            bridges = forest_bridges(points.vectors, component) if forest else shortest_bridges(points, component)
            edges = np.unique(np.concatenate([edges, bridges]), axis=0)
            warnings.warn(
                f"{what}: the {count - 1} {'short' if forest else 'shortest'} edges between them were added; a larger "
                "graph.k may need none",
                CoterieWarning,
                stacklevel=2,
            )
        lengths = points.distances(edges)
        return edges, lengths**2 / 2 if metric == "cosine" else lengths


def _outputs(federation: Federation) -> int:
    return int(np.prod(federation.target_shape, dtype=int))


def local_models(federation: Federation, task: Any, seed: int, lr: float, batch_size: int, epochs: int) -> np.ndarray:
    """Train every client alone from the same model; return the displacement of the shared parameters, `[K, d]`."""
    if task is None:
        raise CoterieError(
            "graph.space = 'model' compares local models, so that it needs a model: give build_from a task"
        )
    import jax
    import jax.numpy as jnp

    from coterie.learning.buckets import bucket_by_bucket
    from coterie.learning.local_sgd import LocalSGD

    sgd = LocalSGD(lr=lr, batch_size=batch_size, epochs=epochs)
    init_key, train_key = jax.random.split(jax.random.key(seed))
    start = task.init(init_key)

    def train(number: jax.Array, data: Any) -> Any:
        trained = sgd.train(task, start, data, jax.random.fold_in(train_key, number)).variables.params
        return jax.tree.map(lambda a, b: a - b, task.shared(trained), task.shared(start.params))

    # One client after another on a CPU, all at once on an accelerator: the faster of the two there.
    one_by_one = jax.default_backend() == "cpu"
    each = (lambda *stacked: jax.lax.map(lambda one: train(*one), stacked)) if one_by_one else jax.vmap(train)
    run = jax.jit(lambda *stacked: bucket_by_bucket(each, *stacked))
    data = jax.tree.map(jnp.asarray, federation.train)
    displacement: Sequence[np.ndarray] = jax.device_get(jax.tree.leaves(run(jnp.arange(len(federation)), data)))
    if not displacement:
        raise CoterieError("graph.space = 'model': every part of the model is personal, so that nothing may leave")
    return np.concatenate([leaf.reshape(len(federation), -1) for leaf in displacement], 1).astype(np.float32)
