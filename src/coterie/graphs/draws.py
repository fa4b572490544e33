"""What random graphs are drawn with: pairs by probability, even bipartite joins, and draws until one is connected."""

from collections.abc import Callable

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph

__all__ = ["chosen", "connected", "evenly_joined"]

TRIES = 200  # draws of a random graph before it is refused as too sparse to be connected
SWEEPS = 20  # of trades, after which a bipartite graph no longer shows the pattern that it began with


def chosen(rng: np.random.Generator, pairs: int, probability: float) -> np.ndarray:
    """Choose each of 0..pairs-1 with a probability, at a cost proportional to how many are chosen, not to `pairs`."""
    blocks, last = [np.zeros(0, np.int64)], -1
    while last < pairs:
        gaps = rng.geometric(probability, size=int(pairs * probability) + 16)  # to the next one chosen
        blocks.append(last + np.cumsum(np.minimum(gaps, pairs + 1)))
        last = int(blocks[-1][-1])
    places = np.concatenate(blocks)
    return places[places < pairs]


def evenly_joined(rng: np.random.Generator, many: int, few: int, k: int) -> np.ndarray:
    """Join each of `many` to k of `few`, and each of these to equally many, or one more; returns `[many, k]`.

    From a regular pattern by random trades: in a sweep all are paired, and two shuffle between them what only one of
    them has ("global curveball", Carstens et al. 2018), which keeps everyone's number and tends to the uniform law.
    """
    joined = np.arange(many * k).reshape(many, k) % few
    for _ in range(SWEEPS if k < few else 0):
        one, two = rng.permutation(many)[: many // 2 * 2].reshape(2, -1)
        both = np.sort(np.concatenate([joined[one], joined[two]], axis=1), axis=1)
        again = np.zeros(both.shape, bool)
        again[:, 1:] = both[:, 1:] == both[:, :-1]
        order = rng.random(both.shape)
        order[again] = 2  # what both have stays with both: once in front, once at the end
        order[:, :-1][again[:, 1:]] = -1
        both = np.take_along_axis(both, np.argsort(order, axis=1), axis=1)
        joined[one], joined[two] = both[:, :k], both[:, k:]
    return joined


def connected(draw: Callable[[np.random.Generator], Graph], clients: int, seed: int, what: str, fix: str) -> Graph:
    """Draw graphs from one stream until one is connected."""
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        graph = draw(rng)
        if graph.connected:
            return graph
    raise CoterieError(f"{what} gave no connected graph of {clients} clients in {TRIES} tries; {fix}")
