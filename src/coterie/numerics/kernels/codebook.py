"""K-means in one dimension, compiled by Numba; called by `numerics/codebook.py`. Importing it needs Numba."""

from typing import Any

import numpy as np
from numba import float64, int64, njit, types, void

__all__ = ["cluster"]


@njit(cache=True, nogil=True, error_model="numpy")
def _sums(points: Any, masses: Any) -> Any:
    """Return the sums over the first 0, 1, ..., m points of w, w x and w x^2, as columns of a table `[m + 1, 5]`.

    The latter two have a second column each, for the rounding error of the first: costs are small differences of large
    sums where some points lie far out. x is measured from the mean, which keeps the sums small.
    """
    table = np.zeros((points.size + 1, 5))
    middle = points[0] + np.sum(masses * (points - points[0])) / np.sum(masses)
    for i in range(points.size):
        x = points[i] - middle
        table[i + 1, 0] = table[i, 0] + masses[i]
        for column, term in ((1, masses[i] * x), (3, masses[i] * x * x)):
            total = table[i, column] + term
            gained = total - table[i, column]
            lost = (table[i, column] - (total - gained)) + (term - gained)
            table[i + 1, column], table[i + 1, column + 1] = total, table[i, column + 1] + lost
    return table


@njit(cache=True, nogil=True, error_model="numpy")
def _cost(table: Any, i: int, j: int) -> float:
    """Return sum w (x - mean)^2 over the points i, ..., j: the cost of one centre for them."""
    mass = table[j + 1, 0] - table[i, 0]
    first = (table[j + 1, 1] - table[i, 1]) + (table[j + 1, 2] - table[i, 2])
    second = (table[j + 1, 3] - table[i, 3]) + (table[j + 1, 4] - table[i, 4])
    return max(second - first * first / mass, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def _best_start(table: Any, before: Any, low: int, high: int, j: int) -> Any:
    """Return the best start of the last cluster of the points 0, ..., j, within low, ..., high, and the total cost."""
    start, least = low, np.inf
    for i in range(low, high + 1):
        cost = before[i - 1] + _cost(table, i, j)
        if cost < least:
            start, least = i, cost
    return start, least


@njit(cache=True, nogil=True, error_model="numpy")
def _partition(points: Any, masses: Any, k: int) -> Any:
    """Return where each of the k best clusters begins, for m distinct points in ascending order; 1 <= k <= m.

    Dynamic programming (Bellman 1973; Wang and Song 2011): the best c clusters of the points 0, ..., j are a last one
    and the best c - 1 clusters of the points before it. The best start of the last one does not decrease with j. So the
    middle j is solved first, then the middles of the two halves, within the bounds this gives, and so on: k m log m
    steps in all, in place of k m^2.
    """
    m = points.size
    table = _sums(points, masses)
    starts = np.zeros((k, m), np.int32)  # starts[c, j]: of the last of c + 1 clusters of the points 0, ..., j
    costs = np.array([_cost(table, 0, j) for j in range(m)])
    for c in range(1, k):
        before, costs = costs, np.zeros(m)
        best = starts[c]
        if c == k - 1:  # only the clusters of all points are needed
            best[m - 1], _ = _best_start(table, before, c, m - 1, m - 1)
            break
        step = 1
        while step < m:
            step *= 2
        while step >= 1:
            for j in range(step - 1, m, 2 * step):
                if j >= c:
                    low = max(c, best[j - step]) if j >= step else c
                    high = min(j, best[j + step]) if j + step < m else j
                    best[j], costs[j] = _best_start(table, before, low, high, j)
            step //= 2
    begins = np.empty(k, np.int64)
    j = m - 1
    for c in range(k - 1, -1, -1):
        begins[c] = starts[c, j]
        j = begins[c] - 1
    return begins


# Compiled (or read from the cache) at import: nothing is left to compile inside a program.
GIVEN = types.Array(float64, 2, "C", readonly=True), types.Array(float64, 1, "C", readonly=True)


@njit(void(*GIVEN, float64[:, ::1], int64[:, ::1]), cache=True, nogil=True, error_model="numpy")
def cluster(values: Any, weights: Any, centres: Any, labels: Any) -> None:
    """Find the best clusters of every row: write their centres, in ascending order, and the cluster of each value.

    Args:
        values: `[N, d]`, d >= 1.
        weights: `[d]`, positive; empty: all are 1.
        centres: `[N, k]`, k >= 1, to be filled; with fewer distinct values, each is a centre, and the rest is NaN. A
            row that is not finite has NaN as its only centre.
        labels: `[N, d]`, to be filled.
    """
    begin = np.empty(values.shape[1] + 1, np.int64)
    for row in range(values.shape[0]):
        x = values[row]
        centres[row] = np.nan
        labels[row] = 0
        if not np.isfinite(x).all():
            continue
        # Runs of equal values, which the fused operator makes: everything below is over runs, not elements.
        runs = 0
        for i in range(x.size):
            if i == 0 or x[i] != x[i - 1]:
                begin[runs] = i
                runs += 1
        begin[runs] = x.size
        # Distinct values in ascending order, and the weight of each.
        points, masses, place = np.empty(runs), np.zeros(runs), np.empty(runs, np.int64)
        m = 0
        for run in np.argsort(x[begin[:runs]], kind="mergesort"):
            start, end = begin[run], begin[run + 1]
            if m == 0 or x[start] != points[m - 1]:
                points[m] = x[start]
                m += 1
            place[run] = m - 1
            masses[m - 1] += end - start if weights.size == 0 else np.sum(weights[start:end])
        points, masses = points[:m], masses[:m]
        begins = _partition(points, masses, centres.shape[1]) if centres.shape[1] < m else np.arange(m)
        member = np.empty(m, np.int64)
        for c in range(begins.size):
            i, j = begins[c], begins[c + 1] if c + 1 < begins.size else m
            member[i:j] = c
            # Measured from the first value, so that the centre of a cluster with one value is exactly that value.
            centres[row, c] = points[i] + np.sum(masses[i:j] * (points[i:j] - points[i])) / np.sum(masses[i:j])
        for run in range(runs):
            labels[row, begin[run] : begin[run + 1]] = member[place[run]]
