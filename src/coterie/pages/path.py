"""Clusters along the path: one cluster of all clients splits while lam shrinks, drawn as lines that separate.

A line is a client. Clients with the same personal part are drawn side by side as one ribbon, others with a gap; lines
are ordered by the splits, so they cross only where clients change their cluster.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.experiment.cluster_path import has_path
from coterie.experiment.result import Result
from coterie.numerics.agreement import adjusted_rand
from coterie.pages.html import Html, figure, h, join
from coterie.pages.weights import evenly
from coterie.pages.words import clip, count_text

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["cluster_paths", "places", "section"]

CLIENTS = 200  # lines drawn, at most
COLORS = 7  # in the palette; with more groups they repeat
TIGHT = 0.22  # gap between two lines of one ribbon, relative to the gap between single clients


def cluster_paths(results: dict[str, Result], clients: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is drawn for each method whose run has a path."""
    return [_drawn(name, result, clients) for name, result in results.items() if has_path(result)]


def places(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order in which clients are drawn `[K]`, and where each one's line is at each lam `[T, K]`.

    Args:
        labels: `[T, K]` clusters along the path, the largest lam first.
    """
    order = np.lexsort(labels[::-1])  # by the first clusters, then by those that they split into
    slot = np.argsort(order).astype(float)
    position = np.empty(labels.shape)
    for t, row in enumerate(labels):
        _, member, size = np.unique(row, return_inverse=True, return_counts=True)
        centre = (np.bincount(member, slot) / size)[member]
        # Members of a ribbon are drawn side by side even if they are not neighbours in this order.
        rank = np.empty(len(row))
        for cluster in range(len(size)):
            inside = np.flatnonzero(member == cluster)
            rank[inside[np.argsort(slot[inside])]] = np.arange(len(inside))
        position[t] = centre + TIGHT * (rank - (size[member] - 1) / 2)
    return order, position


def _drawn(name: str, result: Result, clients: dict[str, Any]) -> dict[str, Any]:
    path = result.path()
    labels = np.stack(path["labels"])
    order, place = places(labels)
    shown = order[evenly(len(order), CLIENTS)]
    kept = int(np.flatnonzero(path["kept"])[0])
    groups = clients.get("groups")
    color, legend, by = _colors(labels, kept, groups)
    sizes = np.stack([np.bincount(row, minlength=len(row))[row] for row in labels])
    drawing: dict[str, Any] = {
        "method": name,
        "seed": result.config["run"]["seed"],
        "lam": path["lam"].tolist(),
        "rounds": path["round"].tolist(),
        "clusters": path["clusters"].tolist(),
        "validation": path["validation_score"].tolist(),
        "test": path["test_score"].tolist(),
        "kept": kept,
        "total": len(order),
        "names": [clip(str(clients["names"][i])) for i in shown],
        "groups": None if groups is None else [str(groups[i]) for i in shown],
        "color": [color[i] for i in shown],
        "legend": legend,
        "place": place[:, shown],
        "together": sizes[:, shown],
        "validated": bool(np.isfinite(path["validation_score"]).all()),
        "reading": _reading(path, labels, groups),
    }
    notes = []
    if by is not None:
        notes.append(f"Colours are the clusters with lam = {path['lam'][by]:.3g}; single clients are grey.")
    if len(shown) < len(order):
        notes.append(f"{len(shown)} of {count_text(len(order))} clients are drawn, evenly spaced in this order.")
    if path["clusters"][0] > 1:
        notes.append("The path begins with more than one cluster: a larger method.lam would show how these join.")
    return drawing | {"note": " ".join(notes)}


def _colors(labels: np.ndarray, kept: int, groups: Any) -> tuple[list[int], list[str], int | None]:
    """Colour clients by their known group, or by the clusters of the most informative step of the path.

    Returns the colour of each client (-1: none), the legend, and the step if it is one of the path's.
    """
    if groups is not None:
        known, member = np.unique(np.asarray(groups), return_inverse=True)
        return (member % COLORS).tolist(), [f"group {name}" for name in known] if len(known) <= COLORS else [], None
    shared = np.array([(np.unique(row, return_counts=True)[1] > 1).sum() for row in labels])
    usable = np.flatnonzero((shared > 1) & (shared <= COLORS))
    step = int(usable[np.abs(usable - kept).argmin()]) if len(usable) else kept  # the nearest to the kept one
    _, member, size = np.unique(labels[step], return_inverse=True, return_counts=True)
    number = np.where(size > 1, (np.cumsum(size > 1) - 1) % COLORS, -1)
    return number[member].tolist(), [], step


def _reading(path: Any, labels: np.ndarray, groups: Any) -> str:
    """Return a sentence about the kept models and, where groups are known, whether the path finds them."""
    (at,) = np.flatnonzero(path["kept"])
    _, sizes = np.unique(labels[at], return_counts=True)
    alone = int((sizes == 1).sum())
    why = "is best on validation data" if len(path) > 1 else "is the only value of the path"
    if not np.isfinite(path["validation_score"]).all():
        why = "was kept"
    if len(sizes) == 1:
        split = "all clients have the same personal part"
    elif alone == len(sizes):
        split = "every client has a personal part of its own"
    else:
        split = f"{count_text(len(sizes))} clusters, the largest of {count_text(int(sizes.max()))} clients"
        split += f", {count_text(alone)} with a single client" if alone else ""
    return f"lam = {path['lam'][at]:.3g} {why}: {split}." + _against(path, labels, groups)


def _against(path: Any, labels: np.ndarray, groups: Any) -> str:
    if groups is None or len(set(groups)) < 2:
        return ""
    index = np.array([adjusted_rand(groups, row) for row in labels])
    exact = np.flatnonzero(index == 1)
    best = int(index.argmax())
    count = f"the {count_text(len(set(groups)))} known groups"
    if len(exact) == 0:
        return f" Nearest to {count} is lam = {path['lam'][best]:.3g} (adjusted Rand index {index[best]:.2f})."
    where = f"With lam = {path['lam'][best]:.3g}"
    if len(exact) > 1:
        where = f"From lam = {path['lam'][exact[0]]:.3g} to {path['lam'][exact[-1]]:.3g}"
        if len(exact) != exact[-1] - exact[0] + 1:
            where = f"With {len(exact)} of {len(path)} values of lam"
    return f" {where} the clusters are exactly {count}."


def section(comparison: "Comparison", data: dict[str, Any]) -> Html:
    """Return the section with the plot; empty if no run has a path."""
    if not data["paths"]:
        return join()
    words = (
        "From left to right the tie between neighbours gets weaker. A line is a client. Clients with exactly the same "
        "personal part form a ribbon, which splits where they no longer have it. The dashed line marks the models that "
        "the run has kept."
    )
    return join(
        h("p", words),
        h("div", h("div", id="choose-path", class_="chips", role="group", aria_label="Method"), class_="controls"),
        h("p", class_="reading", id="path-reading", aria_live="polite"),
        figure("path-plot", "Clusters along the path of lam"),
        h("p", class_="note", id="path-note"),
    )
