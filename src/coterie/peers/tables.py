"""From a graph to the tables that the verbs read: slots, and each client's slot in the tables of the others."""

from typing import Any

import numpy as np

from coterie.graphs.graph import Graph
from coterie.peers.base import Tables

__all__ = ["make_tables"]


def make_tables(graph: Graph, weights: np.ndarray, here: np.ndarray | None = None, dtype: type = np.float32) -> Tables:
    """Build the tables of the clients with ids `here` (default: all, in id order); O(edges), as NumPy arrays."""
    clients = graph.clients
    here = np.arange(clients) if here is None else np.asarray(here)
    listeners, listening = graph.listeners
    heard = _Seats(graph.neighbours, graph.present, clients)
    hearing = _Seats(listeners, listening, clients)
    rows = np.arange(clients)[:, None]
    order = np.full(clients, -1, np.int32)
    order[here] = np.arange(len(here), dtype=np.int32)
    chance, schedule = _links(graph)
    tables: dict[str, Any] = {
        "ids": here.astype(np.int32),
        "neighbours": graph.neighbours[here].astype(np.int32),
        "present": graph.present[here],
        "listeners": listeners[here].astype(np.int32),
        "listening": listening[here],
        "back": hearing.find(graph.neighbours, rows)[here],
        "twin": heard.find(graph.neighbours, rows)[here],
        "seat": heard.find(listeners, rows)[here],
        "weights": np.asarray(weights, dtype)[here],
        "strength": _strength(graph, dtype)[here],
        "order": order,
        "chance": np.asarray(chance, dtype)[here],
        "schedule": schedule[:, here],
    }
    return Tables(**tables)


def _strength(graph: Graph, dtype: type) -> np.ndarray:
    """Return the strength of the tie to each neighbour, `[K, D]`; 1 where the graph does not say."""
    strength = np.ones(graph.present.shape) if graph.strength is None else graph.strength
    return np.where(graph.present, strength, 0).astype(dtype)


def _links(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Turn the probabilities and schedules of links, kept by receiver, into tables by sender: `[K, L]`, `[T, K, L]`."""
    listeners, listening = graph.listeners
    seat = _Seats(graph.neighbours, graph.present, graph.clients).find(listeners, np.arange(graph.clients)[:, None])
    chance = np.ones(listening.shape) if graph.probability is None else graph.probability[listeners, seat]
    schedule = np.ones((0, *listening.shape), bool)
    if graph.schedule is not None:
        schedule = graph.schedule[:, listeners, seat] & listening
    return np.where(listening, chance, 0.0), schedule


class _Seats:
    """Answers "in which slot of `owner`'s table does `guest` sit?" for many pairs at once."""

    def __init__(self, table: np.ndarray, present: np.ndarray, clients: int):
        self._clients = clients
        owner, slot = np.nonzero(present)
        key = owner.astype(np.int64) * clients + table[owner, slot]
        by_key = np.argsort(key)
        self._keys, self._slots = key[by_key], slot[by_key]

    def find(self, owner: np.ndarray, guest: np.ndarray) -> np.ndarray:
        wanted = owner.astype(np.int64) * self._clients + guest
        place = np.searchsorted(self._keys, wanted)
        inside = np.minimum(place, max(len(self._keys) - 1, 0))
        if len(self._keys) == 0:
            return np.full(wanted.shape, -1, np.int32)
        return np.where(self._keys[inside] == wanted, self._slots[inside], -1).astype(np.int32)
