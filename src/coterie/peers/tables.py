"""From a graph to the tables that the verbs read: slots, and each client's slot in the tables of the others."""

from typing import Any

import numpy as np

from coterie.graphs.graph import Graph, slot_of
from coterie.peers.base import Tables

__all__ = ["make_tables", "widened"]

PLACES = ("listeners", "listening", "seat", "chance", "schedule")  # the tables over places for listeners


def make_tables(graph: Graph, weights: np.ndarray, here: np.ndarray | None = None, dtype: type = np.float32) -> Tables:
    """Build the tables of the clients with ids `here` (default: all, in id order); O(edges), as NumPy arrays."""
    clients = graph.clients
    here = np.arange(clients) if here is None else np.asarray(here)
    listeners, listening = graph.listeners
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
        "back": graph.back[here],
        "twin": slot_of(graph.neighbours, graph.present, graph.neighbours, rows)[here],
        "seat": graph.listener_slots[here],
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
    (listeners, listening), seat = graph.listeners, graph.listener_slots
    chance = np.ones(listening.shape) if graph.probability is None else graph.probability[listeners, seat]
    schedule = np.ones((0, *listening.shape), bool)
    if graph.schedule is not None:
        schedule = graph.schedule[:, listeners, seat] & listening
    return np.where(listening, chance, 0.0), schedule


def widened(tables: Tables, places: int) -> Tables:
    """Return tables with empty places for listeners: how many the most popular client has after a stage differs from
    run to run, and all of them shall use the same program."""
    more = places - tables.listeners.shape[1]
    if more <= 0:
        return tables
    own = np.broadcast_to(tables.ids[:, None], (len(tables.ids), more))
    empty = {name: np.zeros((*getattr(tables, name).shape[:-1], more), getattr(tables, name).dtype) for name in PLACES}
    empty["listeners"] = own.astype(tables.listeners.dtype)
    wider: dict[str, Any] = {k: np.concatenate([getattr(tables, k), new], axis=-1) for k, new in empty.items()}
    return tables._replace(**wider)
