"""The sufficient statistics of every group: sums of products of design and response, for all groups at once.

`moments[a, b, i]` is the sum over the rows of group i of z_a z_b, where z is the design (the intercept first, if there
is one) followed by the response. The group is the last axis, so that every operation on all groups runs along memory.
A group's message is the part of it that a linear model needs: X'X and X'y, which are p(p+1)/2 + p numbers. If a
variance is estimated, also y'y and, without an intercept (X'X has it otherwise), the number of rows.
"""

import numpy as np

__all__ = ["group_moments", "message_size", "pack", "rescaled", "unpack"]

_BLOCK = 16384  # rows at a time: their products stay in the processor's cache


def group_moments(
    features: np.ndarray,
    response: np.ndarray,
    group: np.ndarray,
    groups: int,
    intercept: bool,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Return the moments [p + 1, p + 1, groups]; with weights the sums are weighted. A group without rows has zeros."""
    width = features.shape[1]
    size = width + int(intercept) + 1
    counts = np.bincount(group, minlength=groups)
    ends = np.cumsum(counts)
    order = None if np.all(group[1:] >= group[:-1]) else np.argsort(group, kind="stable")
    moments = np.zeros((size, size, groups))
    present = np.flatnonzero(counts)
    start = 0
    while start < len(present):
        first = ends[present[start]] - counts[present[start]]
        stop = max(start + 1, int(np.searchsorted(ends[present], first + _BLOCK, side="right")))
        block, last = present[start:stop], ends[present[stop - 1]]
        chosen: slice | np.ndarray = slice(first, last) if order is None else order[first:last]
        z = np.empty((size, last - first))
        if intercept:
            z[0] = 1.0
        z[int(intercept) : -1] = features[chosen].T
        z[-1] = response[chosen]
        weighted = z if weights is None else z * weights[chosen]
        starts = ends[block] - counts[block] - first
        for a in range(size):
            moments[a, a:, block] = np.add.reduceat(weighted[a] * z[a:], starts, axis=1).T
        start = stop
    for a in range(size):
        moments[a + 1 :, a] = moments[a, a + 1 :]
    return moments


def message_size(width: int, estimated: bool, intercept: bool) -> int:
    """Return how many numbers a group sends; see the module's docstring."""
    return width * (width + 1) // 2 + width + (int(estimated) + int(estimated and not intercept))


def pack(moments: np.ndarray, counts: np.ndarray, estimated: bool, intercept: bool) -> np.ndarray:
    """Return the groups' messages [groups, numbers]."""
    width = len(moments) - 1
    parts = [moments[:width, :width][np.triu_indices(width)], moments[:width, width]]
    if estimated:
        parts.append(moments[width, width][None])
        if not intercept:
            parts.append(counts[None].astype(np.float64))
    return np.ascontiguousarray(np.concatenate(parts).T)


def unpack(messages: np.ndarray, width: int, estimated: bool, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return moments and the groups' numbers of rows from their messages; numbers that were not sent are zero."""
    triangle = width * (width + 1) // 2
    moments = np.zeros((width + 1, width + 1, len(messages)))
    upper, lower = np.triu_indices(width)
    moments[upper, lower] = moments[lower, upper] = messages[:, :triangle].T
    moments[:width, width] = moments[width, :width] = messages[:, triangle : triangle + width].T
    counts = moments[0, 0].copy() if intercept else np.zeros(len(messages))
    if estimated:
        moments[width, width] = messages[:, triangle + width]
        if not intercept:
            counts = messages[:, triangle + width + 1]
    return moments, counts


def rescaled(moments: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the moments of columns divided by their scale [p]."""
    full = np.r_[scale, 1.0]
    return moments / full[:, None, None] / full[None, :, None]
