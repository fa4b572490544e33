"""The named graphs: each is a spec whose `build(clients, seed)` returns the same `Graph` for the same seed.

All but `Edges` are undirected; directed networks are in `directed.py`. A directed graph of your own comes from a file
(`Edges`) or from Python (`Graph.from_networkx`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.data.formats import read_npy
from coterie.data.unpack import first_line
from coterie.errors import CoterieError
from coterie.graphs.draws import chosen, connected, evenly_joined
from coterie.graphs.graph import Graph
from coterie.spec import param, spec

__all__ = [
    "Bipartite",
    "Complete",
    "Edges",
    "ErdosRenyi",
    "Exponential",
    "GroupRing",
    "KRegular",
    "MethodDefault",
    "Ring",
    "Star",
    "Torus",
]


@spec
class MethodDefault:
    """The method's `default_graph`."""

    k: int | None = param(
        None, "nearest neighbours, where the method's own graph is similarity (network-lasso, component)", at_least=1
    )

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build what most methods have as default; a run takes its method's own."""
        return Exponential().build(clients, seed)


@spec
class Complete:
    """Everyone hears everyone."""

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        return Graph.complete(clients)


@spec
class Ring:
    """Each client hears its nearest neighbours on a ring."""

    reach: int = param(1, "how far to each side a client hears", at_least=1)

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        return _around("ring", clients, self.reach)


@spec
class GroupRing:
    """A ring of overlapping groups: each client hears the `reach` nearest on each side (the paper does not give it)."""

    reach: int = param(5, "how far to each side a client hears", at_least=1)

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        return _around("group-ring", clients, self.reach)


@spec
class Bipartite:
    """Two sides that hear only each other; the default is the "generalised bipartite" graph of Li et al. (2024, C.2).

    Sides are drawn at random, and each client is joined to `neighbours` random clients of the other side. The paper
    does not say whether being chosen counts; here it does, so that with equal sides everyone has exactly that many.
    With unequal sides those of the larger one have, and the smaller one's share the edges evenly. With `probability`
    each pair across is joined with it instead; sides are then the first ids and the others, as in version 0.1. Drawn
    again until the graph is connected.
    """

    first_side: float = param(0.5, "share of the clients that form the first side", above=0, below=1)
    sides: Literal["random", "in-order"] | None = param(
        None, "who is on the first side: drawn, or the first ids; none: random without probability, in-order with it"
    )
    neighbours: int = param(10, "clients of the other side that a client hears; 0: all of them", at_least=0)
    probability: float | None = param(
        None, "in place of neighbours: that two clients of different sides hear each other", above=0, at_most=1
    )

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph for these clients from this seed."""
        _at_least("bipartite", clients, 2)
        first = min(max(round(self.first_side * clients), 1), clients - 1)
        in_order = self.sides == "in-order" or (self.sides is None and self.probability is not None)
        few = min(first, clients - first)
        k = few if self.neighbours == 0 else min(self.neighbours, few)

        def draw(rng: np.random.Generator) -> Graph:
            ids = np.arange(clients) if in_order else rng.permutation(clients)
            one, two = ids[:first], ids[first:]
            if self.probability is not None:
                place, other = np.divmod(chosen(rng, len(one) * len(two), self.probability), len(two))
                return _undirected(one[place], two[other], clients)
            large, small = (one, two) if len(one) > len(two) else (two, one)
            return _undirected(np.repeat(large, k), small[evenly_joined(rng, len(large), few, k).ravel()], clients)

        rule = ("neighbours", k) if self.probability is None else ("probability", self.probability)
        return connected(draw, clients, seed, f"bipartite with {rule[0]} {rule[1]:g}", f"raise {rule[0]}")


@spec
class ErdosRenyi:
    """Each pair of clients is joined with a given probability, independently (Erdos and Renyi 1959, Gilbert 1959)."""

    probability: float = param(0.3, "probability that two clients hear each other", above=0, at_most=1)
    connected: bool = param(True, "draw again until the graph is connected")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph for these clients from this seed."""

        def draw(rng: np.random.Generator) -> Graph:
            pair = chosen(rng, clients * (clients - 1) // 2, self.probability)
            # Pair number i (i - 1) / 2 + j is (i, j) with j < i; the root may be off by one for large numbers.
            i = np.floor((1 + np.sqrt(1 + 8 * pair.astype(float))) / 2).astype(np.int64)
            i += (i * (i + 1) // 2 <= pair).astype(np.int64) - (i * (i - 1) // 2 > pair)
            return _undirected(i, pair - i * (i - 1) // 2, clients)

        if not self.connected:
            return draw(np.random.default_rng(seed))
        enough = np.log(clients) / clients
        fix = f"raise it (about {enough:.2g} is needed for {clients} clients) or set connected = false"
        return connected(draw, clients, seed, f"erdos-renyi with probability {self.probability:g}", fix)


@spec
class KRegular:
    """A random connected graph in which every client has k neighbours."""

    k: int = param(4, "neighbours of each client", at_least=2)

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph for these clients from this seed."""
        import networkx

        k = self.k
        if k >= clients:
            raise CoterieError(f"k must be less than the number of clients, {clients}, not {k}")
        if k * clients % 2:
            raise CoterieError(f"k = {k} and {clients} clients cannot be: one of the two must be even")

        def draw(rng: np.random.Generator) -> Graph:
            if k == 2:  # a random ring; NetworkX would nearly always return several smaller ones
                order = rng.permutation(clients)
                return _undirected(order, np.roll(order, 1), clients)
            return Graph.from_networkx(networkx.random_regular_graph(k, clients, seed=int(rng.integers(2**31))))

        return connected(draw, clients, seed, f"k-regular with k = {k}", "raise k")


@spec
class Torus:
    """A grid whose opposite borders are joined: each client hears four neighbours."""

    rows: int = param(0, "rows of the grid; 0 makes it as square as the number of clients allows", at_least=0)

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        _at_least("torus", clients, 4)
        divisors = [r for r in range(2, clients // 2 + 1) if clients % r == 0]
        if not divisors:
            raise CoterieError(f"torus: {clients} clients form no grid, since {clients} is prime; add or leave out one")
        if self.rows and self.rows not in divisors:
            choices = ", ".join(map(str, divisors))
            raise CoterieError(f"rows must divide the {clients} clients into a grid ({choices}), not {self.rows}")
        rows = self.rows or max(r for r in divisors if r * r <= clients)
        columns = clients // rows
        grid = np.arange(clients).reshape(rows, columns)
        adjacent = [np.roll(grid, 1, axis).ravel() for axis in (0, 1)]
        return _undirected(np.tile(grid.ravel(), 2), np.concatenate(adjacent), clients)


@spec
class Star:
    """Everyone hears the first client, and it hears everyone."""

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        _at_least("star", clients, 2)
        others = np.arange(1, clients)
        return _undirected(np.zeros_like(others), others, clients)


@spec
class Exponential:
    """The static exponential graph, undirected: neighbours at distances 1, 2, 4, 8, ... (Ying et al. 2021)."""

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        _at_least("exponential", clients, 2)
        return _circulant(clients, [2**m for m in range((clients - 1).bit_length())])


@spec
class Edges:
    """Any graph of yours, from a file.

    `.graphml`: as NetworkX reads it. `.npy`: a square matrix, non-zero at [i, j] where client i hears client j.
    Any other: one edge per line, `u v`, separated by blanks or commas. Ids count from 0; names are sorted, and the
    first is client 0.
    """

    path: str = param(help="the file: an edge list, .graphml, or an adjacency matrix as .npy")
    directed: bool = param(False, "edge lists only: `u v` means that u sends to v, not both ways")

    def build(self, clients: int, seed: int = 0) -> Graph:
        """Build the graph; the seed is not used."""
        graph = self._read(clients)
        if graph.clients != clients:
            raise CoterieError(f"{self.path} holds a graph of {graph.clients} clients but there are {clients}")
        return graph

    def _read(self, clients: int) -> Graph:
        import networkx

        file = Path(self.path)
        try:
            if file.suffix == ".npy":
                return Graph.from_adjacency(read_npy(file))
            if file.suffix == ".graphml":
                graph = networkx.read_graphml(file)
            else:
                graph = networkx.DiGraph() if self.directed else networkx.Graph()
                graph.add_edges_from(_edge_list(file))
        except OSError as error:
            raise CoterieError(f"path: {self.path} cannot be read ({error.strerror or error})") from error
        except CoterieError as error:
            raise CoterieError(f"path: {error}") from None
        except Exception as error:  # damaged bytes make the parsers raise almost anything
            raise CoterieError(f"path: {self.path} is not a graph that can be read ({first_line(error)})") from error
        return Graph.from_networkx(_with_silent_clients(graph, clients))


def _edge_list(file: Path) -> list[list[str]]:
    """Read `u v` lines; a third column (a weight) and comments after # are ignored."""
    edges = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if len(words) == 1:
            raise ValueError(f"line {number} names one client, not two")
        if words:
            edges.append(words[:2])
    return edges


def _with_silent_clients(graph: Any, clients: int) -> Any:
    """Add the ids that an edge list does not mention, if all names in it are ids."""
    ids = set(range(clients))
    known = {int(node) if node.isdecimal() and len(node) < 10 else -1 for node in graph.nodes}
    if known <= ids:
        graph.add_nodes_from(str(i) for i in ids - known)
    return graph


def _at_least(name: str, clients: int, needed: int) -> None:
    if clients < needed:
        raise CoterieError(f"{name} needs at least {needed} clients, not {clients}")


def _undirected(u: np.ndarray, v: np.ndarray, clients: int) -> Graph:
    return Graph.from_edges(np.concatenate([u, v]), np.concatenate([v, u]), clients)


def _circulant(clients: int, distances: Iterable[int]) -> Graph:
    """Join each client with those at the given distances around a ring."""
    ids, offsets = np.arange(clients), np.array(list(distances))
    return _undirected(np.repeat(ids, len(offsets)), (ids[:, None] + offsets).ravel() % clients, clients)


def _around(name: str, clients: int, reach: int) -> Graph:
    _at_least(name, clients, 2)
    if reach > clients // 2:
        raise CoterieError(
            f"reach must be at most {clients // 2} on a ring of {clients} clients (all hear all), not {reach}"
        )
    return _circulant(clients, range(1, reach + 1))
