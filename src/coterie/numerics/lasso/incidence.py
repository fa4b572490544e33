"""The edges of an undirected graph as a linear map, for objectives that compare neighbours.

D maps one row per client to one row per edge, z_i - z_j, and its transpose sums the edges of every client. Both cost
O(edges) and are deterministic. (The papers have clients as columns and write Z Q and X Q^T.)
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.errors import CoterieError
from coterie.numerics.components import connected_components, lowest_members

__all__ = ["Incidence", "clusters", "components", "differences", "prepare", "sums"]

Array = Any

SLOTS = 16  # edges per row of the table; a client with more edges has several rows


class Incidence(NamedTuple):
    """A weighted undirected graph with the tables of D and D^T; a pytree of arrays, so that programs can take it.

    A program that builds one with room for m edges fills unused places by edges of weight 0 from a client to itself.
    """

    edges: Array  # [m, 2] int32, the lower client first
    weight: Array  # [m], above 0 except in unused places
    degree: Array  # [N]
    table: Array  # [R, slots] int32, edges of one client
    sign: Array  # [R, slots], 1 where the client is the lower end, -1 where it is the higher one, 0 for no edge
    owner: Array  # [R] int32, the client of each row of the table


def prepare(edges: Any, weights: Any = None, clients: int | None = None) -> Incidence:
    """Check a graph and build its tables.

    Args:
        edges: `[m, 2]` client ids, each undirected edge once; the ends in any order.
        weights: `[m]`, at least 0; 1 each by default. Edges of weight 0 are left out.
        clients: N; by default the highest id + 1. The graph need not be connected.
    """
    ends = np.asarray(edges)
    if ends.size == 0:
        ends = np.zeros((0, 2), np.int32)
    if ends.ndim != 2 or ends.shape[1] != 2 or not np.issubdtype(ends.dtype, np.integer):
        raise CoterieError(f"edges must be integers [m, 2], two client ids per edge, not {ends.dtype} {ends.shape}")
    clients = int(ends.max(initial=-1)) + 1 if clients is None else int(clients)
    weight = np.ones(len(ends)) if weights is None else np.asarray(weights, float)
    if clients < 1:
        raise CoterieError("clients must be at least 1; a graph without edges does not tell their number, so give it")
    if len(ends) and (ends.min() < 0 or ends.max() >= clients):
        raise CoterieError(f"edges must name clients 0..{clients - 1}, not {ends.min()}..{ends.max()}")
    if weight.shape != (len(ends),):
        raise CoterieError(f"weights must have one number per edge, [{len(ends)}], not {list(weight.shape)}")
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise CoterieError("weights must be finite and at least 0")
    if (ends[:, 0] == ends[:, 1]).any():
        raise CoterieError(f"edges join client {ends[ends[:, 0] == ends[:, 1]][0, 0]} to itself; leave that edge out")
    ends = np.sort(ends, axis=1).astype(np.int32)
    keys, counts = np.unique(ends[:, 0].astype(np.int64) * clients + ends[:, 1], return_counts=True)
    if (counts > 1).any():
        i, j = divmod(int(keys[counts > 1][0]), clients)
        raise CoterieError(f"edges join clients {i} and {j} more than once; add the weights up and give the edge once")
    ends, weight = ends[weight > 0], weight[weight > 0]
    return Incidence(ends, weight, np.bincount(ends.ravel(), minlength=clients), *_table(ends, clients))


def _table(ends: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List every client's edges in rows of at most `SLOTS`: summing these is faster than scattering the edges."""
    degree = np.bincount(ends.ravel(), minlength=clients)
    width = max(min(SLOTS, int(degree.max())), 1)
    rows = -(-degree // width)  # per client
    order = np.argsort(ends.T.ravel(), kind="stable")
    client, edge = ends.T.ravel()[order], np.tile(np.arange(len(ends)), 2)[order]
    place = np.arange(len(order)) - np.repeat(np.cumsum(degree) - degree, degree)
    at = (np.cumsum(rows) - rows)[client] + place // width, place % width
    table, sign = np.zeros((int(rows.sum()), width), np.int32), np.zeros((int(rows.sum()), width))
    table[at], sign[at] = edge, np.repeat([1.0, -1.0], len(ends))[order]
    return table, sign, np.repeat(np.arange(clients, dtype=np.int32), rows)


def differences(graph: Incidence, Z: Array) -> Array:
    """Return z_i - z_j for every edge, D Z: `[N, d]` -> `[m, d]`."""
    return Z[graph.edges[:, 0]] - Z[graph.edges[:, 1]]


def sums(graph: Incidence, X: Array) -> Array:
    """Return the sum of every client's edges, negative where it is the higher end, D^T X: `[m, d]` -> `[N, d]`."""
    table, sign = jnp.asarray(graph.table), jnp.asarray(graph.sign, X.dtype)

    def add(k: Array, total: Array) -> Array:
        return total + sign[:, k, None] * X[table[:, k]]

    nothing = jnp.zeros((graph.degree.shape[0], X.shape[1]), X.dtype)
    if X.shape[0] == 0:
        return nothing
    parts = lax.fori_loop(0, table.shape[1], add, jnp.zeros((table.shape[0], X.shape[1]), X.dtype))
    return nothing.at[graph.owner].add(parts)


def clusters(graph: Incidence, closed: Array) -> Array:
    """Return `[N]` int32: the lowest client to which edges with `closed [m]` connect each client."""
    i, j = graph.edges[:, 0], graph.edges[:, 1]
    everyone = jnp.arange(graph.degree.shape[0], dtype=jnp.int32)

    def spread(carry: tuple) -> tuple:
        labels, _ = carry
        lower = jnp.where(closed, jnp.minimum(labels[i], labels[j]), len(everyone))
        new = labels.at[i].min(lower).at[j].min(lower)
        new = new[new]  # a label is a client: take over that client's new label
        return new, jnp.any(new != labels)

    return lax.while_loop(lambda carry: carry[1], spread, (everyone, jnp.ones((), bool)))[0]


def components(graph: Incidence) -> np.ndarray:
    """Return `[N]`: the lowest client of each client's connected component, on the host."""
    edges = np.asarray(graph.edges)
    return lowest_members(connected_components(edges[:, 0], edges[:, 1], len(graph.degree))).astype(np.int32)
