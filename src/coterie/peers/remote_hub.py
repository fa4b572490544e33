"""What clients in several processes send to a hub and get from it, to everybody where there is none, and to partners.

See `remote.py`, which has the exchanges with neighbours.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.learning.buckets import without_same
from coterie.numerics.tree import column
from coterie.peers import ALL_TO_ALL
from coterie.peers.arithmetic import message_bytes
from coterie.peers.base import Peers, Tables, Tree
from coterie.peers.coding import Coder
from coterie.peers.exchange import Vectors, Ways, exchange_values
from coterie.peers.injection import FaultTables
from coterie.peers.line import COPY, ESSENTIAL, HUB, ORDINARY, Address, Line
from coterie.peers.pushed import Step
from coterie.peers.turns import one_by_one

__all__ = ["RemoteHub"]


class RemoteHub(Peers):
    """The exchanges that are not with neighbours.

    Args:
        tables: the tables of the clients living here, an argument of the program (a constant would be folded by the
            compiler, which rounds otherwise than the program does).
        line: this process's end of the network.
        coder: the codec at work; None sends everything as it is.
        hub: whether there is one; if not, every process computes what a hub would.
        faults: of this round, for what the clients here send; what gets lost, the carrier decides.
        robust: how far received values may be away (`robust.py`); None: as far as they are.
        all_to_all: clients up to which, without a hub, everybody sends to everybody.
    """

    apart = True

    def __init__(
        self,
        tables: Tables,
        line: Line,
        coder: Coder | None = None,
        hub: bool = True,
        faults: FaultTables | None = None,
        robust: float | None = None,
        all_to_all: int = ALL_TO_ALL,
    ):
        super().__init__(tables, tables.order.shape[0], coder, hub, faults, robust, all_to_all)
        self._line = line

    def _each(self, fn: Callable, *stacked: Tree) -> Tree:
        """See `Here._each`: one after another."""
        fn, stacked = without_same(fn, stacked)
        return one_by_one(fn, stacked, self._zero)

    def _measured(self, fn: Callable, *stacked: Tree) -> Tree:
        """See `Here._measured`: where one client has a loop (`one_by_one`), the terms are added in another order."""
        return lax.map(lambda each: fn(*each), stacked)

    def _vectors(self, whole: jax.Array, site: str | None) -> Vectors:
        """Say how vectors are encoded: mirrored at a site of the round, or not."""
        assert self._coder is not None
        return Vectors(self._coder.codec, whole, site, None if site is None else self._coder.memory[site].held)

    def _to_hub(
        self,
        x: Tree,
        active: jax.Array,
        certain: bool,
        size: Any,
        whole: jax.Array | None = None,
        site: str | None = None,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array, Any, Any]:
        """See `Messages._to_hub`."""
        kind = ESSENTIAL if certain or site is not None else ORDINARY

        def receivers() -> Sequence[int]:
            return [HUB] if self._has_hub else range(self.clients)

        def send(active: np.ndarray) -> Iterable[Address]:
            for c in np.flatnonzero(active):
                for receiver in receivers():
                    yield kind, (int(self._line.tables.ids[c]), receiver), (int(c),)

        def ways() -> Ways:
            ids = self._line.tables.ids.tolist()
            here = ids if not self._has_hub else [HUB] if self._line.carrier.hub else []
            pairs = [(i, j) for i in ids for j in receivers()]
            return Ways(pairs, [((i,), (i, j)) for i in range(self.clients) for j in here])

        vectors = None if whole is None else self._vectors(whole, site)
        values, arrived, *came_whole = exchange_values(
            self._line, x, active, send, ways, (self.clients,), None if certain else "up", vectors=vectors
        )
        if site is not None and came_whole:
            self._charge_forced("up", came_whole[1], jax.tree.leaves(x)[-1], whole)
        if not self._has_hub:
            heard = arrived.astype(jnp.uint32)
            bytes_each = heard * jnp.asarray(self._sizes(values, size, came_whole), jnp.uint32)
            self._charge_everyone(active, size, heard.sum() - heard[self.ids], bytes_each.sum() - bytes_each[self.ids])
        return values, arrived, None if certain else 0, came_whole[0] if came_whole else None

    def _charge_forced(self, link: str, forced: jax.Array, vector: jax.Array, whole: Any) -> None:
        """Add what vectors weigh more that went whole because their receivers had no copy: `[C]` or `[C, S]`."""
        assert self._coder is not None
        more = self.each(self._coder.bytes, vector, jnp.ones_like(whole)) - self.each(self._coder.bytes, vector, whole)
        self._charge(link, jnp.zeros_like(forced), 0, forced * column(more, forced).astype(jnp.uint32))

    def _sizes(self, values: Tree, size: Any, came_whole: Sequence[jax.Array]) -> Any:
        """Return the bytes of the messages that came, one number or `[K]`; `size` where nothing was encoded."""
        if not came_whole:
            return size
        assert self._coder is not None
        *rest, vector = jax.tree.leaves(values)
        return message_bytes(rest) + self.each(self._coder.bytes, vector, came_whole[0])

    def _from_hub(
        self,
        rows: Tree,
        which: jax.Array,
        took_part: jax.Array,
        exchange: Any,
        copies: bool = True,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array]:
        """See `Messages._from_hub`; without a hub, what it says is known here."""
        if not self._has_hub:
            arrived = jnp.ones(self.ids.shape, bool) if copies else took_part[self.ids]
            return jax.tree.map(
                lambda a: jnp.where(column(arrived, a), a[which[self.ids]], jnp.zeros((), a.dtype)), rows
            ), arrived
        rows = jax.tree.map(lambda a: a[which], rows)
        kind = ESSENTIAL if exchange is None else ORDINARY

        def send(took_part: np.ndarray) -> Iterable[Address]:
            for i in range(self.clients) if self._line.carrier.hub else ():
                if took_part[i] or copies:
                    yield kind if took_part[i] else COPY, (HUB, i), (i,)

        def ways() -> Ways:
            everyone = range(self.clients) if self._line.carrier.hub else ()
            return Ways(
                [(HUB, i) for i in everyone], [((c,), (HUB, int(i))) for c, i in enumerate(self._line.tables.ids)]
            )

        note = None if exchange is None else "down"
        return exchange_values(self._line, rows, took_part, send, ways, self.ids.shape, note)[:2]

    def _from_hub_to_all(self, x: Tree) -> Tree:
        """See `Messages._from_hub_to_all`."""
        if not self._has_hub:
            return x
        everyone = jnp.ones(self.clients, bool)
        rows, _ = self._from_hub(jax.tree.map(lambda a: a[None], x), jnp.zeros_like(everyone, int), everyone, None)
        return jax.tree.map(lambda a: a[0], rows)

    def _pass_on(self, x: Tree, step: Step) -> tuple[Tree, jax.Array, jax.Array]:
        """See `Messages._pass_on`."""

        def send(active: np.ndarray) -> Iterable[Address]:
            for c, i in enumerate(self._line.tables.ids.tolist()):
                if active[c]:
                    yield ORDINARY, (i, int(step.sends[i])), (c,)

        def ways() -> Ways:
            ids = self._line.tables.ids.tolist()
            return Ways(
                [(i, int(step.sends[i])) for i in ids if step.sends[i] >= 0],
                [((c,), (int(step.hears[i]), i)) for c, i in enumerate(ids) if step.hears[i] >= 0],
            )

        active = jnp.asarray(step.sends >= 0)[self.ids]
        values, arrived = exchange_values(self._line, x, active, send, ways, self.ids.shape, "pushed")
        return values, arrived, arrived
