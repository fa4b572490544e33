"""A graph computed from summaries of the clients' data, and the messages this took.

Any graph spec may have `build_from(federation, seed, *, task)` instead of `build(clients, seed)`: it returns a
`MeasuredGraph`, whose messages are charged to round 0 of the ledger and which is stored in the folder of the run, so
that a resumed run continues with the same graph. No JAX here.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from coterie.graphs.graph import Graph

__all__ = ["HubTraffic", "MeasuredGraph", "by_slot", "graph_of"]


def graph_of(edges: np.ndarray, clients: int, strength: np.ndarray | None = None) -> Graph:
    """Return the graph in which both ends of each edge hear each other; edges may be of unequal strength `[m]`."""
    graph = Graph.from_edges(edges.ravel(), edges[:, ::-1].ravel(), clients)
    if strength is None or np.all(strength == 1):
        return graph
    return dataclasses.replace(graph, strength=by_slot(graph, edges, strength))


def by_slot(graph: Graph, edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values of the edges `[m]` by slot, `[K, D]`, zero in unused slots."""
    import scipy.sparse

    ends = np.concatenate([edges, edges[:, ::-1]])
    shape = (graph.clients, graph.clients)
    number = scipy.sparse.coo_array((np.tile(np.arange(len(values)), 2), (ends[:, 0], ends[:, 1])), shape).tocsr()
    number.sort_indices()
    table = np.zeros(graph.present.shape)
    table[graph.present] = np.asarray(values)[number.data]
    return table


class HubTraffic(NamedTuple):
    """Messages and bytes to the hub and back before the first round, by client `[K]`."""

    up_messages: np.ndarray
    up_bytes: np.ndarray
    down_messages: np.ndarray
    down_bytes: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredGraph:
    """A network that was computed from summaries of the clients' data.

    Attributes:
        graph: who hears whom; both ends of an edge hear each other.
        edges: `[m, 2]` int32, each undirected edge once, i < j, sorted.
        weights: `[m]`, the weight of each edge (for methods that weight edges; mixing has its own weights).
        lengths: `[m]`, the distance between the two ends.
        sent: the messages and bytes it took.
    """

    graph: Graph
    edges: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray
    sent: HubTraffic

    def by_slot(self, values: np.ndarray) -> np.ndarray:
        """Return values of the edges `[m]` by slot, `[K, D]`, zero in unused slots."""
        return by_slot(self.graph, self.edges, values)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to store in a file."""
        plain = {"edges": self.edges, "weights": self.weights, "lengths": self.lengths}
        return plain | {"clients": np.array(self.graph.clients), **self.sent._asdict()}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "MeasuredGraph":
        """Build it from the arrays of a file."""
        sent = HubTraffic(**{name: arrays[name] for name in HubTraffic._fields})
        graph = graph_of(arrays["edges"], int(arrays["clients"]), arrays["weights"])
        return cls(graph, arrays["edges"], arrays["weights"], arrays["lengths"], sent)
