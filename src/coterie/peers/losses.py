"""What gets through in a simulation: everything, what a record says, or what faults leave.

An exchange of a simulation moves rows of arrays. Here is decided which of them count as arrived, by the same draws and
in the same order as a carrier would decide it.
"""

from typing import Any

import jax
import jax.numpy as jnp

from coterie.numerics.tree import column
from coterie.peers import ALL_TO_ALL
from coterie.peers.arithmetic import usable
from coterie.peers.base import Arrivals, Peers, Tables
from coterie.peers.coding import Coder
from coterie.peers.here import Tree
from coterie.peers.injection import FaultTables, injected, unusable
from coterie.peers.line import HUB

__all__ = ["Losses", "all_finite", "masked"]


class Losses(Peers):
    """All clients live here; says whose messages reach whom.

    Args:
        tables: who may talk to whom; `ids` may be any order of 0..K-1.
        arrivals: a recorded loss to repeat in this round, or faults; None delivers everything.
        coder: the codec at work; None sends everything as it is.
        hub: whether there is one. The numbers are the same without, the price is not.
        robust: how far received values may be away (`robust.py`); None: as far as they are.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
    """

    apart = False

    def __init__(
        self,
        tables: Tables,
        arrivals: Arrivals | FaultTables | None = None,
        coder: Coder | None = None,
        hub: bool = True,
        robust: float | None = None,
        all_to_all: int = ALL_TO_ALL,
    ):
        super().__init__(tables, tables.order.shape[0], coder, hub, injected(arrivals), robust, all_to_all)
        self._arrivals = arrivals if isinstance(arrivals, Arrivals) else None

    def _delivered(self, essential: bool = False) -> jax.Array:
        """Say what comes through the slots in the next exchange, if it was sent."""
        exchange, frames = self._next_exchange(), self._next_frames()
        if self._arrivals is not None:
            return self.present & self._arrivals.edges[exchange]
        if self._faults is None or essential:
            return self.present
        return self.present & ~unusable(self._faults, frames, self.neighbours, self.ids[:, None])

    def _asked(self, essential: bool) -> jax.Array:
        """Say which neighbours hear a question."""
        frames = self._next_frames()
        if self._faults is None or essential or self._arrivals is not None:  # what arrived is what was answered
            return self.present
        return self.present & ~unusable(self._faults, frames, self.ids[:, None], self.neighbours)

    def _at_hub(self, active: jax.Array, exchange: Any, essential: bool) -> jax.Array:
        """Say whose message reaches the hub, of those that send one: `[C]`. Without an `exchange` none gets lost."""
        frames = self._next_frames()
        if exchange is not None and self._arrivals is not None:
            return active & self._arrivals.up[exchange]
        if exchange is not None and self._faults is not None and not essential:
            return active & ~unusable(self._faults, frames, self.ids, jnp.full(1, HUB, jnp.uint32))
        return active

    def _from_there(self, sent: jax.Array, exchange: Any) -> jax.Array:
        """Say who gets the hub's message, of those to whom one is sent: `[C]`."""
        frames = self._next_frames()
        if exchange is not None and self._arrivals is not None:
            return sent & self._arrivals.down[exchange]
        if exchange is not None and self._faults is not None:
            arrived = sent & ~unusable(self._faults, frames, jnp.full(1, HUB, jnp.uint32), self.ids)
            self._watch(hub_lost=(sent & ~arrived)[self.tables.order])
            return arrived
        return sent

    def _from_partner(self, hears: jax.Array) -> jax.Array:
        """Say whom its partner's message reaches, by the partner's id or -1: `[C]`."""
        exchange, frames = self._next_exchange(), self._next_frames()
        if self._arrivals is not None:
            return (hears >= 0) & self._arrivals.pushed[exchange]
        if self._faults is not None:
            return (hears >= 0) & ~unusable(self._faults, frames, hears, self.ids)
        return hears >= 0

    def _next_frames(self) -> Any:
        """Return the number that a carrier would give to the next exchange of frames."""
        if self._faults is None:
            return None
        number, self._frames = self._frames, self._frames + 1
        return jnp.asarray(number, jnp.uint32)


def all_finite(x: Tree, shape: tuple[int, ...]) -> jax.Array:
    """Say for each entry of the leading axes `shape` whether all its numbers are finite, and none too large."""
    floats = [a for a in jax.tree.leaves(x) if jnp.issubdtype(a.dtype, jnp.floating)]
    each = [usable(a, tuple(range(len(shape), a.ndim))) for a in floats]
    return jnp.stack([jnp.ones(shape, bool), *each]).all(0)


def masked(arrived: jax.Array, x: Tree) -> Tree:
    """Return x with zeros where nothing arrived."""
    return jax.tree.map(lambda a: jnp.where(column(arrived, a), a, jnp.zeros_like(a)), x)
