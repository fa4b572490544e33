"""Directed networks whose links come and go, and what they do on average.

Terashita and Hara 2023 (P1): every ordered pair of clients has its own probability, and every link is drawn
anew in every step. A sender divides by the number of clients it reaches, so that the weights P it deals out are random;
their mean E[P] has a closed form, and so has w*, the mean share of the total that ends up with each client.
No JAX here.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from coterie import registry
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.spec import param, spec

__all__ = ["Expected", "RandomDirected", "TimeVarying", "expected_weights", "perron", "weights_of_links"]

MOST_NODES = 256  # of a quadrature that is exact with one node for two listeners, and to rounding beyond that


@spec
class RandomDirected:
    """Every ordered pair of clients has its own probability, drawn once; every link is drawn anew in every step.

    The pairs are those of `base`; a file gives other probabilities than uniform ones. Only methods that push run on it.
    """

    low: float = param(0.4, "the least probability of a link", above=0, at_most=1)
    high: float = param(0.8, "the largest probability of a link", above=0, at_most=1)
    base: str = param("complete", "the graph that says between whom there are links, by name")
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
        # A stream of its own: the base may have drawn from the seed, too.
        chance = np.random.default_rng([seed, 1]).uniform(self.low, self.high, base.present.shape)
        return dataclasses.replace(base, probability=chance)


@spec
class TimeVarying:
    """A network that changes as you say: step t has the links of matrix t, and after the last comes the first again."""

    path: str = param(help="a .npy or .npz file, [steps, clients, clients], non-zero where client i hears client j")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the network; the seed plays no part."""
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
    try:
        found = np.load(Path(path), allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            if len(found.files) != 1:
                raise CoterieError(f"path: {path} must hold one array, not {len(found.files)}")
            return found[found.files[0]]
    except OSError as error:
        raise CoterieError(f"path: {path} cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError, KeyError) as error:
        raise CoterieError(f"path: {path} is not a .npy or .npz file of numbers ({error})") from error


def _fits(graph: Graph, path: str, clients: int) -> Graph:
    if graph.clients != clients:
        raise CoterieError(f"{path} holds a network of {graph.clients} clients but there are {clients}")
    return graph


# -- what a network does on average ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Expected:
    """E[P]: what a client gets of what each neighbour holds, and of its own, in a mean step.

    Attributes:
        slots: `[K, D]`, the weight from each neighbour to the client.
        own: `[K]`, what the client keeps.
        graph: whose slots these are.
    """

    slots: np.ndarray
    own: np.ndarray
    graph: Graph

    def matrix(self) -> np.ndarray:
        """Return E[P] as `[K, K]`, from column to row; its columns sum to one."""
        return self.graph.to_sparse(self.slots[self.graph.present]).toarray() + np.diag(self.own)


def expected_weights(graph: Graph) -> Expected:
    """Return the mean of the weights with which senders split what they hold, exactly.

    Client j reaches S others beside i with a Poisson-binomial law, and deals out 1 / (2 + S) if it reaches i:
    E p_{j->i} = q_{j->i} E[1 / (2 + S)], E p_{j->j} = E[1 / (1 + S)]. Since 1 / (1 + s) is the
    integral of t^s over [0, 1], and E[t^S] the product of (1 - q + q t) over the others, both are integrals of
    polynomials, which Gauss quadrature gives exactly: no enumeration, O(listeners^2) a client.

    For a schedule it is the mean over its steps; for certain links 1 / (1 + listeners).
    """
    (listeners, listening), seat = graph.listeners, _seats(graph)
    if graph.schedule is not None:
        live = graph.schedule[:, listeners, seat] & listening
        sent, own = (part.mean(0) for part in weights_of_links(live))
    else:
        chance = np.where(listening, 1.0 if graph.probability is None else graph.probability[listeners, seat], 0.0)
        sent, own = _poisson_binomial(chance)
    return Expected(np.where(graph.present, sent[graph.neighbours, graph.back], 0.0), own, graph)


def weights_of_links(live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what senders deal out over the links `[..., K, L]` of a step: to each listener, and to themselves."""
    own = 1.0 / (1.0 + live.sum(-1))
    return live * own[..., None], own


def _poisson_binomial(chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return E[1 / (1 + listeners reached)] for each listener that is reached `[K, L]`, and for the sender `[K]`."""
    width = chance.shape[1]
    nodes, weights = np.polynomial.legendre.leggauss(min(width // 2 + 2, MOST_NODES))
    nodes, weights = (nodes + 1) / 2, weights / 2  # on [0, 1]
    sent, own = np.zeros(chance.shape), np.zeros(len(chance))
    for j, q in enumerate(chance):
        factors = 1 - q + q * nodes[:, None]  # [nodes, L], all above zero: nodes lie inside
        product = weights * factors.prod(1)
        own[j] = product.sum()
        sent[j] = q * ((product * nodes) @ (1 / factors))  # without the listener's own factor
    return sent, own


def _seats(graph: Graph) -> np.ndarray:
    """Return in which of its slots each listener hears a client: `[K, L]`, the inverse of `graph.back`."""
    seat = np.zeros(graph.listeners[0].shape, np.int64)
    rows, slots = np.nonzero(graph.present)
    seat[graph.neighbours[rows, slots], graph.back[rows, slots]] = slots
    return seat


def perron(matrix: np.ndarray) -> np.ndarray:
    """Return w*, the share of each client in the long run: matrix w* = w*, with entries that sum to K.

    `matrix [K, K]` has columns that sum to one. A client that the others cannot reach ends with nothing, and one that
    cannot reach them with everything: such a network is refused.
    """
    matrix = np.asarray(matrix, float)
    clients = len(matrix)
    if matrix.shape != (clients, clients) or np.any(matrix < 0) or np.abs(matrix.sum(0) - 1).max() > 1e-6:
        raise CoterieError("the matrix must be square and not negative, with columns that sum to one")
    system = np.vstack([matrix - np.eye(clients), np.ones((1, clients))])
    found, _, rank, _ = np.linalg.lstsq(system, np.append(np.zeros(clients), clients), rcond=1e-12)
    if rank < clients or found.min() <= 1e-12:
        raise CoterieError("the network is not strongly connected: some client's messages never reach all others")
    return found
