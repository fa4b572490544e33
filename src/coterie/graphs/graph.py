"""Who may talk to whom: a table of slots, so that every operation on a graph costs O(edges), never O(clients^2).

A client's neighbours are in slots in id order. `topologies.py` builds the named graphs, `mixing.py` gives them weights.
No JAX here: tables are NumPy arrays, built once before anything is compiled.
"""

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.links import checked_probability, checked_schedule, square_matrices
from coterie.numerics.components import connected_components

__all__ = ["Graph", "require_connected", "slot_of"]

LARGEST_TABLE = 2**30  # entries: 5 GiB; a star of 100,000 clients would need ten times as much


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph as a table: row i lists whom client i hears.

    Attributes:
        neighbours: `[K, D]` int32, in id order; an unused slot holds i itself.
        present: `[K, D]` bool, false for an unused slot.
        probability: `[K, D]` in (0, 1]: the chance that a message arrives from each slot, drawn anew in every step;
            None where links are certain. Methods that push (`sgp`, `pdbo-mtl`) run on such networks.
        schedule: `[T, K, D]` bool, the links of steps t, t + T, ...: a network that changes as the user says.
        strength: `[K, D]` above 0: how strongly two clients are tied, for methods that tie (`network-lasso`); None ties
            all equally. Mixing has its own weights.
    """

    neighbours: np.ndarray
    present: np.ndarray
    probability: np.ndarray | None = None
    schedule: np.ndarray | None = None
    strength: np.ndarray | None = None

    def __post_init__(self) -> None:
        neighbours, present = np.asarray(self.neighbours, np.int32).view(), np.asarray(self.present, bool).view()
        if neighbours.ndim != 2 or neighbours.shape != present.shape or len(neighbours) == 0:
            raise CoterieError(
                f"neighbours {neighbours.shape} and present {present.shape} must both be [clients, slots]"
            )
        own = np.arange(len(neighbours), dtype=np.int32)[:, None]
        if neighbours.size and (neighbours.min() < 0 or neighbours.max() >= len(neighbours)):
            raise CoterieError(f"neighbours must be client ids, 0..{len(neighbours) - 1}")
        if np.any((neighbours == own) == present):
            raise CoterieError(
                "neighbours must hold another client where present is true and the client's own id elsewhere"
            )
        rows, slots = np.nonzero(present)
        if np.any(np.diff(rows * len(neighbours) + neighbours[rows, slots]) <= 0):
            raise CoterieError("neighbours must be in id order, each at most once")
        neighbours.flags.writeable = present.flags.writeable = False  # cached properties rely on them
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "present", present)
        if self.probability is not None and self.schedule is not None:
            raise CoterieError("a graph has links with a probability or links with a schedule, not both")
        if self.probability is not None:
            object.__setattr__(self, "probability", checked_probability(self.probability, neighbours, present))
        if self.schedule is not None:
            object.__setattr__(self, "schedule", checked_schedule(self.schedule, neighbours, present))
        if self.strength is not None:
            strength = np.asarray(self.strength, float)
            if strength.shape != present.shape or not np.all((strength > 0) & np.isfinite(strength) | ~present):
                raise CoterieError(f"strength must be above 0 and finite for each neighbour, {list(present.shape)}")
            object.__setattr__(self, "strength", strength)

    @classmethod
    def from_edges(cls, receivers: Any, senders: Any, clients: int) -> "Graph":
        """Build the graph in which `receivers[e]` hears `senders[e]`; repeated edges count once, self loops never."""
        receivers, senders = np.asarray(receivers, np.int64), np.asarray(senders, np.int64)
        ends = np.concatenate([receivers, senders])
        if ends.size and (ends.min() < 0 or ends.max() >= clients):
            raise CoterieError(f"an edge names a client that does not exist; ids are 0..{clients - 1}")
        _refuse_huge(clients, 0)
        other = receivers != senders
        keys = np.sort(receivers[other] * clients + senders[other])
        rows, columns = np.divmod(keys[np.diff(keys, prepend=-1) > 0], clients)  # np.unique hashes: ten times slower
        return cls(*_table(rows, columns, clients))

    @classmethod
    def from_adjacency(cls, matrix: Any) -> "Graph":
        """Build from a square matrix, dense or sparse: a non-zero entry `[i, j]` lets client i hear client j."""
        import scipy.sparse

        try:
            sparse = scipy.sparse.coo_array(matrix)
            if sparse.dtype.kind not in "biufc":  # older versions of SciPy take words
                raise ValueError(f"not of {sparse.dtype}")
        except (TypeError, ValueError) as error:
            raise CoterieError(f"the adjacency matrix must be a square matrix of numbers ({error})") from error
        if sparse.ndim != 2 or sparse.shape[0] != sparse.shape[1]:
            raise CoterieError(f"the adjacency matrix must be square, not {' x '.join(map(str, sparse.shape))}")
        if np.issubdtype(sparse.dtype, np.inexact) and not np.isfinite(sparse.data).all():
            raise CoterieError("the adjacency matrix contains NaN or infinity; use 0 where there is no edge")
        rows, columns = sparse.nonzero()
        return cls.from_edges(rows, columns, sparse.shape[0])

    @classmethod
    def from_probabilities(cls, matrix: Any) -> "Graph":
        """Build a random directed network: `matrix[i, j]` is the probability that client i hears client j in a step."""
        chance = square_matrices(matrix, 2, "probabilities")
        graph = cls.from_adjacency(chance)
        return dataclasses.replace(graph, probability=np.take_along_axis(chance, graph.neighbours, 1))

    @classmethod
    def from_schedule(cls, matrices: Any) -> "Graph":
        """Build a network that changes: client i hears client j in steps t, t + T, ... where `matrices[t, i, j]`."""
        live = square_matrices(matrices, 3, "the matrices of a schedule") != 0
        graph = cls.from_adjacency(live.any(0))
        return dataclasses.replace(graph, schedule=np.take_along_axis(live, graph.neighbours[None], 2))

    @classmethod
    def from_networkx(cls, graph: Any) -> "Graph":
        """Build from a NetworkX graph, its nodes in sorted order (as integers where all are); u -> v: v hears u."""
        nodes = _in_order(list(graph.nodes))
        ids = {node: i for i, node in enumerate(nodes)}
        sender, receiver = (np.array([ids[edge[end]] for edge in graph.edges()], np.int64) for end in (0, 1))
        if not graph.is_directed():
            sender, receiver = np.concatenate([sender, receiver]), np.concatenate([receiver, sender])
        return cls.from_edges(receiver, sender, len(nodes))

    @classmethod
    def complete(cls, clients: int) -> "Graph":
        """Build the graph in which everyone hears everyone: its table is `[K, K - 1]`."""
        _refuse_huge(clients, clients - 1)
        others = np.arange(clients - 1, dtype=np.int32)
        table = others + (others >= np.arange(clients, dtype=np.int32)[:, None])
        return cls(table, np.ones(table.shape, bool))

    @classmethod
    def empty(cls, clients: int) -> "Graph":
        """Build the graph without edges, which has no slots: for methods with a hub."""
        return cls.from_edges([], [], clients)

    def keep(self, kept: np.ndarray) -> tuple["Graph", np.ndarray]:
        """Drop the slots where `kept [K, D]` is false; return the smaller graph and the old slot of each of its
        slots."""
        if not self.certain:
            raise CoterieError("a network with random or scheduled links keeps all of them; use one with certain links")
        kept = np.asarray(kept) & self.present
        graph = Graph.from_edges(np.nonzero(kept)[0], self.neighbours[kept], self.clients)
        order = np.argsort(~kept, axis=1, kind="stable")  # kept slots first, still in id order
        return graph, order[:, : graph.neighbours.shape[1]]

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return len(self.neighbours)

    @property
    def certain(self) -> bool:
        """Whether every link works in every step."""
        return self.probability is None and self.schedule is None

    @cached_property
    def degree(self) -> np.ndarray:
        """How many neighbours each client hears: `[K]`."""
        return self.present.sum(1)

    def edges(self) -> int:
        """Count the directed edges: the messages of a round in which every client sends to all its listeners."""
        return int(self.present.sum())

    @cached_property
    def listeners(self) -> tuple[np.ndarray, np.ndarray]:
        """The clients that hear each client, in id order: `[K, L]` int32, and `[K, L]` bool, whether a slot is used."""
        transpose = self.to_adjacency().T.tocsr()  # linear in the edges, unlike a sort
        rows = np.repeat(np.arange(self.clients), np.diff(transpose.indptr))
        return _table(rows, transpose.indices, self.clients)

    @cached_property
    def back(self) -> np.ndarray:
        """`back[i, k]`: the slot of i in the listener table of its neighbour `neighbours[i, k]` (-1 if unused)."""
        return slot_of(*self.listeners, self.neighbours, np.arange(self.clients)[:, None])

    @cached_property
    def listener_slots(self) -> np.ndarray:
        """`listener_slots[i, l]`: the slot in which the listener `listeners[i, l]` hears i (-1 if unused)."""
        return slot_of(self.neighbours, self.present, self.listeners[0], np.arange(self.clients)[:, None])

    @cached_property
    def symmetric(self) -> bool:
        """Whether every client is heard by exactly those it hears."""
        adjacency = self.to_adjacency()
        return (adjacency != adjacency.T).nnz == 0

    @cached_property
    def components(self) -> int:
        """The number of (strongly) connected components."""
        rows, slots = np.nonzero(self.present)
        return int(connected_components(rows, self.neighbours[rows, slots], self.clients, strong=True).max()) + 1

    @property
    def connected(self) -> bool:
        """Whether every client's messages reach every other client, over however many rounds."""
        return self.components == 1

    def to_adjacency(self) -> Any:
        """Return a SciPy sparse matrix that is true at `[i, j]` where client i hears client j."""
        return self.to_sparse(np.ones(self.edges(), bool))

    def to_networkx(self, weights: np.ndarray | None = None) -> Any:
        """Return a NetworkX DiGraph: an edge from j to i where i hears j, with `weight` if slot weights are given."""
        import networkx

        rows, slots = np.nonzero(self.present)
        senders, receivers = self.neighbours[rows, slots].tolist(), rows.tolist()
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(self.clients))
        if weights is None:
            graph.add_edges_from(zip(senders, receivers, strict=True))
        else:
            values = np.asarray(weights)[rows, slots].tolist()
            graph.add_weighted_edges_from(zip(senders, receivers, values, strict=True))
        return graph

    def to_sparse(self, values: np.ndarray) -> Any:
        """Return a SciPy sparse matrix `[K, K]` with one value per edge, the edges in the order of the table."""
        import scipy.sparse

        starts = np.concatenate([[0], np.cumsum(self.degree)])
        return scipy.sparse.csr_array(
            (values, self.neighbours[self.present], starts), shape=(self.clients, self.clients)
        )


def slot_of(table: np.ndarray, present: np.ndarray, owner: np.ndarray, guest: np.ndarray) -> np.ndarray:
    """Return in which slot of `owner`'s row of a table `guest` is, for arrays of both; -1 where it is in none."""
    clients = len(table)
    rows, slots = np.nonzero(present)
    keys = rows * clients + table[rows, slots]  # sorted, since rows list ids in order
    wanted = owner * np.int64(clients) + guest
    if len(keys) == 0:
        return np.full(wanted.shape, -1, np.int32)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, slots[place], -1).astype(np.int32)


def _table(rows: np.ndarray, columns: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Turn edges sorted by row, then column, into a table padded with the row's own id, and its mask."""
    count = np.bincount(rows, minlength=clients)
    width = int(count.max())
    _refuse_huge(clients, width)
    table = np.repeat(np.arange(clients, dtype=np.int32)[:, None], width, axis=1)
    present = np.zeros((clients, width), bool)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)  # from 0 in each row
    table[rows, positions], present[rows, positions] = columns, True
    return table, present


def _refuse_huge(clients: int, width: int) -> None:
    if clients < 1:
        raise CoterieError("a graph needs at least one client")
    if clients * width > LARGEST_TABLE:
        raise CoterieError(
            f"a table of {clients:,} clients with up to {width:,} neighbours would not fit in memory; "
            "choose a graph with fewer neighbours per client, or a method with a hub"
        )


def _in_order(nodes: list) -> list:
    """Sort the nodes of a NetworkX graph; "10" comes after "9", since GraphML gives every node as text."""
    try:
        return sorted(nodes, key=int if all(isinstance(node, str) for node in nodes) else None)
    except (TypeError, ValueError):
        return sorted(nodes, key=str)


def require_connected(graph: Graph, method: str) -> None:
    """Refuse a graph that is not connected, for a method that needs a connected one."""
    if graph.connected:
        return
    if graph.edges() == 0:
        raise CoterieError(
            f"{method} needs a connected graph, but this one has no edges; choose one, such as graph = ring"
        )
    strongly = "" if graph.symmetric else "strongly "
    silent = np.flatnonzero(~graph.listeners[1].any(1))
    example = "" if strongly == "" or silent.size == 0 else f" (client {silent[0]} is never heard)"
    raise CoterieError(
        f"{method} needs a {strongly}connected graph, but this one falls into {graph.components} components{example}; "
        "join them with more edges, or choose another graph, such as ring"
    )
