"""How well labels agree with a truth, in exact counts.

scikit-learn computes the same; importing it takes longer than everything else before and after a short run.
"""

from typing import Any

import numpy as np

__all__ = ["adjusted_rand", "area_under_roc"]


def adjusted_rand(truth: Any, labels: Any) -> float:
    """Return the adjusted Rand index of two groupings (Hubert and Arabie 1985): 1 if equal, about 0 by chance.

    >>> adjusted_rand([0, 0, 1, 1], [5, 5, 2, 2])
    1.0
    """
    n = len(truth)
    rows, columns = (np.unique(np.asarray(each), return_inverse=True)[1].reshape(-1) for each in (truth, labels))
    table = np.zeros((rows.max(initial=0) + 1, columns.max(initial=0) + 1), np.int64)
    np.add.at(table, (rows, columns), 1)
    # Ordered pairs that are together in both, in the first, in the second; of Python's integers, which cannot overflow.
    both, first, second = (int((counts**2).sum()) - n for counts in (table, table.sum(1), table.sum(0)))
    apart = n * (n - 1) - first - second + both
    if first == second == both:
        return 1.0
    only_first, only_second = first - both, second - both
    chance = first * (only_first + apart) + second * (only_second + apart)
    return 2.0 * (both * apart - only_first * only_second) / chance


def area_under_roc(positive: Any, scores: Any) -> float:
    """Return the share of pairs of a positive and a negative in which the positive scores higher; ties count half.

    >>> area_under_roc([True, False, False], [0.5, 0.5, 0.1])
    0.75
    """
    positive = np.asarray(positive, bool)
    _, level, size = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    twice_rank = (2 * np.cumsum(size) - size + 1)[level.reshape(-1)]  # of a tie, its middle
    high, low = int(positive.sum()), int((~positive).sum())
    return (int(twice_rank[positive].sum()) - high * (high + 1)) / (2 * high * low)
