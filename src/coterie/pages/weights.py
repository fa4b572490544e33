"""Cooperation weights as heat maps, with clients in an order that makes groups visible."""

import base64
import itertools
from typing import Any

import numpy as np

from coterie.experiment.result import Result
from coterie.pages.words import clip, count_text

__all__ = ["client_axis", "client_order", "evenly", "group_weights", "weight_maps"]

ROUNDS = 12  # heat maps for each method, at most
CLIENTS = 200  # clients drawn one by one; more are grouped
GROUPS = 100
CELLS = 1_000_000  # of all heat maps together: 2.7 MB in the file
OWN_SHARE = 0.1  # labels with a smaller share of a client's samples do not influence the order


def evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the positions 0, ..., count - 1, evenly spaced, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(int))


def client_order(clients: dict[str, Any], found: np.ndarray | None = None) -> np.ndarray:
    """Return the order of the clients: by group (known, or else found), then by their main labels, then by number."""
    total = len(clients["names"])
    keys: list[np.ndarray] = []  # the most important first
    if clients.get("groups") is not None:
        keys.append(np.asarray(clients["groups"]))
    elif found is not None:
        keys.append(found)
    counts = np.asarray(clients.get("label_counts") or [], float)
    if counts.ndim == 2 and counts.shape[1]:
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        keys += list(-(share >= OWN_SHARE).astype(int).T)
        keys += [share.argmax(1), -share.max(1)]
    return np.lexsort(keys[::-1]) if keys else np.arange(total)


def group_weights(graph: dict[str, np.ndarray], member: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight an average client of group a gives to all *other* clients of group b, and that to itself.

    It sums over slots, in O(edges), without a table of all pairs.
    """
    neighbours = graph["neighbours"]
    me = np.arange(len(neighbours))[:, None]
    weights = np.where(graph["present"].astype(bool) & (neighbours != me), graph["weights"], 0.0)
    cells = member[:, None] * groups + member[neighbours]
    size = np.maximum(np.bincount(member, minlength=groups), 1)
    table = np.bincount(cells.ravel(), weights.ravel(), groups * groups).reshape(groups, groups) / size[:, None]
    own = np.bincount(member, 1 - weights.sum(1), groups) / size
    return table, own


def weight_maps(
    results: dict[str, Result], clients: dict[str, Any], found: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Return the heat maps of each method that has a cooperation graph; `found` are the groups these weights form."""
    with_graph = {name: result for name, result in results.items() if result.graphs}
    if not with_graph:
        return []
    axis = client_axis(clients, found)
    cells = len(axis["labels"]) ** 2 * len(with_graph)
    most = max(1, min(ROUNDS, CELLS // cells))
    return [_maps(name, result, axis, most) for name, result in with_graph.items()]


def client_axis(clients: dict[str, Any], found: np.ndarray | None = None) -> dict[str, Any]:
    """Return what the rows and columns are: clients in order, or groups of them."""
    names, order = clients["names"], client_order(clients, found)
    total = len(names)
    known = found if clients.get("groups") is None else np.asarray(clients["groups"])
    group = "the groups that were found" if clients.get("groups") is None else "group"
    ordered_by = f"{group}, then by label" if known is not None else "their labels"
    if not clients.get("label_counts") or not len(clients["label_counts"][0]):
        ordered_by = group if known is not None else "number"
    if total <= CLIENTS:
        borders = [] if known is None else (np.flatnonzero(known[order][1:] != known[order][:-1]) + 0.5).tolist()
        return {
            "labels": [clip(str(names[i])) for i in order],
            "member": np.argsort(order),
            "single": True,
            "borders": borders,
            "note": f"Clients are ordered by {ordered_by}.",
        }
    if known is not None and 1 < len(groups := np.unique(known)) <= GROUPS:
        member = np.searchsorted(groups, known)
        sizes, how = np.bincount(member), "by their group"
        labels = [f"group {name} ({count_text(int(size))})" for name, size in zip(groups, sizes, strict=True)]
    else:
        member = np.empty(total, int)
        member[order] = np.arange(total) * GROUPS // total
        first = np.searchsorted(np.arange(total) * GROUPS // total, np.arange(GROUPS + 1))
        labels = [f"clients {a + 1} to {b} in this order" for a, b in itertools.pairwise(first)]
        how = f"into {GROUPS} groups of neighbours in the order of {ordered_by}"
    note = (
        f"The {count_text(total)} clients are grouped {how}; a cell is the weight that an average client of the row "
        "gives to all other clients of the column together."
    )
    return {"labels": labels, "member": member, "single": False, "borders": [], "note": note}


def _maps(name: str, result: Result, axis: dict[str, Any], most: int) -> dict[str, Any]:
    numbers = sorted(result.graphs)
    numbers = [numbers[i] for i in evenly(len(numbers), most)]
    tables = [group_weights(result.graphs[number], axis["member"], len(axis["labels"])) for number in numbers]
    fixed = len(result.graphs) > 1 and all(np.array_equal(tables[0][0], table) for table, _ in tables)
    if fixed:
        tables, numbers = tables[-1:], numbers[-1:]
    low = min(float(table.min(initial=0.0)) for table, _ in tables)
    high = max(float(table.max(initial=0.0)) for table, _ in tables)
    high = high if high > low else low + 1.0
    return {
        "method": name,
        "seed": result.config["run"]["seed"],
        "rounds": numbers,
        "fixed": fixed,
        "low": low,
        "high": high,
        "tables": [_packed(table, low, high) for table, _ in tables],
        "own": [own for _, own in tables],
        **{key: axis[key] for key in ("labels", "single", "borders", "note")},
    }


def _packed(table: np.ndarray, low: float, high: float) -> str:
    """Pack weights row by row as 16-bit steps between the lowest and the highest: a third of their size as text."""
    steps = ((table - low) / (high - low) * 65535).round().astype("<u2")
    return base64.b64encode(steps.tobytes()).decode()
