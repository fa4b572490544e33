"""Connected components, by hand."""

import numpy as np

from coterie.numerics.components import connected_components, lowest_members


def test_components_by_hand():
    # 4 -> 1 -> 3 -> 4 is a cycle, 0 -> 5 is one way, 2 is alone.
    one, other = np.array([4, 1, 3, 0]), np.array([1, 3, 4, 5])
    both_ways = connected_components(one, other, 6)
    assert lowest_members(both_ways).tolist() == [0, 1, 2, 1, 1, 0]
    assert sorted(set(both_ways.tolist())) == [0, 1, 2]
    one_way = connected_components(one, other, 6, strong=True)
    assert lowest_members(one_way).tolist() == [0, 1, 2, 1, 1, 5]
    assert connected_components(one[:0], other[:0], 3).tolist() == [0, 1, 2]
