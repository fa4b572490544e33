"""Directed networks whose links come and go, and their mean weights.

Terashita and Hara 2023: every ordered pair of clients has its own probability, and every link is drawn anew in every
step. A sender divides by the number of clients it reaches, so that the weights P it sends with are random; their mean
E[P] has a closed form, and so has w*, the mean share of the total that ends up with each client.
No JAX here.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from coterie import registry
from coterie.data.formats import read_npy, read_npz
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.spec import param, spec

__all__ = ["Expected", "RandomDirected", "TimeVarying", "expected_weights", "perron", "weights_of_links"]

MOST_NODES = 256  # of the quadrature: exact with one node per two listeners, and to rounding beyond that


@spec
class RandomDirected:
    """Every ordered pair of clients has its own probability, drawn once; every link is drawn anew in every step.

    The pairs are those of `base`; a file gives other probabilities than uniform ones. Only methods that push run on it.
    """

    low: float = param(0.4, "the smallest probability of a link", above=0, at_most=1)
    high: float = param(0.8, "the largest probability of a link", above=0, at_most=1)
    base: str = param("complete", "name of the graph whose edges may be links")
    path: str = param("", "a .npy or .npz file with the probabilities instead, [i, j] that client i hears client j")

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise CoterieError(f"low must be at most high = {self.high:g}, not {self.low:g}")
        if self.base == "random-directed":
            raise CoterieError("base must be a graph with certain links, such as complete or ring, not random-directed")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the network for these clients from this seed."""
        if self.path:
            return _fits(Graph.from_probabilities(_read(self.path)), self.path, clients)
        base = _base(self.base).build(clients, seed)
        if not base.certain:
            raise CoterieError(f"base must be a graph with certain links, such as complete or ring, not {self.base}")
        # Its own random stream: the base may have drawn from the seed, too.
        chance = np.random.default_rng([seed, 1]).uniform(self.low, self.high, base.present.shape)
        return dataclasses.replace(base, probability=chance)


@spec
class TimeVarying:
    """A network that changes in a given sequence: step t has the links of matrix t; after the last comes the first."""

    path: str = param(help="a .npy or .npz file, [steps, clients, clients], non-zero where client i hears client j")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the network; the seed is not used."""
        return _fits(Graph.from_schedule(_read(self.path)), self.path, clients)


def _base(name: str) -> Any:
    try:
        return registry.load("graphs", name)()
    except CoterieError as error:
        raise CoterieError(f"base: {error}") from None
    except TypeError:  # a graph from a file needs its path
        raise CoterieError(
            f"base must be a graph that needs no settings, such as complete or ring, not {name}"
        ) from None


def _read(path: str) -> np.ndarray:
    """Read the array of a .npy file, or the only one of a .npz file."""
    file = Path(path)
    try:
        if file.suffix.lower() == ".npy":
            return read_npy(file)
        arrays = read_npz(file)
    except CoterieError as error:
        raise CoterieError(f"path: {error}") from None
    if len(arrays) != 1:
        raise CoterieError(f"path: {path} must hold one array, not {len(arrays)}")
    (array,) = arrays.values()
    if array.dtype.kind not in "biuf":
        raise CoterieError(f"path: {path} holds {array.dtype}; save plain numbers")
    return array


def _fits(graph: Graph, path: str, clients: int) -> Graph:
    if graph.clients != clients:
        raise CoterieError(f"{path} holds a network of {graph.clients} clients but there are {clients}")
    return graph


# -- mean weights ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Expected:
    """E[P]: the mean weight of each neighbour's value, and of the client's own, in a step.

    Attributes:
        slots: `[K, D]`, the weight from each neighbour to the client.
        own: `[K]`, the share that the client keeps.
        graph: whose slots these are.
    """

    slots: np.ndarray
    own: np.ndarray
    graph: Graph

    def matrix(self) -> np.ndarray:
        """Return E[P] as `[K, K]`, from column to row; its columns sum to one."""
        return self.graph.to_sparse(self.slots[self.graph.present]).toarray() + np.diag(self.own)


def expected_weights(graph: Graph) -> Expected:
    """Return the mean of the weights with which senders split their value, exactly.

    Client j reaches S clients other than i; S has a Poisson-binomial law, and i gets 1 / (2 + S) if it is reached, too:
    E p_{j->i} = q_{j->i} E[1 / (2 + S)], E p_{j->j} = E[1 / (1 + S)]. Since 1 / (1 + s) is the
    integral of t^s over [0, 1], and E[t^S] the product of (1 - q + q t) over the others, both are integrals of
    polynomials, which Gauss quadrature gives exactly: no enumeration, O(listeners^2) per client.

    For a schedule it is the mean over its steps; for certain links 1 / (1 + listeners).
    """
    (listeners, listening), slot = graph.listeners, graph.listener_slots
    if graph.schedule is not None:
        live = graph.schedule[:, listeners, slot] & listening
        sent, own = (part.mean(0) for part in weights_of_links(live))
    else:
        chance = np.where(listening, 1.0 if graph.probability is None else graph.probability[listeners, slot], 0.0)
        sent, own = _poisson_binomial(chance)
    return Expected(np.where(graph.present, sent[graph.neighbours, graph.back], 0.0), own, graph)


def weights_of_links(live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the senders' weights over the links `[..., K, L]` of a step: for each listener, and for themselves."""
    own = 1.0 / (1.0 + live.sum(-1))
    return live * own[..., None], own


def _poisson_binomial(chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return E[1 / (1 + listeners reached)] for each listener that is reached `[K, L]`, and for the sender `[K]`."""
    width = chance.shape[1]
    nodes, weights = np.polynomial.legendre.leggauss(min(width // 2 + 2, MOST_NODES))
    nodes, weights = (nodes + 1) / 2, weights / 2  # on [0, 1]
    sent, own = np.zeros(chance.shape), np.zeros(len(chance))
    for j, q in enumerate(chance):
        factors = 1 - q + q * nodes[:, None]  # [nodes, L], all above zero: nodes lie inside (0, 1)
        product = weights * factors.prod(1)
        own[j] = product.sum()
        sent[j] = q * ((product * nodes) @ (1 / factors))  # without the listener's own factor
    return sent, own


def perron(matrix: np.ndarray) -> np.ndarray:
    """Return w*, the share of each client in the long run: matrix w* = w*, with entries that sum to K.

    `matrix [K, K]` has columns that sum to one. A network that is not strongly connected is refused: a client that the
    others cannot reach would end with nothing, and one that cannot reach them with everything.
    """
    matrix = np.asarray(matrix, float)
    clients = len(matrix)
    if matrix.shape != (clients, clients) or np.any(matrix < 0) or np.abs(matrix.sum(0) - 1).max() > 1e-6:
        raise CoterieError("the matrix must be square and not negative, with columns that sum to one")
    system = np.vstack([matrix - np.eye(clients), np.ones((1, clients))])
    share, _, rank, _ = np.linalg.lstsq(system, np.append(np.zeros(clients), clients), rcond=1e-12)
    if rank < clients or share.min() <= 1e-12:
        raise CoterieError("the network is not strongly connected: some client's messages never reach all others")
    return share
