"""Push-sum: averaging and learning over directed networks whose links come and go.

A client cannot know who hears it well enough to weigh what it receives, so the sender splits: it divides what it holds
by one more than the number of listeners it reaches in this step, sends each one part and keeps one. This is
z <- P z with columns of P that sum to one (P1, section 2.1): the total stays, but clients end with unequal shares of
it. A number that starts at one and travels the same way, the weight, measures the share, and z / w is the average.

What is not acknowledged stays with its sender, so that loss takes nothing from the total either.
Every function takes the verbs (`Peers`) and arrays `[C, ...]`; `network` makes the verbs for arrays of your own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie import tree
from coterie.graph import Graph
from coterie.peers.base import Peers
from coterie.peers.local import LocalPeers
from coterie.peers.tables import make_tables

__all__ = ["Mass", "network", "push_step", "ratio", "start"]

Tree = Any


class Mass(NamedTuple):
    """What push-sum moves: each client's part of a total, and its weight."""

    value: Tree  # [C, ...]
    weight: jax.Array  # [C]


def network(graph: Graph, dtype: Any = jnp.float32) -> LocalPeers:
    """Return the verbs for clients that all live here, in id order: what this module needs for arrays of your own."""
    tables = make_tables(graph, np.zeros(graph.neighbours.shape), dtype=np.dtype(dtype).type)
    return LocalPeers(jax.tree.map(jnp.asarray, tables))


def start(peers: Peers, value: Tree) -> Mass:
    """Begin with weight one for every client."""
    return Mass(value, jnp.ones(peers.ids.shape[0], peers.weights.dtype))


def push_step(peers: Peers, mass: Mass, to: jax.Array) -> tuple[Mass, jax.Array]:
    """Split what each client holds over itself and those it reaches: z <- P z, w <- P w, one message a live link.

    Args:
        peers: the verbs.
        mass: what each client holds.
        to: `[C, L]`, whom each client tries to reach in this step, as `peers.links` draws it.

    Returns:
        What each client holds afterwards, and `arrived [C, D]`.
    """
    to = to & peers.tables.listening
    parts = 1 + to.sum(1)
    share = jax.tree.map(lambda a: a / _column(parts, a), mass)
    received, arrived, acked = peers.push(share, to)
    kept = 1 + (to & ~acked).sum(1)
    # A product that is added to something: sealed, so that its last bit does not depend on where clients live.
    own = peers.seal(jax.tree.map(lambda a: _column(kept, a) * a, share))
    return tree.plus(own, received), arrived


def ratio(mass: Mass) -> Tree:
    """Return each client's estimate of the average, value / weight."""
    return jax.tree.map(lambda a: a / _column(mass.weight, a), mass.value)


def _column(values: jax.Array, like: jax.Array) -> jax.Array:
    """Reshape `[C]` so that it multiplies `like [C, ...]`, in its type."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim)).astype(like.dtype)
