"""What a block of rounds returns to the loop."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from coterie.peers.base import Traffic

__all__ = ["Rounds", "joined"]


class Rounds(NamedTuple):
    """What a block of rounds returns, on the host: `loss [R, K]`, the traffic `[R, K, ...]`, the last weights, and
    the method's own counts so far."""

    loss: np.ndarray
    traffic: Traffic
    weights: np.ndarray | None
    counts: dict[str, np.ndarray] | None = None


def joined(blocks: Sequence[Rounds]) -> Rounds:
    """Return several blocks of rounds as one."""
    if len(blocks) == 1:
        return blocks[0]
    loss, traffic = jax.tree.map(lambda *parts: np.concatenate(parts), *((b.loss, b.traffic) for b in blocks))
    return blocks[-1]._replace(loss=loss, traffic=traffic)
