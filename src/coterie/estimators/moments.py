"""The sufficient statistics of every group: sums of products of design and response, for all groups at once.

`moments[a, b, i]` is the sum over the rows of group i of z_a z_b, where z is the design (the intercept first, if there
is one) followed by the response. The group is the last axis, so that every operation on all groups runs along memory.
A group's message is the part of it that a linear model needs: X'X and X'y, which are p(p+1)/2 + p numbers. If a
variance is estimated, also y'y and, without an intercept (X'X has it otherwise), the number of rows.

With an intercept a message holds the same information as the group's number of rows, its means, and sums of products
around them (`own_moments`), so that no digit is lost however far from zero a column is; `about` turns messages into
moments around one common centre. Weighted sums need two numbers more: the rows, and the sum of the weights' logarithms.
"""

import numpy as np

__all__ = [
    "about",
    "as_they_are",
    "group_moments",
    "merged",
    "message_size",
    "own_moments",
    "pack",
    "rescaled",
    "unpack",
]

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


def own_moments(
    features: np.ndarray, response: np.ndarray, group: np.ndarray, groups: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return moments with an intercept around each group's own means, which take the place of the intercept's row."""
    size = features.shape[1] + 2
    weight = np.bincount(group, weights, groups).astype(np.float64)
    count = np.where(weight > 0.0, weight, 1.0)
    means = np.empty((size - 1, groups))
    columns = [*features.T, response]
    for k, column in enumerate(columns):
        shift = column[0] if len(column) else 0.0  # a sum of small numbers
        total = np.bincount(group, column - shift if weights is None else (column - shift) * weights, groups)
        means[k] = shift + total / count
    centred = features - means[:-1].T[group]
    moments = np.zeros((size, size, groups))
    moments[1:, 1:] = group_moments(centred, response - means[-1][group], group, groups, False, weights)
    moments[0, 0] = weight
    moments[0, 1:] = moments[1:, 0] = means
    return moments


def about(own: np.ndarray, centre: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments around one centre [p] of features and response, by default the mean, and that centre."""
    weight, means = own[0, 0], own[0, 1:]
    if centre is None:
        shift = means[:, [0]]
        centre = shift[:, 0] + ((means - shift) @ weight) / weight.sum()
    apart = means - centre[:, None]
    moments = own.copy()
    moments[0, 1:] = moments[1:, 0] = weight * apart
    moments[1:, 1:] += weight * apart[:, None] * apart[None]
    return moments, centre


def merged(own: np.ndarray, parent: np.ndarray, parents: int) -> np.ndarray:
    """Return the moments around their own means of units that consist of others."""
    weight = np.bincount(parent, own[0, 0], parents)
    means = np.stack([np.bincount(parent, own[0, 0] * row, parents) for row in own[0, 1:]]) / np.maximum(weight, 1e-300)
    apart = own[0, 1:] - means[:, parent]
    answer = np.zeros((*own.shape[:2], parents))
    inside = own[1:, 1:] + own[0, 0] * apart[:, None] * apart[None]
    np.add.at(np.moveaxis(answer[1:, 1:], 2, 0), parent, np.moveaxis(inside, 2, 0))
    answer[0, 0] = weight
    answer[0, 1:] = answer[1:, 0] = means
    return answer


def as_they_are(own: np.ndarray) -> np.ndarray:
    """Return moments around zero from those around own means."""
    return about(own, np.zeros(len(own) - 1))[0]


def message_size(width: int, estimated: bool, intercept: bool, weighted: bool = False) -> int:
    """Return how many numbers a group sends; see the module's docstring."""
    more = int(estimated) + int(estimated and (weighted or not intercept)) + int(estimated and weighted)
    return width * (width + 1) // 2 + width + more


def pack(
    moments: np.ndarray, counts: np.ndarray, estimated: bool, intercept: bool, logarithms: np.ndarray | None = None
) -> np.ndarray:
    """Return the groups' messages [groups, numbers]; `logarithms` are sums of those of weights."""
    width = len(moments) - 1
    parts = [moments[:width, :width][np.triu_indices(width)], moments[:width, width]]
    if estimated:
        parts.append(moments[width, width][None])
        if logarithms is not None or not intercept:
            parts.append(counts[None].astype(np.float64))
        if logarithms is not None:
            parts.append(logarithms[None])
    return np.ascontiguousarray(np.concatenate(parts).T)


def unpack(
    messages: np.ndarray, width: int, estimated: bool, intercept: bool, weighted: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments and the groups' numbers of rows from their messages; numbers that were not sent are zero."""
    triangle = width * (width + 1) // 2
    moments = np.zeros((width + 1, width + 1, len(messages)))
    upper, lower = np.triu_indices(width)
    moments[upper, lower] = moments[lower, upper] = messages[:, :triangle].T
    moments[:width, width] = moments[width, :width] = messages[:, triangle : triangle + width].T
    counts = moments[0, 0].copy() if intercept else np.zeros(len(messages))
    if estimated:
        moments[width, width] = messages[:, triangle + width]
        if weighted or not intercept:
            counts = messages[:, triangle + width + 1]
    return moments, counts


def rescaled(moments: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the moments of columns divided by their scale [p]."""
    full = np.r_[scale, 1.0]
    return moments / full[:, None, None] / full[None, :, None]
